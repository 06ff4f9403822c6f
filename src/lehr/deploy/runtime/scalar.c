/* The routines in plain C99, for any processor: look-ups and bit-planes on words of the size of a pointer.
 *
 * A word holds lanes of 16 bits that never carry into each other. */
#include "lehr.h"
#include "sums.h"

#define INSTRUCTION_SET LEHR_SCALAR
#if UINTPTR_MAX > 0xffffffffu
#define VECTOR uint64_t
#define VECTOR_BYTES 8
#define ONES UINT64_C(0x0001000100010001)
#else
#define VECTOR uint32_t
#define VECTOR_BYTES 4
#define ONES UINT32_C(0x00010001)
#endif
#define SHIFT(x, n) ((x) >> (n) & (0xffffu >> (n)) * ONES)
#define MOST(a, b) ((b) ^ (((a) ^ (b)) & SHIFT(((a) | 0x8000u * ONES) - (b), 15) * 0xffffu))
#if defined(__GNUC__) && !defined(__clang__) /* see avx2.c: here it spills too, a tenth more instructions */
#define KEEP(a, b) __asm__("" : "+r"(a), "+r"(b))
#else
#define KEEP(a, b)
#endif
#define IN_ORDER (void)0
#define PREFETCH(x) (void)0
#define TERNARY lehr_scalar_ternary
#define WIDE lehr_scalar_wide
#define SHORT lehr_scalar_short
#define BITS lehr_scalar_bits
#define POOLS lehr_scalar_pools
#define PLUS lehr_scalar_plus
#define DIRECT lehr_scalar_direct
#define SEARCH lehr_scalar_search
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
#include "search.inc"

lehr_routine_function *const lehr_scalar_routines[LEHR_ROUTINES] = {
    [LEHR_DIRECT] = lehr_scalar_direct,
    [LEHR_TERNARY] = lehr_scalar_ternary,
    [LEHR_WIDE] = lehr_scalar_wide,
    [LEHR_SHORT] = lehr_scalar_short,
    [LEHR_BITS] = lehr_scalar_bits,
    [LEHR_PLUS] = lehr_scalar_plus,
    [LEHR_POOLS] = lehr_scalar_pools,
    [LEHR_SEARCH] = lehr_scalar_search,
};
