"""The text of kernels whose threads wait for each other, compiled for the host: every thread of a cluster is a fiber.

Who runs next, and when a copy or a message arrives, is drawn anew for every seed, so that an order that the text does not
enforce is not kept. Shared memory is poisoned; everybody waiting, a message to a block that has ended, a mailbox told twice
what comes, and a place outside shared memory or, of a copy, outside the arrays are errors.
"""

from __future__ import annotations

import ctypes
import struct
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels_as_host_code import BEFORE, OPTIONS
from numpy.lib.array_utils import byte_bounds

from minrnn_gen.plan.kernel_plan import KernelPlan

SHARED_IN_KERNEL = "extern __shared__ __align__(16) unsigned char shared_bytes[];"
SHARED_ON_HOST = "unsigned char* const shared_bytes = minrnn_host::current->block->shared;"
PLACES = "static struct { unsigned x; } blockIdx, blockDim, gridDim, threadIdx;"

FIBERS = """
#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <vector>
#include <ucontext.h>
namespace minrnn_host {
constexpr int LANES = 32, STACK_BYTES = 1 << 17, GUARD_BYTES = 256, POISON = 0xff;
struct Fiber;
struct Waiting { std::vector<Fiber*> fibers; };
struct Barrier : Waiting { int arrived = 0; };
struct Mail : Waiting { int arrivals_left = 1; long long bytes = 0; int turn = 0; bool is_open = false; };
struct Warp { Barrier barrier; unsigned long long left[2][LANES][3]; };
struct Block {
    unsigned number;
    int rank, fibers_left;
    unsigned char* shared;
    std::vector<unsigned char> memory;
    std::vector<Warp> warps;
    Barrier barrier;
    std::map<void*, Mail> mail;
};
struct Copy { unsigned char* to; const unsigned char* from; int bytes; };
struct Fiber {
    ucontext_t context;
    unsigned thread;
    Block* block;
    unsigned collectives = 0;
    std::deque<std::vector<Copy>> groups = {{}};
    std::vector<char> stack;
    Warp& warp() { return block->warps[thread / LANES]; }
};
struct Store { void* to; unsigned char unit[16]; int bytes; };
struct Message { Block* block; unsigned char* to; void* mailbox; unsigned char value[16]; int bytes; };
static ucontext_t scheduler;
static Fiber* current;
static std::vector<Fiber*> runnable;
static std::vector<Message> under_way;
static std::vector<Store> stores;
static int loads_in_vain;
static std::vector<std::unique_ptr<Block>> blocks;
static Barrier cluster_barrier;
static int cluster_threads, block_threads, shared_size;
static std::mt19937 random_number;
static const char* wrong;

static unsigned below(unsigned count) { return random_number() % count; }
static void stop(const char* why) { if (!wrong) wrong = why; }
static void wait_in(Waiting& waiting) {
    waiting.fibers.push_back(current);
    swapcontext(&current->context, &scheduler);
}
static void release(Waiting& waiting) {
    runnable.insert(runnable.end(), waiting.fibers.begin(), waiting.fibers.end());
    waiting.fibers.clear();
}
static void arrive(Barrier& barrier, int expected) {
    if (++barrier.arrived < expected) return wait_in(barrier);
    barrier.arrived = 0;
    release(barrier);
}
static void sync_threads() { arrive(current->block->barrier, block_threads); }
static void sync_warp() { arrive(current->warp().barrier, LANES); }
static unsigned cluster_rank() { return current->block->rank; }
static void synchronize_cluster() { arrive(cluster_barrier, cluster_threads); }

// What every lane leaves for the others: one after the other, so that two places are enough.
template <typename Left> static auto& exchange(const Left& mine) {
    static_assert(sizeof(Left) <= sizeof(unsigned long long[3]));
    auto& left = current->warp().left[current->collectives++ % 2];
    std::memcpy(left[current->thread % LANES], &mine, sizeof mine);
    sync_warp();
    return left;
}
template <typename Value> static Value shuffle_xor(Value value, int mask) {
    Value other;
    std::memcpy(&other, exchange(value)[current->thread % LANES ^ mask], sizeof other);
    return other;
}
struct Held { unsigned left[4], right[2]; };
static float half_of(unsigned word, int which) {
    const unsigned short bits = which ? word >> 16 : word & 0xffffu;
    return FROM_STORAGE(bits);
}
// PTX ISA, mma.sync m16n8k16 of two values in a word, and m16n8k8 of one: who holds which element.
template <int DEPTH, typename ValueOf, typename Rounded>
static void multiply_add_tiles(
    float (&sum)[4], const unsigned (&left)[4], unsigned low, unsigned high, ValueOf value_of, Rounded rounded) {
    constexpr int IN_WORD = DEPTH / 8, HALF = DEPTH / 2;
    const Held mine = {{left[0], left[1], left[2], left[3]}, {low, high}};
    const auto& words = exchange(mine);
    const int lane = current->thread % LANES;
    for (int n = 0; n < 4; ++n) {
        const int row = lane / 4 + n / 2 * 8, column = lane % 4 * 2 + n % 2;
        double total = sum[n];
        for (int k = 0; k < DEPTH; ++k) {
            Held of_left, of_right;
            std::memcpy(&of_left, words[row % 8 * 4 + k % HALF / IN_WORD], sizeof of_left);
            std::memcpy(&of_right, words[column * 4 + k % HALF / IN_WORD], sizeof of_right);
            const double from_left = value_of(of_left.left[row / 8 + k / HALF * 2], k % IN_WORD);
            total += from_left * value_of(of_right.right[k / HALF], k % IN_WORD);
        }
        sum[n] = rounded(total);
    }
}
static void multiply_add(float (&sum)[4], const unsigned (&left)[4], unsigned low, unsigned high) {
    multiply_add_tiles<16>(sum, left, low, high, half_of, [](double total) { return float(total); });
}

// PTX ISA, ldmatrix: lane 8 m + r has the address of row r of matrix m.
static void load_matrices(unsigned (&first)[2], unsigned (*second)[2], const void* row) {
    const auto& rows = exchange(row);
    const int lane = current->thread % LANES, matrices = second ? 4 : 2;
    if (lane < 8 * matrices && reinterpret_cast<size_t>(row) % 16) stop("a row of a matrix that is not aligned");
    for (int m = 0; m < matrices; ++m) {
        const unsigned char* of_lane;
        std::memcpy(&of_lane, rows[8 * m + lane / 4], sizeof of_lane);
        std::memcpy(m < 2 ? &first[m] : &(*second)[m - 2], of_lane + lane % 4 * sizeof(unsigned), sizeof(unsigned));
    }
}

// The hardware ignores the low 13 bits of what it takes for tf32, and rounds sums towards 0.
static float read_as_tf32(unsigned bits) { return __uint_as_float(bits & ~0x1fffu); }
static unsigned tf32_of(float value) {
    const unsigned bits = __float_as_uint(value);
    return value == value ? (bits + 0x1000u) & ~0x1fffu : 0x7fffffffu;
}
static float towards_zero(double value) {
    const float nearest = value;
    return std::abs(nearest) > std::abs(value) ? std::nextafter(nearest, 0.0f) : nearest;
}
static void multiply_add_tf32(float (&sum)[4], const unsigned (&left)[4], unsigned low, unsigned high) {
    multiply_add_tiles<8>(sum, left, low, high, [](unsigned word, int) { return read_as_tf32(word); }, towards_zero);
}

static void copy_now(const Copy& copy) { std::memcpy(copy.to, copy.from, copy.bytes); }
static std::vector<std::pair<const char*, const char*>> readable;
static void copy_async(void* to, const void* from, int bytes) {
    const auto* first = static_cast<const char*>(from);
    const auto has = [=](const auto& one) { return one.first <= first && first + bytes <= one.second; };
    if (std::none_of(readable.begin(), readable.end(), has)) stop("a copy from outside of every array");
    if ((reinterpret_cast<size_t>(to) | reinterpret_cast<size_t>(from)) % bytes) stop("a copy that is not aligned");
    const Copy copy = {static_cast<unsigned char*>(to), static_cast<const unsigned char*>(from), bytes};
    if (below(2)) copy_now(copy);
    else current->groups.back().push_back(copy);
}
static void copy_async_commit() { current->groups.emplace_back(); }
static void copy_async_wait(int pending) {
    for (; int(current->groups.size()) - 1 > pending; current->groups.pop_front()) {
        for (const Copy& copy : current->groups.front()) copy_now(copy);
    }
}

static void check_full(Mail& mail) {
    if (mail.arrivals_left || mail.bytes) return;
    mail.arrivals_left = 1;
    ++mail.turn;
    release(mail);
}
static Mail& opened(Block& block, void* mailbox) {
    Mail& mail = block.mail[mailbox];
    if (!mail.is_open) stop("a mailbox that is not open");
    return mail;
}
static unsigned long long nanoseconds() { return 0; }
static void give_up(const char*, long long) { stop("a wait that was given up"); }
static void open_mailbox(void* mailbox) { current->block->mail[mailbox].is_open = true; }
static void expect_bytes(void* mailbox, unsigned bytes) {
    Mail& mail = opened(*current->block, mailbox);
    if (!mail.arrivals_left--) stop("a mailbox is told twice what comes");
    mail.bytes += bytes;
    check_full(mail);
}
static void wait_for_mail(void* mailbox, int turn) {
    Mail& mail = opened(*current->block, mailbox);
    if ((mail.turn & 1) == (turn & 1)) wait_in(mail);
}
template <typename Value> static void send(Value* to, void* mailbox, unsigned rank, Value value) {
    Block& mine = *current->block;
    Block& their = *blocks[rank];
    const auto moved = [&](void* place) { return their.shared + (static_cast<unsigned char*>(place) - mine.shared); };
    Message message = {&their, moved(to), moved(mailbox), {}, sizeof value};
    std::memcpy(message.value, &value, sizeof value);
    under_way.push_back(message);
}
// Stores to memory that others wait for arrive late, and in any order; whoever loads lets the others run.
template <typename Unit> static void store_unit(Unit* to, Unit unit) {
    Store store = {to, {}, sizeof unit};
    std::memcpy(store.unit, &unit, sizeof unit);
    stores.push_back(store);
}
static void arrive_in_memory() {
    std::swap(stores[below(stores.size())], stores.back());
    std::memcpy(stores.back().to, stores.back().unit, stores.back().bytes);
    stores.pop_back();
    loads_in_vain = 0;
}
template <typename Unit> static Unit load_unit(const Unit* from) {
    if (++loads_in_vain > 1000000) stop("everybody waits");
    runnable.push_back(current);
    swapcontext(&current->context, &scheduler);
    return *from;
}
static void deliver() {
    std::swap(under_way[below(under_way.size())], under_way.back());
    const Message message = under_way.back();
    under_way.pop_back();
    if (!message.block->fibers_left) stop("a message to a block that has ended");
    std::memcpy(message.to, message.value, message.bytes);
    Mail& mail = opened(*message.block, message.mailbox);
    mail.bytes -= message.bytes;
    check_full(mail);
}
struct Place {
    bool is_thread;
    operator unsigned() const { return is_thread ? current->thread : current->block->number; }
};
}
static struct { minrnn_host::Place x; } threadIdx = {{true}}, blockIdx = {{false}};
#define __syncthreads minrnn_host::sync_threads
#define __syncwarp minrnn_host::sync_warp
#define __shfl_xor_sync(lanes, value, mask) minrnn_host::shuffle_xor(value, mask)
#define __cluster_dims__(...)
"""

# Every argument comes as a word of 8 bytes, a number with a point as a double.
LAUNCH = """
static const long long* words;
template <typename To> static To argument(long long word) {
    if constexpr (std::is_pointer_v<To>) return reinterpret_cast<To>(word);
    else if constexpr (std::is_floating_point_v<To>) return To(reinterpret_cast<const double&>(word));
    else return static_cast<To>(word);
}
template <typename... Arguments, std::size_t... PLACE>
static void call(void (*kernel)(Arguments...), std::index_sequence<PLACE...>) { kernel(argument<Arguments>(words[PLACE])...); }
template <typename... Arguments> static constexpr std::size_t count(void (*)(Arguments...)) { return sizeof...(Arguments); }
static void run_fiber() {
    using namespace minrnn_host;
    call(ENTRY, std::make_index_sequence<count(ENTRY)>());
    --current->block->fibers_left;
    setcontext(&scheduler);
}
extern "C" void allow(const char* begin, const char* end) {
    if (!begin) minrnn_host::readable.clear();
    else minrnn_host::readable.emplace_back(begin, end);
}
extern "C" int arguments() { return int(count(ENTRY)); }
extern "C" int shared_size() { return int(sizeof(Shared)); }
extern "C" const char* launch(int cluster_count, int cluster_blocks, int threads, const long long* given, unsigned seed) {
    using namespace minrnn_host;
    words = given;
    wrong = nullptr;
    random_number.seed(seed);
    block_threads = threads;
    cluster_threads = threads * cluster_blocks;
    for (int cluster = 0; cluster < cluster_count && !wrong; ++cluster) {
        std::vector<std::unique_ptr<Fiber>> fibers;
        cluster_barrier = {};
        under_way.clear();
        stores.clear();
        loads_in_vain = 0;
        runnable.clear();
        blocks.clear();
        for (int rank = 0; rank < cluster_blocks; ++rank) {
            blocks.push_back(std::make_unique<Block>());
            Block& block = *blocks.back();
            block.number = cluster * cluster_blocks + rank;
            block.rank = rank;
            block.fibers_left = threads;
            block.memory.assign(sizeof(Shared) + 16 + GUARD_BYTES, POISON);
            block.shared = block.memory.data() + (16 - reinterpret_cast<size_t>(block.memory.data()) % 16) % 16;
            block.warps.resize(threads / LANES);
            for (int thread = 0; thread < threads; ++thread) {
                fibers.push_back(std::make_unique<Fiber>());
                Fiber& fiber = *fibers.back();
                fiber.thread = thread;
                fiber.block = &block;
                fiber.stack.resize(STACK_BYTES);
                getcontext(&fiber.context);
                fiber.context.uc_stack.ss_sp = fiber.stack.data();
                fiber.context.uc_stack.ss_size = STACK_BYTES;
                makecontext(&fiber.context, run_fiber, 0);
                runnable.push_back(&fiber);
            }
        }
        while (!wrong) {
            if (!under_way.empty() && (runnable.empty() || !below(4))) deliver();
            else if (!stores.empty() && (runnable.empty() || !below(4))) arrive_in_memory();
            else if (!runnable.empty()) {
                std::swap(runnable[below(runnable.size())], runnable.back());
                current = runnable.back();
                runnable.pop_back();
                swapcontext(&scheduler, &current->context);
            } else break;
        }
        for (const auto& block : blocks) {
            if (block->fibers_left) stop("everybody waits");
            for (int byte = 0; byte < GUARD_BYTES; ++byte) {
                if (block->shared[sizeof(Shared) + byte] != POISON) stop("a place outside shared memory");
            }
        }
    }
    return wrong;
}
"""


@dataclass(frozen=True)
class ClusterCode:
    """A kernel of blocks that wait, ready to be launched."""

    library: ctypes.CDLL
    plan: KernelPlan

    def launch(self, clusters: int, arguments: tuple[Any, ...], arrays: Iterable[Any], seed: int) -> None:
        """Run all clusters; integers, pointers and floats come as such. Copies may be from `arrays` only."""
        for bounds in ((0, 0), *map(byte_bounds, arrays)):
            self.library.allow(*map(ctypes.c_void_p, bounds))
        assert len(arguments) == self.library.arguments()
        packed = b"".join(struct.pack("d" if isinstance(one, float) else "q", one) for one in arguments)
        words = (ctypes.c_longlong * len(arguments)).from_buffer_copy(packed)
        group_blocks = self.plan.variables.get("cluster_blocks", 1) * self.plan.variables.get("grid_blocks", 1)
        wrong = self.library.launch(clusters, group_blocks, self.plan.threads, words, seed)
        assert wrong is None, wrong.decode()


def compiled(source: str, plan: KernelPlan, folder: Path) -> ClusterCode:
    """Compile the text of a kernel whose shared memory is a `Shared`."""
    assert source.count(SHARED_IN_KERNEL) == BEFORE.count(PLACES) == 1
    from_storage = (
        "float_from_float16" if plan.storage_dtype == "float16" else "[](unsigned bits) { return __uint_as_float(bits << 16); }"
    )
    text = BEFORE.replace(PLACES, "") + FIBERS.replace("FROM_STORAGE", from_storage)
    text += source.replace(SHARED_IN_KERNEL, SHARED_ON_HOST) + LAUNCH.replace("ENTRY", plan.entry)
    place = folder / f"{plan.entry}_{abs(hash(source))}"
    place.with_suffix(".cpp").write_text(text)
    command = ["g++", *OPTIONS, "-fsanitize-undefined-trap-on-error", "-o", f"{place}.so", f"{place}.cpp"]
    subprocess.run(command, check=True)
    library = ctypes.CDLL(f"{place}.so")
    library.launch.restype = ctypes.c_char_p
    assert library.shared_size() <= plan.shared_bytes, (library.shared_size(), plan.shared_map)
    return ClusterCode(library, plan)
