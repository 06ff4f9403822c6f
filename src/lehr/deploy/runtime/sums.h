/* What becomes of finished sums: the thresholds of their channel, then the type of the target.
 *
 * Static functions, so that each file that includes this compiles them for its own instruction set. */
#ifndef LEHR_SUMS_H
#define LEHR_SUMS_H

#include "lehr.h"
#include <string.h>

static inline uint64_t lehr_word(const void *from)
{
    uint64_t word;
    memcpy(&word, from, sizeof word);
    return word;
}

static inline int32_t lehr_count_bits(uint64_t x)
{
#ifdef __POPCNT__
    return __builtin_popcountll(x);
#else
    x -= x >> 1 & UINT64_C(0x5555555555555555);
    x = (x & UINT64_C(0x3333333333333333)) + (x >> 2 & UINT64_C(0x3333333333333333));
    x = (x + (x >> 4)) & UINT64_C(0x0f0f0f0f0f0f0f0f);
    return (int32_t)(x * UINT64_C(0x0101010101010101) >> 56);
#endif
}

/* Trits as two planes of bits, nonzero and negative, trit k being bit k % 32 of word k / 32. */
static inline void lehr_bit_planes(const int8_t *trits, size_t n, uint32_t *planes)
{
    const size_t words = (n + 31) / 32;
    for (size_t w = 0; w < words; w++) {
        const size_t here = n - 32 * w < 32 ? n - 32 * w : 32;
        uint32_t nonzero = 0, negative = 0;
        for (size_t i = 0; i < here; i++) { /* of -1, 0, 1 the last bit tells nonzero, the first one the sign */
            const uint32_t trit = (uint8_t)trits[32 * w + i];
            nonzero |= (trit & 1) << i;
            negative |= (trit >> 7) << i;
        }
        planes[w] = nonzero;
        planes[words + w] = negative;
    }
}

/* Number of thresholds that `sum` reaches; they ascend, so the answer is where it would be inserted. */
#define LEHR_DEFINE_CODE(NAME, TYPE)                                         \
    static inline int32_t NAME(const TYPE *thresholds, int32_t n, TYPE sum)  \
    {                                                                        \
        int32_t low = 0;                                                     \
        while (n > 0) {                                                      \
            const int32_t half = n / 2;                                      \
            if (sum >= thresholds[low + half]) {                             \
                low += half + 1;                                             \
                n -= half + 1;                                               \
            } else {                                                         \
                n = half;                                                    \
            }                                                                \
        }                                                                    \
        return low;                                                          \
    }
LEHR_DEFINE_CODE(lehr_code_int, int32_t)
LEHR_DEFINE_CODE(lehr_code_float, float)

static inline void lehr_store(int32_t type, void *target, size_t at, int32_t value)
{
    switch (type) {
    case LEHR_INT8: ((int8_t *)target)[at] = (int8_t)value; break;
    case LEHR_INT16: ((int16_t *)target)[at] = (int16_t)value; break;
    case LEHR_INT32: ((int32_t *)target)[at] = value; break;
    default: ((float *)target)[at] = (float)value; break;
    }
}

/* Sums of one channel, `n` neighbours from element `at` of the target on. */
static inline void lehr_finish_int(const lehr_layer *layer, int32_t channel, const int32_t *sums, int32_t n,
                                   void *target, size_t at)
{
    const int32_t steps = layer->steps;
    if (steps == 0) {
        for (int32_t i = 0; i < n; i++)
            lehr_store(layer->target_type, target, at + (size_t)i, sums[i]);
        return;
    }
    const int32_t *thresholds = (const int32_t *)layer->thresholds + (size_t)channel * (size_t)steps;
    const int32_t direction = layer->directions[channel];
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
        const int16_t first = lehr_threshold16(thresholds[0]), second = lehr_threshold16(thresholds[1]);
        const int8_t lowest = (int8_t)levels[0];
        int8_t *restrict out = (int8_t *)target + at;
        if (layer->directions[channel] > 0)
            for (int32_t i = 0; i < n; i++)
                out[i] = (int8_t)(lowest + (sums[i] >= first) + (sums[i] >= second));
        else
            for (int32_t i = 0; i < n; i++)
                out[i] = (int8_t)(lowest + (-sums[i] >= first) + (-sums[i] >= second));
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        const int32_t sum = sums[i];
        lehr_finish_int(layer, channel, &sum, 1, target, at + (size_t)i);
    }
}

#endif
