/* lanes.h: loops over a warp's lanes, and the number formats that C lacks. Handlers made from these rows compute all lanes and keep those
 * of exec. */
#ifndef SIM_LANES_H
#define SIM_LANES_H
#include "tests/cuda/sim/exec.h"
#include <math.h>
#include <string.h>

#define LANE_LOOP for (int l = 0; l < LANES; l++)
#define KEEP(out, D) do { \
    uint32_t exec_ = w->exec; \
    if (exec_ == UINT32_MAX) { LANE_LOOP (D)[l] = (out)[l]; } \
    else { LANE_LOOP (D)[l] = exec_ >> l & 1 ? (out)[l] : (D)[l]; } \
} while (0);

static inline float as_f32(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
static inline uint32_t bits_f32(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
static inline double as_f64(uint64_t u) { double d; memcpy(&d, &u, 8); return d; }
static inline uint64_t bits_f64(double d) { uint64_t u; memcpy(&u, &d, 8); return u; }

/* f16 as bits. Subnormals are exact through a product with a power of two. */
static inline float f16_f32(uint16_t h)
{
    uint32_t m = h & 0x7fffu;
    uint32_t u = m >= 0x7c00u ? m << 13 | 0x7f800000u : bits_f32(as_f32(m << 13) * 0x1p112f);
    return as_f32(u | (h & 0x8000u) << 16);
}

static inline uint16_t f32_f16(float f)
{
    uint32_t u = bits_f32(f), sign = u >> 16 & 0x8000u;
    u &= 0x7fffffffu;
    uint32_t subnormal = bits_f32(as_f32(u) + 0.5f) - 0x3f000000u;
    uint32_t normal = (u + 0xc8000fffu + (u >> 13 & 1)) >> 13;
    uint32_t r = u >= 0x477ff000u ? 0x7c00u : u < 0x38800000u ? subnormal : normal;
    return (uint16_t)(u > 0x7f800000u ? 0x7fffu : r | sign);
}

static inline float bf16_f32(uint16_t h) { return as_f32((uint32_t)h << 16); }
static inline uint16_t f32_bf16(float f)
{
    uint32_t u = bits_f32(f);
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : (u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

/* A fused multiply-add's double result to f32 for a later rounding to fewer bits: to odd, so that the second rounding isn't a double one */
static inline float f64_f32_odd(double d)
{
    float f = (float)d;
    if ((double)f == d || f != f || fabsf(f) == INFINITY) return f;
    uint32_t u = bits_f32(f);
    if (u & 1) return f;
    /* f was rounded away from d's odd neighbour: step towards d */
    bool up = (double)f < d;
    return as_f32(up == (f >= 0 && !signbit(f)) ? u + 1 : u - 1);
}

/* The device's NaN, whatever came in. f64 keeps payloads. */
static inline float canon(float f) { return f != f ? as_f32(0x7fffffffu) : f; }
static inline float flush(float f) { return fabsf(f) < 0x1p-126f ? copysignf(0, f) : f; }
static inline float saturate(float f) { return f != f ? 0 : f < 0 ? 0 : f > 1 ? 1 : f; }

static inline float min_f32(float a, float b) { return a != a ? canon(b) : b != b ? a : a < b || (a == b && signbit(a)) ? a : b; }
static inline float max_f32(float a, float b) { return a != a ? canon(b) : b != b ? a : a > b || (a == b && !signbit(a)) ? a : b; }
static inline double min_f64(double a, double b) { return a != a ? b : b != b ? a : a < b || (a == b && signbit(a)) ? a : b; }
static inline double max_f64(double a, double b) { return a != a ? b : b != b ? a : a > b || (a == b && !signbit(a)) ? a : b; }

/* Two 16-bit numbers in a word: e over the floats x, y, z of each half */
#define HALF2(to, from, e) ({ \
    uint32_t r2_ = 0; \
    for (int h_ = 0; h_ < 32; h_ += 16) { \
        float x = to((uint16_t)(a >> h_)), y = to((uint16_t)(b >> h_)); \
        (void)y; \
        r2_ |= (uint32_t)from(e) << h_; \
    } \
    r2_; })
#define HALF3(to, from) ({ \
    uint32_t r3_ = 0; \
    for (int h_ = 0; h_ < 32; h_ += 16) \
        r3_ |= (uint32_t)from(f64_f32_odd((double)to((uint16_t)(a >> h_)) * to((uint16_t)(b >> h_)) + to((uint16_t)(c >> h_)))) << h_; \
    r3_; })

static inline uint32_t reverse32(uint32_t x)
{
    x = (x & 0x55555555u) << 1 | (x >> 1 & 0x55555555u);
    x = (x & 0x33333333u) << 2 | (x >> 2 & 0x33333333u);
    x = (x & 0x0f0f0f0fu) << 4 | (x >> 4 & 0x0f0f0f0fu);
    return __builtin_bswap32(x);
}
static inline uint64_t reverse64(uint64_t x) { return (uint64_t)reverse32((uint32_t)x) << 32 | reverse32((uint32_t)(x >> 32)); }

/* prmt's default mode; a selector's top bit spreads the byte's sign */
static inline uint32_t permute(uint32_t a, uint32_t b, uint32_t selector)
{
    uint64_t both = (uint64_t)b << 32 | a;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t s = selector >> 4 * i & 15, byte = (uint32_t)(both >> 8 * (s & 7)) & 255;
        if (s & 8) byte = byte & 128 ? 255 : 0;
        r |= byte << 8 * i;
    }
    return r;
}

static inline uint32_t lop3(uint32_t a, uint32_t b, uint32_t c, int table)
{
    uint32_t r = 0;
    for (int i = 0; i < 8; i++)
        if (table >> i & 1) r |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    return r;
}

static inline uint64_t field(uint64_t a, uint32_t position, uint32_t length, int width, bool is_signed)
{
    position &= 255;
    length &= 255;
    uint64_t top = is_signed && length ? a >> (position + length - 1 > (uint32_t)width - 1 ? (uint32_t)width - 1 : position + length - 1) & 1 : 0;
    uint64_t shifted = position < (uint32_t)width ? a >> position : 0, mask = length >= 64 ? UINT64_MAX : (UINT64_C(1) << length) - 1;
    uint32_t have = position < (uint32_t)width ? (uint32_t)width - position : 0;
    if (have < 64) shifted &= (UINT64_C(1) << have) - 1;
    uint64_t r = shifted & mask, filled = length < have ? length : have;
    return top && filled < 64 ? r | UINT64_MAX << filled : r;
}

static inline uint64_t insert(uint64_t from, uint64_t into, uint32_t position, uint32_t length, int width)
{
    position &= 255;
    length &= 255;
    if (position >= (uint32_t)width || !length) return into;
    uint64_t mask = (length >= 64 ? UINT64_MAX : (UINT64_C(1) << length) - 1) << position;
    return (into & ~mask) | (from << position & mask);
}

static inline int32_t dot4(uint32_t a, uint32_t b, int32_t c, bool sa, bool sb)
{
    for (int i = 0; i < 32; i += 8) {
        int x = sa ? (int8_t)(a >> i) : (int)(a >> i & 255), y = sb ? (int8_t)(b >> i) : (int)(b >> i & 255);
        c = (int32_t)((uint32_t)c + (uint32_t)(x * y));
    }
    return c;
}

#endif
