// Matrix products of a warp (mma.sync), loads of their operands (ldmatrix), and transposed stores (stmatrix).
#pragma once
#include "warps.h"

namespace minrnn_host {
struct MmaOperands { float* sum; const unsigned* left; unsigned right[2]; };
// Fragment layouts of the PTX ISA: mma.sync m16n8k16 with two values in a word, and m16n8k8 with one.
template <int DEPTH, typename ValueOf, typename Rounded>
static void multiply_add_tiles(const Warp& warp, ValueOf value_of, Rounded rounded) {
    constexpr int IN_WORD = DEPTH / 8, HALF = DEPTH / 2, ROWS = 16, COLUMNS = 8;
    double left[ROWS][DEPTH], right[COLUMNS][DEPTH];
    for (int lane = 0; lane < LANES; ++lane) {
        const MmaOperands& fragment = *static_cast<MmaOperands*>(warp.operands[lane]);
        for (int w = 0; w < 4; ++w) {
            for (int v = 0; v < IN_WORD; ++v) left[lane / 4 + w % 2 * 8][w / 2 * HALF + lane % 4 * IN_WORD + v] = value_of(fragment.left[w], v);
        }
        for (int w = 0; w < 2; ++w) {
            for (int v = 0; v < IN_WORD; ++v) right[lane / 4][w * HALF + lane % 4 * IN_WORD + v] = value_of(fragment.right[w], v);
        }
    }
    for (int lane = 0; lane < LANES; ++lane) {
        const MmaOperands& fragment = *static_cast<MmaOperands*>(warp.operands[lane]);
        for (int n = 0; n < 4; ++n) {
            const int row = lane / 4 + n / 2 * 8, column = lane % 4 * 2 + n % 2;
            double total = fragment.sum[n];
            for (int k = 0; k < DEPTH; ++k) total += left[row][k] * right[column][k];
            fragment.sum[n] = rounded(total);
        }
    }
}
// The numbers in a word of an operand. The hardware ignores the low 13 bits of tf32, and rounds sums of products towards 0.
static unsigned short half(unsigned word, int which) { return static_cast<unsigned short>(which ? word >> 16 : word & 0xffffu); }
static float bfloat16_value(unsigned word, int which) { return __uint_as_float(unsigned(half(word, which)) << 16); }
static float float16_value(unsigned word, int which) { return float_from_float16(half(word, which)); }
static float tf32_value(unsigned word) { return __uint_as_float(word & ~0x1fffu); }
static float towards_zero(double value) {
    const float nearest = float(value);
    return __builtin_fabsf(nearest) > __builtin_fabs(value) ? __builtin_nextafterf(nearest, 0.0f) : nearest;
}
void multiply_add_16bit(float (&sum)[4], const unsigned (&left)[4], unsigned low, unsigned high, bool are_bfloat16) {
    MmaOperands operands = {sum, left, {low, high}};
    collective(~0u, "mma.sync", &operands, CALLER, [=](Warp& warp) {
        auto nearest = [](double total) { return float(total); };
        if (are_bfloat16) multiply_add_tiles<16>(warp, bfloat16_value, nearest);
        else multiply_add_tiles<16>(warp, float16_value, nearest);
    });
}
void multiply_add_tf32(float (&sum)[4], const unsigned (&left)[4], unsigned low, unsigned high) {
    MmaOperands operands = {sum, left, {low, high}};
    collective(~0u, "mma.sync", &operands, CALLER, [](Warp& warp) {
        multiply_add_tiles<8>(warp, [](unsigned word, int) { return tf32_value(word); }, towards_zero);
    });
}
// PTX ISA, ldmatrix: lane 8 m + r has the address of row r of matrix m.
struct LdmatrixOperands { const void* row; unsigned *first, *second; };
void load_matrices(unsigned (&first)[2], unsigned (*second)[2], const void* row) {
    constexpr std::size_t ROW_BYTES = 16;
    const int matrices = second ? 4 : 2;
    LdmatrixOperands operands = {row, first, second ? *second : nullptr};
    if (int(current->thread % LANES) < 8 * matrices) check_access(row, ROW_BYTES, ROW_BYTES, READ, CALLER);
    collective(~0u, second ? "ldmatrix.x4" : "ldmatrix.x2", &operands, CALLER, [=](Warp& warp) {
        for (int lane = 0; lane < LANES; ++lane) {
            const LdmatrixOperands& target = *static_cast<LdmatrixOperands*>(warp.operands[lane]);
            for (int m = 0; m < matrices; ++m) {
                const auto* from = static_cast<const unsigned char*>(static_cast<LdmatrixOperands*>(warp.operands[8 * m + lane / 4])->row);
                std::memcpy(m < 2 ? &target.first[m] : &target.second[m - 2], from + lane % 4 * sizeof(unsigned), sizeof(unsigned));
            }
        }
    });
}
// PTX ISA, stmatrix with .trans: lane 8 m + r has the address of row r of matrix m, which is column r of the lanes' pairs.
struct StmatrixOperands { unsigned char* row; const unsigned* pairs; };
void store_transposed(void* row, const unsigned (&pairs)[4]) {
    constexpr std::size_t ROW_BYTES = 16, ROWS = 8;
    StmatrixOperands operands = {static_cast<unsigned char*>(row), pairs};
    check_access(row, ROW_BYTES, ROW_BYTES, WRITE, CALLER);
    collective(~0u, "stmatrix.x4", &operands, CALLER, [](Warp& warp) {
        for (int lane = 0; lane < LANES; ++lane) {
            unsigned char* to = static_cast<StmatrixOperands*>(warp.operands[lane])->row;
            for (std::size_t n = 0; n < ROWS; ++n) {
                const auto* pairs = static_cast<StmatrixOperands*>(warp.operands[n * 4 + lane % ROWS / 2])->pairs;
                const auto value = static_cast<unsigned short>(pairs[lane / ROWS] >> lane % 2 * 16);
                std::memcpy(to + n * sizeof value, &value, sizeof value);
            }
        }
        ++memory_changes;
    });
}
}  // namespace minrnn_host
