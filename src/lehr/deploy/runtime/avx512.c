/* The routines on vectors of 64 bytes. Compile this file alone with the flags in build.py. */
#ifdef LEHR_HAVE_AVX512

#include "lehr.h"
#include <immintrin.h>

typedef uint16_t vector __attribute__((vector_size(64)));

#define INSTRUCTION_SET LEHR_AVX512
#define VECTOR vector
#define VECTOR_BYTES 64
#define SHIFT(x, n) ((x) >> (n))
#define MOST(a, b) ((vector)_mm512_max_epu16((__m512i)(a), (__m512i)(b)))
/* gcc would otherwise reorder the additions of an unrolled loop and run out of registers: 1.3 times slower */
#define KEEP(a, b) __asm__("" : "+v"(a), "+v"(b))
#define IN_ORDER __asm__ volatile("" ::: "memory")
#define OPAQUE(x) __asm__("" : "+r"(x))
#define PREFETCH(x) __builtin_prefetch(x)
#define TERNARY lehr_avx512_ternary
#define WIDE lehr_avx512_wide
#define SHORT lehr_avx512_short
#define BITS lehr_avx512_bits
#define POOLS lehr_avx512_pools
#define PLUS lehr_avx512_plus
#define DIRECT lehr_avx512_direct
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

lehr_routine_function *const lehr_avx512_routines[LEHR_ROUTINES] = {
    [LEHR_DIRECT] = lehr_avx512_direct,
    [LEHR_TERNARY] = lehr_avx512_ternary,
    [LEHR_WIDE] = lehr_avx512_wide,
    [LEHR_SHORT] = lehr_avx512_short,
    [LEHR_BITS] = lehr_avx512_bits,
    [LEHR_PLUS] = lehr_avx512_plus,
    [LEHR_POOLS] = lehr_avx512_pools,
};

#else
typedef int lehr_without_avx512; /* C99 wants a declaration in every file */
#endif
