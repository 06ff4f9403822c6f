/* Linear layers with weights and values in {-1, 0, 1}: two bit-planes, nonzero and negative.
 *
 * Of two trits the product is nonzero where both are, and negative there where their signs differ, so a sum of
 * products is count(both) - 2 * count(both and signs differ). Carry-save adders make one vector of weight eight out of
 * eight, and only that one is counted bit by bit. The includer defines what tables.h wants, and includes that first. */

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

/* A full adder for each bit: *sum + a + b = 2 * result + new *sum. */
static inline VECTOR NAME(add_bits)(VECTOR *sum, VECTOR a, VECTOR b)
{
    const VECTOR differ = a ^ b, carry = (a & b) | (differ & *sum);
    *sum = differ ^ *sum;
    return carry;
}

/* Running count of bits: ones, twos, fours not yet carried, and lanes that count what was. */
typedef struct counter {
    VECTOR ones, twos, fours, lanes;
} counter;

/* Add `weight` times the bits of `x` to the lanes. */
static inline void NAME(count)(counter *c, VECTOR x, int weight)
{
    const VECTOR bytes = NAME(count_bytes)(x);
    c->lanes += ((bytes & NAME(splat)(0x00ff)) + SHIFT(bytes, 8)) << weight;
}

static inline void NAME(count_eight)(counter *c, const VECTOR x[8])
{
    const VECTOR two_a = NAME(add_bits)(&c->ones, x[0], x[1]), two_b = NAME(add_bits)(&c->ones, x[2], x[3]);
    const VECTOR four_a = NAME(add_bits)(&c->twos, two_a, two_b);
    const VECTOR two_c = NAME(add_bits)(&c->ones, x[4], x[5]), two_d = NAME(add_bits)(&c->ones, x[6], x[7]);
    const VECTOR four_b = NAME(add_bits)(&c->twos, two_c, two_d);
    NAME(count)(c, NAME(add_bits)(&c->fours, four_a, four_b), 3);
}

/* The whole count; starts anew. */
static inline int32_t NAME(take)(counter *c)
{
    const VECTOR zero = NAME(splat)(0);
    uint16_t lanes[LANES];
    int32_t sum = 0;
    NAME(count)(c, c->fours, 2);
    NAME(count)(c, c->twos, 1);
    NAME(count)(c, c->ones, 0);
    NAME(store)(lanes, c->lanes);
    for (int i = 0; i < LANES; i++)
        sum += lanes[i];
    c->ones = c->twos = c->fours = c->lanes = zero;
    return sum;
}

/* Trits that are nonzero on both sides, and those of them whose signs differ; planes lie `bytes` apart. */
static inline void NAME(compare)(const uint8_t *values, const uint8_t *weights, size_t bytes, VECTOR *both, VECTOR *differ)
{
    *both = NAME(load)(values) & NAME(load)(weights);
    *differ = (NAME(load)(values + bytes) ^ NAME(load)(weights + bytes)) & *both;
}

/* The sum for one output; each plane has `bytes` bytes. */
static inline int32_t NAME(bits_sum)(const uint8_t *values, const uint8_t *weights, size_t bytes)
{
    enum { ROUND = 8 * VECTOR_BYTES, ROUNDS = 500 }; /* a lane counts 500 rounds of 128, and at most 7 * 16 not yet carried */
    const VECTOR zero = NAME(splat)(0);
    counter both = {zero, zero, zero, zero}, differ = both;
    int32_t n_both = 0, n_differ = 0, round = 0;
    size_t at = 0;
    for (; at + ROUND <= bytes; at += ROUND) {
        VECTOR b[8], d[8];
        for (int i = 0; i < 8; i++) {
            const size_t here = at + (size_t)i * VECTOR_BYTES;
            NAME(compare)(values + here, weights + here, bytes, &b[i], &d[i]);
        }
        NAME(count_eight)(&both, b);
        NAME(count_eight)(&differ, d);
        if (++round == ROUNDS) {
            n_both += NAME(take)(&both);
            n_differ += NAME(take)(&differ);
            round = 0;
        }
    }
    if (at > 0) {
        n_both += NAME(take)(&both);
        n_differ += NAME(take)(&differ);
    }
    for (; at + sizeof(uint64_t) <= bytes; at += sizeof(uint64_t)) {
        const uint64_t b = lehr_word(values + at) & lehr_word(weights + at);
        n_both += lehr_count_bits(b);
        n_differ += lehr_count_bits((lehr_word(values + bytes + at) ^ lehr_word(weights + bytes + at)) & b);
    }
    if (at < bytes) { /* planes are whole uint32: half a word is left */
        uint32_t value[2], weight[2];
        memcpy(&value[0], values + at, 4), memcpy(&value[1], values + bytes + at, 4);
        memcpy(&weight[0], weights + at, 4), memcpy(&weight[1], weights + bytes + at, 4);
        n_both += lehr_count_bits(value[0] & weight[0]);
        n_differ += lehr_count_bits((value[1] ^ weight[1]) & value[0] & weight[0]);
    }
    return n_both - 2 * n_differ;
}

static void NAME(bits)(const lehr_layer *layer, const void *source, void *target, void *scratch)
{
    const size_t bytes = ((size_t)layer->channels + 31) / 32 * sizeof(uint32_t);
    const uint8_t *weights = layer->weights;
    lehr_bit_planes(source, (size_t)layer->channels, scratch);
    for (int32_t out = 0; out < layer->out_channels; out++, weights += 2 * bytes) {
        const int32_t sum = NAME(bits_sum)(scratch, weights, bytes);
        lehr_finish_int(layer, out, &sum, 1, target, (size_t)out);
    }
}
