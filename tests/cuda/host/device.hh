/* device.hh: CUDA C for the host compiler, put before a kernel's text by the stand-in NVRTC (nvrtc_host.c). Each CUDA thread is a fiber of the simulated
 * device (exec_host.c); blocks run one after the other, so shared memory is static storage. Operations of a whole warp rest on one primitive: every lane hands
 * in some bytes, and all get everybody's. asm statements have become calls of kh_asm by then.
 *
 * Not here: textures, clusters, wgmma, TMA, printf. A warp operation needs all lanes that its mask names. */
#pragma once
#include "tests/cuda/host/host_api.h"
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __shared__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __restrict__ __restrict

extern "C" { __attribute__((visibility("default"))) kh_thread *kh_current; __attribute__((visibility("default"))) const kh_api *kh; }
alignas(128) static unsigned char kh_dynamic[232448];
#define threadIdx (kh_current->thread)
#define blockIdx (kh_current->block->id)
#define blockDim (kh_current->block->size)
#define gridDim (kh_current->block->grid)
#define warpSize 32

struct __align__(8) float2 { float x, y; };
struct __align__(16) float4 { float x, y, z, w; };
struct __align__(8) int2 { int x, y; };
struct __align__(16) int4 { int x, y, z, w; };
struct __align__(8) uint2 { unsigned x, y; };
struct __align__(16) uint4 { unsigned x, y, z, w; };
static inline float2 make_float2(float x, float y) { return { x, y }; }
static inline float4 make_float4(float x, float y, float z, float w) { return { x, y, z, w }; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return { x, y, z, w }; }

/* ---- the C library, by hand: <math.h> costs more to compile than most kernels --------------------------------------------------------- */
extern "C" {
#define KH_1(name) double name(double) noexcept(true); float name##f(float) noexcept(true);
KH_1(sin) KH_1(cos) KH_1(tan) KH_1(asin) KH_1(acos) KH_1(atan) KH_1(sinh) KH_1(cosh) KH_1(tanh) KH_1(asinh) KH_1(acosh) KH_1(atanh) KH_1(exp) KH_1(exp2)
KH_1(expm1) KH_1(log) KH_1(log2) KH_1(log10) KH_1(log1p) KH_1(sqrt) KH_1(cbrt) KH_1(erf) KH_1(erfc) KH_1(lgamma) KH_1(tgamma) KH_1(floor) KH_1(ceil)
KH_1(trunc) KH_1(rint) KH_1(round) KH_1(fabs) KH_1(nearbyint)
#define KH_2(name) double name(double, double) noexcept(true); float name##f(float, float) noexcept(true);
KH_2(pow) KH_2(fmod) KH_2(atan2) KH_2(fmin) KH_2(fmax) KH_2(copysign) KH_2(hypot) KH_2(remainder) KH_2(nextafter)
double fma(double, double, double) noexcept(true);
float fmaf(float, float, float) noexcept(true);
double ldexp(double, int) noexcept(true);
float ldexpf(float, int) noexcept(true);
int abs(int) noexcept(true);
}
static inline float rsqrtf(float x) { return (float)(1 / __builtin_sqrt((double)x)); }
static inline double rsqrt(double x) { return 1 / __builtin_sqrt(x); }
template <typename T> static inline bool isnan(T x) { return x != x; }
template <typename T> static inline bool isinf(T x) { return __builtin_isinf(x); }
template <typename T> static inline bool isfinite(T x) { return __builtin_isfinite(x); }
template <typename T> static inline bool signbit(T x) { return __builtin_signbit(x); }
#define KH_MINMAX(T) static inline T min(T a, T b) { return b < a ? b : a; } static inline T max(T a, T b) { return a < b ? b : a; }
KH_MINMAX(int) KH_MINMAX(unsigned) KH_MINMAX(long long) KH_MINMAX(unsigned long long) KH_MINMAX(long) KH_MINMAX(unsigned long)
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }

template <typename R, typename T> static inline R kh_bits(T x) { R r; static_assert(sizeof r == sizeof x, ""); memcpy(&r, &x, sizeof r); return r; }
static inline float __int_as_float(int x) { return kh_bits<float>(x); }
static inline float __uint_as_float(unsigned x) { return kh_bits<float>(x); }
static inline int __float_as_int(float x) { return kh_bits<int>(x); }
static inline unsigned __float_as_uint(float x) { return kh_bits<unsigned>(x); }
static inline double __longlong_as_double(long long x) { return kh_bits<double>(x); }
static inline long long __double_as_longlong(double x) { return kh_bits<long long>(x); }
/* Not to be contracted, as the compiler is told for all code */
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
static inline float __frcp_rn(float a) { return 1 / a; }
static inline float __frsqrt_rn(float a) { return (float)(1 / __builtin_sqrt((double)a)); }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dsub_rn(double a, double b) { return a - b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }
static inline double __dsqrt_rn(double a) { return __builtin_sqrt(a); }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
#define __expf(x) expf(x)
#define __exp2f(x) exp2f(x)
#define __logf(x) logf(x)
#define __fdividef(a, b) ((a) / (b))
static inline float __saturatef(float x) { return x != x ? 0 : x < 0 ? 0 : x > 1 ? 1 : x; }
template <typename I, typename F> static inline I kh_to_int(F x)
{
    constexpr bool is_signed = (I)-1 < 0;
    F top = ldexp(1.0, (int)sizeof(I) * 8 - is_signed), bottom = is_signed ? -top : 0;
    return x != x ? 0 : x >= top ? (I)(is_signed ? ~(1ull << (sizeof(I) * 8 - 1)) : ~0ull) : x < bottom ? (I)(is_signed ? 1ull << (sizeof(I) * 8 - 1) : 0) : (I)x;
}
static inline int __float2int_rz(float x) { return kh_to_int<int>(truncf(x)); }
static inline int __float2int_rn(float x) { return kh_to_int<int>(rintf(x)); }
static inline int __double2int_rz(double x) { return kh_to_int<int>(trunc(x)); }
static inline int __float2int_rd(float x) { return kh_to_int<int>(floorf(x)); }
static inline unsigned __float2uint_rz(float x) { return kh_to_int<unsigned>(truncf(x)); }
static inline unsigned __funnelshift_r(unsigned a, unsigned b, unsigned n) { return (unsigned)(((unsigned long long)b << 32 | a) >> (n & 31)); }
static inline unsigned __funnelshift_l(unsigned a, unsigned b, unsigned n) { return (unsigned)(((unsigned long long)b << 32 | a) << (n & 31) >> 32); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
static inline int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return (unsigned long long)((unsigned __int128)a * b >> 64); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline unsigned __brev(unsigned x) { unsigned r = 0; for (int i = 0; i < 32; i++) r |= (x >> i & 1) << (31 - i); return r; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
template <typename T> static inline T __ldg(const T *p) { return *p; }
static inline void __threadfence() {}
static inline void __threadfence_block() {}
[[noreturn]] static inline void __trap() { kh->fail("trap"); __builtin_unreachable(); }

/* ---- threads together --------------------------------------------------------------------------------------------------------------- */
#define __syncthreads() kh->barrier(__LINE__)
#define __syncwarp(...) kh_syncwarp(__LINE__, ##__VA_ARGS__)
static inline void kh_syncwarp(int line, unsigned mask = ~0u) { char none = 0; kh->exchange(mask, line, &none, 1); }
static inline int kh_lane() { return kh_current->lane; }
/* All lanes' x; only those of the mask are meaningful */
template <typename T> struct kh_lanes { const char *at; T operator[](int lane) const { T x; memcpy(&x, at + KH_EXCHANGE * lane, sizeof x); return x; } };
template <typename T> static inline kh_lanes<T> kh_all(unsigned mask, int line, T x) { return { (const char *)kh->exchange(mask, line, &x, sizeof x) }; }
template <typename T> static inline T kh_from(unsigned mask, int line, T x, int from, bool in_range)
{
    kh_lanes<T> all = kh_all(mask, line, x);
    if (!in_range) return x;
    if (!(mask >> from & 1)) kh->fail("shuffle from a lane that isn't in the member mask");
    return all[from];
}
template <typename T> static inline T kh_shfl_xor(int line, unsigned mask, T x, int by, int width = 32)
{ int to = kh_lane() ^ by; return kh_from(mask, line, x, to & 31, to < 32 && (to / width <= kh_lane() / width)); }
template <typename T> static inline T kh_shfl_down(int line, unsigned mask, T x, unsigned by, int width = 32)
{ int to = kh_lane() + (int)by; return kh_from(mask, line, x, to & 31, to / width == kh_lane() / width); }
template <typename T> static inline T kh_shfl_up(int line, unsigned mask, T x, unsigned by, int width = 32)
{ int to = kh_lane() - (int)by; return kh_from(mask, line, x, to & 31, to >= kh_lane() / width * width); }
template <typename T> static inline T kh_shfl(int line, unsigned mask, T x, int from, int width = 32)
{ return kh_from(mask, line, x, kh_lane() / width * width + (from & (width - 1)), true); }
#define __shfl_xor_sync(...) kh_shfl_xor(__LINE__, __VA_ARGS__)
#define __shfl_down_sync(...) kh_shfl_down(__LINE__, __VA_ARGS__)
#define __shfl_up_sync(...) kh_shfl_up(__LINE__, __VA_ARGS__)
#define __shfl_sync(...) kh_shfl(__LINE__, __VA_ARGS__)
static inline unsigned kh_ballot(int line, unsigned mask, int p)
{
    kh_lanes<int> all = kh_all(mask, line, (int)(p != 0));
    unsigned r = 0;
    for (int l = 0; l < 32; l++)
        if (mask >> l & 1 && all[l]) r |= 1u << l;
    return r;
}
#define __ballot_sync(mask, p) kh_ballot(__LINE__, mask, p)
#define __any_sync(mask, p) (kh_ballot(__LINE__, mask, p) != 0)
#define __all_sync(mask, p) (kh_ballot(__LINE__, mask, p) == (mask))

static inline unsigned __activemask() { return ~0u; }
template <typename T> static inline unsigned kh_match(int line, unsigned mask, T x)
{
    kh_lanes<T> all = kh_all(mask, line, x);
    unsigned r = 0;
    for (int l = 0; l < 32; l++)
        if (mask >> l & 1 && all[l] == x) r |= 1u << l;
    return r;
}
#define __match_any_sync(mask, x) kh_match(__LINE__, mask, x)
#define KH_REDUCE(name, step) \
    template <typename T> static inline T kh_reduce_##name(int line, unsigned mask, T x) \
    { kh_lanes<T> all = kh_all(mask, line, x); T r = x; for (int l = 0; l < 32; l++) if (mask >> l & 1 && l != kh_lane()) { T y = all[l]; r = step; } return r; }
KH_REDUCE(add, r + y) KH_REDUCE(max, r < y ? y : r) KH_REDUCE(min, y < r ? y : r)
#define __reduce_add_sync(mask, x) kh_reduce_add(__LINE__, mask, x)
#define __reduce_max_sync(mask, x) kh_reduce_max(__LINE__, mask, x)
#define __reduce_min_sync(mask, x) kh_reduce_min(__LINE__, mask, x)

template <typename T, typename U> static inline T atomicXor(T *p, U x) { T old = *p; *p = old ^ (T)x; return old; }
template <typename T, typename U> static inline T atomicAnd(T *p, U x) { T old = *p; *p = old & (T)x; return old; }
template <typename T, typename U> static inline T atomicOr(T *p, U x) { T old = *p; *p = old | (T)x; return old; }
template <typename T, typename U> static inline T atomicAdd(T *p, U x) { T old = *p; *p = (T)(old + (T)x); return old; }
template <typename T, typename U> static inline T atomicMax(T *p, U x) { T old = *p; if (old < (T)x) *p = (T)x; return old; }
template <typename T, typename U> static inline T atomicMin(T *p, U x) { T old = *p; if ((T)x < old) *p = (T)x; return old; }
template <typename T, typename U> static inline T atomicExch(T *p, U x) { T old = *p; *p = (T)x; return old; }
template <typename T, typename U, typename V> static inline T atomicCAS(T *p, U a, V b)
{ T old = *p; if (old == (T)a) *p = (T)b; else kh->yield(); return old; }      /* who spins on it lets others go on */

/* ---- asm ------------------------------------------------------------------------------------------------------------------------------- */
/* A shared address as 32 bits, and back: shared memory is this object's static storage, so its upper half is known */
static inline size_t __cvta_generic_to_shared(const void *p) { return (uint32_t)(uintptr_t)p; }
static inline char *kh_shared(uint32_t at)
{
    uintptr_t near = (uintptr_t)kh_dynamic, p = (near & ~(uintptr_t)0xffffffffu) | at;
    intptr_t off = (intptr_t)(p - near);
    return (char *)(off > (intptr_t)0x7fffffff ? p - ((uintptr_t)1 << 32) : off < -(intptr_t)0x7fffffff ? p + ((uintptr_t)1 << 32) : p);
}
struct kh_operand { void *at; int bytes; };
template <typename T> static inline kh_operand kh_out(T &x) { return { (void *)&x, (int)sizeof x }; }
template <typename T> struct kh_held { T x; operator kh_operand() { return { (void *)&x, (int)sizeof x }; } };
template <typename T> static inline kh_held<T> kh_in(T x) { return { x }; }
template <typename... O> static inline void kh_asm(const char *text, int line, O &&...o)
{
    kh_operand all[] = { o..., { nullptr, 0 } };
    kh->assembly(text, line, (const kh_asm_operand *)all, (int)sizeof...(o), &kh_shared);
}

/* ---- launches --------------------------------------------------------------------------------------------------------------------------- */
template <size_t... I> struct kh_index {};
template <size_t N, size_t... I> struct kh_count : kh_count<N - 1, N - 1, I...> {};
template <size_t... I> struct kh_count<0, I...> { typedef kh_index<I...> type; };
template <typename... A, size_t... I> static inline void kh_spread(void (*f)(A...), void **p, kh_index<I...>) { f(*(A *)p[I]...); }
template <typename... A> static inline void kh_call(void (*f)(A...), void **p) { kh_spread(f, p, typename kh_count<sizeof...(A)>::type()); }
template <typename... A> static inline int kh_sizes(void (*)(A...), int *out) { int s[] = { (int)sizeof(A)..., 0 }; memcpy(out, s, sizeof s); return (int)sizeof...(A); }
#define KH_KERNEL(name) \
    extern "C" __attribute__((visibility("default"))) void kh_run_##name(void **p) { kh_call(kh_k_##name, p); } \
    extern "C" __attribute__((visibility("default"))) int kh_sizes_##name(int *out) { return kh_sizes(kh_k_##name, out); }
