/* Routines for 32-bit microcontrollers: little memory, few registers, no vectors, perhaps no unaligned loads.
 *
 * Values in {-1, 0, 1} stay packed, two bits each (LEHR_TRIT). A convolution walks over its output in rows of tiles. For
 * each row of tiles it makes a strip: the source lines that its taps read, padded, a line for each channel and row of the
 * kernel and, with a stride, for each residue of the columns; so all that a tap reads for a tile are neighbours in a line.
 * For each tile it makes tables of the sums of three taps, at most LEHR_BLOCK tables at a time, and each output looks up
 * its triples of weights in them. An entry is two words in all tables:
 *
 *     LEHR_TERNARY   a nibble a pixel: 8 columns of a row in the low nibbles, of the next row in the high ones
 *     LEHR_WIDE      16 bits a pixel: 4 columns of a row; a linear layer is the case of one column
 *
 * LEHR_COUNTERS is for linear layers of trits. docs/kernels.md of lehr tells more.
 *
 * What compilers inline decides how much memory and time this takes, so all parts are one translation unit. */
#include "lehr.h"
#include "sums.h"
#include <string.h>

#define INSTRUCTION_SET LEHR_SMALL
#define DIRECT lehr_small_direct
#define SEARCH lehr_small_search
#include "direct.inc"
#include "search.inc"

enum { ENTRIES = 27, TABLE = 8 * ENTRIES }; /* entries and bytes of a table */

/* A function of its own has all registers to itself, of which these processors have few. */
#define APART __attribute__((noinline))
/* A function that is called with constants is compiled for them. */
#define WITHIN inline __attribute__((always_inline))

#define LANES UINT32_C(0x00010001)   /* one in both halves of a word */
#define NIBBLES UINT32_C(0x11111111) /* one in each nibble */

#include "small_tables.inc"
#include "small_strips.inc"
#include "small_sums.inc"
#include "small_ternary.inc"
#include "small_wide.inc"
#include "small_counters.inc"

/* Sums of two values that three levels follow: `count` trits from element `at` on, both multiples of 4. */
static APART void plus_trits(const lehr_layer *layer, const void *source, const void *second, int32_t channel, size_t at,
                             size_t count, uint8_t *target)
{
    const int32_t *thresholds = (const int32_t *)layer->thresholds + 2 * (size_t)channel;
    const int32_t direction = layer->directions[channel], first_type = layer->source_type, second_type = layer->second_type;
    const int32_t first = layer->first_factor * direction, other = layer->second_factor * direction;
    const int32_t low = thresholds[0], high = thresholds[1];
    for (uint8_t *to = target + at / 4, *end = to + count / 4; to < end; to++) {
        uint32_t trits = 0;
        for (int32_t shift = 0; shift < 8; shift += 2, at++) {
            const int32_t sum = first * lehr_load_int(first_type, source, at) + other * lehr_load_int(second_type, second, at);
            trits |= (uint32_t)(layer->levels[(sum >= low) + (sum >= high)] + 1) << shift;
        }
        *to = (uint8_t)trits;
    }
}

/* LEHR_PLUS: sums of two values, with what follows them. */
void lehr_small_plus(const lehr_layer *layer, const void *source, void *target, void *scratch)
{
    const size_t pixels = (size_t)layer->rows * (size_t)layer->columns;
    const void *second = (const uint8_t *)source - layer->source + layer->second; /* values lie in one block */
    size_t at = 0;
    (void)scratch;
    if (layer->target_type == LEHR_TRIT && layer->steps == 2 && pixels % 4 == 0) {
        for (int32_t c = 0; c < layer->channels; c++, at += pixels)
            plus_trits(layer, source, second, c, at, pixels, (uint8_t *)target);
        return;
    }
    for (int32_t c = 0; c < layer->channels; c++)
        for (const size_t end = at + pixels; at < end; at++) {
            const int32_t sum = layer->first_factor * lehr_load_int(layer->source_type, source, at) +
                                layer->second_factor * lehr_load_int(layer->second_type, second, at);
            lehr_store(layer->target_type, target, at, finished(layer, c, sum));
        }
}

lehr_routine_function *const lehr_small_routines[LEHR_ROUTINES] = {
    [LEHR_DIRECT] = lehr_small_direct,
    [LEHR_TERNARY] = lehr_small_ternary,
    [LEHR_WIDE] = lehr_small_wide,
    [LEHR_COUNTERS] = lehr_small_counters,
    [LEHR_SEARCH] = lehr_small_search,
    [LEHR_PLUS] = lehr_small_plus,
};
