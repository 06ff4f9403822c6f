/* The runtime in plain C99: every operation, and the kernels all others must equal. */
#include "lehr.h"
#include "sums.h"
#include <math.h>
#include <string.h>

/* Look-ups and bit-planes on plain words: a word holds lanes of 16 bits that never carry into each other. */
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
#define KEEP(a, b)
#define IN_ORDER (void)0
#define PREFETCH(x) (void)0
#define NAME(x) word_##x
#include "tables.h"
#include "bits.h"

#define DIRECT_KERNEL direct
#include "direct_all.h"

const lehr_kernels lehr_scalar_kernels = {direct,    word_ternary,         word_wide,
                                          word_bits, word_ternary_scratch, word_wide_scratch};

/* ---- operations without weights ---- */

static inline int32_t load_int(int32_t type, const void *source, size_t at)
{
    switch (type) {
    case LEHR_INT8: return ((const int8_t *)source)[at];
    case LEHR_INT16: return ((const int16_t *)source)[at];
    default: return ((const int32_t *)source)[at];
    }
}

static inline float load_float(int32_t type, const void *source, size_t at)
{
    return type == LEHR_FLOAT ? ((const float *)source)[at] : (float)load_int(type, source, at);
}

static void run_table(const lehr_layer *layer, const uint8_t *image, void *target)
{
    const size_t pixels = (size_t)layer->rows * (size_t)layer->columns, channels = (size_t)layer->channels;
    const size_t apart = layer->target_interleaved ? channels : 1;
    for (size_t c = 0; c < channels; c++, image += pixels)
        switch (layer->target_type) {
        case LEHR_INT8: {
            int8_t *to = (int8_t *)target + (layer->target_interleaved ? c : c * pixels);
            for (size_t i = 0; i < pixels; i++)
                to[i * apart] = ((const int8_t *)layer->weights)[c * 256 + image[i]];
            break;
        }
        case LEHR_INT16:
            for (size_t i = 0; i < pixels; i++)
                ((int16_t *)target)[c * pixels + i] = ((const int16_t *)layer->weights)[c * 256 + image[i]];
            break;
        default:
            for (size_t i = 0; i < pixels; i++)
                ((float *)target)[c * pixels + i] = ((const float *)layer->weights)[c * 256 + image[i]];
            break;
        }
}

static inline int32_t least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* Maximum or sum of every window, of which only what lies inside the source is walked. Float sums are made in double and rounded once. */
static void run_pool(const lehr_layer *layer, const void *source, void *target)
{
    const int is_float = layer->source_type == LEHR_FLOAT, is_sum = layer->operation == LEHR_SUM_POOL;
    size_t to = 0;
    for (int32_t c = 0; c < layer->channels; c++)
        for (int32_t y = 0; y < layer->out_rows; y++)
            for (int32_t x = 0; x < layer->out_columns; x++, to++) {
                const int32_t top = y * layer->stride_rows - layer->padding_rows;
                const int32_t left = x * layer->stride_columns - layer->padding_columns;
                const int32_t bottom = least(top + layer->kernel_rows, layer->rows);
                const int32_t right = least(left + layer->kernel_columns, layer->columns);
                int32_t total = 0, most = INT32_MIN;
                double total_float = 0;
                float most_float = -INFINITY;
                for (int32_t row = top < 0 ? 0 : top; row < bottom; row++)
                    for (int32_t column = left < 0 ? 0 : left; column < right; column++) {
                        const size_t at = ((size_t)c * (size_t)layer->rows + (size_t)row) * (size_t)layer->columns;
                        if (is_float) {
                            const float value = ((const float *)source)[at + (size_t)column];
                            total_float += (double)value;
                            most_float = value > most_float ? value : most_float;
                        } else {
                            const int32_t value = load_int(layer->source_type, source, at + (size_t)column);
                            total += value;
                            most = value > most ? value : most;
                        }
                    }
                if (is_float)
                    ((float *)target)[to] = is_sum ? (float)total_float : most_float;
                else
                    lehr_store(layer->target_type, target, to, is_sum ? total : most);
            }
}

static void run_threshold(const lehr_layer *layer, const void *source, void *target)
{
    const size_t pixels = (size_t)layer->rows * (size_t)layer->columns;
    for (int32_t c = 0; c < layer->channels; c++)
        for (size_t i = (size_t)c * pixels; i < (size_t)(c + 1) * pixels; i++)
            if (layer->source_type == LEHR_FLOAT) {
                const double value = (double)((const float *)source)[i];
                lehr_finish_float(layer, c, &value, 1, target, i);
            } else {
                const int32_t value = load_int(layer->source_type, source, i);
                lehr_finish_int(layer, c, &value, 1, target, i);
            }
}

static void run_add(const lehr_layer *layer, const void *source, const void *second, void *target)
{
    const size_t n = (size_t)layer->channels * (size_t)layer->rows * (size_t)layer->columns;
    for (size_t i = 0; i < n; i++)
        if (layer->source_type == LEHR_FLOAT)
            ((float *)target)[i] = ((const float *)source)[i] + ((const float *)second)[i];
        else
            lehr_store(layer->target_type, target, i,
                       load_int(layer->source_type, source, i) + load_int(layer->second_type, second, i));
}

/* Two roundings, after the product and after the sum: build with -ffp-contract=off. */
static void run_affine(const lehr_layer *layer, const void *source, float *target)
{
    const size_t pixels = (size_t)layer->rows * (size_t)layer->columns;
    for (int32_t c = 0; c < layer->channels; c++)
        for (size_t i = (size_t)c * pixels; i < (size_t)(c + 1) * pixels; i++) {
            const float product = load_float(layer->source_type, source, i) * layer->scale[c];
            target[i] = product + layer->shift[c];
        }
}

static void run_clip(const lehr_layer *layer, const float *source, float *target)
{
    const size_t n = (size_t)layer->channels * (size_t)layer->rows * (size_t)layer->columns;
    for (size_t i = 0; i < n; i++) {
        const float raised = source[i] < layer->low ? layer->low : source[i];
        target[i] = raised > layer->high ? layer->high : raised;
    }
}

/* ---- networks ---- */

static const lehr_kernels *const all_kernels[LEHR_LEVELS] = {
    &lehr_scalar_kernels,
#ifdef LEHR_HAVE_AVX2
    &lehr_avx2_kernels,
#else
    &lehr_scalar_kernels,
#endif
#ifdef LEHR_HAVE_AVX512
    &lehr_avx512_kernels,
    &lehr_avx512_kernels,
#else
    &lehr_scalar_kernels,
    &lehr_scalar_kernels,
#endif
};

int lehr_best_level(void)
{
#ifdef LEHR_HAVE_AMX
    if (lehr_amx_usable())
        return LEHR_AMX;
#endif
#ifdef LEHR_HAVE_AVX512
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        return LEHR_AVX512;
#endif
#ifdef LEHR_HAVE_AVX2
    if (__builtin_cpu_supports("avx2"))
        return LEHR_AVX2;
#endif
    return LEHR_SCALAR;
}

static size_t align(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Vectors of 64 bytes hold 128 trits: where there are at most half as many pixels, vectors of 32 do. */
static const lehr_kernels *kernels_for(const lehr_layer *layer, int level)
{
    const int small = layer->kernel == LEHR_TERNARY && layer->out_rows * layer->out_columns <= 64;
    return all_kernels[level > LEHR_AVX2 && small ? LEHR_AVX2 : level];
}

static size_t scratch_bytes(const lehr_layer *layer, const lehr_kernels *kernels)
{
    if (layer->operation != LEHR_CONV && layer->operation != LEHR_LINEAR)
        return 0;
    switch (layer->kernel) {
    case LEHR_TERNARY: return kernels->ternary_scratch(layer);
    case LEHR_WIDE: return kernels->wide_scratch(layer);
#ifdef LEHR_HAVE_AMX
    case LEHR_MATRIX:
    case LEHR_TRITS: return lehr_amx_scratch(layer);
#endif
    case LEHR_BITS: return ((size_t)layer->channels + 31) / 32 * 4 * sizeof(uint32_t);
    default: return (size_t)layer->pool_rows * (size_t)layer->out_columns * sizeof(double);
    }
}

size_t lehr_memory(const lehr_net *net, int level)
{
    size_t scratch = 0;
    for (int32_t i = 0; i < net->count; i++) {
        const size_t bytes = scratch_bytes(&net->layers[i], kernels_for(&net->layers[i], level));
        scratch = bytes > scratch ? bytes : scratch;
    }
    return align(net->value_bytes) + align(scratch) + 64; /* 64: to align memory */
}

static uint8_t *aligned(const void *memory)
{
    return (uint8_t *)align((uintptr_t)memory);
}

void lehr_run(const lehr_net *net, const uint8_t *image, void *memory, int level)
{
    uint8_t *values = aligned(memory), *scratch = values + align(net->value_bytes);
    for (int32_t i = 0; i < net->count; i++) {
        const lehr_layer *layer = &net->layers[i];
        const lehr_kernels *kernels = kernels_for(layer, level);
        const void *source = values + layer->source;
        void *target = values + layer->target;
        switch (layer->operation) {
        case LEHR_TABLE: run_table(layer, image, target); break;
        case LEHR_CONV:
        case LEHR_LINEAR:
            switch (layer->kernel) {
            case LEHR_TERNARY: kernels->ternary(layer, source, target, scratch); break;
            case LEHR_WIDE: kernels->wide(layer, source, target, scratch); break;
#ifdef LEHR_HAVE_AMX
            case LEHR_MATRIX:
            case LEHR_TRITS: lehr_amx_matrix(layer, source, target, scratch); break;
#endif
            case LEHR_BITS:
#ifdef LEHR_HAVE_AMX
                if (level == LEHR_AMX) {
                    lehr_amx_bits(layer, source, target, scratch);
                    break;
                }
#endif
                kernels->bits(layer, source, target, scratch);
                break;
            default: kernels->direct(layer, source, target, scratch); break;
            }
            break;
        case LEHR_MAX_POOL:
        case LEHR_SUM_POOL: run_pool(layer, source, target); break;
        case LEHR_THRESHOLD: run_threshold(layer, source, target); break;
        case LEHR_ADD: run_add(layer, source, values + layer->second, target); break;
        case LEHR_AFFINE: run_affine(layer, source, target); break;
        default: run_clip(layer, source, target); break;
        }
    }
}

int32_t lehr_score(const lehr_net *net, const void *memory, int32_t index)
{
    return load_int(net->scores_type, aligned(memory) + net->scores, (size_t)index);
}

float lehr_logit(const lehr_net *net, const void *memory, int32_t index)
{
    return load_float(net->logits_type, aligned(memory) + net->logits, (size_t)index);
}

int32_t lehr_class(const lehr_net *net, const void *memory)
{
    int32_t best = 0;
    for (int32_t i = 1; i < net->outputs; i++)
        if (lehr_logit(net, memory, i) > lehr_logit(net, memory, best))
            best = i;
    return best;
}

void lehr_run_batch(const lehr_net *net, const uint8_t *images, size_t count, void *memory, int level, int32_t *scores,
                    float *logits)
{
    for (size_t i = 0; i < count; i++) {
        lehr_run(net, images + i * net->image_bytes, memory, level);
        for (int32_t out = 0; out < net->outputs; out++) {
            if (scores != NULL)
                scores[i * (size_t)net->outputs + (size_t)out] = lehr_score(net, memory, out);
            if (logits != NULL)
                logits[i * (size_t)net->outputs + (size_t)out] = lehr_logit(net, memory, out);
        }
    }
}
