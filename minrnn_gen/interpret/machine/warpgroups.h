// Matrix products of warpgroups (wgmma), asynchronous: of each warp its 16 rows, with operands in shared memory.
//
// While a multiplication is in flight its registers are full of NaN, and its sums are here: a kernel that reads them too early
// computes with NaN. Its operands in shared memory are read at the issue or at the wait, by lot, and count as read at both.
#pragma once
#include "tensor_cores.h"

namespace minrnn_host {
constexpr int WARPGROUP_WARPS = 4, WARP_ROWS = 16, COLUMNS_AT_ONCE = 8, COLUMNS_MOST = 256, DEPTH_MOST = 16;
// PTX ISA, 128-byte swizzle: bits 4 to 6 of an address are xor-ed with bits 7 to 9. An instruction takes 32 bytes of each row.
constexpr std::uintptr_t ROW_BYTES = 128, SLICE_BYTES = 32, PIECE_BYTES = 16, SWIZZLE_BYTES = 1024, WORDS_OF_SLICE = SLICE_BYTES / 4;
typedef double Columns __attribute__((vector_size(COLUMNS_AT_ONCE * sizeof(double))));

static const unsigned char* swizzled(std::uintptr_t address) { return reinterpret_cast<const unsigned char*>(address ^ (address >> 3 & 0x70)); }
static void load_slice(uint32_t* words, const unsigned char* matrix, int row) {
    for (std::uintptr_t offset = 0; offset < SLICE_BYTES; offset += PIECE_BYTES) {
        std::memcpy(words + offset / 4, swizzled(reinterpret_cast<std::uintptr_t>(matrix) + row * ROW_BYTES + offset), PIECE_BYTES);
    }
}
// The numbers of a row's slice, 16 or 8.
static int decode(double* numbers, const uint32_t* words, char element) {
    for (std::uintptr_t w = 0; w < WORDS_OF_SLICE; ++w) {
        if (element == 't') numbers[w] = tf32_value(words[w]);
        else for (int v = 0; v < 2; ++v) numbers[2 * w + v] = element == 'b' ? bfloat16_value(words[w], v) : float16_value(words[w], v);
    }
    return element == 't' ? 8 : 16;
}
static int first_row(const Warp& warp) { return warp.number % WARPGROUP_WARPS * WARP_ROWS; }
static void multiply(const Warp& warp, const Multiplication& product, Accumulators& accumulators) {
    static Columns right[COLUMNS_MOST / COLUMNS_AT_ONCE][DEPTH_MOST];
    double numbers[DEPTH_MOST];
    uint32_t words[WORDS_OF_SLICE];
    int depth = 0;
    for (int column = 0; column < product.columns; ++column) {
        load_slice(words, product.right_shared, column);
        depth = decode(numbers, words, product.element);
        for (int k = 0; k < depth; ++k) right[column / COLUMNS_AT_ONCE][k][column % COLUMNS_AT_ONCE] = numbers[k];
    }
    for (int row = 0; row < WARP_ROWS; ++row) {
        if (product.left_shared) load_slice(words, product.left_shared, first_row(warp) + row);
        decode(numbers, product.left_shared ? words : &product.left[row * WORDS_OF_SLICE], product.element);
        for (int group = 0; group < product.columns / COLUMNS_AT_ONCE; ++group) {
            float* sums = &accumulators.sums[row * product.columns + group * COLUMNS_AT_ONCE];
            Columns totals;
            for (int n = 0; n < COLUMNS_AT_ONCE; ++n) totals[n] = product.adds ? double(sums[n]) : 0.0;
            for (int k = 0; k < depth; ++k) totals += numbers[k] * right[group][k];
            for (int n = 0; n < COLUMNS_AT_ONCE; ++n) sums[n] = product.element == 't' ? towards_zero(totals[n]) : float(totals[n]);
        }
    }
}

// ---- registers: sum[4 n + 2 h + c] of a lane is row lane / 4 + 8 h of column 8 n + 2 (lane % 4) + c --------------------------------
template <typename Visit>
static void visit_registers(Accumulators& accumulators, Visit visit) {
    for (int lane = 0; lane < LANES; ++lane) {
        for (int n = 0; n < accumulators.columns / 2; ++n) {
            const int row = lane / 4 + n / 2 % 2 * 8, column = n / 4 * 8 + lane % 4 * 2 + n % 2;
            visit(accumulators.registers[lane][n], accumulators.sums[row * accumulators.columns + column]);
        }
    }
}
static const float IN_FLIGHT_VALUE = __uint_as_float(~0u);
struct WgmmaOperands { float* sum; const unsigned* left; const unsigned char *left_shared, *right_shared; };
static const WgmmaOperands& operands_of(const Warp& warp, int lane) { return *static_cast<WgmmaOperands*>(warp.operands[lane]); }
static Accumulators& accumulators_of(Warp& warp, float* registers, int columns) {
    for (Accumulators& known : warp.accumulators) if (known.registers[0] == registers && known.columns == columns) return known;
    warp.accumulators.push_back({{}, columns, std::vector<float>(WARP_ROWS * columns), 0});
    Accumulators& fresh = warp.accumulators.back();
    for (int lane = 0; lane < LANES; ++lane) fresh.registers.push_back(operands_of(warp, lane).sum);
    visit_registers(fresh, [](float& value, float& sum) { sum = value; value = IN_FLIGHT_VALUE; });
    return fresh;
}
static void write_registers(Accumulators& accumulators, uint64_t pc) {
    visit_registers(accumulators, [=](float& value, float& sum) {
        if (__float_as_uint(value) != ~0u) report("registers", pc, 0, current, "waits for a multiplication whose sums were written while it was in flight");
        value = sum;
    });
}
// Bytes 4 (lane % 4) on of row lane / 4 of the slice's first half, then of row lane / 4 + 8, then both of its second half.
static std::vector<uint32_t> left_of_lanes(const Warp& warp) {
    std::vector<uint32_t> words(WARP_ROWS * WORDS_OF_SLICE);
    for (int lane = 0; lane < LANES; ++lane) {
        for (int w = 0; w < 4; ++w) words[(lane / 4 + w % 2 * 8) * WORDS_OF_SLICE + w / 2 * 4 + lane % 4] = operands_of(warp, lane).left[w];
    }
    return words;
}

// ---- operands in shared memory ------------------------------------------------------------------------------------------------------
static void check_matrix(const unsigned char* matrix, int rows, uint64_t pc) {
    const Region& region = *current->block->region;
    const auto address = reinterpret_cast<std::uintptr_t>(matrix);
    if (!region.has(matrix) || !region.has(matrix + (rows - 1) * ROW_BYTES + SLICE_BYTES - 1)) {
        report("out of bounds", pc, 0, current, "multiplies %d rows from %s on", rows, near_region(matrix).c_str());
        abort_launch();
    }
    if (address % SWIZZLE_BYTES >= ROW_BYTES || address % SLICE_BYTES) {
        report("misaligned", pc, 0, current, "multiplies a matrix at %s, which is no slice of %d bytes of rows from a multiple of %d on",
               byte_of(region, matrix).c_str(), int(SLICE_BYTES), int(SWIZZLE_BYTES));
        abort_launch();
    }
}
// Both pieces of a slice of a row are the halves of 32 bytes.
static const unsigned char* bytes_of_slice(const unsigned char* matrix, int row) {
    return swizzled((reinterpret_cast<std::uintptr_t>(matrix) + row * ROW_BYTES)) - (row & 1) * PIECE_BYTES;
}
// What was stored by ordinary means is visible to wgmma once its writer has executed a fence of the asynchronous proxy.
static void check_fenced(const Region& region, const unsigned char* bytes, uint64_t pc) {
    const Cluster& cluster = *current->block->cluster;
    const std::size_t first = (bytes - region.begin) / CELL_BYTES;
    uint32_t checked = 0, checked_tick = 0;
    for (std::size_t n = first; n < first + SLICE_BYTES / CELL_BYTES; ++n) {
        const ShadowCell& cell = region.cells[n];
        if (!cell.writer || cell.writer & BY_PROXY || (cell.writer == checked && cell.write_tick == checked_tick)) continue;
        checked = cell.writer;
        checked_tick = cell.write_tick;
        const uint32_t writer = cell.writer & THREAD_ID;
        if (cluster.fibers[writer - 1 - cluster.first_block * block_threads]->fence_tick > cell.write_tick) continue;
        report(PROXY, pc, cell.write_pc, current, "multiplies %s, which thread %u of block %u stored, and executed no fence_async_proxy since",
               byte_of(region, region.begin + n * CELL_BYTES).c_str(), (writer - 1) % block_threads, (writer - 1) / block_threads);
    }
}
// What was written since the issue, even by a copy whose arrival this warp has seen meanwhile, came too early.
static void check_unchanged(const Region& region, const unsigned char* bytes, const VectorClock& issued, uint64_t pc) {
    const uint32_t before = current->block->cluster->first_block * block_threads + 1;
    const std::size_t first = (bytes - region.begin) / CELL_BYTES;
    for (std::size_t n = first; n < first + SLICE_BYTES / CELL_BYTES; ++n) {
        const ShadowCell& cell = region.cells[n];
        const uint32_t writer = cell.writer & THREAD_ID;
        if (!writer || cell.writer & IN_FLIGHT || issued[writer - before] > cell.write_tick) continue;
        return report_race("multiplies", "writes", region, region.begin + n * CELL_BYTES, writer, pc, cell.write_pc);
    }
}
static void read_matrix(const unsigned char* matrix, int rows, const VectorClock* issued, uint64_t pc) {
    Region& region = *current->block->region;
    for (int row = 0; row < rows; ++row) {
        const unsigned char* bytes = bytes_of_slice(matrix, row);
        if (issued) check_unchanged(region, bytes, *issued, pc);
        else check_fenced(region, bytes, pc);
        check_cells(region, bytes, SLICE_BYTES, READ, pc);
    }
}

// ---- issue, batches, waits ---------------------------------------------------------------------------------------------------------------
static const unsigned char* own_rows(const Warp& warp, const unsigned char* left_shared) { return left_shared + first_row(warp) * ROW_BYTES; }
static void multiply_pending(Warp& warp, int pending) {
    for (Multiplication& product : warp.multiplications) {
        if (product.is_done || product.batch + pending > warp.batch) continue;
        multiply(warp, product, accumulators_of(warp, product.registers, product.columns));
        product.is_done = true;
    }
}
static void issue_multiplication(Warp& warp, int columns, char element, bool adds, uint64_t pc) {
    const WgmmaOperands& first = operands_of(warp, 0);
    for (int lane = 1; lane < LANES; ++lane) {
        const WgmmaOperands& other = operands_of(warp, lane);
        if (other.left_shared == first.left_shared && other.right_shared == first.right_shared) continue;
        report(DIVERGENCE, pc, 0, current, "executes wgmma with other operands than lane 0 of its warp");
        abort_launch();
    }
    if (!warp.is_fenced) report("registers", pc, 0, current, "multiplies without a fence_multiplications behind the last write of its registers");
    check_matrix(first.right_shared, columns, pc);
    if (first.left_shared) check_matrix(first.left_shared, WARPGROUP_WARPS * WARP_ROWS, pc);
    read_matrix(first.right_shared, columns, nullptr, pc);
    if (first.left_shared) read_matrix(own_rows(warp, first.left_shared), WARP_ROWS, nullptr, pc);
    accumulators_of(warp, first.sum, columns).batch = warp.batch;
    warp.multiplications.push_back({first.left_shared ? std::vector<uint32_t>() : left_of_lanes(warp), first.left_shared, first.right_shared, columns, element,
                                    adds, warp.batch, first.sum, false, pc, warp.clock});
    ++warp.multiplied;
    if (random_below(2)) multiply_pending(warp, 0);
}
void multiply_warpgroup(float* sum, int columns, const unsigned* left, const unsigned char* left_shared, const unsigned char* right_shared,
                        const char* element, bool adds) {
    const uint64_t pc = code_offset(CALLER);
    const unsigned threads_to_end = (current->warp->number / WARPGROUP_WARPS + 1) * WARPGROUP_WARPS * LANES;
    if (threads_to_end > block_threads || columns < 8 || columns > COLUMNS_MOST || columns % 8) {
        report(DIVERGENCE, pc, 0, current, "executes wgmma of %d columns in a block of %u threads; it takes 8 to 256, and four warps", columns, block_threads);
        abort_launch();
    }
    WgmmaOperands operands = {sum, left, left_shared, right_shared};
    collective(~0u, "wgmma", &operands, CALLER, [=](Warp& warp) { issue_multiplication(warp, columns, *element, adds, pc); });
}
void fence_multiplications() {
    collective(~0u, "wgmma.fence", nullptr, CALLER, [](Warp& warp) { warp.is_fenced = true; });
}
void close_multiplications() {
    collective(~0u, "wgmma.commit_group", nullptr, CALLER, [](Warp& warp) { ++warp.batch; });
}
void wait_multiplications(int pending) {
    const uint64_t pc = code_offset(CALLER);
    collective(~0u, "wgmma.wait_group", nullptr, CALLER, [=](Warp& warp) {
        auto is_over = [&](unsigned batch) { return batch + pending < warp.batch; };
        multiply_pending(warp, pending + 1);
        std::vector<std::pair<const unsigned char*, int>> read;
        auto read_once = [&](const unsigned char* matrix, int rows, const Multiplication& product) {
            if (std::find(read.begin(), read.end(), std::pair(matrix, rows)) != read.end()) return;
            read.emplace_back(matrix, rows);
            read_matrix(matrix, rows, product.issued.get(), product.pc);
        };
        for (const Multiplication& product : warp.multiplications) {
            if (!is_over(product.batch)) continue;
            read_once(product.right_shared, product.columns, product);
            if (product.left_shared) read_once(own_rows(warp, product.left_shared), WARP_ROWS, product);
        }
        for (Accumulators& accumulators : warp.accumulators) {
            if (!is_over(accumulators.batch)) continue;
            write_registers(accumulators, pc);
            warp.is_fenced = false;
        }
        auto remove = [&](auto& from) {
            from.erase(std::remove_if(from.begin(), from.end(), [&](const auto& entry) { return is_over(entry.batch); }), from.end());
        };
        remove(warp.multiplications);
        remove(warp.accumulators);
        // The reads of the operands are complete, whichever lane announces it.
        order_reads(warp);
    });
}
// A warp that ends has waited for its multiplications.
static void check_multiplications(const Warp& warp) {
    for (const Multiplication& product : warp.multiplications) report("copy", product.pc, 0, current, "exits with a multiplication in flight");
}
// Registers of a thread (PTX ISA, setmaxnreg): 24 to 256, a multiple of 8.
void set_registers(int registers) {
    constexpr int UNIT = 8, LEAST = 24, MOST = 256;
    if (registers < LEAST || registers > MOST || registers % UNIT) {
        report("registers", code_offset(CALLER), 0, current, "sets %d registers; allowed are multiples of %d from %d to %d", registers, UNIT, LEAST, MOST);
    }
    collective(~0u, "setmaxnreg", nullptr, CALLER, [=](Warp& warp) { warp.registers = registers; });
}
// All warps of a warpgroup execute its multiplications, and set its registers.
static void check_warpgroups(const Block& block) {
    for (const Warp& warp : block.warps) {
        const Warp& first = block.warps[warp.number / WARPGROUP_WARPS * WARPGROUP_WARPS];
        if (warp.registers != first.registers) {
            report(DIVERGENCE, 0, 0, warp.lanes[0], "ends with %d registers set, and warp %d of its warpgroup with %d", warp.registers, first.number, first.registers);
        }
        if (warp.multiplied == first.multiplied) continue;
        report(DIVERGENCE, 0, 0, warp.lanes[0], "has executed %u multiplications of its warpgroup, and warp %d of it %u", warp.multiplied, first.number,
               first.multiplied);
    }
}
}  // namespace minrnn_host
