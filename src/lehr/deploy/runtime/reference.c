/* Every operation in plain loops: what a layer means. All other routines must give the same results bit for bit.
 *
 * Layers here are single operations: nothing is fused, weights are plain, (out, in / groups, row, column). Integers
 * stay below 2^31 (Python checks that), so a double holds each of their sums exactly, and one loop serves integers and
 * floats; float sums are rounded once, at the end. */
#include "lehr.h"
#include "values.h"
#include <math.h>
#include <string.h>

static inline size_t place(int32_t channel, int32_t row, int32_t column, int32_t rows, int32_t columns)
{
    return ((size_t)channel * (size_t)rows + (size_t)row) * (size_t)columns + (size_t)column;
}

static inline size_t size_of_source(const lehr_layer *layer)
{
    return (size_t)layer->channels * (size_t)layer->rows * (size_t)layer->columns;
}

static inline double number(int32_t type, const void *from, size_t at)
{
    return type == LEHR_FLOAT ? (double)((const float *)from)[at] : (double)lehr_load_int(type, from, at);
}

static inline void store_number(int32_t type, void *target, size_t at, double value)
{
    if (type == LEHR_FLOAT)
        ((float *)target)[at] = (float)value;
    else
        lehr_store(type, target, at, (int32_t)value);
}

/* target[channel][pixel] = table[channel][the pixel's value]; with one group, the first row for all channels */
void lehr_naive_table(const lehr_layer *layer, const void *source, const void *second, void *target)
{
    (void)second;
    const uint8_t *image = source;
    const size_t pixels = (size_t)layer->rows * (size_t)layer->columns, channels = (size_t)layer->channels;
    const size_t apart = layer->target_interleaved ? channels : 1, row = layer->groups == 1 ? 0 : 256;
    for (size_t c = 0; c < channels; c++, image += pixels)
        switch (layer->target_type) {
        case LEHR_INT8: {
            int8_t *to = (int8_t *)target + (layer->target_interleaved ? c : c * pixels);
            for (size_t i = 0; i < pixels; i++)
                to[i * apart] = ((const int8_t *)layer->weights)[c * row + image[i]];
            break;
        }
        case LEHR_INT16:
            for (size_t i = 0; i < pixels; i++)
                ((int16_t *)target)[c * pixels + i] = ((const int16_t *)layer->weights)[c * row + image[i]];
            break;
        default:
            for (size_t i = 0; i < pixels; i++)
                ((float *)target)[c * pixels + i] = ((const float *)layer->weights)[c * row + image[i]];
            break;
        }
}

/* The sum of weight * source over the channels of a group and the places of the kernel; outside the source is zero.
 * A linear layer is the case of one row and one column. */
void lehr_naive_conv(const lehr_layer *layer, const void *source, const void *second, void *target)
{
    (void)second;
    LEHR_ASSERT(layer->pool_rows == 1 && layer->pool_columns == 1);
    const int32_t channels = layer->channels / layer->groups, outs = layer->out_channels / layer->groups;
    const int32_t weight_type = layer->source_type == LEHR_FLOAT ? LEHR_FLOAT : LEHR_INT8;
    for (int32_t out = 0; out < layer->out_channels; out++)
        for (int32_t y = 0; y < layer->out_rows; y++)
            for (int32_t x = 0; x < layer->out_columns; x++) {
                double sum = 0;
                for (int32_t c = 0; c < channels; c++)
                    for (int32_t ky = 0; ky < layer->kernel_rows; ky++)
                        for (int32_t kx = 0; kx < layer->kernel_columns; kx++) {
                            const int32_t channel = out / outs * channels + c;
                            const int32_t row = y * layer->stride_rows + ky * layer->dilation_rows - layer->padding_rows;
                            const int32_t column =
                                x * layer->stride_columns + kx * layer->dilation_columns - layer->padding_columns;
                            if (row < 0 || row >= layer->rows || column < 0 || column >= layer->columns)
                                continue;
                            const size_t weight =
                                place(out * channels + c, ky, kx, layer->kernel_rows, layer->kernel_columns);
                            sum += number(weight_type, layer->weights, weight) *
                                   number(layer->source_type, source, place(channel, row, column, layer->rows, layer->columns));
                        }
                store_number(layer->target_type, target, place(out, y, x, layer->out_rows, layer->out_columns), sum);
            }
}

static inline int32_t least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* Maximum or sum of every window, of which only what lies inside the source is walked. */
void lehr_naive_pool(const lehr_layer *layer, const void *source, const void *second, void *target)
{
    (void)second;
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
                        const size_t at = place(c, row, column, layer->rows, layer->columns);
                        if (is_float) {
                            const float value = ((const float *)source)[at];
                            total_float += (double)value;
                            most_float = value > most_float ? value : most_float;
                        } else {
                            const int32_t value = lehr_load_int(layer->source_type, source, at);
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

/* The level whose number is how many thresholds direction * source reaches; H(0) = 1, on a threshold is above it. */
void lehr_naive_threshold(const lehr_layer *layer, const void *source, const void *second, void *target)
{
    (void)second;
    const int32_t threshold_type = layer->source_type == LEHR_FLOAT ? LEHR_FLOAT : LEHR_INT32;
    for (int32_t c = 0; c < layer->channels; c++)
        for (int32_t y = 0; y < layer->rows; y++)
            for (int32_t x = 0; x < layer->columns; x++) {
                const size_t at = place(c, y, x, layer->rows, layer->columns);
                const double value = layer->directions[c] * number(layer->source_type, source, at);
                int32_t reached = 0;
                for (int32_t k = 0; k < layer->steps; k++)
                    reached += value >= number(threshold_type, layer->thresholds, (size_t)(c * layer->steps + k));
                lehr_store(layer->target_type, target, at, layer->levels[reached]);
            }
}

void lehr_naive_add(const lehr_layer *layer, const void *source, const void *second, void *target)
{
    const size_t n = size_of_source(layer);
    for (size_t i = 0; i < n; i++)
        if (layer->source_type == LEHR_FLOAT)
            ((float *)target)[i] = ((const float *)source)[i] + ((const float *)second)[i];
        else
            lehr_store(layer->target_type, target, i,
                       layer->first_factor * lehr_load_int(layer->source_type, source, i) +
                           layer->second_factor * lehr_load_int(layer->second_type, second, i));
}

void lehr_naive_multiply(const lehr_layer *layer, const void *source, const void *second, void *target)
{
    const size_t n = size_of_source(layer);
    const size_t together = layer->groups == 1 ? 1 : (size_t)layer->rows * (size_t)layer->columns;
    for (size_t i = 0; i < n; i++)
        lehr_store(layer->target_type, target, i,
                   lehr_load_int(layer->source_type, source, i) * lehr_load_int(layer->second_type, second, i / together));
}

/* A product, a sum and a shift, which rounds down, in 64 bits; then the nearest of low..high. */
void lehr_naive_requantize(const lehr_layer *layer, const void *source, const void *second, void *target)
{
    (void)second;
    const size_t pixels = (size_t)layer->rows * (size_t)layer->columns;
    for (int32_t c = 0; c < layer->channels; c++)
        for (size_t i = (size_t)c * pixels; i < (size_t)(c + 1) * pixels; i++) {
            const int64_t unit = (int64_t)1 << layer->shift_bits, part = unit >> LEHR_OFFSET_BITS;
            const int64_t value = lehr_load_int(layer->source_type, source, i);
            const int64_t sum = layer->multipliers[c] * value + layer->offsets[c] * part;
            int64_t level = sum / unit - (sum % unit < 0);
            level = level < layer->lowest ? layer->lowest : level;
            level = level > layer->highest ? layer->highest : level;
            lehr_store(layer->target_type, target, i, (int32_t)level);
        }
}

/* Two roundings, after the product and after the sum: build with -ffp-contract=off. */
void lehr_naive_affine(const lehr_layer *layer, const void *source, const void *second, void *target)
{
    (void)second;
    const size_t pixels = (size_t)layer->rows * (size_t)layer->columns;
    for (int32_t c = 0; c < layer->channels; c++)
        for (size_t i = (size_t)c * pixels; i < (size_t)(c + 1) * pixels; i++) {
            const float product = lehr_load_float(layer->source_type, source, i) * layer->scale[c];
            ((float *)target)[i] = product + layer->shift[c];
        }
}

/* Compared before it is converted, for no float beyond int32 may be. */
void lehr_naive_round(const lehr_layer *layer, const void *source, const void *second, void *target)
{
    (void)second;
    const size_t pixels = (size_t)layer->rows * (size_t)layer->columns;
    for (int32_t c = 0; c < layer->channels; c++) {
        const float mean = layer->shift[layer->groups == 1 ? 0 : c], factor = layer->scale[layer->groups == 1 ? 0 : c];
        for (size_t i = (size_t)c * pixels; i < (size_t)(c + 1) * pixels; i++) {
            const float centred = ((const float *)source)[i] - mean, scaled = centred * factor, raised = scaled + 0.5f;
            int32_t nearest = -(int32_t)layer->high;
            if (raised >= layer->high + 1)
                nearest = (int32_t)layer->high;
            else if (raised >= -layer->high) {
                nearest = (int32_t)raised;
                nearest -= (float)nearest > raised;
            }
            lehr_store(layer->target_type, target, i, nearest);
        }
    }
}

void lehr_naive_clip(const lehr_layer *layer, const void *source, const void *second, void *target)
{
    (void)second;
    const size_t n = size_of_source(layer);
    for (size_t i = 0; i < n; i++) {
        const float value = ((const float *)source)[i], raised = value < layer->low ? layer->low : value;
        ((float *)target)[i] = raised > layer->high ? layer->high : raised;
    }
}

void lehr_naive_copy(const lehr_layer *layer, const void *source, const void *second, void *target)
{
    (void)second;
    const size_t n = size_of_source(layer);
    if (layer->source_type == layer->target_type)
        memcpy(target, source, n * lehr_size_of(layer->source_type));
    else
        for (size_t i = 0; i < n; i++)
            lehr_store(layer->target_type, target, i, lehr_load_int(layer->source_type, source, i));
}

/* Offsets of out_channels, out_rows and out_columns, one behind the other; -1: nothing is taken there. */
void lehr_naive_take(const lehr_layer *layer, const void *source, const void *second, void *target)
{
    (void)second;
    const int32_t *channels = layer->weights, *rows = channels + layer->out_channels, *columns = rows + layer->out_rows;
    size_t to = 0;
    for (int32_t c = 0; c < layer->out_channels; c++)
        for (int32_t y = 0; y < layer->out_rows; y++) {
            const int is_empty = channels[c] < 0 || rows[y] < 0;
            const size_t start = is_empty ? 0 : (size_t)channels[c] + (size_t)rows[y];
            for (int32_t x = 0; x < layer->out_columns; x++, to++) {
                const int is_filled = is_empty || columns[x] < 0;
                const size_t at = is_filled ? 0 : start + (size_t)columns[x];
                store_number(layer->target_type, target, to,
                             is_filled ? (double)layer->low : number(layer->source_type, source, at));
            }
        }
}

lehr_operation_function *const lehr_naive_operations[LEHR_OPERATIONS] = {
    [LEHR_TABLE] = lehr_naive_table,
    [LEHR_CONV] = lehr_naive_conv,
    [LEHR_LINEAR] = lehr_naive_conv,
    [LEHR_MAX_POOL] = lehr_naive_pool,
    [LEHR_SUM_POOL] = lehr_naive_pool,
    [LEHR_THRESHOLD] = lehr_naive_threshold,
    [LEHR_ADD] = lehr_naive_add,
    [LEHR_AFFINE] = lehr_naive_affine,
    [LEHR_CLIP] = lehr_naive_clip,
    [LEHR_COPY] = lehr_naive_copy,
    [LEHR_ROUND] = lehr_naive_round,
    [LEHR_REQUANTIZE] = lehr_naive_requantize,
    [LEHR_MULTIPLY] = lehr_naive_multiply,
    [LEHR_TAKE] = lehr_naive_take,
};
