// CUDA's execution model on the host: every thread of a kernel is a fiber, and one of them runs at a time. Who runs next, and
// when a copy, a store or a message arrives, is drawn anew for every seed, so that an order that the text does not enforce is
// not kept. What goes wrong is a finding, with the place in the code, the block, the thread and the step at which it happened.
#include <algorithm>
#include <csetjmp>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <ucontext.h>

#define MINRNN_IS_BFLOAT16 false
#include "cuda_on_host.h"
#include "memory.h"

#define CALLER (__builtin_return_address(0))

MinrnnIndex threadIdx, blockIdx, blockDim, gridDim;
// The reference of cuda_on_host.h, as it lies in memory.
extern "C++" { unsigned char* minrnn_shared_bytes_at asm("minrnn_shared_bytes"); }
extern "C" const minrnn_host::Entry minrnn_entries[];

namespace minrnn_host {
constexpr std::size_t STACK_BYTES = 1 << 18;
constexpr int POISON = 0xff;                // NaN, whatever the type
constexpr int FINDINGS_MOST = 16;
constexpr unsigned CLUSTERS_RESIDENT_MOST = 4, FIBERS_RESIDENT_MOST = 4096;     // of those that need not wait for each other
// Mostly one of the last that others woke: what a core's caches hold. In every other launch, anyone.
constexpr unsigned NEAR = 64, FAR_ONE_IN = 8;
constexpr unsigned EVENTS_AT_ONCE_MOST = 128;   // accesses of one fiber, at most, before others may run
// Who loads a unit so often while nothing changes loops until it changes: what is there for good is loaded once, or by each turn
// of a loop that writes something.
constexpr unsigned ASKS_IN_VAIN = 16;

struct Fiber;
struct Block;
struct Cluster;
struct Waiting { std::vector<Fiber*> fibers; };
struct Barrier : Waiting { int arrived = 0, turn = 0; bool any[2] = {}; };
// What a fiber did at a tick, at a place in the code.
struct Deed { uint32_t number = 0, tick = 0; uint64_t at = 0; };
struct Mail : Waiting {
    Deed opened, sent_before;               // by nobody: 0
    bool is_open() const { return opened.number; }
    int arrivals_left = 1;
    long long bytes = 0;
    int turn = 0;
    std::shared_ptr<Ticks> telling;         // of the turn that is being filled, by whom it was told
    std::vector<Clock> heard;               // and those that are in it
    Clock told;                             // of the last turn that is full
};
struct Warp {
    std::vector<Fiber*> lanes;              // those that the block has
    int number = 0;
    Clock clock;                            // what all its lanes know
    const char* operation = nullptr;        // the one that lanes wait in, and where
    const void* operation_at = nullptr;
    int arrived = 0, ended = 0;
    void* given[LANES] = {};
};
struct Block {
    unsigned number;
    unsigned rank;
    int fibers_left;
    Cluster* cluster;
    std::vector<unsigned char> memory;
    unsigned char* shared;
    std::unique_ptr<Region> region;
    std::vector<Warp> warps;
    Barrier barrier;
    const char* barrier_kind = nullptr;
    std::map<void*, Mail> mail;
};
struct Copy { unsigned char* to; const unsigned char* from; int bytes; bool has_arrived; uint32_t at; };
// The units of memory that a fiber loaded since anything changed: how many, and how often that one which came first, second,
// fourth, eighth ..., so that in a loop over whatever many it is one of the loop's at last.
struct Asked {
    unsigned since = 0, units = 0, again = 0;   // `since`: the change
    const void *unit = nullptr, *at = nullptr;
    bool is_in_vain = false;
};
struct Fiber {
    jmp_buf here;
    bool has_begun = false;
    unsigned char* stack;
    unsigned thread, place;                 // in the block, in the cluster
    uint32_t number;                        // in the grid, from 1 on
    uint32_t tick = 1;
    Clock heard;                            // what it knows beside its warp
    Block* block;
    Warp* warp;
    std::vector<std::vector<Copy>> groups = std::vector<std::vector<Copy>>(1);    // the last one is open
    const char* waits_for = nullptr;        // while it waits
    const void* waits_at = nullptr;
    Asked asked;
};
struct Cluster {
    unsigned first_block;
    int fibers_left;
    std::vector<std::unique_ptr<Block>> blocks;
    std::vector<std::unique_ptr<Fiber>> fibers;
    Barrier barrier;
};
struct Store { unsigned char* to; unsigned char unit[16]; int bytes; Fiber* by; };
// What a fiber did and knows at a tick.
struct Told { Clock by_warp, heard; std::size_t place; uint32_t tick; };
struct Message { Block* block; unsigned char* to; void* mailbox; unsigned char value[8]; int bytes; Fiber* by; uint64_t at; Told told; };
struct Finding { char kind[32]; char text[400]; uint64_t at, other_at; uint32_t block, thread, step; };

static jmp_buf scheduler;
static Fiber* current;
static std::vector<Fiber*> runnable;
static std::vector<Message> messages;
static std::vector<Store> stores;
static std::vector<std::unique_ptr<Cluster>> clusters;
static std::vector<unsigned char*> free_stacks;
static std::vector<std::unique_ptr<Region>> arrays;
static Region* last_array;
static std::vector<Finding> findings;
static unsigned block_threads, blocks_of_cluster, steps, changes, events_left;     // `changes`: of memory
static std::size_t shared_size;
static uint64_t random_state;
static bool is_over, is_observed, stays_near;
static std::size_t suspicions;
static const char *const PARTED = "parted", *const MAILBOX = "a mailbox", *const NEWS = "news";
static const Entry* kernel;
static long long words[1 << 10];          // of the library's own, as kernels read them too
static unsigned char *code_begin, *code_end;

// xorshift64* (Vigna, 2016), the high bits.
static unsigned below(unsigned count) {
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return unsigned((random_state * 0x2545f4914f6cdd1dull >> 33) % count);
}
static uint64_t place_in_code(const void* at) { return at ? static_cast<const unsigned char*>(at) - code_begin : 0; }

__attribute__((format(printf, 5, 6))) static bool
found(const char* kind, uint64_t at, uint64_t other_at, const Fiber* fiber, const char* format, ...) {
    for (const Finding& one : findings) {
        // The same twice tells nothing new, whoever did it.
        if (one.at == at && one.other_at == other_at && !std::strcmp(one.kind, kind)) return false;
    }
    Finding finding = {};
    std::snprintf(finding.kind, sizeof finding.kind, "%s", kind);
    va_list values;
    va_start(values, format);
    std::vsnprintf(finding.text, sizeof finding.text, format, values);
    va_end(values);
    finding.at = at;
    finding.other_at = other_at;
    finding.block = fiber ? fiber->block->number : 0;
    finding.thread = fiber ? fiber->thread : 0;
    finding.step = steps;
    findings.push_back(finding);
    // Of two places in the code it is for the reader of its lines to say whether they are two.
    suspicions += other_at && !std::strcmp(kind, PARTED);
    if (findings.size() - suspicions >= FINDINGS_MOST) is_over = true;
    return true;
}

// ---- who runs --------------------------------------------------------------------------------------------------------------
static __attribute__((noinline)) void leave() {
    if (!_setjmp(current->here)) _longjmp(scheduler, 1);
}
// What cannot go on: the launch is over.
[[noreturn]] static void abandon() {
    is_over = true;
    _longjmp(scheduler, 1);
}
static void wait_in(Waiting& waiting, const char* what, const void* at = nullptr) {
    current->waits_for = what;
    current->waits_at = at;
    waiting.fibers.push_back(current);
    leave();
    current->waits_for = nullptr;
}
static void release(Waiting& waiting) {
    runnable.insert(runnable.end(), waiting.fibers.begin(), waiting.fibers.end());
    waiting.fibers.clear();
}
static void let_others_run() {
    runnable.push_back(current);
    leave();
}

// ---- who knows of what -------------------------------------------------------------------------------------------------------
static std::size_t fibers_of(const Cluster& cluster) { return cluster.fibers.size(); }
// Of what was done at `tick`: that it is over, and seen, or of reads, that they are over.
static bool knows(const Fiber& fiber, uint32_t number, uint32_t tick, bool of_read) {
    if (number == fiber.number) return true;
    const Cluster& cluster = *fiber.block->cluster;
    const std::size_t place = number - 1 - cluster.first_block * block_threads;
    if (place >= fibers_of(cluster)) return false;  // of another cluster, or of one that is over
    const std::size_t n = place + (of_read ? fibers_of(cluster) : 0);
    return (*fiber.warp->clock)[n] > tick || (fiber.heard && (*fiber.heard)[n] > tick);
}
// What the fiber did and knows, for others to know; what it does from now on they do not.
static Told told_by(Fiber& fiber) { return {fiber.warp->clock, fiber.heard, fiber.place, ++fiber.tick}; }
static void tell(Mail& mail, const Told& told) {
    const std::size_t count = told.by_warp->size();
    if (!mail.telling) mail.telling = std::make_shared<Ticks>(count);
    for (const Clock& clock : {told.by_warp, told.heard}) {
        if (!clock || std::find(mail.heard.begin(), mail.heard.end(), clock) != mail.heard.end()) continue;
        raise(*mail.telling, clock);
        mail.heard.push_back(clock);
    }
    for (const std::size_t n : {told.place, told.place + count / 2}) (*mail.telling)[n] = std::max((*mail.telling)[n], told.tick);
}
static Ticks& own(Clock& clock) {
    if (clock.use_count() > 1) clock = std::make_shared<Ticks>(*clock);
    return const_cast<Ticks&>(*clock);  // which was not made constant, and nobody else has
}
static Clock& gathered(Warp& warp) {
    Clock last;
    for (Fiber* lane : warp.lanes) {
        if (!lane->heard) continue;
        if (lane->heard != last) warp.clock = later(warp.clock, lane->heard);
        last = lane->heard;
    }
    for (Fiber* lane : warp.lanes) lane->heard = nullptr;
    return warp.clock;
}
static void meet(const Warp& warp, Ticks& all, bool of_reads_alone) {
    const std::size_t count = all.size() / 2;
    uint32_t latest = 0;
    for (const Fiber* lane : warp.lanes) latest = std::max(latest, lane->tick);
    for (Fiber* lane : warp.lanes) {
        lane->tick = all[lane->place + count] = latest + 1;
        if (!of_reads_alone) all[lane->place] = latest + 1;
    }
}
// Results of all lanes depend on what each has read; nothing else is ordered.
static void meet_by_values(Warp& warp) { meet(warp, own(gathered(warp)), true); }
static void meet(Warp& warp) { meet(warp, own(gathered(warp)), false); }
static void meet(const std::vector<Warp*>& warps) {
    const auto all = std::make_shared<Ticks>(warps[0]->clock->size());
    Clock last;
    for (Warp* warp : warps) {
        if (gathered(*warp) != last) raise(*all, warp->clock);
        last = warp->clock;
    }
    for (Warp* warp : warps) meet(*warp, *all, false);
    for (Warp* warp : warps) warp->clock = all;
}
static std::vector<Warp*> warps_of(Block& block) {
    std::vector<Warp*> warps;
    for (Warp& warp : block.warps) warps.push_back(&warp);
    return warps;
}

// ---- memory --------------------------------------------------------------------------------------------------------------------
static Region* region_of(const void* address) {
    Region* shared = current->block->region.get();
    if (shared && shared->has(address)) return shared;
    if (last_array && last_array->has(address)) return last_array;
    auto after = std::upper_bound(arrays.begin(), arrays.end(), address, [](const void* one, const auto& region) { return one < region->begin; });
    if (after == arrays.begin() || !(*--after)->has(address)) return nullptr;
    return last_array = after->get();
}
static std::string whereabouts(const void* address) {
    char text[160];
    const auto* place = static_cast<const unsigned char*>(address);
    const Region* nearest = nullptr;
    auto distance = [&](const Region& one) { return place < one.begin ? one.begin - place : std::max<std::ptrdiff_t>(0, place - (one.begin + one.bytes) + 1); };
    for (const auto& array : arrays) if (!nearest || distance(*array) < distance(*nearest)) nearest = array.get();
    constexpr long long NEAR_SHARED_BYTES = 4096;
    for (const auto& cluster : clusters) {
        for (const auto& block : cluster->blocks) {
            const long long offset = place - block->shared;
            if (nearest && !distance(*nearest)) continue;
            if (offset < -NEAR_SHARED_BYTES || offset >= (long long)(shared_size) + NEAR_SHARED_BYTES) continue;
            std::snprintf(text, sizeof text, "byte %lld of the %zu bytes of shared memory of block %u", offset, shared_size, block->number);
            return text;
        }
    }
    if (!nearest || distance(*nearest) > 1 << 30) std::snprintf(text, sizeof text, "address %p, far from every array", address);
    else std::snprintf(text, sizeof text, "byte %lld of the %zu bytes of %s", (long long)(place - nearest->begin), nearest->bytes, nearest->name.c_str());
    return text;
}
static std::string name_of(const Region& region, const void* address) {
    char text[120];
    const long long offset = static_cast<const unsigned char*>(address) - region.begin;
    std::snprintf(text, sizeof text, "byte %lld of %s", offset, region.is_shared ? "shared memory" : region.name.c_str());
    return text;
}
static void race(const char* does, const char* did, const Region& region, const void* address, uint32_t number, uint64_t at, uint64_t other_at, bool arrives) {
    const unsigned block = (number - 1) / block_threads, thread = (number - 1) % block_threads;
    found("race", at, other_at, current, "%s %s, which thread %u of block %u %s%s", does, name_of(region, address).c_str(), thread, block, did,
          arrives ? " and which has not arrived" : " with nothing in between that orders the two");
}
static void note_reader(Region& region, Place& place, uint32_t at) {
    const Fiber& fiber = *current;
    if (place.reader & SEVERAL) {
        Readers& of_warp = region.rows[place.reader & ~SEVERAL][fiber.warp->number];
        const uint32_t lane = 1u << fiber.thread % LANES;
        if (!of_warp.lanes || of_warp.tick < fiber.tick) of_warp = {fiber.tick, lane};
        else if (of_warp.tick == fiber.tick) of_warp.lanes |= lane;
        place.read_at = at;
        return;
    }
    if (place.reader && place.reader != fiber.number && !knows(fiber, place.reader, place.read_tick, true)) {
        if (!region.is_shared) {            // one of many has to do
            if (below(2)) return;
        } else {
            const uint32_t other = (place.reader - 1) % block_threads, tick = place.read_tick;
            if (region.free_rows.empty()) {
                region.free_rows.push_back(uint32_t(region.rows.size()));
                region.rows.emplace_back();
            }
            const uint32_t row = region.free_rows.back();
            region.free_rows.pop_back();
            region.rows[row].assign(region.warps, {});
            region.rows[row][other / LANES] = {tick, 1u << other % LANES};
            place.reader = SEVERAL | row;
            return note_reader(region, place, at);
        }
    }
    place.reader = fiber.number;
    place.read_tick = fiber.tick;
    place.read_at = at;
}
// The first reader that the current fiber does not know to be done, or 0.
static uint32_t reader_at_work(const Region& region, const Place& place) {
    const Fiber& fiber = *current;
    if (!(place.reader & SEVERAL)) return place.reader && !knows(fiber, place.reader, place.read_tick, true) ? place.reader : 0;
    const std::vector<Readers>& row = region.rows[place.reader & ~SEVERAL];
    const uint32_t first = fiber.number - fiber.thread;
    for (int warp = 0; warp < region.warps; ++warp) {
        for (int lane = 0; lane < LANES; ++lane) {
            const uint32_t number = first + warp * LANES + lane;
            if (row[warp].lanes >> lane & 1u && !knows(fiber, number, row[warp].tick, true)) return number;
        }
    }
    return 0;
}
enum Access { READ, WRITE, BEGUN, READ_WHOLE, WRITE_WHOLE };
static void access_places(Region& region, const void* address, std::size_t bytes, Access access, uint64_t at) {
    const Fiber& fiber = *current;
    const std::size_t first = (static_cast<const unsigned char*>(address) - region.begin) / PLACE_BYTES;
    const std::size_t last = (static_cast<const unsigned char*>(address) + bytes - 1 - region.begin) / PLACE_BYTES;
    const bool reads = access == READ || access == READ_WHOLE, is_whole = access == READ_WHOLE || access == WRITE_WHOLE;
    const char* does = reads ? "reads" : "writes";
    for (std::size_t n = first; n <= last; ++n) {
        Place& place = region.places[n];
        const uint32_t writer = place.writer & FIBER;
        if (place.writer & UNDER_WAY) race(does, "writes", region, region.begin + n * PLACE_BYTES, writer, at, place.write_at, true);
        else if (writer && writer != fiber.number && !(is_whole && place.writer & WHOLE) && !knows(fiber, writer, place.write_tick, false)) {
            race(does, "writes", region, region.begin + n * PLACE_BYTES, writer, at, place.write_at, false);
        }
        if (reads) {
            if (!writer && !region.is_given && !region.is_shared) {
                found("unwritten", at, 0, current, "reads %s, which nobody has written", name_of(region, address).c_str());
            }
            if (!is_whole) note_reader(region, place, uint32_t(at));
            continue;
        }
        if (place.reader) {
            if (const uint32_t reader = reader_at_work(region, place)) {
                race(does, "reads", region, region.begin + n * PLACE_BYTES, reader, at, place.read_at, false);
            }
            region.forget_readers(place);
        }
        place.writer = fiber.number | (access == WRITE_WHOLE ? WHOLE : 0) | (access == BEGUN ? UNDER_WAY : 0);
        place.write_tick = fiber.tick;
        place.write_at = uint32_t(at);
    }
}
// What was begun has arrived; its writer did it at `tick`.
static void arrived(Region& region, const void* address, std::size_t bytes, uint32_t tick) {
    const std::size_t first = (static_cast<const unsigned char*>(address) - region.begin) / PLACE_BYTES;
    for (std::size_t n = first; n < first + (bytes + PLACE_BYTES - 1) / PLACE_BYTES; ++n) {
        region.places[n].writer &= ~UNDER_WAY;
        region.places[n].write_tick = tick;
    }
}
static void access(const void* address, std::size_t bytes, std::size_t alignment, Access kind, const void* caller) {
    if (!current) return;
    const auto* place = static_cast<const unsigned char*>(address);
    if (std::size_t(place - current->stack) < STACK_BYTES) return;
    if (place >= code_begin && place < code_end) return;
    changes += kind == WRITE || kind == BEGUN;
    if (!--events_left) {
        events_left = 1 + below(EVENTS_AT_ONCE_MOST);
        ++steps;
        let_others_run();
    }
    const bool is_shared = current->block->region && current->block->region->has(address);
    if (!is_observed && !is_shared) return;
    const uint64_t at = place_in_code(caller);
    const char* does = kind == READ || kind == READ_WHOLE ? "reads" : "writes";
    Region* region = region_of(address);
    if (!region || !region->has(place + bytes - 1)) {
        found("out of bounds", at, 0, current, "%s %zu bytes at %s", does, bytes, whereabouts(address).c_str());
        abandon();
    }
    if (reinterpret_cast<std::uintptr_t>(address) % alignment) {
        found("misaligned", at, 0, current, "%s %zu bytes at %s, which is no multiple of %zu", does, bytes, name_of(*region, address).c_str(), alignment);
        abandon();
    }
    access_places(*region, address, bytes, kind, at);
}

// ---- barriers and warps ------------------------------------------------------------------------------------------------------
static void arrive_in_block(const char* kind, const void* caller) {
    Block& block = *current->block;
    if (block.barrier.arrived && block.barrier_kind != kind) {
        found(PARTED, place_in_code(caller), 0, current, "is in %s while others of its block are in %s", kind, block.barrier_kind);
        abandon();
    }
    block.barrier_kind = kind;
    ++steps;
    if (++block.barrier.arrived < int(block_threads)) return wait_in(block.barrier, kind, caller);
    block.barrier.arrived = 0;
    ++block.barrier.turn;
    meet(warps_of(block));
    release(block.barrier);
    let_others_run();
}
void sync_threads() { arrive_in_block("__syncthreads", CALLER); }
int sync_threads_or(int mine) {
    // Of this turn and the next, which some may reach before all have read this one's.
    Barrier& barrier = current->block->barrier;
    const int turn = barrier.turn % 2;
    if (!barrier.arrived) barrier.any[turn] = false;
    barrier.any[turn] |= mine != 0;
    arrive_in_block("__syncthreads_or", CALLER);
    return barrier.any[turn];
}

// The last lane to come does it for all.
template <typename Do> static void together(unsigned lanes, const char* operation, void* given, const void* caller, Do act) {
    Warp& warp = *current->warp;
    ++steps;
    if (lanes != ~0u) {
        found(PARTED, place_in_code(caller), 0, current, "is in %s with the lanes %#x, which not all of its warp are", operation, lanes);
        abandon();
    }
    if (warp.arrived && std::strcmp(warp.operation, operation)) {
        found(PARTED, place_in_code(caller), 0, current, "is in %s while other lanes of its warp are in %s", operation, warp.operation);
        abandon();
    }
    if (warp.arrived && warp.operation_at != caller) {
        found(PARTED, place_in_code(caller), place_in_code(warp.operation_at), current, "is in %s at another place than others of its warp", operation);
    }
    warp.operation = operation;
    warp.operation_at = caller;
    warp.given[current->thread % LANES] = given;
    if (++warp.arrived < int(warp.lanes.size())) {
        current->waits_for = operation;
        current->waits_at = caller;
        leave();
        current->waits_for = nullptr;
        return;
    }
    warp.arrived = 0;
    meet_by_values(warp);
    act(warp);
    for (Fiber* lane : warp.lanes) runnable.push_back(lane);
    leave();
}
void sync_warp(unsigned lanes) { together(lanes, "__syncwarp", nullptr, CALLER, [](Warp& warp) { meet(warp); }); }
struct Exchanged { void* value; int bytes, from; };
void exchange(unsigned lanes, void* value, int bytes, int from_lane) {
    Exchanged mine = {value, bytes, from_lane};
    together(lanes, "a shuffle", &mine, CALLER, [](Warp& warp) {
        unsigned char values[LANES][64];
        auto of = [&](std::size_t lane) -> Exchanged& { return *static_cast<Exchanged*>(warp.given[lane]); };
        for (std::size_t lane = 0; lane < warp.lanes.size(); ++lane) std::memcpy(values[lane], of(lane).value, of(lane).bytes);
        for (std::size_t lane = 0; lane < warp.lanes.size(); ++lane) {
            if (unsigned(of(lane).from) < warp.lanes.size()) std::memcpy(of(lane).value, values[of(lane).from], of(lane).bytes);
        }
    });
}
struct Vote { bool mine; unsigned all; };
unsigned vote(unsigned lanes, bool mine) {
    Vote given = {mine, 0};
    together(lanes, "a vote", &given, CALLER, [](Warp& warp) {
        unsigned all = 0;
        for (std::size_t lane = 0; lane < warp.lanes.size(); ++lane) all |= unsigned(static_cast<Vote*>(warp.given[lane])->mine) << lane;
        for (std::size_t lane = 0; lane < warp.lanes.size(); ++lane) static_cast<Vote*>(warp.given[lane])->all = all;
    });
    return given.all;
}

// ---- tensor cores --------------------------------------------------------------------------------------------------------------
struct Multiplied { float* sum; const unsigned* left; unsigned right[2]; };
// PTX ISA, mma.sync m16n8k16 of two values in a word, and m16n8k8 of one: who holds which element.
template <int DEPTH, typename ValueOf, typename Rounded>
static void multiply_add_tiles(const Warp& warp, ValueOf value_of, Rounded rounded) {
    constexpr int IN_WORD = DEPTH / 8, HALF = DEPTH / 2, ROWS = 16, COLUMNS = 8;
    double left[ROWS][DEPTH], right[COLUMNS][DEPTH];
    for (int lane = 0; lane < LANES; ++lane) {
        const Multiplied& its = *static_cast<Multiplied*>(warp.given[lane]);
        for (int w = 0; w < 4; ++w) {
            for (int v = 0; v < IN_WORD; ++v) left[lane / 4 + w % 2 * 8][w / 2 * HALF + lane % 4 * IN_WORD + v] = value_of(its.left[w], v);
        }
        for (int w = 0; w < 2; ++w) {
            for (int v = 0; v < IN_WORD; ++v) right[lane / 4][w * HALF + lane % 4 * IN_WORD + v] = value_of(its.right[w], v);
        }
    }
    for (int lane = 0; lane < LANES; ++lane) {
        const Multiplied& its = *static_cast<Multiplied*>(warp.given[lane]);
        for (int n = 0; n < 4; ++n) {
            const int row = lane / 4 + n / 2 * 8, column = lane % 4 * 2 + n % 2;
            double total = its.sum[n];
            for (int k = 0; k < DEPTH; ++k) total += left[row][k] * right[column][k];
            its.sum[n] = rounded(total);
        }
    }
}
void multiply_add_16bit(float (&sum)[4], const unsigned (&left)[4], unsigned low, unsigned high, bool are_bfloat16) {
    Multiplied mine = {sum, left, {low, high}};
    together(~0u, "mma.sync", &mine, CALLER, [=](Warp& warp) {
        auto half = [](unsigned word, int which) { return static_cast<unsigned short>(which ? word >> 16 : word & 0xffffu); };
        auto nearest = [](double total) { return float(total); };
        if (are_bfloat16) multiply_add_tiles<16>(warp, [=](unsigned word, int which) { return __uint_as_float(unsigned(half(word, which)) << 16); }, nearest);
        else multiply_add_tiles<16>(warp, [=](unsigned word, int which) { return float_from_float16(half(word, which)); }, nearest);
    });
}
void multiply_add_tf32(float (&sum)[4], const unsigned (&left)[4], unsigned low, unsigned high) {
    Multiplied mine = {sum, left, {low, high}};
    together(~0u, "mma.sync", &mine, CALLER, [](Warp& warp) {
        // The hardware ignores the low 13 bits of what it takes for tf32, and rounds sums towards 0.
        auto towards_zero = [](double value) {
            const float nearest = float(value);
            return std::abs(nearest) > std::abs(value) ? std::nextafter(nearest, 0.0f) : nearest;
        };
        multiply_add_tiles<8>(warp, [](unsigned word, int) { return __uint_as_float(word & ~0x1fffu); }, towards_zero);
    });
}
// PTX ISA, ldmatrix: lane 8 m + r has the address of row r of matrix m.
struct Loaded { const void* row; unsigned *first, *second; };
void load_matrices(unsigned (&first)[2], unsigned (*second)[2], const void* row) {
    constexpr std::size_t ROW_BYTES = 16;
    const int matrices = second ? 4 : 2;
    Loaded mine = {row, first, second ? *second : nullptr};
    if (int(current->thread % LANES) < 8 * matrices) access(row, ROW_BYTES, ROW_BYTES, READ, CALLER);
    together(~0u, second ? "ldmatrix.x4" : "ldmatrix.x2", &mine, CALLER, [=](Warp& warp) {
        for (int lane = 0; lane < LANES; ++lane) {
            const Loaded& its = *static_cast<Loaded*>(warp.given[lane]);
            for (int m = 0; m < matrices; ++m) {
                const auto* from = static_cast<const unsigned char*>(static_cast<Loaded*>(warp.given[8 * m + lane / 4])->row);
                std::memcpy(m < 2 ? &its.first[m] : &its.second[m - 2], from + lane % 4 * sizeof(unsigned), sizeof(unsigned));
            }
        }
    });
}

// ---- copies that arrive late ---------------------------------------------------------------------------------------------------
void copy_async(void* to, const void* from, int bytes) {
    access(from, bytes, bytes, READ, CALLER);
    access(to, bytes, bytes, BEGUN, CALLER);
    Copy copy = {static_cast<unsigned char*>(to), static_cast<const unsigned char*>(from), bytes, below(2) == 0, uint32_t(place_in_code(CALLER))};
    if (copy.has_arrived) std::memcpy(copy.to, copy.from, copy.bytes);
    current->groups.back().push_back(copy);
}
void copy_async_commit() { current->groups.emplace_back(); }
void copy_async_wait(int pending) {
    ++steps;
    let_others_run();
    for (; int(current->groups.size()) - 1 > pending; current->groups.erase(current->groups.begin())) {
        for (const Copy& copy : current->groups.front()) {
            if (!copy.has_arrived) std::memcpy(copy.to, copy.from, copy.bytes);
            Region* region = region_of(copy.to);
            if (!region) continue;
            ++changes;
            // Who read it meanwhile was told so; who reads it from now on has to know of this wait.
            arrived(*region, copy.to, copy.bytes, current->tick);
        }
    }
}

// ---- clusters ----------------------------------------------------------------------------------------------------------------
unsigned cluster_rank() { return current->block->rank; }
void synchronize_cluster() {
    Cluster& cluster = *current->block->cluster;
    ++steps;
    if (++cluster.barrier.arrived < int(cluster.fibers.size())) return wait_in(cluster.barrier, "the barrier of its cluster", CALLER);
    cluster.barrier.arrived = 0;
    std::vector<Warp*> warps;
    for (const auto& block : cluster.blocks) for (Warp& warp : block->warps) warps.push_back(&warp);
    meet(warps);
    release(cluster.barrier);
    let_others_run();
}
static Deed deed(const void* caller) { return {current->number, current->tick, place_in_code(caller)}; }
// `does` what only a mailbox that is open takes.
static void need_open(const Block& block, const void* mailbox, const Mail& mail, const char* does, uint64_t at) {
    const Deed& opened = mail.opened;
    if (!knows(*current, opened.number, opened.tick, false)) race(does, "opens", *block.region, mailbox, opened.number, at, opened.at, false);
}
static Mail& own_mail(void* mailbox, const char* does, const void* caller) {
    Block& block = *current->block;
    Mail& mail = block.mail[mailbox];
    if (!mail.is_open()) {
        found("mailbox", place_in_code(caller), 0, current, "%s a mailbox of block %u that nobody has opened", does, block.number);
        abandon();
    }
    need_open(block, mailbox, mail, does, place_in_code(caller));
    return mail;
}
static void check_full(Mail& mail) {
    if (mail.arrivals_left || mail.bytes) return;
    mail.arrivals_left = 1;
    ++mail.turn;
    mail.told = mail.telling;
    mail.telling = nullptr;
    mail.heard.clear();
    release(mail);
}
void open_mailbox(void* mailbox) {
    access(mailbox, 8, 8, WRITE, CALLER);
    Block& block = *current->block;
    Mail& mail = block.mail[mailbox];
    const Deed& sent = mail.sent_before;
    if (sent.number) race("opens", "sends to", *block.region, mailbox, sent.number, place_in_code(CALLER), sent.at, false);
    mail.opened = deed(CALLER);
}
void expect_bytes(void* mailbox, unsigned bytes) {
    ++steps;
    Mail& mail = own_mail(mailbox, "tells what to expect to", CALLER);
    if (!mail.arrivals_left) {
        found("mailbox", place_in_code(CALLER), 0, current, "tells a mailbox what to expect twice in one turn");
        abandon();
    }
    --mail.arrivals_left;
    mail.bytes += bytes;
    tell(mail, told_by(*current));
    check_full(mail);
}
void wait_for_mail(void* mailbox, int turn) {
    ++steps;
    let_others_run();
    Mail& mail = own_mail(mailbox, "waits for", CALLER);
    if ((mail.turn & 1) == (turn & 1)) wait_in(mail, MAILBOX, CALLER);
    current->heard = later(current->heard, mail.told);
}
void send_bytes(void* to, void* mailbox, unsigned rank, const void* value, int bytes) {
    ++steps;
    Block& mine = *current->block;
    if (rank >= mine.cluster->blocks.size()) {
        found("out of bounds", place_in_code(CALLER), 0, current, "sends to block %u of a cluster of %zu", rank, mine.cluster->blocks.size());
        abandon();
    }
    Block& theirs = *mine.cluster->blocks[rank];
    const long long offset = static_cast<unsigned char*>(to) - mine.shared;
    if (offset < 0 || offset + bytes > (long long)(shared_size) || offset % bytes) {
        found("out of bounds", place_in_code(CALLER), 0, current, "sends %d bytes to %s", bytes, whereabouts(to).c_str());
        abandon();
    }
    Message message = {&theirs, theirs.shared + offset, theirs.shared + (static_cast<unsigned char*>(mailbox) - mine.shared), {}, bytes, current, place_in_code(CALLER), {}};
    std::memcpy(message.value, value, bytes);
    Mail& mail = theirs.mail[message.mailbox];
    if (mail.is_open()) need_open(theirs, message.mailbox, mail, "sends to", message.at);
    else if (!mail.sent_before.number) mail.sent_before = deed(CALLER);
    access_places(*theirs.region, message.to, bytes, BEGUN, message.at);
    message.told = told_by(*current);
    messages.push_back(message);
}
static void deliver(bool may_be_later) {
    std::swap(messages[below(unsigned(messages.size()))], messages.back());
    const Message message = messages.back();
    messages.pop_back();
    Mail& mail = message.block->mail[message.mailbox];
    if (!message.block->fibers_left || !mail.is_open()) {
        // Somebody may open it yet, which is a race then.
        if (message.block->fibers_left && may_be_later) return messages.push_back(message);
        found("mailbox", message.at, 0, message.by, "sends a message that arrives in block %u, which %s", message.block->number,
              message.block->fibers_left ? "has not opened the mailbox" : "has ended");
        is_over = true;
        return;
    }
    std::memcpy(message.to, message.value, message.bytes);
    ++changes;
    Region& region = *message.block->region;
    arrived(region, message.to, message.bytes, region.places[(message.to - region.begin) / PLACE_BYTES].write_tick);
    mail.bytes -= message.bytes;
    tell(mail, message.told);
    check_full(mail);
}

// ---- memory that others wait for -----------------------------------------------------------------------------------------------
// Stores arrive late, and in any order but at one place; whoever loads lets the others run.
static void arrive_in_memory(std::size_t which) {
    for (std::size_t earlier = 0; earlier < which; ++earlier) if (stores[earlier].to == stores[which].to) which = earlier;
    const Store& store = stores[which];
    changes += std::memcmp(store.to, store.unit, store.bytes) != 0;
    std::memcpy(store.to, store.unit, store.bytes);
    stores.erase(stores.begin() + std::ptrdiff_t(which));
}
void store_whole(void* to, const void* unit, int bytes) {
    access(to, bytes, bytes, WRITE_WHOLE, CALLER);
    Store store = {static_cast<unsigned char*>(to), {}, bytes, current};
    std::memcpy(store.unit, unit, bytes);
    stores.push_back(store);
}
static void ask(const void* unit, const void* caller) {
    Asked& asked = current->asked;
    if (asked.since != changes) {
        asked = {};
        asked.since = changes;
    }
    if (!(asked.units & (asked.units - 1))) {
        asked.unit = unit;
        asked.at = caller;
        asked.again = 0;
    } else {
        asked.again += unit == asked.unit;
    }
    ++asked.units;
    asked.is_in_vain |= asked.again >= ASKS_IN_VAIN;
}
static bool asks_in_vain(const Fiber& fiber) { return fiber.asked.is_in_vain && fiber.asked.since == changes; }
void load_whole(void* unit, const void* from, int bytes) {
    access(from, bytes, bytes, READ_WHOLE, CALLER);
    let_others_run();
    for (std::size_t n = 0; n < stores.size(); ++n) {
        if (stores[n].by == current && stores[n].to == from) arrive_in_memory(n--);  // one's own are seen at once
    }
    ask(from, CALLER);
    std::memcpy(unit, from, bytes);
}
unsigned add_whole(unsigned* to, unsigned value) {
    access(to, sizeof *to, sizeof *to, WRITE_WHOLE, CALLER);
    ++steps;
    if (value) ++changes;
    else ask(to, CALLER);
    const unsigned before = *to;
    *to = before + value;
    return before;
}
unsigned long long nanoseconds() { return 0; }  // who waits in vain is found without a clock
void give_up(const char* awaited, long long turn) {
    found("deadlock", place_in_code(CALLER), 0, current, "gives up waiting for %s in turn %lld", awaited, turn);
    abandon();
}

// ---- launches ----------------------------------------------------------------------------------------------------------------
static void run_fiber() {
    kernel->run(words);
    Fiber& fiber = *current;
    Block& block = *fiber.block;
    for (const auto& group : fiber.groups) {
        for (const Copy& copy : group) {
            if (!copy.has_arrived) std::memcpy(copy.to, copy.from, copy.bytes);
            found("copy", copy.at, 0, current, "ends while a copy that it began is under way");
        }
    }
    free_stacks.push_back(fiber.stack);
    ++fiber.warp->ended;
    --block.fibers_left;
    --block.cluster->fibers_left;
    ++steps;
    _longjmp(scheduler, 2);
}
static unsigned char* new_stack() {
    constexpr int AT_ONCE = 64;
    if (free_stacks.empty()) {
        void* many = mmap(nullptr, AT_ONCE * STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (many == MAP_FAILED) std::abort();
        for (int n = 0; n < AT_ONCE; ++n) free_stacks.push_back(static_cast<unsigned char*>(many) + n * STACK_BYTES);
    }
    unsigned char* stack = free_stacks.back();
    free_stacks.pop_back();
    return stack;
}
static void admit_cluster(unsigned first_block) {
    clusters.push_back(std::make_unique<Cluster>());
    Cluster& cluster = *clusters.back();
    cluster.first_block = first_block;
    cluster.fibers_left = int(blocks_of_cluster * block_threads);
    const auto nothing = std::make_shared<Ticks>(2 * blocks_of_cluster * block_threads);
    for (unsigned rank = 0; rank < blocks_of_cluster; ++rank) {
        constexpr std::size_t ALIGNMENT = 1024;
        cluster.blocks.push_back(std::make_unique<Block>());
        Block& block = *cluster.blocks.back();
        block.number = first_block + rank;
        block.rank = rank;
        block.fibers_left = int(block_threads);
        block.cluster = &cluster;
        block.memory.assign(shared_size + ALIGNMENT, POISON);
        block.shared = block.memory.data() + (ALIGNMENT - reinterpret_cast<std::uintptr_t>(block.memory.data()) % ALIGNMENT) % ALIGNMENT;
        block.region = std::make_unique<Region>("shared memory", block.shared, shared_size, false, true);
        block.warps.resize((block_threads + LANES - 1) / LANES);
        block.region->warps = int(block.warps.size());
        for (unsigned thread = 0; thread < block_threads; ++thread) {
            cluster.fibers.push_back(std::make_unique<Fiber>());
            Fiber& fiber = *cluster.fibers.back();
            fiber.thread = thread;
            fiber.place = rank * block_threads + thread;
            fiber.number = block.number * block_threads + thread + 1;
            fiber.block = &block;
            fiber.warp = &block.warps[thread / LANES];
            fiber.warp->number = int(thread / LANES);
            fiber.warp->clock = nothing;
            fiber.warp->lanes.push_back(&fiber);
            fiber.stack = new_stack();
            runnable.push_back(&fiber);
        }
    }
}
static void run_next() {
    const unsigned count = unsigned(runnable.size()), near = stays_near && below(FAR_ONE_IN) ? std::min(count, NEAR) : count;
    const std::size_t which = count - 1 - below(near);
    std::swap(runnable[which], runnable.back());
    current = runnable.back();
    runnable.pop_back();
    threadIdx.x = current->thread;
    blockIdx.x = current->block->number;
    minrnn_shared_bytes_at = current->block->shared;
    if (!_setjmp(scheduler)) {
        if (current->has_begun) _longjmp(current->here, 1);
        current->has_begun = true;
        static ucontext_t first;
        getcontext(&first);
        first.uc_stack.ss_sp = current->stack;
        first.uc_stack.ss_size = STACK_BYTES;
        first.uc_link = nullptr;
        makecontext(&first, run_fiber, 0);
        setcontext(&first);
    }
    current = nullptr;
}
static bool is_barrier(const std::string& awaited) { return awaited != MAILBOX && awaited != NEWS; }
// Who waits for what, where nobody goes on.
static void report_deadlock() {
    for (const auto& cluster : clusters) {
        // Barriers last: whoever is not there waits for something else.
        struct Last { bool operator()(const std::string& one, const std::string& other) const { return std::pair(is_barrier(one), one) < std::pair(is_barrier(other), other); } };
        std::map<std::string, std::pair<int, const Fiber*>, Last> waiting;
        int ended = 0;
        for (const auto& fiber : cluster->fibers) {
            if (!fiber->waits_for && !asks_in_vain(*fiber)) { ++ended; continue; }
            auto& its = waiting[fiber->waits_for ? fiber->waits_for : NEWS];
            ++its.first;
            if (!its.second) its.second = fiber.get();
        }
        for (const auto& [what, its] : waiting) {
            const auto& [count, first] = its;
            std::string others;
            for (const auto& [other, their] : waiting) if (other != what) others += ", " + std::to_string(their.first) + " for " + other;
            const bool is_parted = ended && is_barrier(what);
            const std::string place = what == NEWS ? " of " + whereabouts(first->asked.unit) : "";
            found(is_parted ? PARTED : "deadlock", place_in_code(first->waits_for ? first->waits_at : first->asked.at), 0, first,
                  "waits for %s%s in vain, as do %d threads of its %s; others wait%s; %d have ended", what.c_str(), place.c_str(), count,
                  blocks_of_cluster > 1 ? "cluster" : "block", others.empty() ? " for nothing else" : others.c_str() + 1, ended);
        }
    }
    is_over = true;
}
// Let go of clusters that are done; says whether there were any.
static bool dismiss_clusters() {
    if (!messages.empty()) return false;
    auto is_done = [](const auto& cluster) { return !cluster->fibers_left; };
    const auto left = std::remove_if(clusters.begin(), clusters.end(), is_done);
    const bool are_some = left != clusters.end();
    clusters.erase(left, clusters.end());
    return are_some;
}
static void run_grid(unsigned blocks, bool is_cooperative) {
    const unsigned most = std::min(CLUSTERS_RESIDENT_MOST, std::max(1u, FIBERS_RESIDENT_MOST / (blocks_of_cluster * block_threads)));
    const unsigned resident = is_cooperative ? blocks : (1 + below(most)) * blocks_of_cluster;
    unsigned admitted = 0, seen = 0;
    std::size_t turns = 0;                  // since anything changed
    while (!is_over) {
        while (admitted < blocks && clusters.size() * blocks_of_cluster < resident) {
            admit_cluster(admitted);
            admitted += blocks_of_cluster;
        }
        if (!messages.empty() && (runnable.empty() || !below(4))) deliver(!runnable.empty());
        else if (!stores.empty() && (runnable.empty() || !below(4))) arrive_in_memory(below(unsigned(stores.size())));
        else if (!runnable.empty()) run_next();
        else if (clusters.empty()) break;
        else report_deadlock();
        if (runnable.empty() | !(steps % 64)) dismiss_clusters();
        turns = seen == changes ? turns + 1 : 0;
        seen = changes;
        if (!runnable.empty() && stores.empty() && turns > ASKS_IN_VAIN * runnable.size()) {
            turns = 0;
            if (!std::all_of(runnable.begin(), runnable.end(), [](const Fiber* one) { return asks_in_vain(*one); })) continue;
            if (!messages.empty()) deliver(false);
            else if (!dismiss_clusters()) report_deadlock();
        }
    }
    while (!stores.empty()) arrive_in_memory(0);
}
}  // namespace minrnn_host

// ---- what Python calls ----------------------------------------------------------------------------------------------------------
using namespace minrnn_host;
extern "C" {
void minrnn_forget_arrays() { arrays.clear(); last_array = nullptr; }
void minrnn_add_array(const char* name, void* begin, unsigned long long bytes, int is_given) {
    auto array = std::make_unique<Region>(name, begin, bytes, is_given, false);
    auto after = std::upper_bound(arrays.begin(), arrays.end(), array, [](const auto& one, const auto& other) { return one->begin < other->begin; });
    arrays.insert(after, std::move(array));
}
int minrnn_arguments(const char* name) {
    for (const Entry* one = minrnn_entries; one->name; ++one) if (!std::strcmp(one->name, name)) return one->arguments;
    return -1;
}
int minrnn_launch(const char* name, unsigned blocks, unsigned threads, unsigned cluster_blocks, int is_cooperative,
                  unsigned long long shared_bytes_wanted, const long long* given, unsigned long long seed) {
    for (kernel = minrnn_entries; std::strcmp(kernel->name, name);) ++kernel;
    std::copy_n(given, kernel->arguments, words);
    block_threads = threads;
    blocks_of_cluster = cluster_blocks;
    shared_size = shared_bytes_wanted;
    blockDim = {threads, 1, 1};
    gridDim = {blocks, 1, 1};
    random_state = seed * 0x9e3779b97f4a7c15ull + 0x632be59bd9b4e019ull;
    steps = changes = 0;
    events_left = 1 + below(EVENTS_AT_ONCE_MOST);
    is_over = false;
    stays_near = below(2);
    is_observed = !arrays.empty();
    findings.clear();
    suspicions = 0;
    if (!code_begin) {
        Dl_info info;
        dladdr(reinterpret_cast<void*>(&minrnn_launch), &info);
        code_begin = static_cast<unsigned char*>(info.dli_fbase);
        code_end = code_begin;
        dl_iterate_phdr([](dl_phdr_info* library, std::size_t, void*) {
            if (reinterpret_cast<unsigned char*>(library->dlpi_addr) != code_begin) return 0;
            for (int n = 0; n < library->dlpi_phnum; ++n) {
                const auto& part = library->dlpi_phdr[n];
                if (part.p_type == PT_LOAD) code_end = std::max(code_end, code_begin + part.p_vaddr + part.p_memsz);
            }
            return 1;
        }, nullptr);
    }
    run_grid(blocks, is_cooperative);
    for (const auto& cluster : clusters) {
        for (const auto& fiber : cluster->fibers) if (std::find(free_stacks.begin(), free_stacks.end(), fiber->stack) == free_stacks.end()) free_stacks.push_back(fiber->stack);
    }
    clusters.clear();
    runnable.clear();
    messages.clear();
    stores.clear();
    return int(findings.size());
}
const Finding* minrnn_finding(int which) { return &findings[std::size_t(which)]; }
unsigned minrnn_steps() { return steps; }

// ---- what the compiler announces --------------------------------------------------------------------------------------------------
#define ANNOUNCED(BYTES)                                                                                                    \
    void __tsan_read##BYTES(void* at) { access(at, BYTES, BYTES, READ, CALLER); }                                         \
    void __tsan_write##BYTES(void* at) { access(at, BYTES, BYTES, WRITE, CALLER); }                                       \
    void __tsan_volatile_read##BYTES(void* at) { access(at, BYTES, BYTES, READ, CALLER); }                                \
    void __tsan_volatile_write##BYTES(void* at) { access(at, BYTES, BYTES, WRITE, CALLER); }                              \
    void __tsan_unaligned_read##BYTES(void* at) { access(at, BYTES, 1, READ, CALLER); }                                   \
    void __tsan_unaligned_write##BYTES(void* at) { access(at, BYTES, 1, WRITE, CALLER); }
ANNOUNCED(1) ANNOUNCED(2) ANNOUNCED(4) ANNOUNCED(8) ANNOUNCED(16)
void __tsan_read_range(void* at, unsigned long bytes) { access(at, bytes, 1, READ, CALLER); }
void __tsan_write_range(void* at, unsigned long bytes) { access(at, bytes, 1, WRITE, CALLER); }
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}
// -fsanitize=bounds: a place outside an array of fixed size, which mostly is one of registers.
struct Bounded { struct { const char* file; unsigned line, column; } at; const void *array, *index; };
void __ubsan_handle_out_of_bounds(Bounded* what, unsigned long index) {
    found("out of bounds", place_in_code(CALLER), 0, current, "asks for element %ld of an array that has fewer (line %u)", long(index), what->at.line);
    abandon();
}
void __ubsan_handle_out_of_bounds_abort(Bounded* what, unsigned long index) { __ubsan_handle_out_of_bounds(what, index); }
}
