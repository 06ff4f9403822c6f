/* The kernels of tables.h, bits.h and direct.h on vectors of 32 bytes. Compile this file alone with -mavx2. */
#ifdef LEHR_HAVE_AVX2

#include "lehr.h"
#include <immintrin.h>

typedef uint16_t lanes __attribute__((vector_size(32)));

#define VECTOR lanes
#define VECTOR_BYTES 32
#define SHIFT(x, n) ((x) >> (n))
#define MOST(a, b) ((lanes)_mm256_max_epu16((__m256i)(a), (__m256i)(b)))
/* gcc would otherwise reorder the additions of an unrolled loop and run out of registers: 1.3 times slower */
#define KEEP(a, b) __asm__("" : "+x"(a), "+x"(b))
#define IN_ORDER __asm__ volatile("" ::: "memory")
#ifndef __clang__ /* whose code is 2 % faster with single loads */
#define OPAQUE(x) __asm__("" : "+r"(x))
#endif
#define PREFETCH(x) __builtin_prefetch(x)
#define NAME(x) avx2_##x
#include "tables.h"
#include "bits.h"

#define DIRECT_KERNEL avx2_direct
#include "direct_all.h"

const lehr_kernels lehr_avx2_kernels = {avx2_direct, avx2_ternary,         avx2_wide,
                                        avx2_bits,   avx2_ternary_scratch, avx2_wide_scratch};

#else
typedef int lehr_without_avx2; /* C99 wants a declaration in every file */
#endif
