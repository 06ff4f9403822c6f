/* What becomes of finished sums: the thresholds of their channel, then the type of the target.
 *
 * Static functions, so that each file that includes this compiles them for its own instruction set. */
#ifndef LEHR_SUMS_H
#define LEHR_SUMS_H

#include "lehr.h"
#include "values.h"

/* Number of thresholds that `sum` reaches; they ascend. Halving without branches, which nobody could predict. */
#define LEHR_DEFINE_CODE(NAME, TYPE)                                                \
    static inline int32_t NAME(const TYPE *thresholds, int32_t n, TYPE sum)         \
    {                                                                               \
        int32_t low = 0;                                                            \
        for (; n > 2; n -= n / 2)                                                   \
            low += (n / 2) * (sum >= thresholds[low + n / 2 - 1]);                  \
        for (int32_t i = 0; i < n; i++)                                             \
            low += sum >= thresholds[low];                                          \
        return low;                                                                 \
    }
LEHR_DEFINE_CODE(lehr_code_int, int32_t)
LEHR_DEFINE_CODE(lehr_code_float, float)

/* The level of a sum where there are many even ones; the same as reference.c. */
static inline int32_t lehr_requantized(const lehr_layer *layer, int32_t channel, int32_t sum)
{
    const int64_t offset = (int64_t)layer->offsets[channel] * ((int64_t)1 << (layer->shift_bits - LEHR_OFFSET_BITS));
    const int64_t level = ((int64_t)layer->multipliers[channel] * sum + offset) >> layer->shift_bits;
    return (int32_t)(level < layer->lowest ? layer->lowest : level > layer->highest ? layer->highest : level);
}

/* The same for `n` sums that stay in int32 all the way, which vectors do at once. */
#define LEHR_DEFINE_REQUANTIZE(NAME, TYPE)                                                                           \
    static inline void NAME(const lehr_layer *layer, int32_t channel, const TYPE *restrict sums, int32_t n,          \
                            int8_t *restrict target)                                                                 \
    {                                                                                                                \
        const int32_t multiplier = layer->multipliers[channel], bits = layer->shift_bits;                            \
        const int32_t offset = layer->offsets[channel] * ((int32_t)1 << (bits - LEHR_OFFSET_BITS));                  \
        const int32_t low = layer->lowest, high = layer->highest;                                                    \
        for (int32_t i = 0; i < n; i++) {                                                                            \
            const int32_t level = (multiplier * sums[i] + offset) >> bits;                                           \
            const int32_t raised = level > low ? level : low;                                                        \
            target[i] = (int8_t)(raised < high ? raised : high);                                                     \
        }                                                                                                            \
    }
LEHR_DEFINE_REQUANTIZE(lehr_requantize_narrow, int32_t)
LEHR_DEFINE_REQUANTIZE(lehr_requantize_short, int16_t)

/* The same for any `n` sums. Where vectors have no shifts of 64 bits, doubles are exact too: Python keeps products below 2^52. */
static inline void lehr_requantize_bytes(const lehr_layer *layer, int32_t channel, const int32_t *sums, int32_t n,
                                         int8_t *target)
{
    if (layer->narrow) {
        lehr_requantize_narrow(layer, channel, sums, n, target);
        return;
    }
#ifdef __AVX2__
    const double unit = 1.0 / (double)((int64_t)1 << layer->shift_bits), part = 1.0 / (double)(1 << LEHR_OFFSET_BITS);
    const double multiplier = layer->multipliers[channel] * unit, offset = layer->offsets[channel] * part;
    const double low = layer->lowest, high = layer->highest;
    for (int32_t i = 0; i < n; i++) {
        const double level = multiplier * sums[i] + offset;
        const double raised = level > low ? level : low, kept = raised < high ? raised : high;
        target[i] = (int8_t)((int32_t)(kept - low) + layer->lowest); /* not negative: rounded down */
    }
#else
    for (int32_t i = 0; i < n; i++)
        target[i] = (int8_t)lehr_requantized(layer, channel, sums[i]);
#endif
}

/* Whether levels are neighbours in int8 and so few that comparing with every threshold is quicker than a search. */
static inline int lehr_can_compare(const lehr_layer *layer)
{
    if (layer->target_type != LEHR_INT8 || layer->steps > 15)
        return 0;
    for (int32_t k = 0; k < layer->steps; k++)
        if (layer->levels[k + 1] != layer->levels[0] + k + 1)
            return 0;
    return 1;
}

/* Sums of one channel, `n` neighbours from element `at` of the target on. */
static inline void lehr_finish_int(const lehr_layer *layer, int32_t channel, const int32_t *sums, int32_t n,
                                   void *target, size_t at)
{
    const int32_t steps = layer->steps;
    enum { FEW = 8 };
    if (layer->multipliers != NULL && layer->target_type == LEHR_INT8) {
        lehr_requantize_bytes(layer, channel, sums, n, (int8_t *)target + at);
        return;
    }
    if (layer->multipliers != NULL) {
        for (int32_t i = 0; i < n; i++)
            lehr_store(layer->target_type, target, at + (size_t)i, lehr_requantized(layer, channel, sums[i]));
        return;
    }
    if (steps == 0) {
        for (int32_t i = 0; i < n; i++)
            lehr_store(layer->target_type, target, at + (size_t)i, sums[i]);
        return;
    }
    const int32_t *thresholds = (const int32_t *)layer->thresholds + (size_t)channel * (size_t)steps;
    const int32_t direction = layer->directions[channel];
    if (n >= FEW && lehr_can_compare(layer)) {
        int8_t *out = (int8_t *)target + at;
        for (int32_t i = 0; i < n; i++)
            out[i] = (int8_t)layer->levels[0];
        for (int32_t k = 0; k < steps; k++)
            for (int32_t i = 0; i < n; i++)
                out[i] = (int8_t)(out[i] + (direction * sums[i] >= thresholds[k]));
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        const int32_t code = lehr_code_int(thresholds, steps, direction * sums[i]);
        lehr_store(layer->target_type, target, at + (size_t)i, layer->levels[code]);
    }
}

static inline void lehr_finish_float(const lehr_layer *layer, int32_t channel, const double *sums, int32_t n,
                                     void *target, size_t at)
{
    const int32_t steps = layer->steps;
    for (int32_t i = 0; i < n; i++) {
        const float sum = (float)sums[i];
        if (steps == 0) {
            ((float *)target)[at + (size_t)i] = sum;
            continue;
        }
        const float *thresholds = (const float *)layer->thresholds + (size_t)channel * (size_t)steps;
        const int32_t code = lehr_code_float(thresholds, steps, (float)layer->directions[channel] * sum);
        lehr_store(layer->target_type, target, at + (size_t)i, layer->levels[code]);
    }
}

/* A threshold as int16: sums lie in -32766..32766, so beyond them only "always" and "never" are left. */
static inline int16_t lehr_threshold16(int32_t threshold)
{
    return (int16_t)(threshold < -32767 ? -32767 : threshold > 32767 ? 32767 : threshold);
}

/* The same for int16 sums. Three neighbouring levels in int8, the usual case, need no search: two comparisons. */
static inline void lehr_finish_short(const lehr_layer *layer, int32_t channel, const int16_t *restrict sums, int32_t n,
                                     void *target, size_t at)
{
    const int16_t *levels = layer->levels;
    if (layer->steps == 2 && layer->target_type == LEHR_INT8 && levels[1] == levels[0] + 1 &&
        levels[2] == levels[0] + 2) {
        const int32_t *thresholds = (const int32_t *)layer->thresholds + (size_t)channel * 2;
        const int16_t direction = layer->directions[channel]; /* -sum >= t is sum <= -t: no need to widen sums */
        const int16_t first = (int16_t)(direction * lehr_threshold16(thresholds[0]));
        const int16_t second = (int16_t)(direction * lehr_threshold16(thresholds[1]));
        const int8_t lowest = (int8_t)levels[0];
        int8_t *restrict out = (int8_t *)target + at;
        if (direction > 0)
            for (int32_t i = 0; i < n; i++)
                out[i] = (int8_t)(lowest + (sums[i] >= first) + (sums[i] >= second));
        else
            for (int32_t i = 0; i < n; i++)
                out[i] = (int8_t)(lowest + (sums[i] <= first) + (sums[i] <= second));
        return;
    }
    if (layer->narrow && layer->target_type == LEHR_INT8) {
        lehr_requantize_short(layer, channel, sums, n, (int8_t *)target + at);
        return;
    }
    enum { PIECE = 64 };
    int32_t wide[PIECE];
    for (int32_t first = 0; first < n; first += PIECE) {
        const int32_t some = n - first < PIECE ? n - first : PIECE;
        for (int32_t i = 0; i < some; i++)
            wide[i] = sums[first + i];
        lehr_finish_int(layer, channel, wide, some, target, at + (size_t)first);
    }
}

#endif
