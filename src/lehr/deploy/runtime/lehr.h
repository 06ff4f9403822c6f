/* lehr: run a network of integers.
 *
 * A network is constant data: an array of layers, each with its shapes and tables. Values live in one block of memory
 * that the caller gives (lehr_memory says how large); nothing is allocated, and one block serves one thread.
 *
 *     lehr_run(&net, image, memory, level);   image: uint8, (channel, row, column)
 *
 * Values are planar, (channel, row, column), without padding. scalar.c defines every operation; the other files hold
 * faster kernels with the same results bit for bit. */
#ifndef LEHR_H
#define LEHR_H

#include <stddef.h>
#include <stdint.h>

enum lehr_operation {
    LEHR_TABLE,     /* target = weights[channel][pixel] */
    LEHR_CONV,      /* sums, then a maximum over pool_rows x pool_columns, then thresholds if there are any */
    LEHR_LINEAR,    /* sums over all channels, then thresholds if there are any */
    LEHR_MAX_POOL,  /* windows of kernel_rows x kernel_columns; padding never wins */
    LEHR_SUM_POOL,  /* the same, padding being zero */
    LEHR_THRESHOLD, /* levels[number of k with direction * source >= thresholds[k]] */
    LEHR_ADD,       /* source + second */
    LEHR_AFFINE,    /* scale * source + shift, in float */
    LEHR_CLIP       /* min(max(source, low), high), in float */
};

enum lehr_type { LEHR_INT8, LEHR_INT16, LEHR_INT32, LEHR_FLOAT };

/* How sums are made, which is also how their weights are laid out. */
enum lehr_kernel {
    LEHR_DIRECT,  /* int8 or float weights (out, in / groups, row, column): any case */
    LEHR_TERNARY, /* look-up tables, weights and values in {-1, 0, 1} (see tables.h) */
    LEHR_WIDE,    /* look-up tables, weights in {-1, 0, 1}, sums in int16 */
    LEHR_MATRIX,  /* matrix tiles, int8 weights and values (see amx.c) */
    LEHR_TRITS,   /* the same with weights in {-1, 0, 1}, two bits each */
    LEHR_BITS     /* linear, weights and values in {-1, 0, 1}: uint32, a bit for each of 32 inputs, (block of outputs,
                     inputs / 32, {nonzero, negative}, output of the block) */
};
enum { LEHR_BITS_OUTPUTS = 16 };

/* Instruction sets, slowest first. */
enum lehr_level { LEHR_SCALAR, LEHR_AVX2, LEHR_AVX512, LEHR_AMX, LEHR_LEVELS };

typedef struct lehr_layer {
    int32_t operation, kernel;
    int32_t source_type, second_type, target_type;
    uint32_t source, second, target;             /* offsets in memory, in bytes */
    int32_t channels, rows, columns;             /* shape of the source */
    int32_t out_channels, out_rows, out_columns; /* shape of the sums, before pooling */
    int32_t kernel_rows, kernel_columns, stride_rows, stride_columns;
    int32_t padding_rows, padding_columns, dilation_rows, dilation_columns;
    int32_t groups, pool_rows, pool_columns;
    int32_t source_interleaved, target_interleaved; /* (row, column, channel); only for matrix layers */
    int32_t steps; /* number of thresholds per channel; 0: the sums are the result */
    float low, high;
    const void *weights;
    const void *thresholds; /* (channel, steps): int32, or float for a float source */
    const int8_t *directions;
    const int16_t *levels; /* steps + 1 */
    const float *scale, *shift;
} lehr_layer;

typedef struct lehr_net {
    const lehr_layer *layers;
    int32_t count;
    uint32_t image_bytes, value_bytes;
    int32_t outputs;                        /* number of classes */
    uint32_t scores, logits;                /* offsets of the integers before the last affine map, and of its result */
    int32_t scores_type, logits_type;       /* LEHR_FLOAT scores: the network has no integer scores */
} lehr_net;

/* The fastest level this processor has and this build contains. */
int lehr_best_level(void);

/* Bytes of memory a run needs: the values and the scratch of the largest layer. */
size_t lehr_memory(const lehr_net *net, int level);

/* Run one image. Afterwards lehr_score and lehr_logit tell its results. */
void lehr_run(const lehr_net *net, const uint8_t *image, void *memory, int level);

int32_t lehr_score(const lehr_net *net, const void *memory, int32_t index);
float lehr_logit(const lehr_net *net, const void *memory, int32_t index);
int32_t lehr_class(const lehr_net *net, const void *memory); /* the first of the largest logits */

/* Run `count` images; either result, (image, output), may be NULL. */
void lehr_run_batch(const lehr_net *net, const uint8_t *images, size_t count, void *memory, int level, int32_t *scores,
                    float *logits);

/* ---- inside the runtime ---- */

/* A kernel makes the result of one convolution or linear layer. `scratch` is aligned to 64 bytes. */
typedef void lehr_kernel_function(const lehr_layer *layer, const void *source, void *target, void *scratch);
typedef size_t lehr_scratch_function(const lehr_layer *layer);

typedef struct lehr_kernels {
    lehr_kernel_function *direct, *ternary, *wide, *bits;
    lehr_scratch_function *ternary_scratch, *wide_scratch;
} lehr_kernels;

extern const lehr_kernels lehr_scalar_kernels;
extern const lehr_kernels lehr_avx2_kernels;   /* only with -DLEHR_HAVE_AVX2 */
extern const lehr_kernels lehr_avx512_kernels; /* only with -DLEHR_HAVE_AVX512 */

/* Only with -DLEHR_HAVE_AMX; all other layers run as with AVX-512. */
lehr_kernel_function lehr_amx_matrix, lehr_amx_bits;
lehr_scratch_function lehr_amx_scratch;
int lehr_amx_usable(void);

#endif
