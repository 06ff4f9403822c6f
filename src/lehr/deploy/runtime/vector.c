/* The routines on vectors of 16 bytes, by the vector types of gcc and clang: SSE2, NEON, Helium, WebAssembly SIMD.
 *
 * lehr.h says whether the compiler's target has them; elsewhere this file is empty. */
#include "lehr.h"
#ifdef LEHR_HAVE_VECTOR

typedef uint16_t vector __attribute__((vector_size(16)));
typedef int16_t signed_vector __attribute__((vector_size(16)));

#define INSTRUCTION_SET LEHR_VECTOR
#define VECTOR vector
#define VECTOR_BYTES 16
#define PARTS 2
#define SHIFT(x, n) ((x) >> (n))
#define MOST(a, b) ((b) ^ (((a) ^ (b)) & (vector)((signed_vector)(a) > (signed_vector)(b))))
#if defined(__SSE2__) && !defined(__clang__) /* see avx2.c */
#define KEEP(a, b) __asm__("" : "+x"(a), "+x"(b))
#else
#define KEEP(a, b)
#endif
#define IN_ORDER (void)0
#define PREFETCH(x) (void)0
#define TERNARY lehr_vector_ternary
#define WIDE lehr_vector_wide
#define SHORT lehr_vector_short
#define BITS lehr_vector_bits
#define DIRECT lehr_vector_direct
#include "lanes.inc"
#include "planes.inc"
#include "tables.inc"
#include "ternary.inc"
#include "wide.inc"
#include "short.inc"
#include "bits.inc"
#include "direct.inc"

lehr_routine_function *const lehr_vector_routines[LEHR_ROUTINES] = {
    [LEHR_DIRECT] = lehr_vector_direct,
    [LEHR_TERNARY] = lehr_vector_ternary,
    [LEHR_WIDE] = lehr_vector_wide,
    [LEHR_SHORT] = lehr_vector_short,
    [LEHR_BITS] = lehr_vector_bits,
};

#else
typedef int lehr_without_vector; /* C99 wants a declaration in every file */
#endif
