// Race detector: every load and store is held against the last write and the reads since, in shadow memory.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <string>
#include "fibers.h"
#include "happens_before.h"

namespace minrnn_host {
constexpr unsigned ACCESSES_AT_ONCE_MOST = 128;   // of one fiber, before it yields

static Event event_now(const void* caller) { return {current->id, current->tick, code_offset(caller)}; }
static Region* region_of(const void* address) {
    Region* shared = current->block->region.get();
    if (shared && shared->has(address)) return shared;
    if (last_array && last_array->has(address)) return last_array;
    auto after = std::upper_bound(arrays.begin(), arrays.end(), address, [](const void* wanted, const auto& array) { return wanted < array->begin; });
    if (after == arrays.begin() || !(*--after)->has(address)) return nullptr;
    return last_array = after->get();
}
// An address outside of every region, by the nearest one.
static std::string near_region(const void* address) {
    char text[160];
    const auto* byte = static_cast<const unsigned char*>(address);
    const Region* nearest = nullptr;
    auto distance = [&](const Region& array) { return byte < array.begin ? array.begin - byte : std::max<std::ptrdiff_t>(0, byte - (array.begin + array.bytes) + 1); };
    for (const auto& array : arrays) if (!nearest || distance(*array) < distance(*nearest)) nearest = array.get();
    constexpr long long NEAR_SHARED_BYTES = 4096;
    for (const auto& cluster : clusters) {
        for (const auto& block : cluster->blocks) {
            const long long offset = byte - block->shared;
            if (nearest && !distance(*nearest)) continue;
            if (offset < -NEAR_SHARED_BYTES || offset >= (long long)(shared_size) + NEAR_SHARED_BYTES) continue;
            std::snprintf(text, sizeof text, "byte %lld of the %zu bytes of shared memory of block %u", offset, shared_size, block->number);
            return text;
        }
    }
    if (!nearest || distance(*nearest) > 1 << 30) std::snprintf(text, sizeof text, "address %p, far from every array", address);
    else std::snprintf(text, sizeof text, "byte %lld of the %zu bytes of %s", (long long)(byte - nearest->begin), nearest->bytes, nearest->name.c_str());
    return text;
}
static std::string byte_of(const Region& region, const void* address) {
    char text[120];
    const long long offset = static_cast<const unsigned char*>(address) - region.begin;
    std::snprintf(text, sizeof text, "byte %lld of %s", offset, region.is_shared ? "shared memory" : region.name.c_str());
    return text;
}
// A race with another thread: the current one `does` something to a byte to which the `other` one `also` does something.
static void report_race(const char* does, const char* also, const Region& region, const void* address, uint32_t other, uint64_t pc, uint64_t other_pc) {
    const unsigned block = (other - 1) / block_threads, thread = (other - 1) % block_threads;
    report("race", pc, other_pc, current, "%s %s, which thread %u of block %u also %s; no release/acquire pair orders them", does,
           byte_of(region, address).c_str(), thread, block, also);
}
static void report_race_in_flight(const char* does, const Region& region, const void* address, uint32_t other, uint64_t pc, uint64_t other_pc) {
    const unsigned block = (other - 1) / block_threads, thread = (other - 1) % block_threads;
    report("race", pc, other_pc, current, "%s %s, to which thread %u of block %u has an asynchronous write in flight", does,
           byte_of(region, address).c_str(), thread, block);
}
static void record_read(Region& region, ShadowCell& cell, uint32_t pc) {
    const Fiber& fiber = *current;
    if (cell.reader & READ_SHARED) {
        WarpReaders& readers = region.read_rows[cell.reader & ~READ_SHARED][fiber.warp->number];
        const uint32_t lane = 1u << fiber.thread % LANES;
        if (!readers.lanes || readers.tick < fiber.tick) readers = {fiber.tick, lane};
        else if (readers.tick == fiber.tick) readers.lanes |= lane;
        cell.read_pc = pc;
        return;
    }
    if (cell.reader && cell.reader != fiber.id && !happens_before(cell.reader, cell.read_tick, true, fiber)) {
        if (!region.is_shared) {            // one of several concurrent readers is kept, by lot
            if (random_below(2)) return;
        } else {
            const uint32_t other = (cell.reader - 1) % block_threads, tick = cell.read_tick;
            if (region.free_rows.empty()) {
                region.free_rows.push_back(uint32_t(region.read_rows.size()));
                region.read_rows.emplace_back();
            }
            const uint32_t row = region.free_rows.back();
            region.free_rows.pop_back();
            region.read_rows[row].assign(region.warps, {});
            region.read_rows[row][other / LANES] = {tick, 1u << other % LANES};
            cell.reader = READ_SHARED | row;
            return record_read(region, cell, pc);
        }
    }
    cell.reader = fiber.id;
    cell.read_tick = fiber.tick;
    cell.read_pc = pc;
}
// The first reader whose read does not happen before what the current fiber does, or 0.
static uint32_t concurrent_reader(const Region& region, const ShadowCell& cell) {
    const Fiber& fiber = *current;
    if (!(cell.reader & READ_SHARED)) return cell.reader && !happens_before(cell.reader, cell.read_tick, true, fiber) ? cell.reader : 0;
    const std::vector<WarpReaders>& row = region.read_rows[cell.reader & ~READ_SHARED];
    const uint32_t first = fiber.id - fiber.thread;
    for (int warp = 0; warp < region.warps; ++warp) {
        for (int lane = 0; lane < LANES; ++lane) {
            const uint32_t id = first + warp * LANES + lane;
            if (row[warp].lanes >> lane & 1u && !happens_before(id, row[warp].tick, true, fiber)) return id;
        }
    }
    return 0;
}
enum Access { READ, WRITE, ASYNC_WRITE, PROXY_WRITE, RELAXED_READ, RELAXED_WRITE };     // of the asynchronous ones, the latter by the proxy
static uint32_t flags_of(Access access) {
    switch (access) {
        case RELAXED_WRITE: return RELAXED;
        case ASYNC_WRITE: return IN_FLIGHT;
        case PROXY_WRITE: return IN_FLIGHT | BY_PROXY;
        default: return 0;
    }
}
static void check_cells(Region& region, const void* address, std::size_t bytes, Access access, uint64_t pc) {
    const Fiber& fiber = *current;
    const std::size_t first = (static_cast<const unsigned char*>(address) - region.begin) / CELL_BYTES;
    const std::size_t last = (static_cast<const unsigned char*>(address) + bytes - 1 - region.begin) / CELL_BYTES;
    const bool reads = access == READ || access == RELAXED_READ, is_relaxed = access == RELAXED_READ || access == RELAXED_WRITE;
    const char* does = reads ? "reads" : "writes";
    uint32_t checked = fiber.id, checked_tick = 0;  // the epoch of the write to the cell before
    for (std::size_t n = first; n <= last; ++n) {
        ShadowCell& cell = region.cells[n];
        const uint32_t writer = cell.writer & THREAD_ID;
        if (cell.writer & IN_FLIGHT) report_race_in_flight(does, region, region.begin + n * CELL_BYTES, writer, pc, cell.write_pc);
        else if (writer && writer != fiber.id && (writer != checked || cell.write_tick != checked_tick) && !(is_relaxed && cell.writer & RELAXED)) {
            checked = writer;
            checked_tick = cell.write_tick;
            if (!happens_before(writer, checked_tick, false, fiber)) report_race(does, "writes", region, region.begin + n * CELL_BYTES, writer, pc, cell.write_pc);
        }
        if (reads) {
            if (!writer && !region.is_initialized && !region.is_shared) {
                report("uninitialized", pc, 0, current, "reads %s, which is uninitialized", byte_of(region, address).c_str());
            }
            if (!is_relaxed) record_read(region, cell, uint32_t(pc));
            continue;
        }
        if (cell.reader) {
            if (const uint32_t reader = concurrent_reader(region, cell)) {
                report_race(does, "reads", region, region.begin + n * CELL_BYTES, reader, pc, cell.read_pc);
            }
            region.clear_readers(cell);
        }
        cell.writer = fiber.id | flags_of(access);
        cell.write_tick = fiber.tick;
        cell.write_pc = uint32_t(pc);
    }
}
// An asynchronous write has arrived; it counts as its writer's at `tick`.
static void complete_write(Region& region, const void* address, std::size_t bytes, uint32_t tick) {
    const std::size_t first = (static_cast<const unsigned char*>(address) - region.begin) / CELL_BYTES;
    for (std::size_t n = first; n < first + (bytes + CELL_BYTES - 1) / CELL_BYTES; ++n) {
        region.cells[n].writer &= ~IN_FLIGHT;
        region.cells[n].write_tick = tick;
    }
}
#ifdef MINRNN_RECORDED_ACCESSES
// Every access to shared memory, for who asks where lanes meet in a bank (`make banks`): code, thread, byte, and bytes with a flag for writes.
static void record_shared(const unsigned char* byte, std::size_t bytes, bool reads, const void* caller) {
    static FILE* const file = std::fopen(std::getenv("MINRNN_RECORDED_ACCESSES"), "ab");
    constexpr uint32_t WRITES = 256;
    const uint32_t record[] = {uint32_t(code_offset(caller) - 1), current->id - 1, uint32_t(byte - current->block->shared), uint32_t(bytes) | (reads ? 0 : WRITES)};
    std::fwrite(record, sizeof record, 1, file);
}
#endif
// A copy by a lane to which a vote or a shuffle announced an acquire: it orders the copies of lanes that acquire, and of others after a barrier.
static void check_acquires(uint64_t pc) {
    for (const auto& [counter, lanes] : current->warp->announced) {
        if (lanes >> current->thread % LANES & 1) continue;
        report("race", pc, 0, current, "copies behind an acquire by other lanes of its warp, and no __syncwarp is between");
        return;
    }
}
static void check_access(const void* address, std::size_t bytes, std::size_t alignment, Access access, const void* caller) {
    if (!current) return;
    const auto* byte = static_cast<const unsigned char*>(address);
    if (std::size_t(byte - current->stack) < STACK_BYTES) return;
    if (byte >= code_begin && byte < code_end) return;
    memory_changes += access == WRITE || access == ASYNC_WRITE;
    if (!--accesses_left) {
        accesses_left = 1 + random_below(ACCESSES_AT_ONCE_MOST);
        ++steps;
        yield();
    }
    const bool is_shared = current->block->region && current->block->region->has(address);
#ifdef MINRNN_RECORDED_ACCESSES
    if (is_shared && access != ASYNC_WRITE && access != PROXY_WRITE) record_shared(byte, bytes, access == READ || access == RELAXED_READ, caller);
#endif
    if (!watches_arrays && !is_shared) return;
    const uint64_t pc = code_offset(caller);
    const char* does = access == READ || access == RELAXED_READ ? "reads" : "writes";
    Region* region = region_of(address);
    if (!region || !region->has(byte + bytes - 1)) {
        report("out of bounds", pc, 0, current, "%s %zu bytes at %s", does, bytes, near_region(address).c_str());
        abort_launch();
    }
    if (reinterpret_cast<std::uintptr_t>(address) % alignment) {
        report("misaligned", pc, 0, current, "%s %zu bytes at %s, which is not aligned to %zu bytes", does, bytes, byte_of(*region, address).c_str(), alignment);
        abort_launch();
    }
    check_cells(*region, address, bytes, access, pc);
}
}  // namespace minrnn_host
