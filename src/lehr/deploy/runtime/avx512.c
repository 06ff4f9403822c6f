/* The kernels of tables.h, bits.h and direct.h on vectors of 64 bytes. Compile this file alone with -mavx512f -mavx512bw -mavx512vl. */
#ifdef LEHR_HAVE_AVX512

#include "lehr.h"
#include <immintrin.h>

typedef uint16_t lanes __attribute__((vector_size(64)));

#define VECTOR lanes
#define VECTOR_BYTES 64
#define SHIFT(x, n) ((x) >> (n))
#define MOST(a, b) ((lanes)_mm512_max_epu16((__m512i)(a), (__m512i)(b)))
/* gcc would otherwise reorder the additions of an unrolled loop and run out of registers: 1.3 times slower */
#define KEEP(a, b) __asm__("" : "+v"(a), "+v"(b))
#define IN_ORDER __asm__ volatile("" ::: "memory")
#define OPAQUE(x) __asm__("" : "+r"(x))
#define PREFETCH(x) __builtin_prefetch(x)
#define NAME(x) avx512_##x
#include "tables.h"
#include "bits.h"

#define DIRECT_KERNEL avx512_direct
#include "direct_all.h"

const lehr_kernels lehr_avx512_kernels = {avx512_direct, avx512_ternary,         avx512_wide,
                                        avx512_bits,   avx512_ternary_scratch, avx512_wide_scratch};

#else
typedef int lehr_without_avx512; /* C99 wants a declaration in every file */
#endif
