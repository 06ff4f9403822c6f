/* Linear layers with weights and values in {-1, 0, 1}: two bit-planes, nonzero and negative.
 *
 * Of two trits the product is nonzero where both are, and negative there where their signs differ, so a sum of
 * products is count(both) - 2 * count(both and signs differ). 32 bits of a vector are 32 inputs of one output, and the
 * vector holds those of several outputs, so their counts need not be added up in the end. Carry-save adders make one
 * vector of weight eight out of eight, and only that one is counted bit by bit. The includer defines what tables.h
 * wants and PREFETCH (ask for an address), and includes that first. */

#include "sums.h"
#include <string.h>

/* Outputs of a vector; bytes of the outputs of a block, in one plane, for 32 inputs. */
enum { TOGETHER = VECTOR_BYTES / 4, BLOCK_BYTES = 4 * LEHR_BITS_OUTPUTS };

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

/* Add `factor` times the counts of the outputs to `sums`. */
static inline void NAME(take)(counter *c, int32_t factor, int32_t *sums)
{
    uint16_t lanes[LANES];
    NAME(count)(c, c->fours, 2);
    NAME(count)(c, c->twos, 1);
    NAME(count)(c, c->ones, 0);
    NAME(store)(lanes, c->lanes);
    for (int i = 0; i < TOGETHER; i++)
        sums[i] += factor * (lanes[2 * i] + lanes[2 * i + 1]);
}

/* The same 32 values for every output; they lie there twice, which is enough for a plain word. */
static inline VECTOR NAME(spread)(const uint8_t *from)
{
    uint8_t copies[VECTOR_BYTES < 8 ? 8 : VECTOR_BYTES];
    for (int i = 0; i < VECTOR_BYTES; i += 8)
        memcpy(copies + i, from, 8);
    return NAME(load)(copies);
}

/* Counts of trits that are nonzero on both sides, and of those of them whose signs differ. */
typedef struct counters {
    counter both, differ;
} counters;

typedef struct carries {
    VECTOR both, differ;
} carries;

enum { AHEAD = 4096 }; /* bytes; weights are read once, and come from far away */

/* For 32 inputs. */
static inline carries NAME(compare)(const uint8_t *values, const uint8_t *weights)
{
    carries x;
    x.both = NAME(spread)(values) & NAME(load)(weights);
    x.differ = (NAME(spread)(values + 8) ^ NAME(load)(weights + BLOCK_BYTES)) & x.both;
    PREFETCH(weights + AHEAD);
    PREFETCH(weights + AHEAD + BLOCK_BYTES);
    return x;
}

enum { VALUES = 16, WEIGHTS = 2 * BLOCK_BYTES }; /* bytes of 32 inputs */

static inline carries NAME(add_carries)(VECTOR *both, VECTOR *differ, carries a, carries b)
{
    carries sum;
    sum.both = NAME(add_bits)(both, a.both, b.both);
    sum.differ = NAME(add_bits)(differ, a.differ, b.differ);
    return sum;
}

/* Count 2 * 32 inputs, and return what carries into the twos; likewise four and eight. */
static inline carries NAME(count_two)(counters *c, const uint8_t *values, const uint8_t *weights)
{
    return NAME(add_carries)(&c->both.ones, &c->differ.ones, NAME(compare)(values, weights),
                             NAME(compare)(values + VALUES, weights + WEIGHTS));
}

static inline carries NAME(count_four)(counters *c, const uint8_t *values, const uint8_t *weights)
{
    const carries first = NAME(count_two)(c, values, weights); /* in this order, as both change the ones */
    return NAME(add_carries)(&c->both.twos, &c->differ.twos, first,
                             NAME(count_two)(c, values + 2 * VALUES, weights + 2 * WEIGHTS));
}

static inline void NAME(count_eight)(counters *c, const uint8_t *values, const uint8_t *weights)
{
    const carries first = NAME(count_four)(c, values, weights);
    const carries eight = NAME(add_carries)(&c->both.fours, &c->differ.fours, first,
                                            NAME(count_four)(c, values + 4 * VALUES, weights + 4 * WEIGHTS));
    NAME(count)(&c->both, eight.both, 3);
    NAME(count)(&c->differ, eight.differ, 3);
}

/* Sums of the outputs of one vector. */
static inline void NAME(bits_sums)(const uint8_t *values, const uint8_t *weights, int32_t words, int32_t *sums)
{
    enum { MOST_EIGHTS = 500 }; /* a lane counts 500 times 128, and at most 7 * 16 of what is left and not carried each */
    const VECTOR zero = NAME(splat)(0);
    const counter none = {zero, zero, zero, zero};
    memset(sums, 0, TOGETHER * sizeof *sums);
    while (words > 0) {
        counters c = {none, none};
        for (int i = 0; i < MOST_EIGHTS && words >= 8; i++, words -= 8, values += 8 * VALUES, weights += 8 * WEIGHTS)
            NAME(count_eight)(&c, values, weights);
        for (; words > 0 && words < 8; words--, values += VALUES, weights += WEIGHTS) {
            const carries x = NAME(compare)(values, weights);
            NAME(count)(&c.both, x.both, 0);
            NAME(count)(&c.differ, x.differ, 0);
        }
        NAME(take)(&c.both, 1, sums);
        NAME(take)(&c.differ, -2, sums);
    }
}

static void NAME(bits)(const lehr_layer *layer, const void *source, void *target, void *scratch)
{
    const int32_t words = (layer->channels + 31) / 32;
    const uint8_t *weights = layer->weights;
    lehr_bit_planes(source, (size_t)layer->channels, scratch);
    for (int32_t block = 0; block < layer->out_channels; block += LEHR_BITS_OUTPUTS) {
        for (int32_t at = 0; at < LEHR_BITS_OUTPUTS && block + at < layer->out_channels; at += TOGETHER) {
            int32_t sums[TOGETHER];
            NAME(bits_sums)(scratch, weights + 4 * at, words, sums);
            for (int32_t i = 0; i < TOGETHER && block + at + i < layer->out_channels; i++)
                lehr_finish_int(layer, block + at + i, &sums[i], 1, target, (size_t)(block + at + i));
        }
        weights += 2 * (size_t)words * BLOCK_BYTES;
    }
}
