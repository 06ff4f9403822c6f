/* lehr: run a network of integers.
 *
 * A network is constant data: an array of layers, each with its shapes and tables. Values live in one block of memory
 * that the caller gives (lehr_memory says how large); nothing is allocated, and one block serves one thread.
 *
 *     lehr_run(&net, image, memory, lehr_best_instruction_set());   image: (channel, row, column)
 *
 * Values are planar, (channel, row, column), without padding. reference.c defines every operation in plain loops; the
 * other files hold faster routines with the same results bit for bit. docs/kernels.md of lehr derives them.
 *
 * The Python side (structs.py, scratch.py) writes these structs and computes every size in them. C trusts them; with
 * -DLEHR_DEBUG it stops where one of them is too small. */
#ifndef LEHR_H
#define LEHR_H

#include <stddef.h>
#include <stdint.h>

/* Whether the compiler's target has vectors of 16 bytes, which vector.c is for. */
#if defined(__GNUC__) && \
    (defined(__SSE2__) || defined(__ARM_NEON) || defined(__ARM_FEATURE_MVE) || defined(__wasm_simd128__))
#define LEHR_HAVE_VECTOR
#endif

#ifdef LEHR_DEBUG
#include <assert.h>
#define LEHR_ASSERT(condition) assert(condition)
#else
#define LEHR_ASSERT(condition) ((void)0)
#endif

enum lehr_operation {
    LEHR_TABLE,     /* target = weights[channel][pixel]; with one group, one row for all channels; int8 as uint8 */
    LEHR_CONV,      /* sums, a maximum over pool_rows x pool_columns, then thresholds or multipliers if there are any */
    LEHR_LINEAR,    /* sums over all channels, then thresholds or multipliers if there are any */
    LEHR_MAX_POOL,  /* windows of kernel_rows x kernel_columns; padding never wins */
    LEHR_SUM_POOL,  /* the same, padding being zero */
    LEHR_THRESHOLD, /* levels[number of k with direction * source >= thresholds[k]] */
    LEHR_ADD,       /* first_factor * source + second_factor * second; floats without factors */
    LEHR_AFFINE,    /* scale * source + shift, in float */
    LEHR_CLIP,      /* min(max(source, low), high), in float */
    LEHR_COPY,      /* source */
    LEHR_ROUND,     /* floor((source - shift) * scale + 0.5) within -high..high; NaN gives -high */
    LEHR_REQUANTIZE, /* (multiplier * source + offset * 2^(shift_bits - 20)) >> shift_bits, within lowest..highest */
    LEHR_MULTIPLY,  /* source * second; with several groups, second has one number for each channel */
    LEHR_TAKE,      /* source[offset of channel + of row + of column], low where one is -1; weights: these offsets, int32 */
    LEHR_OPERATIONS
};

#define LEHR_IMAGE UINT32_MAX /* the source of a layer that reads the network's input */

enum lehr_type {
    LEHR_INT8,
    LEHR_INT16,
    LEHR_INT32,
    LEHR_FLOAT,
    LEHR_TRIT /* -1, 0, 1 as 0, 1, 2: two bits each, element i in bits 2 * (i % 4) of byte i / 4; for small.c */
};

/* The function that computes a layer, which also says how its weights are laid out. */
enum lehr_routine {
    LEHR_NAIVE,   /* the loops of reference.c: one operation each; int8 or float weights (out, in / groups, row, column) */
    LEHR_DIRECT,  /* direct.inc: the same sums a row at a time, for any weights and values; the same weights */
    LEHR_TERNARY, /* ternary.inc: look-up tables, weights and values in {-1, 0, 1} */
    LEHR_WIDE,    /* wide.inc: look-up tables, weights in {-1, 0, 1}, sums in int16 */
    LEHR_SHORT,   /* short.inc: multiply and add, sums in int16; weights as LEHR_DIRECT */
    LEHR_MATRIX,  /* amx.c: matrix tiles, int8 weights and values */
    LEHR_TRITS,   /* amx.c: the same with weights in {-1, 0, 1}, two bits each */
    LEHR_BITS,    /* bits.inc: linear, weights and values in {-1, 0, 1}: uint32, a bit for each of 32 inputs, (block of
                     outputs, inputs / 32, {nonzero, negative}, output of the block) */
    LEHR_SEARCH,  /* search.inc: LEHR_THRESHOLD, by halving */
    LEHR_PLUS,    /* plus.inc: LEHR_ADD of integers, then thresholds or multipliers if there are any */
    LEHR_POOLS,   /* pools.inc: LEHR_MAX_POOL and LEHR_SUM_POOL of integers, a line at a time */
    LEHR_COUNTERS, /* small_counters.inc: linear, weights and values in {-1, 0, 1}: uint32, a bit for each of 32 outputs, (block of
                      outputs, inputs and one of zeros, {positive, not negative}) */
    LEHR_ROUTINES
};

/* Instruction sets, slowest first. Each has routines of its own and uses those of the ones before it for the rest. */
enum lehr_instruction_set {
    LEHR_REFERENCE,
    LEHR_SMALL,
    LEHR_SCALAR,
    LEHR_VECTOR,
    LEHR_AVX2,
    LEHR_AVX512,
    LEHR_AMX,
    LEHR_INSTRUCTION_SETS
};

/* What Python and C both must know to lay out weights and scratch. */
enum {
    LEHR_OFFSET_BITS = 20,  /* an offset counts 2^-20 of a level */
    LEHR_BITS_OUTPUTS = 16, /* outputs of a block of LEHR_BITS */
    LEHR_BLOCK = 32,        /* weight triples of a block of LEHR_TERNARY and LEHR_WIDE */
    LEHR_SHORT_PIXELS = 64, /* pixels that LEHR_SHORT computes at a time: it may read as many past the last plane */
    LEHR_TILE_STEPS = 18,   /* steps of 64 taps whose weights LEHR_TRITS expands at a time */
    LEHR_TILE_SLACK = 16,   /* bytes that LEHR_MATRIX and LEHR_TRITS may read or write past an end */
    LEHR_TILE_MOST = 1 << 25 /* what sums of LEHR_TRITS are below: 64 times as much is int32 */
};

/* Where a look-up routine keeps what: offsets in scratch, in bytes, for the vectors of one instruction set. */
typedef struct lehr_areas {
    uint32_t planes, tables, sums, starts, kept, masks, values;
    uint32_t mask;     /* bytes of one mask */
    uint32_t segments; /* rows of the output that make a vector of a padded plane (see padded.inc); 0: planes are others */
} lehr_areas;

/* What LEHR_TERNARY, LEHR_WIDE and LEHR_SHORT (of one group of channels) make of a layer's source: planes (see planes.inc). */
typedef struct lehr_planes {
    int32_t triples;     /* weight triples of an output, an even number */
    int32_t shifts;      /* whether the planes of a channel are shifts of one another */
    int32_t paired;      /* whether a byte holds a pixel and the one below it, for a pool of 2 x 2 */
    int32_t step;        /* source rows from one row of a plane to the next */
    int32_t residues;    /* planes that together hold all rows: those from row 0, 1, .. on */
    int32_t plane_rows;
    uint32_t margin;     /* elements before the first row of a plane, and as many after the last */
    uint32_t plane_size; /* elements of a plane, with its margins */
    uint32_t plane_count;
    lehr_areas areas[LEHR_INSTRUCTION_SETS];
} lehr_planes;

/* What LEHR_MATRIX and LEHR_TRITS make of one group of a layer (see amx.c). */
typedef struct lehr_tiles {
    int32_t straight;     /* load tiles from the padded source, not from a panel */
    int32_t shifted;      /* of which there is one copy for each column of the kernel, one element for each output column */
    int32_t deep;         /* channels of the padded source */
    int32_t slice, slices; /* channels that lie together in it, and how many times */
    int32_t taps, outs;   /* padded to whole tiles and pairs of tiles */
    int32_t rows, pixels; /* output rows of a block; its pixels, padded to pairs of tiles */
    int32_t planes, plane_rows, plane_columns; /* copies of the padded source */
    uint32_t values, padded, panel, trits, sums, offsets, cuts, directions; /* offsets in scratch, in bytes */
} lehr_tiles;

/* What LEHR_TERNARY and LEHR_WIDE of small.c make of one group of a layer's source: a strip of lines (see small_strips.inc). */
typedef struct lehr_strips {
    int32_t triples; /* weight triples of an output, an even number */
    int32_t phases;  /* lines of a row, one for each residue of the columns that taps read */
    int32_t line;    /* elements of a line */
    int32_t lead;    /* elements before the first, so that the source begins at a whole word */
    uint32_t strip, tables, sums, starts; /* offsets in scratch, in bytes */
} lehr_strips;

typedef struct lehr_layer {
    int32_t operation, routine;
    int32_t source_type, second_type, target_type;
    uint32_t source, second, target;             /* offsets in memory, in bytes; or LEHR_IMAGE */
    uint32_t scratch_at;                         /* where scratch begins: the offset behind all values that are still needed */
    int32_t channels, rows, columns;             /* shape of the source */
    int32_t out_channels, out_rows, out_columns; /* shape of the sums, before pooling */
    int32_t kernel_rows, kernel_columns, stride_rows, stride_columns;
    int32_t padding_rows, padding_columns, dilation_rows, dilation_columns;
    int32_t groups, pool_rows, pool_columns;
    int32_t source_interleaved, target_interleaved; /* (row, column, channel); only for matrix layers */
    int32_t steps; /* number of thresholds per channel; 0: the sums are the result, unless there are multipliers */
    int32_t shift_bits; /* how far a product with a multiplier is shifted right */
    int32_t narrow; /* whether products with multipliers, and offsets shifted, stay in int32 */
    int32_t first_factor, second_factor;
    int32_t words; /* of 32 inputs, for LEHR_BITS */
    int32_t bias;  /* what small.c adds to sums, so that none is negative */
    int32_t lowest, highest; /* of the levels that multipliers give */
    float low, high;         /* of a LEHR_CLIP; the limit of a LEHR_ROUND; what fills a LEHR_TAKE */
    const void *weights;
    const void *thresholds; /* (channel, steps): int32, or float for a float source */
    const int8_t *directions;
    const int16_t *levels; /* steps + 1 */
    const int32_t *multipliers, *offsets; /* of each channel, where many even levels follow the sums */
    const float *scale, *shift;
    const lehr_planes *planes;
    const lehr_tiles *tiles;
    const lehr_strips *strips;
    const uint16_t *cuts; /* (channel, 2), for small.c: biased sums from which on the trit is 0, and 1; turned round if sums fall */
    int32_t built_for[LEHR_INSTRUCTION_SETS]; /* for each that a run may have: the one whose routine runs the layer */
    uint32_t scratch[LEHR_INSTRUCTION_SETS];  /* bytes of scratch the routine of each needs */
} lehr_layer;

typedef struct lehr_net {
    const lehr_layer *layers;
    int32_t count;
    uint32_t image_bytes;
    int32_t outputs;                        /* number of classes */
    uint32_t scores, logits;                /* offsets of the integers before the last affine map, and of its result */
    int32_t scores_type, logits_type;       /* LEHR_FLOAT scores: the network has no integer scores */
    uint32_t memory[LEHR_INSTRUCTION_SETS]; /* bytes a run needs: values, scratch and 64 to align them; 0: laid out for others */
} lehr_net;

/* The fastest instruction set this processor has and this build contains. */
int lehr_best_instruction_set(void);

/* Bytes of memory a run needs; 0 if the network is laid out for other instruction sets. */
size_t lehr_memory(const lehr_net *net, int instruction_set);

/* Run one image: uint8, int8 or float, as the network takes it. Afterwards lehr_score and lehr_logit tell its results. */
void lehr_run(const lehr_net *net, const void *image, void *memory, int instruction_set);

int32_t lehr_score(const lehr_net *net, const void *memory, int32_t index);
float lehr_logit(const lehr_net *net, const void *memory, int32_t index);
int32_t lehr_class(const lehr_net *net, const void *memory); /* the first of the largest logits */

/* Run `count` images; either result, (image, output), may be NULL. */
void lehr_run_batch(const lehr_net *net, const void *images, size_t count, void *memory, int instruction_set,
                    int32_t *scores, float *logits);

/* ---- inside the runtime ---- */

/* A routine computes one layer. `scratch` is aligned to 64 bytes. */
typedef void lehr_routine_function(const lehr_layer *layer, const void *source, void *target, void *scratch);

/* LEHR_NAIVE: a function for each operation by itself. Only LEHR_ADD and LEHR_MULTIPLY read `second`. */
typedef void lehr_operation_function(const lehr_layer *layer, const void *source, const void *second, void *target);
extern lehr_operation_function *const lehr_naive_operations[LEHR_OPERATIONS];
extern lehr_operation_function lehr_naive_table, lehr_naive_conv, lehr_naive_pool, lehr_naive_threshold, lehr_naive_add,
    lehr_naive_affine, lehr_naive_clip, lehr_naive_copy, lehr_naive_round, lehr_naive_requantize,
    lehr_naive_multiply, lehr_naive_take;

/* The routines that each instruction set has of its own; NULL for others. */
extern lehr_routine_function *const lehr_small_routines[LEHR_ROUTINES];  /* only with -DLEHR_HAVE_SMALL */
extern lehr_routine_function *const lehr_scalar_routines[LEHR_ROUTINES];
extern lehr_routine_function *const lehr_vector_routines[LEHR_ROUTINES]; /* only with LEHR_HAVE_VECTOR */
extern lehr_routine_function *const lehr_avx2_routines[LEHR_ROUTINES];   /* only with -DLEHR_HAVE_AVX2 */
extern lehr_routine_function *const lehr_avx512_routines[LEHR_ROUTINES]; /* only with -DLEHR_HAVE_AVX512 */
extern lehr_routine_function *const lehr_amx_routines[LEHR_ROUTINES];    /* only with -DLEHR_HAVE_AMX */
int lehr_amx_usable(void);

#endif
