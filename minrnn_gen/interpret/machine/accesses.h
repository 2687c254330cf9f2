// Loads and stores: who did what to a place last, and whether anything orders the two.
#pragma once
#include <string>
#include "fibers.h"
#include "order.h"

namespace minrnn_host {
constexpr unsigned EVENTS_AT_ONCE_MOST = 128;   // accesses of one fiber, at most, before others may run

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
    uint32_t known = fiber.number, known_tick = 0;  // whose write at the place before is no news
    for (std::size_t n = first; n <= last; ++n) {
        Place& place = region.places[n];
        const uint32_t writer = place.writer & FIBER;
        if (place.writer & UNDER_WAY) race(does, "writes", region, region.begin + n * PLACE_BYTES, writer, at, place.write_at, true);
        else if (writer && writer != fiber.number && (writer != known || place.write_tick != known_tick) && !(is_whole && place.writer & WHOLE)) {
            known = writer;
            known_tick = place.write_tick;
            if (!knows(fiber, writer, known_tick, false)) race(does, "writes", region, region.begin + n * PLACE_BYTES, writer, at, place.write_at, false);
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
}  // namespace minrnn_host
