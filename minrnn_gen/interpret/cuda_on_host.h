// CUDA for a C++ compiler: the names of the language that a kernel's text uses, and CPU twins of the instructions that the
// wrappers in templates/ptx have in assembly. Synchronization, and memory that threads share, are the machine's (machine/);
// nothing here changes the text of a kernel.
#pragma once
#include <cstddef>
#include <cstring>
#include <type_traits>
#include <utility>

#define __device__
#define __global__
#define __shared__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
// `extern __shared__ unsigned char shared_bytes[]` becomes an extern reference to an array: the shared memory of the block that runs.
#define shared_bytes (&minrnn_shared_bytes)
#define MINRNN_INLINE static inline __attribute__((always_inline))

struct MinrnnIndex { unsigned x, y, z; };
extern MinrnnIndex threadIdx, blockIdx, blockDim, gridDim;

// The functions of templates/parts/functions.cuh.j2: all of <cmath> would take a fifth of a kernel's compile time.
extern "C" {
float expf(float) noexcept, logf(float) noexcept, log1pf(float) noexcept, expm1f(float) noexcept, tanhf(float) noexcept, fabsf(float) noexcept;
float atanf(float) noexcept, erff(float) noexcept, sinf(float) noexcept, cosf(float) noexcept;
float fmaf(float, float, float) noexcept;
double exp(double) noexcept, exp2(double) noexcept, log(double) noexcept, log1p(double) noexcept, expm1(double) noexcept, tanh(double) noexcept, sqrt(double) noexcept;
double atan(double) noexcept, erf(double) noexcept, sin(double) noexcept, cos(double) noexcept;
double fabs(double) noexcept;
}
template <typename Number> MINRNN_INLINE bool isfinite(Number value) { return __builtin_isfinite(value); }
template <typename Number> MINRNN_INLINE bool isnan(Number value) { return __builtin_isnan(value); }
template <typename Number> MINRNN_INLINE constexpr Number min(Number x, Number y) { return y < x ? y : x; }
template <typename Number> MINRNN_INLINE constexpr Number max(Number x, Number y) { return x < y ? y : x; }
// The compilers of emulated kernels do not contract, so that operations are rounded each by itself.
MINRNN_INLINE double __dmul_rn(double x, double y) { return x * y; }
MINRNN_INLINE double __dadd_rn(double x, double y) { return x + y; }
MINRNN_INLINE double __fma_rn(double x, double y, double z) { return __builtin_fma(x, y, z); }
MINRNN_INLINE unsigned __float_as_uint(float value) { unsigned bits; std::memcpy(&bits, &value, sizeof bits); return bits; }
MINRNN_INLINE float __uint_as_float(unsigned bits) { float value; std::memcpy(&value, &bits, sizeof bits); return value; }
MINRNN_INLINE long long __double_as_longlong(double value) { long long bits; std::memcpy(&bits, &value, sizeof bits); return bits; }
MINRNN_INLINE double __longlong_as_double(long long bits) { double value; std::memcpy(&value, &bits, sizeof bits); return value; }

namespace minrnn_host {
constexpr int LANES = 32;

// ---- synchronization and shared memory (machine/) --------------------------------------------------------------------------
void sync_threads();
int sync_threads_or(int predicate);
void sync_some(int number, int threads);
void sync_warp(unsigned lanes);
unsigned cluster_rank();
void cluster_sync();
// Shuffle: each lane's value becomes that of `from_lane`, and stays where the warp has no such lane.
void exchange(unsigned lanes, void* value, int bytes, int from_lane);
// The ballot of the lanes' predicates.
unsigned vote(unsigned lanes, bool predicate);
// `mbarrier` and `to` are addresses in shared memory of this block.
void mbarrier_init(void* mbarrier, unsigned arrivals);
void mbarrier_arrive(void* mbarrier);
void mbarrier_arrive_expect_tx(void* mbarrier, unsigned bytes);
void mbarrier_arrive_when_copied(void* mbarrier);
void fetch_piece(void* to_shared, const void* from_global);
void mbarrier_wait(void* mbarrier, int phase);
void st_async_bytes(void* to, void* mbarrier, unsigned rank, const void* value, int bytes);
void bulk_copy(void* to_shared, const void* from_global, unsigned bytes, void* mbarrier);
void fence_async_proxy();
void copy_async(void* to, const void* from, int bytes);
void copy_async_commit();
void copy_async_wait(int pending);
void store_relaxed(void* to, const void* value, int bytes);
void load_relaxed(void* value, const void* from, int bytes);
void store_piece(void* to, const unsigned (&word)[4]);
void add_release(unsigned* counter);
unsigned load_acquire(const unsigned* counter);
unsigned atomic_add(unsigned* to, unsigned value);
void load_matrices(unsigned (&first)[2], unsigned (*second)[2], const void* row);
void store_transposed(void* row, const unsigned (&pairs)[4]);
// mma.sync m16n8k16 of 16-bit values, m16n8k8 of tf32.
void multiply_add_16bit(float (&sum)[4], const unsigned (&left)[4], unsigned low, unsigned high, bool are_bfloat16);
void multiply_add_tf32(float (&sum)[4], const unsigned (&left)[4], unsigned low, unsigned high);
// setmaxnreg: registers of each thread of this warpgroup.
void set_registers(int registers);
// wgmma, for the 16 rows of this warp: `left` is 4 words in registers or 64 rows in shared memory, `element` is bf16, f16 or tf32.
void multiply_warpgroup(float* sum, int columns, const unsigned* left, const unsigned char* left_shared, const unsigned char* right_shared,
                        const char* element, bool adds = true);
void fence_multiplications();
void close_multiplications();
void wait_multiplications(int pending);
unsigned long long nanoseconds();
void give_up(const char* awaited, long long iteration);

// The descriptor of a matrix in shared memory is its address.
MINRNN_INLINE unsigned long long matrix_descriptor(const void* matrix) { return reinterpret_cast<unsigned long long>(matrix); }
MINRNN_INLINE unsigned long long matrix_descriptor_at(unsigned long long descriptor, int offset_bytes) { return descriptor + offset_bytes; }
MINRNN_INLINE const unsigned char* matrix_of(unsigned long long descriptor) { return reinterpret_cast<const unsigned char*>(descriptor); }
// A map for copies of tiles: where it begins, then of each axis the size of a box, and the bytes from one to the next.
constexpr int BOXES_FROM = 1, STRIDES_FROM = 6;
MINRNN_INLINE void begin_tensor_map(unsigned long long* words, const void* base) { words[0] = reinterpret_cast<unsigned long long>(base); }
MINRNN_INLINE void set_tensor_axis(unsigned long long* words, int axis, int box, long long stride_bytes) {
    words[BOXES_FROM + axis] = box;
    words[STRIDES_FROM + axis] = stride_bytes;
}
MINRNN_INLINE void publish_tensor_map(unsigned long long* to, const unsigned long long* from, int words) {
    // All lanes come together, which makes nothing visible that one of them has stored.
    vote(~0u, true);
    for (int word = threadIdx.x % LANES; word < words; word += LANES) to[word] = from[word];
    sync_warp(~0u);
}
// Rows of 128 bytes, in pieces of 16: piece p of row r to p ^ (r % 8).
MINRNN_INLINE void copy_box(unsigned char* to, const unsigned long long* words, const int* coordinate, int axes, int value_bytes, void* mbarrier) {
    constexpr int ROW_BYTES = 128, PIECE_BYTES = 16, SWIZZLED_ROWS = 8;
    int rows = 1;
    for (int axis = 1; axis < axes; ++axis) rows *= int(words[BOXES_FROM + axis]);
    for (int row = 0; row < rows; ++row) {
        const unsigned char* from = reinterpret_cast<const unsigned char*>(words[0]) + coordinate[0] * value_bytes;
        for (int axis = 1, rest = row; axis < axes; ++axis) {
            const int box = int(words[BOXES_FROM + axis]);
            from += (coordinate[axis] + rest % box) * static_cast<long long>(words[STRIDES_FROM + axis]);
            rest /= box;
        }
        for (int piece = 0; piece < ROW_BYTES / PIECE_BYTES; ++piece) {
            bulk_copy(to + row * ROW_BYTES + (piece ^ row % SWIZZLED_ROWS) * PIECE_BYTES, from + piece * PIECE_BYTES, PIECE_BYTES, mbarrier);
        }
    }
}
template <typename Value> MINRNN_INLINE Value shuffled(unsigned lanes, Value value, int from_lane) {
    exchange(lanes, &value, sizeof value, from_lane);
    return value;
}
MINRNN_INLINE int lane() { return int(threadIdx.x % LANES); }
template <typename Value> MINRNN_INLINE void st_async(Value* to, void* mbarrier, unsigned rank, Value value) {
    // In units of 4 or of 8 bytes, as the instruction has them.
    constexpr int UNIT = sizeof(Value) == 4 ? 4 : 8;
    for (int offset = 0; offset < int(sizeof value); offset += UNIT) {
        st_async_bytes(reinterpret_cast<char*>(to) + offset, mbarrier, rank, reinterpret_cast<const char*>(&value) + offset, UNIT);
    }
}
template <typename Unit> MINRNN_INLINE void store_unit(Unit* to, Unit unit) { store_relaxed(to, &unit, sizeof unit); }
template <typename Unit> MINRNN_INLINE Unit load_unit(const Unit* from) {
    Unit unit;
    load_relaxed(&unit, from, sizeof unit);
    return unit;
}

// ---- arithmetic --------------------------------------------------------------------------------------------------------------
template <typename Number> MINRNN_INLINE Number opaque(Number value) { return value; }
MINRNN_INLINE float exp2(float x) { return __builtin_exp2f(x); }
MINRNN_INLINE float log2(float x) { return __builtin_log2f(x); }
MINRNN_INLINE float reciprocal(float x) { return 1 / x; }
MINRNN_INLINE float quotient(float x, float y) { return x / y; }
MINRNN_INLINE float square_root(float x) { return __builtin_sqrtf(x); }
MINRNN_INLINE float reciprocal_root(float x) { return 1 / __builtin_sqrtf(x); }
MINRNN_INLINE float lesser(float x, float y) { return x != x || x < y ? x : y; }
MINRNN_INLINE float greater(float x, float y) { return x != x || x > y ? x : y; }
// IEEE 754 binary16: to the nearest, ties to even, with subnormal numbers; NaN is the one NaN of the hardware.
static inline float float_from_float16(unsigned short bits) {
    const unsigned sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 0x1fu, mantissa = bits & 0x3ffu;
    if (exponent == 0x1fu) return __uint_as_float(sign | 0x7f800000u | mantissa << 13);
    const float size = exponent ? __uint_as_float((exponent + 112) << 23 | mantissa << 13) : float(mantissa) * 0x1p-24f;
    return sign ? -size : size;
}
static inline unsigned short float16_from_float(float value) {
    if (value != value) return 0x7fffu;
    const unsigned sign = __float_as_uint(value) >> 16 & 0x8000u;
    const float size = __builtin_fabsf(value);
    if (size >= 65520.0f) return static_cast<unsigned short>(sign | 0x7c00u);  // halfway from the largest to the next
    // A sum with a number whose last place is the result's is rounded there.
    if (size < 0x1p-14f) return static_cast<unsigned short>(sign | (__float_as_uint(size + 0.5f) - __float_as_uint(0.5f)));
    const unsigned bits = __float_as_uint(size);
    return static_cast<unsigned short>(sign | (((bits + 0xfffu + (bits >> 13 & 1u)) >> 13) - (112u << 10)));
}
MINRNN_INLINE unsigned short bfloat16_from_float(float value) {
    const unsigned bits = __float_as_uint(value);
    return static_cast<unsigned short>(value == value ? (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16 : 0x7fffu);
}
// The nearest tf32, of two the one further from 0.
MINRNN_INLINE unsigned tf32_of(float value) {
    const unsigned bits = __float_as_uint(value);
    return value == value ? (bits + 0x1000u) & ~0x1fffu : 0x7fffffffu;
}
MINRNN_INLINE void multiply_add(float (&sum)[4], const unsigned (&left)[4], unsigned low, unsigned high) {
    multiply_add_16bit(sum, left, low, high, MINRNN_IS_BFLOAT16);
}

// ---- launches ----------------------------------------------------------------------------------------------------------------
// Every argument is a word of 8 bytes; a floating-point number is a double.
template <typename To> To argument(long long word) {
    if constexpr (std::is_pointer_v<To>) {
        return reinterpret_cast<To>(word);
    } else if constexpr (std::is_floating_point_v<To>) {
        double number;
        std::memcpy(&number, &word, sizeof number);
        return To(number);
    } else {
        return static_cast<To>(word);
    }
}
struct Entry {
    const char* name;
    int arguments;
    void (*run)(const long long* words);
};
template <typename... Arguments, std::size_t... INDEX>
void call(void (*kernel)(Arguments...), const long long* words, std::index_sequence<INDEX...>) {
    kernel(argument<Arguments>(words[INDEX])...);
}
template <typename... Arguments> constexpr std::size_t count(void (*)(Arguments...)) { return sizeof...(Arguments); }
template <auto KERNEL> void run(const long long* words) { call(KERNEL, words, std::make_index_sequence<count(KERNEL)>()); }
template <auto KERNEL> constexpr Entry entry(const char* name) { return {name, int(count(KERNEL)), run<KERNEL>}; }
}  // namespace minrnn_host

#define __syncthreads minrnn_host::sync_threads
#define __syncthreads_or minrnn_host::sync_threads_or
#define MINRNN_ALL_LANES(...) (sizeof(#__VA_ARGS__) == 1 ? 0xffffffffu : __VA_ARGS__ + 0u)
#define __syncwarp(...) minrnn_host::sync_warp(MINRNN_ALL_LANES(__VA_ARGS__))
#define __shfl_sync(lanes, value, from) minrnn_host::shuffled(lanes, value, from)
#define __shfl_up_sync(lanes, value, by) minrnn_host::shuffled(lanes, value, minrnn_host::lane() - int(by))
#define __shfl_down_sync(lanes, value, by) minrnn_host::shuffled(lanes, value, minrnn_host::lane() + int(by))
#define __shfl_xor_sync(lanes, value, mask) minrnn_host::shuffled(lanes, value, minrnn_host::lane() ^ (mask))
#define __ballot_sync(lanes, predicate) minrnn_host::vote(lanes, predicate)
#define __any_sync(lanes, predicate) (minrnn_host::vote(lanes, predicate) != 0)
#define __all_sync(lanes, predicate) (minrnn_host::vote(lanes, !(predicate)) == 0)
#define atomicAdd(to, value) minrnn_host::atomic_add(to, value)
