/* philox.h: Kiln's random numbers (CAPTURE 19): Philox4x32-10 by counter, so that any element can be made by itself, in any order.
 *
 *   key      the seed, 64 bits: key[0] its lower, key[1] its upper word
 *   counter  a 64-bit block number: c[0] its lower, c[1] its upper word; c[2] = c[3] = 0
 *
 * A call owns the blocks from `offset` on. In f32, element i (row-major) uses word i mod 4 of block offset + i/4. In f64 an element takes
 * two words:
 * element i uses words 2(i mod 2) and 2(i mod 2) + 1 of block offset + i/2.
 *
 *   uniform f32  upper 24 bits of the word, times 2^-24: in [0, 1)
 *   uniform f64  (upper 27 bits of the first word * 2^26 + upper 26 bits of the second) * 2^-53
 *   normal f32   Box-Muller on words (0, 1) and (2, 3): u = 1 - uniform of the first, in (0, 1]; t = 2 pi * uniform of the second;
 *                sqrt(-2 log u) * cos t, then * sin t; log, cos, sin of mathfn.inc
 *   normal f64   the block's two uniforms likewise, in f64 with the C library's functions: element 2k takes the cosine, 2k + 1 the sine
 *   dropout      element i is kept where its f32 uniform >= (float)p, also when the data is f64
 *
 * The operators below take two words an element, as f64 does, whatever their dtype. Read as one number of 64 bits (the first word its
 * upper half) they are the element's bits; `uniform` is uniform f64.
 *
 *   randint      low + floor(bits * (high - low) / 2^64): no value's probability is off by more than 2^-64
 *   bernoulli    1 where uniform < p
 *   multinomial  with replacement: draw j of a row is the first category where the running sum of the row's probabilities (f64, in order) exceeds uniform
 *                times the sum of all; element row * draws + j. Without: category k, element row * categories + k, comes at time -log(1 - uniform) / p[k];
 *                the draws are the first to come, in that order, the lower category first where times are equal
 *   randperm     0 … n-1, then for i from n-1 down to 1 place i is exchanged with place floor(bits of element i * (i + 1) / 2^64)
 */
#ifndef KB_PHILOX_H
#define KB_PHILOX_H
#include <stdint.h>

static inline void kb_philox(uint64_t seed, uint64_t block, uint32_t out[4])
{
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32), c2 = 0, c3 = 0, k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
#if !defined(__clang__)
    _Pragma("GCC unroll 10") /* unrolled, a loop over blocks vectorises */
#endif
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

static inline float kb_uniform_f32(uint32_t word) { return (float)(word >> 8) * 0x1p-24f; }
static inline double kb_uniform_f64(uint32_t first, uint32_t second)
{
    return (double)((uint64_t)(first >> 5) << 26 | second >> 6) * 0x1p-53;
}

/* The bits of elements 2 * block and 2 * block + 1 of a call whose first block is `offset`. */
static inline void kb_philox_bits(uint64_t seed, uint64_t offset, uint64_t block, uint64_t bits[2])
{
    uint32_t w[4];
    kb_philox(seed, offset + block, w);
    bits[0] = (uint64_t)w[0] << 32 | w[1];
    bits[1] = (uint64_t)w[2] << 32 | w[3];
}
static inline double kb_uniform_of(uint64_t bits) { return kb_uniform_f64((uint32_t)(bits >> 32), (uint32_t)bits); }
/* floor(bits * range / 2^64) */
static inline uint64_t kb_below(uint64_t bits, uint64_t range) { return (uint64_t)((unsigned __int128)bits * range >> 64); }

/* Blocks that n elements use, `words` words each: what a call reserves. */
static inline uint64_t kb_philox_blocks(uint64_t n, int words) { return (n * (uint64_t)words + 3) / 4; }

#endif
