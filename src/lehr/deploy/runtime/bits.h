/* Linear layers with weights and values in {-1, 0, 1}: two bit-planes, nonzero and negative.
 *
 * Of two trits the product is nonzero where both are, and negative there where their signs differ, so a sum of products is
 * count(both) - 2 * count(both and signs differ). Counting is done by carry-save adders: eight vectors become one of weight eight,
 * and only that one is counted bit by bit. Includers define VECTOR, VECTOR_BYTES, SHIFT and NAME, as for tables.h. */

#include "sums.h"
#include <string.h>

/* Bits set in each byte, as bytes. */
static inline VECTOR NAME(count_bytes)(VECTOR x)
{
    const VECTOR pairs = NAME(splat)(0x5555), fours = NAME(splat)(0x3333), eights = NAME(splat)(0x0f0f);
    x = x - (SHIFT(x, 1) & pairs);
    x = (x & fours) + (SHIFT(x, 2) & fours);
    return (x + SHIFT(x, 4)) & eights;
}

/* Sum of all bytes. */
static inline int32_t NAME(sum_bytes)(VECTOR x)
{
    uint16_t lanes[LANES];
    int32_t sum = 0;
    NAME(store)(lanes, (x & NAME(splat)(0x00ff)) + SHIFT(x, 8));
    for (int i = 0; i < LANES; i++)
        sum += lanes[i];
    return sum;
}

/* A full adder for each bit: *sum + a + b = 2 * result + new *sum. */
static inline VECTOR NAME(add_bits)(VECTOR *sum, VECTOR a, VECTOR b)
{
    const VECTOR differ = a ^ b, carry = (a & b) | (differ & *sum);
    *sum = differ ^ *sum;
    return carry;
}

/* Running count of bits: ones, twos, fours not yet carried, and bytes that count eights. */
typedef struct counter {
    VECTOR ones, twos, fours, eights;
} counter;

static inline void NAME(count_eight)(counter *c, const VECTOR x[8])
{
    const VECTOR two_a = NAME(add_bits)(&c->ones, x[0], x[1]), two_b = NAME(add_bits)(&c->ones, x[2], x[3]);
    const VECTOR four_a = NAME(add_bits)(&c->twos, two_a, two_b);
    const VECTOR two_c = NAME(add_bits)(&c->ones, x[4], x[5]), two_d = NAME(add_bits)(&c->ones, x[6], x[7]);
    const VECTOR four_b = NAME(add_bits)(&c->twos, two_c, two_d);
    c->eights += NAME(count_bytes)(NAME(add_bits)(&c->fours, four_a, four_b));
}

static inline int32_t NAME(count_rest)(const counter *c)
{
    return 4 * NAME(sum_bytes)(NAME(count_bytes)(c->fours)) + 2 * NAME(sum_bytes)(NAME(count_bytes)(c->twos)) +
           NAME(sum_bytes)(NAME(count_bytes)(c->ones));
}

/* The sum for one output; each plane has `bytes` bytes, a multiple of 4. */
static inline int32_t NAME(bits_sum)(const uint8_t *values, const uint8_t *weights, size_t bytes)
{
    enum { ROUND = 8 * VECTOR_BYTES, ROUNDS = 31 }; /* a byte counts up to 31 rounds of at most 8 */
    const VECTOR zero = NAME(splat)(0);
    counter both = {zero, zero, zero, zero}, differ = both;
    int32_t n_both = 0, n_differ = 0, round = 0;
    for (size_t at = 0; at < bytes; at += ROUND) {
        VECTOR b[8], d[8];
        for (int i = 0; i < 8; i++) {
            const size_t here = at + (size_t)i * VECTOR_BYTES;
            VECTOR value[2] = {zero, zero}, weight[2] = {zero, zero};
            if (here + VECTOR_BYTES <= bytes) {
                value[0] = NAME(load)(values + here), value[1] = NAME(load)(values + bytes + here);
                weight[0] = NAME(load)(weights + here), weight[1] = NAME(load)(weights + bytes + here);
            } else if (here < bytes) {
                for (int plane = 0; plane < 2; plane++) {
                    memcpy(&value[plane], values + (size_t)plane * bytes + here, bytes - here);
                    memcpy(&weight[plane], weights + (size_t)plane * bytes + here, bytes - here);
                }
            }
            b[i] = value[0] & weight[0];
            d[i] = (value[1] ^ weight[1]) & b[i];
        }
        NAME(count_eight)(&both, b);
        NAME(count_eight)(&differ, d);
        if (++round == ROUNDS || at + ROUND >= bytes) {
            n_both += 8 * NAME(sum_bytes)(both.eights);
            n_differ += 8 * NAME(sum_bytes)(differ.eights);
            both.eights = differ.eights = zero;
            round = 0;
        }
    }
    n_both += NAME(count_rest)(&both);
    n_differ += NAME(count_rest)(&differ);
    return n_both - 2 * n_differ;
}

static void NAME(bits)(const lehr_layer *layer, const void *source, void *target, void *scratch)
{
    const int8_t *in = source;
    const size_t words = ((size_t)layer->channels + 31) / 32, bytes = words * sizeof(uint32_t);
    uint32_t *nonzero = scratch, *negative = nonzero + words;
    const uint8_t *weights = layer->weights;
    for (size_t w = 0; w < words; w++) {
        const size_t left = (size_t)layer->channels - 32 * w, n = left < 32 ? left : 32;
        uint32_t some = 0, minus = 0;
        for (size_t i = 0; i < n; i++) {
            some |= (uint32_t)(in[32 * w + i] != 0) << i;
            minus |= (uint32_t)(in[32 * w + i] < 0) << i;
        }
        nonzero[w] = some;
        negative[w] = minus;
    }
    for (int32_t out = 0; out < layer->out_channels; out++, weights += 2 * bytes) {
        const int32_t sum = NAME(bits_sum)(scratch, weights, bytes);
        lehr_finish_int(layer, out, &sum, 1, target, (size_t)out);
    }
}
