// What is known of every place in memory: who wrote it last and who read it since, as they were ordered by what they waited
// for. A kernel is compiled with its loads and stores announced (-fsanitize=thread), to the functions at the end of machine.cpp.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace minrnn_host {
// A place is 2 bytes, the smallest that kernels write by themselves.
constexpr int PLACE_BYTES = 2;
// In `writer` beside the number of a fiber plus one: the write is of a kind that others may meet (relaxed, whole), or has begun
// and not arrived yet.
constexpr uint32_t WHOLE = 1u << 31, UNDER_WAY = 1u << 30, FIBER = UNDER_WAY - 1;
// In `reader` beside the number of a row of `Region::rows`: there are several.
constexpr uint32_t SEVERAL = 1u << 31;

struct Place {
    uint32_t writer, write_tick, write_at;  // `at`: where in the code, from the start of the library; tick: see Clock
    uint32_t reader, read_tick, read_at;
};
// The lanes of one warp that read a place, at their latest tick.
struct Readers { uint32_t tick, lanes; };

// An array, or the shared memory of a block.
struct Region {
    std::string name;
    unsigned char* begin;
    std::size_t bytes;
    bool is_given;                          // written before the launch
    bool is_shared;
    std::unique_ptr<Place[], void (*)(void*)> places;
    int warps = 0;
    std::vector<std::vector<Readers>> rows = {};
    std::vector<uint32_t> free_rows = {};

    Region(std::string name, void* begin, std::size_t bytes, bool is_given, bool is_shared)
        : name(std::move(name)), begin(static_cast<unsigned char*>(begin)), bytes(bytes), is_given(is_given), is_shared(is_shared),
          places(static_cast<Place*>(std::calloc(bytes / PLACE_BYTES + 1, sizeof(Place))), std::free) {}
    bool has(const void* address) const { return static_cast<const unsigned char*>(address) - begin < std::ptrdiff_t(bytes) && address >= begin; }
    void forget_readers(Place& place) {
        if (place.reader & SEVERAL) free_rows.push_back(place.reader & ~SEVERAL);
        place.reader = 0;
    }
};

// How far everybody of a cluster is known to be: all that they did at a tick below theirs is over and seen; behind that, for
// everybody again, how far their reads are over, which whoever has a value that depends on them knows, too.
typedef std::vector<uint32_t> Ticks;
typedef std::shared_ptr<const Ticks> Clock;

inline void raise(Ticks& ticks, const Clock& clock) {
    if (!clock) return;
    const uint32_t* other = clock->data();
    uint32_t* mine = ticks.data();
    for (std::size_t n = 0, count = ticks.size(); n < count; ++n) mine[n] = std::max(mine[n], other[n]);
}
inline Clock later(const Clock& one, const Clock& other) {
    if (!other || one == other) return one;
    if (!one) return other;
    auto both = std::make_shared<Ticks>(*one);
    raise(*both, other);
    return both;
}
}  // namespace minrnn_host
