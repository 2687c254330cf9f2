// Shadow memory: for every cell of an array or of shared memory, the last write and the reads since. Kernels are compiled with
// -fsanitize=thread, so that the compiler announces every load and store to the functions at the end of machine.cpp.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace minrnn_host {
// A cell is 2 bytes, the smallest that kernels write by themselves.
constexpr int CELL_BYTES = 2;
// Flags in `writer`, beside the thread's id: a relaxed write, which other relaxed accesses may meet; a write in flight; a write by
// the asynchronous proxy.
constexpr uint32_t RELAXED = 1u << 31, IN_FLIGHT = 1u << 30, BY_PROXY = 1u << 29, THREAD_ID = BY_PROXY - 1;
// Flag in `reader`, beside the number of a row of `Region::read_rows`: several concurrent readers.
constexpr uint32_t READ_SHARED = 1u << 31;

// Two epochs, of the last write and the last read: a thread's id (0: none), its tick then, and the code (`pc`) that did it.
struct ShadowCell {
    uint32_t writer, write_tick, write_pc;
    uint32_t reader, read_tick, read_pc;
};
// The lanes of one warp that read a cell, at their latest tick.
struct WarpReaders { uint32_t tick, lanes; };

// An array, or the shared memory of a block.
struct Region {
    std::string name;
    unsigned char* begin;
    std::size_t bytes;
    bool is_initialized;                    // before the launch
    bool is_shared;
    std::unique_ptr<ShadowCell[], void (*)(void*)> cells;
    int warps = 0;
    std::vector<std::vector<WarpReaders>> read_rows = {};
    std::vector<uint32_t> free_rows = {};

    Region(std::string name, void* begin, std::size_t bytes, bool is_initialized, bool is_shared)
        : name(std::move(name)), begin(static_cast<unsigned char*>(begin)), bytes(bytes), is_initialized(is_initialized), is_shared(is_shared),
          cells(static_cast<ShadowCell*>(std::calloc(bytes / CELL_BYTES + 1, sizeof(ShadowCell))), std::free) {}
    bool has(const void* address) const { return static_cast<const unsigned char*>(address) - begin < std::ptrdiff_t(bytes) && address >= begin; }
    void clear_readers(ShadowCell& cell) {
        if (cell.reader & READ_SHARED) free_rows.push_back(cell.reader & ~READ_SHARED);
        cell.reader = 0;
    }
};

// Vector clock over the threads of a cluster, twice. The first half: whatever a thread did at a tick below its entry is complete
// and visible. The second half: its reads are complete, which also follows from holding a value that depends on them.
typedef std::vector<uint32_t> VectorClock;
typedef std::shared_ptr<const VectorClock> SharedClock;

inline void join(VectorClock& clock, const SharedClock& other) {
    if (!other) return;
    const uint32_t* theirs = other->data();
    uint32_t* ticks = clock.data();
    for (std::size_t n = 0, count = clock.size(); n < count; ++n) ticks[n] = std::max(ticks[n], theirs[n]);
}
inline SharedClock joined(const SharedClock& clock, const SharedClock& other) {
    if (!other || clock == other) return clock;
    if (!clock) return other;
    auto both = std::make_shared<VectorClock>(*clock);
    join(*both, other);
    return both;
}
}  // namespace minrnn_host
