/* The routines on vectors of 32 bytes, made of the templates below; the innermost loop is ternary_block in ternary.inc.
 * Compile this file alone with the flags in build.py. */
#ifdef LEHR_HAVE_AVX2

#include "lehr.h"
#include <immintrin.h>

typedef uint16_t vector __attribute__((vector_size(32)));

/* A row of 32 bytes, two of 16 or four of 8. */
static inline __attribute__((always_inline)) vector load_rows(const uint8_t *from, int segments, size_t row_bytes)
{
    const __m128i *const rows[4] = {(const void *)from, (const void *)(from + row_bytes), (const void *)(from + 2 * row_bytes),
                                    (const void *)(from + 3 * row_bytes)};
    if (segments == 1)
        return (vector)_mm256_loadu_si256((const __m256i *)rows[0]);
    if (segments == 2)
        return (vector)_mm256_set_m128i(_mm_loadu_si128(rows[1]), _mm_loadu_si128(rows[0]));
    return (vector)_mm256_set_m128i(_mm_unpacklo_epi64(_mm_loadl_epi64(rows[2]), _mm_loadl_epi64(rows[3])),
                                    _mm_unpacklo_epi64(_mm_loadl_epi64(rows[0]), _mm_loadl_epi64(rows[1])));
}

#define INSTRUCTION_SET LEHR_AVX2
#define VECTOR vector
#define VECTOR_BYTES 32
#define SHIFT(x, n) ((x) >> (n))
#define MOST(a, b) ((vector)_mm256_max_epu16((__m256i)(a), (__m256i)(b)))
/* gcc would otherwise reorder the additions of an unrolled loop and run out of registers: 1.3 times slower */
#define KEEP(a, b) __asm__("" : "+x"(a), "+x"(b))
#define IN_ORDER __asm__ volatile("" ::: "memory")
#ifndef __clang__ /* whose code is 2 % faster with single loads */
#define OPAQUE(x) __asm__("" : "+r"(x))
#endif
#define PREFETCH(x) __builtin_prefetch(x)
#define LOAD_ROWS load_rows
#define TERNARY lehr_avx2_ternary
#define WIDE lehr_avx2_wide
#define SHORT lehr_avx2_short
#define BITS lehr_avx2_bits
#define POOLS lehr_avx2_pools
#define PLUS lehr_avx2_plus
#define DIRECT lehr_avx2_direct
#include "lanes.inc"
#include "planes.inc"
#include "tables.inc"
#include "ternary.inc"
#include "wide.inc"
#include "short.inc"
#include "bits.inc"
#include "direct.inc"
#include "plus.inc"
#include "pools.inc"

lehr_routine_function *const lehr_avx2_routines[LEHR_ROUTINES] = {
    [LEHR_DIRECT] = lehr_avx2_direct,
    [LEHR_TERNARY] = lehr_avx2_ternary,
    [LEHR_WIDE] = lehr_avx2_wide,
    [LEHR_SHORT] = lehr_avx2_short,
    [LEHR_BITS] = lehr_avx2_bits,
    [LEHR_PLUS] = lehr_avx2_plus,
    [LEHR_POOLS] = lehr_avx2_pools,
};

#else
typedef int lehr_without_avx2; /* C99 wants a declaration in every file */
#endif
