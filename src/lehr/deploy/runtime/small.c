/* Routines for 32-bit microcontrollers: little memory, few registers, no vectors, perhaps no unaligned loads.
 *
 * Values in {-1, 0, 1} stay packed, two bits each (LEHR_TRIT). A convolution walks over its output in rows of tiles. For
 * each row of tiles it makes a strip: the source lines below it, padded, a line for each channel and row of the kernel and,
 * with a stride, for each residue of the columns; so all that a tap reads for a tile are neighbours in a line. For each tile
 * it makes tables of the sums of three taps, at most LEHR_BLOCK tables at a time, and each output looks up its triples of
 * weights in them. An entry is two words in all tables:
 *
 *     LEHR_TERNARY   a nibble a pixel: 8 columns of a row in the low nibbles, of the next row in the high ones
 *     LEHR_WIDE      16 bits a pixel: 4 columns of a row; a linear layer is the case of one column
 *
 * LEHR_COUNTERS is for linear layers of trits: inputs that are zero are skipped, and 32 outputs are counted at once, each
 * in one bit of the counters' words. docs/kernels.md of lehr tells more. */
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

/* ---- tables, the same for both kinds: two words whose lanes never carry into each other ---- */

typedef struct pair {
    uint32_t first, second;
} pair;

static inline pair plus(pair a, pair b)
{
    return (pair){a.first + b.first, a.second + b.second};
}

static inline pair minus(pair a, pair b)
{
    return (pair){a.first - b.first, a.second - b.second};
}

/* Load a pair, or store one, and step on. Compilers find it hard to put a pair into one instruction. */
#if defined(__ARM_ARCH_ISA_THUMB) && __ARM_ARCH_ISA_THUMB >= 2
#define FETCH(x, from) __asm__ volatile("ldrd %0, %1, [%2], #8" : "=&r"((x).first), "=&r"((x).second), "+r"(from) : : "memory")
#define STORE(x, to) __asm__ volatile("strd %1, %2, [%0], #8" : "+r"(to) : "r"((x).first), "r"((x).second) : "memory")
#else
#define FETCH(x, from) ((x) = *(from)++)
#define STORE(x, to) (*(to)++ = (x))
#endif

/* table[9 * i + 3 * j + k] = zero + (i - 1) * a + (j - 1) * b + (k - 1) * c; returns where it ends */
static inline pair *make_table(pair *table, pair zero, pair a, pair b, pair c)
{
    pair row = minus(minus(minus(zero, a), b), c);
#pragma GCC unroll 3
    for (int i = 0; i < 3; i++, row = plus(row, a)) {
        pair cell = row;
#pragma GCC unroll 3
        for (int j = 0; j < 3; j++, cell = plus(cell, b)) {
            pair entry = cell;
#pragma GCC unroll 3
            for (int k = 0; k < 3; k++, entry = plus(entry, c))
                STORE(entry, table);
        }
    }
    return table;
}

/* Four bytes at any address. Where loads must be aligned, two of them around it. */
static inline uint32_t load(const uint8_t *from)
{
#if defined(__ARM_ARCH) && !defined(__ARM_FEATURE_UNALIGNED) || defined(__riscv)
    const uint32_t *words = (const uint32_t *)(const void *)(from - ((uintptr_t)from & 3));
    const uint32_t shift = 8 * ((uint32_t)(uintptr_t)from & 3);
    return shift == 0 ? words[0] : words[0] >> shift | words[1] << (32 - shift);
#else
    uint32_t word;
    memcpy(&word, from, sizeof word);
    return word;
#endif
}

/* Let `count` pairs have the same 16 bits everywhere. */
static APART void fill(pair *to, int32_t count, int32_t half)
{
    const pair both = {(uint32_t)half * LANES, (uint32_t)half * LANES};
    for (const pair *end = to + count; to < end;)
        STORE(both, to);
}

/* ---- the strip ---- */

/* Where a tap's line begins in the strip, from the first tile on, in elements; taps are (channel, kernel row, kernel column). */
static APART void find_starts(const lehr_layer *layer, uint16_t *starts)
{
    const lehr_strips *s = layer->strips;
    const int32_t stride = layer->stride_columns, rows = layer->channels / layer->groups * layer->kernel_rows;
    const uint16_t *end = starts + 3 * s->triples;
    for (int32_t row = 0, first = s->lead; row < rows; row++, first += s->phases * s->line)
        for (int32_t kx = 0, column = 0; kx < layer->kernel_columns; kx++, column += layer->dilation_columns)
            *starts++ = (uint16_t)(first + column % stride * s->line + column / stride);
    while (starts < end)
        *starts++ = 0; /* weights of zero */
}

/* Four trits of a byte as four bytes. */
#define SPREAD(i) ((i & 3) | (i >> 2 & 3) << 8 | (i >> 4 & 3) << 16 | (uint32_t)(i >> 6 & 3) << 24)
#define SPREAD4(i) SPREAD((i)), SPREAD((i + 1)), SPREAD((i + 2)), SPREAD((i + 3))
#define SPREAD16(i) SPREAD4((i)), SPREAD4((i + 4)), SPREAD4((i + 8)), SPREAD4((i + 12))
#define SPREAD64(i) SPREAD16((i)), SPREAD16((i + 16)), SPREAD16((i + 32)), SPREAD16((i + 48))
static const uint32_t spread[256] = {SPREAD64(0), SPREAD64(64), SPREAD64(128), SPREAD64(192)};

/* Four trits from element `at` on, each a byte: 0, 1, 2 for -1, 0, 1. Zeros outside the source. */
static inline uint32_t next_four(const uint8_t *source, size_t at, int inside)
{
    const uint8_t *bytes = source + at / 4;
    const uint32_t shift = 2 * (at % 4);
    if (!inside)
        return NIBBLES & 0x0f0f0f0f;
    return spread[shift == 0 ? bytes[0] : (bytes[0] | (uint32_t)bytes[1] << 8) >> shift & 255];
}

/* Two packed rows, which begin at elements `low` and `high`, as a line of bytes: one in the low nibbles, one in the high. */
static WITHIN void spread_rows(const uint8_t *source, size_t low, int low_inside, size_t high, int high_inside,
                               int32_t columns, uint32_t *to)
{
    if (low_inside && high_inside && (low | high) % 4 == 0) {
        const uint8_t *low_bytes = source + low / 4, *high_bytes = source + high / 4;
        for (; columns >= 4; columns -= 4, low += 4, high += 4)
            *to++ = spread[*low_bytes++] | spread[*high_bytes++] << 4;
    }
    for (; columns > 0; columns -= 4, low += 4, high += 4) {
        const uint32_t both = next_four(source, low, low_inside) | next_four(source, high, high_inside) << 4;
        const uint32_t mask = columns < 4 ? (1u << 8 * columns) - 1 : 0xffffffff; /* what follows is padding */
        *to++ = (both & mask) | (NIBBLES & ~mask);
    }
}

/* The lines of one group below output rows y and y + 1, for stride 1 and a packed source. */
static APART void spread_strip(const lehr_layer *layer, const uint8_t *source, int32_t group, int32_t y, uint8_t *strip)
{
    const int32_t channels = layer->channels / layer->groups, step = layer->stride_rows, columns = layer->columns;
    const size_t plane = (size_t)layer->rows * (size_t)columns, line = (size_t)layer->strips->line;
    strip += layer->strips->lead + layer->padding_columns;
    for (int32_t ky = 0; ky < layer->kernel_rows; ky++, strip += line) {
        const int32_t row = y * step + ky * layer->dilation_rows - layer->padding_rows;
        const int low_inside = row >= 0 && row < layer->rows, high_inside = row + step >= 0 && row + step < layer->rows;
        size_t at = (size_t)(group * channels) * plane + (size_t)row * (size_t)columns;
        uint8_t *to = strip;
        for (int32_t c = 0; c < channels; c++, at += plane, to += (size_t)layer->kernel_rows * line)
            spread_rows(source, at, low_inside, at + (size_t)(step * columns), high_inside, columns, (uint32_t *)(void *)to);
    }
}

/* An element of the source, 0 outside of it. */
static APART int32_t element(const lehr_layer *layer, const void *source, int32_t channel, int32_t row, int32_t column)
{
    if (row < 0 || row >= layer->rows || column < 0 || column >= layer->columns)
        return 0;
    const size_t at = ((size_t)channel * (size_t)layer->rows + (size_t)row) * (size_t)layer->columns + (size_t)column;
    return lehr_load_int(layer->source_type, source, at);
}

/* The same for any stride and any type of source. */
static APART void make_ternary_strip(const lehr_layer *layer, const void *source, int32_t group, int32_t y, uint8_t *strip)
{
    const lehr_strips *s = layer->strips;
    const int32_t channels = layer->channels / layer->groups, step = layer->stride_rows;
    for (int32_t c = group * channels; c < (group + 1) * channels; c++)
        for (int32_t ky = 0; ky < layer->kernel_rows; ky++) {
            const int32_t row = y * step + ky * layer->dilation_rows - layer->padding_rows;
            for (int32_t phase = 0; phase < s->phases; phase++, strip += s->line)
                for (int32_t x = s->lead; x < s->line; x++) {
                    const int32_t column = (x - s->lead) * layer->stride_columns + phase - layer->padding_columns;
                    const int32_t low = element(layer, source, c, row, column) + 1;
                    strip[x] = (uint8_t)(low | (element(layer, source, c, row + step, column) + 1) << 4);
                }
        }
}

/* The same for output row y alone, in int16. What pads a line is zero from the start. */
static APART void make_wide_strip(const lehr_layer *layer, const void *source, int32_t group, int32_t y, int16_t *strip)
{
    const lehr_strips *s = layer->strips;
    const int32_t channels = layer->channels / layer->groups, stride = layer->stride_columns;
    for (int32_t c = group * channels; c < (group + 1) * channels; c++)
        for (int32_t ky = 0; ky < layer->kernel_rows; ky++) {
            const int32_t row = y * layer->stride_rows + ky * layer->dilation_rows - layer->padding_rows;
            const int inside = row >= 0 && row < layer->rows;
            const size_t at = ((size_t)c * (size_t)layer->rows + (size_t)row) * (size_t)layer->columns;
            for (int32_t phase = 0; phase < s->phases; phase++, strip += s->line) {
                if (!inside) {
                    memset(strip, 0, 2 * (size_t)s->line);
                    continue;
                }
                /* from the first place of the line that lies inside the row */
                int32_t x = phase < layer->padding_columns ? (layer->padding_columns - phase + stride - 1) / stride : 0;
                int32_t column = x * stride + phase - layer->padding_columns;
                if (layer->source_type == LEHR_INT8)
                    for (const int8_t *from = (const int8_t *)source + at; x < s->line && column < layer->columns; x++) {
                        strip[x] = from[column];
                        column += stride;
                    }
                else
                    for (; x < s->line && column < layer->columns; x++, column += stride)
                        strip[x] = (int16_t)lehr_load_int(layer->source_type, source, at + (size_t)column);
            }
        }
}

/* ---- what becomes of sums ---- */

/* The level of a sum, or the sum. */
static APART int32_t finished(const lehr_layer *layer, int32_t out, int32_t sum)
{
    const int32_t steps = layer->steps;
    if (layer->multipliers != NULL)
        return lehr_requantized(layer, out, sum);
    if (steps == 0)
        return sum;
    const int32_t *thresholds = (const int32_t *)layer->thresholds + (size_t)(out * steps);
    return layer->levels[lehr_code_int(thresholds, steps, layer->directions[out] * sum)];
}

/* Any thresholds, target and pool, a pixel at a time: the target holds the most of a window that was met so far. */
static APART void put_sum(const lehr_layer *layer, void *target, int32_t out, int32_t y, int32_t x, int32_t sum)
{
    const int32_t rows = layer->out_rows / layer->pool_rows, columns = layer->out_columns / layer->pool_columns;
    const int32_t row = y / layer->pool_rows, column = x / layer->pool_columns;
    if (row >= rows || column >= columns)
        return;
    const size_t at = ((size_t)out * (size_t)rows + (size_t)row) * (size_t)columns + (size_t)column;
    sum = finished(layer, out, sum);
    if (y % layer->pool_rows != 0 || x % layer->pool_columns != 0) {
        /* the largest sum may have the lowest level */
        const int falls = layer->multipliers != NULL ? layer->multipliers[out] < 0 : layer->steps > 0 && layer->directions[out] < 0;
        const int32_t met = lehr_load_int(layer->target_type, target, at);
        sum = (met > sum) != falls ? met : sum;
    }
    lehr_store(layer->target_type, target, at, sum);
}

/* Two thresholds of a channel, in both halves of a word each, and what turns their bits round if sums fall. */
typedef struct cut {
    uint32_t first, second, turn;
} cut;

static inline cut cut_of(const uint16_t *cuts, const int8_t *directions, int32_t out)
{
    return (cut){cuts[2 * out] * LANES, cuts[2 * out + 1] * LANES, directions[out] < 0 ? LANES : 0};
}

/* In both halves, trits of two bits for sums of 15 bits. */
static inline uint32_t trits_of(cut c, uint32_t sums)
{
    const uint32_t raised = sums | 0x8000 * LANES; /* so that no half borrows; its highest bit stays if it is reached */
    return (((raised - c.first) >> 15 & LANES) ^ c.turn) + (((raised - c.second) >> 15 & LANES) ^ c.turn);
}

/* The same for the largest of four sums, which reaches what any of them reaches. */
static inline uint32_t trits_of_most(cut c, uint32_t a, uint32_t b, uint32_t d, uint32_t e)
{
    a |= 0x8000 * LANES, b |= 0x8000 * LANES, d |= 0x8000 * LANES, e |= 0x8000 * LANES;
    const uint32_t first = (a - c.first) | (b - c.first) | (d - c.first) | (e - c.first);
    const uint32_t second = (a - c.second) | (b - c.second) | (d - c.second) | (e - c.second);
    return ((first >> 15 & LANES) ^ c.turn) + ((second >> 15 & LANES) ^ c.turn);
}

/* A linear layer's output. Outputs come in order, so each byte of trits is begun by its first. */
static inline void put_output(const lehr_layer *layer, void *target, int32_t out, int32_t biased)
{
    if (layer->cuts != NULL) {
        const uint16_t *cuts = layer->cuts + 2 * (size_t)out;
        const int32_t reached = (biased >= cuts[0]) + (biased >= cuts[1]);
        const int32_t trit = layer->directions[out] < 0 ? 2 - reached : reached;
        uint8_t *byte = (uint8_t *)target + out / 4;
        *byte = (uint8_t)(out % 4 == 0 ? trit : *byte | trit << 2 * (out % 4));
    } else {
        lehr_store(layer->target_type, target, (size_t)out, finished(layer, out, biased - layer->bias));
    }
}

/* Write the bits that the mask names. */
static APART void merge_bits(uint8_t *to, uint32_t bits, uint32_t mask)
{
    for (; mask != 0; mask >>= 8, bits >>= 8, to++)
        *to = (uint8_t)((*to & ~mask) | (bits & mask));
}

/* Write at most 8 trits of two bits from element `at` on. */
static inline void put_trits(uint8_t *target, size_t at, uint32_t trits, int32_t count)
{
    uint8_t *to = target + at / 4;
    const uint32_t shift = 2 * (at % 4);
    if (shift != 0 || count % 4 != 0) {
        merge_bits(to, trits << shift, ((1u << 2 * count) - 1) << shift);
        return;
    }
    *to = (uint8_t)trits;
    if (count == 8)
        to[1] = (uint8_t)(trits >> 8);
}

static inline int32_t least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* ---- LEHR_TERNARY ---- */

#if defined(__ARM_FEATURE_DSP) && !defined(__ARM_BIG_ENDIAN)
/* Cortex-M4 and M7. UXTAB adds one byte of a word, here a code, to an address, and LDRD loads an entry. */
#define ENTRY(code, table, x, y) "uxtab %[at], %[tables], %[codes]" code "\n\tldrd " x ", " y ", [%[at], #" table "]\n\t"
#define ADD_NIBBLES(x, low, high) "and %[at], " x ", #0x0f0f0f0f\n\tadd " low ", %[at]\n\tadd " high ", " high ", " x ", lsr #4\n\t"
#define TWO_TRIPLES(code1, table1, code2, table2)                                                                  \
    ENTRY(code1, table1, "%[x0]", "%[x1]") ENTRY(code2, table2, "%[at]", "%[y1]")                                  \
    "add %[x0], %[at]\n\tadd %[x1], %[y1]\n\t"                                                                   \
    ADD_NIBBLES("%[x0]", "%[low0]", "%[high0]") ADD_NIBBLES("%[x1]", "%[low1]", "%[high1]")
#define FOUR_TRIPLES                                                                                               \
    "ldr %[codes], [%[from]], #4\n\t" TWO_TRIPLES("", "0", ", ror #8", "216")                                      \
    TWO_TRIPLES(", ror #16", "432", ", ror #24", "648") "add %[tables], #864\n\t"
#define LOOK_UP(triples)                                                                                           \
    do {                                                                                                           \
        uint32_t at_, codes_, x0_, x1_, y1_;                                                                       \
        __asm__ volatile(triples                                                                                   \
                         : [at] "=&r"(at_), [codes] "=&r"(codes_), [x0] "=&r"(x0_), [x1] "=&r"(x1_),               \
                           [y1] "=&r"(y1_), [tables] "+&r"(tables), [from] "+&r"(codes), [low0] "+&r"(low_.first), \
                           [low1] "+&r"(low_.second), [high0] "+&r"(high_.first), [high1] "+&r"(high_.second)      \
                         :                                                                                         \
                         : "memory");                                                                              \
    } while (0)
#define ADD_EVEN(sum, bytes) __asm__("uxtab16 %0, %0, %1" : "+r"(sum) : "r"(bytes))
#define ADD_ODD(sum, bytes) __asm__("uxtab16 %0, %0, %1, ror #8" : "+r"(sum) : "r"(bytes))
#else
#define ADD_EVEN(sum, bytes) ((sum) += (bytes) & 0xff * LANES)
#define ADD_ODD(sum, bytes) ((sum) += (bytes) >> 8 & 0xff * LANES)
#endif

static inline const pair *entry(const uint8_t *tables, uint8_t code)
{
    return (const pair *)(const void *)(tables + code);
}

static inline void add_nibbles(const uint8_t *tables, const uint8_t *codes, pair *low, pair *high)
{
    const pair both = plus(*entry(tables, codes[0]), *entry(tables + TABLE, codes[1]));
    low->first += both.first & 0x0f0f0f0f;
    high->first += both.first >> 4;
    low->second += both.second & 0x0f0f0f0f;
    high->second += both.second >> 4;
}

/* The sums of a block of triples for one output, in bytes: 16 pairs of entries are at most 16 * 12. The high nibbles are
 * summed with the low ones of the next byte below them, which adds 16 times what the low sums say and is taken off. */
static WITHIN void look_up(const uint8_t *codes, int32_t count, int whole, const uint8_t *tables, pair *low, pair *high)
{
    const uint8_t *end = codes + count;
    pair low_ = {0, 0}, high_ = {0, 0};
#ifdef LOOK_UP
    if (whole)
        LOOK_UP(FOUR_TRIPLES FOUR_TRIPLES FOUR_TRIPLES FOUR_TRIPLES FOUR_TRIPLES FOUR_TRIPLES FOUR_TRIPLES FOUR_TRIPLES);
    else
        while (codes + 4 <= end)
            LOOK_UP(FOUR_TRIPLES);
#else
    for (; codes + 8 <= end; codes += 8, tables += 8 * TABLE) {
        add_nibbles(tables, codes, &low_, &high_);
        add_nibbles(tables + 2 * TABLE, codes + 2, &low_, &high_);
        add_nibbles(tables + 4 * TABLE, codes + 4, &low_, &high_);
        add_nibbles(tables + 6 * TABLE, codes + 6, &low_, &high_);
    }
#endif
    for (; !whole && codes < end; codes += 2, tables += 2 * TABLE)
        add_nibbles(tables, codes, &low_, &high_);
    high_.first -= low_.first >> 8 << 4;
    high_.second -= low_.second >> 8 << 4;
    *low = low_;
    *high = high_;
}

/* Add a block to the sums of all outputs, 8 words each. A whole one has LEHR_BLOCK triples. */
static WITHIN void look_up_all(const uint8_t *codes, int32_t count, int whole, const uint8_t *tables, int32_t outs, pair *sums)
{
    for (const pair *end = sums + 4 * outs; sums < end; codes += count) {
        const pair *before = sums;
        pair low, high, low_even, low_odd, high_even, high_odd;
        look_up(codes, count, whole, tables, &low, &high);
        FETCH(low_even, before);
        FETCH(low_odd, before);
        FETCH(high_even, before);
        FETCH(high_odd, before);
        ADD_EVEN(low_even.first, low.first);
        ADD_EVEN(low_even.second, low.second);
        ADD_ODD(low_odd.first, low.first);
        ADD_ODD(low_odd.second, low.second);
        ADD_EVEN(high_even.first, high.first);
        ADD_EVEN(high_even.second, high.second);
        ADD_ODD(high_odd.first, high.first);
        ADD_ODD(high_odd.second, high.second);
        STORE(low_even, sums);
        STORE(low_odd, sums);
        STORE(high_even, sums);
        STORE(high_odd, sums);
    }
}

static APART void look_up_block(const uint8_t *codes, const uint8_t *tables, int32_t outs, pair *sums)
{
    look_up_all(codes, LEHR_BLOCK, 1, tables, outs, sums);
}

static APART void look_up_rest(const uint8_t *codes, int32_t count, const uint8_t *tables, int32_t outs, pair *sums)
{
    look_up_all(codes, count, 0, tables, outs, sums);
}

/* Sums of a tile: words 0, 1 are columns (0, 2), (4, 6), words 2, 3 columns (1, 3), (5, 7), and 4 to 7 the row below. */
static inline uint32_t pack_row(cut c, const uint32_t *sums)
{
    const uint32_t left = trits_of(c, sums[0]) | trits_of(c, sums[2]) << 2;
    const uint32_t right = trits_of(c, sums[1]) | trits_of(c, sums[3]) << 2;
    return ((left | left >> 12) & 0xff) | ((right | right >> 12) & 0xff) << 8;
}

static APART void finish_tile(const lehr_layer *layer, int32_t group, int32_t y, int32_t x, const uint32_t *sums, void *target)
{
    const int32_t outs = layer->out_channels / layer->groups, pool = layer->pool_rows;
    const int32_t rows = layer->out_rows / pool, columns = layer->out_columns / layer->pool_columns;
    int32_t out = group * outs;
    if (layer->cuts == NULL) {
        for (; out < (group + 1) * outs; out++, sums += 8)
            for (int32_t i = 0; i < 16; i++) {
                const int32_t column = x + i % 8;
                const uint32_t word = sums[i / 8 * 4 + i % 2 * 2 + i % 8 / 4];
                const int32_t sum = (int32_t)(i % 4 < 2 ? word & 0xffff : word >> 16) - layer->bias;
                if (column < layer->out_columns && y + i / 8 < layer->out_rows)
                    put_sum(layer, target, out, y + i / 8, column, sum);
            }
        return;
    }
    const uint16_t *cuts = layer->cuts;
    const int8_t *directions = layer->directions;
    const size_t plane = (size_t)rows * (size_t)columns;
    size_t at = (size_t)out * plane + (size_t)(y / pool * columns + x / pool);
    const int32_t count = least(8 / pool, columns - x / pool), below = y + 1 < rows;
    for (const uint32_t *end = sums + 8 * outs; sums < end; sums += 8, out++, at += plane) {
        const cut c = cut_of(cuts, directions, out);
        if (pool == 2) {
            const uint32_t left = trits_of_most(c, sums[0], sums[2], sums[4], sums[6]);
            const uint32_t right = trits_of_most(c, sums[1], sums[3], sums[5], sums[7]);
            const uint32_t both = left | right << 4;
            put_trits(target, at, (both | both >> 14) & 0xff, count);
        } else {
            size_t to = at;
            for (const uint32_t *row = sums, *last = sums + (below ? 8 : 4); row < last; row += 4, to += (size_t)columns)
                put_trits(target, to, pack_row(c, row), count);
        }
    }
}

static inline pair load_nibbles(const uint8_t *from)
{
    return (pair){load(from) - NIBBLES, load(from + 4) - NIBBLES};
}

static APART void make_ternary_tables(const uint8_t *strip, const uint16_t *start, int32_t count, pair *table)
{
    const pair threes = {3 * NIBBLES, 3 * NIBBLES};
    for (const uint16_t *end = start + 3 * count; start < end; start += 3)
        table = make_table(table, threes, load_nibbles(strip + start[0]), load_nibbles(strip + start[1]),
                           load_nibbles(strip + start[2]));
}

void lehr_small_ternary(const lehr_layer *layer, const void *source, void *target, void *scratch)
{
    const lehr_strips *s = layer->strips;
    const int32_t outs = layer->out_channels / layer->groups;
    const int32_t rows = layer->out_rows / layer->pool_rows * layer->pool_rows;
    const int32_t columns = layer->out_columns / layer->pool_columns * layer->pool_columns;
    uint8_t *strip = (uint8_t *)scratch + s->strip, *tables = (uint8_t *)scratch + s->tables;
    pair *sums = (pair *)(void *)((uint8_t *)scratch + s->sums);
    uint16_t *starts = (uint16_t *)(void *)((uint8_t *)scratch + s->starts);
    const uint8_t *group_codes = layer->weights;
    LEHR_ASSERT(s->starts + 6 * (uint32_t)s->triples <= layer->scratch[INSTRUCTION_SET]);
    find_starts(layer, starts);
    fill((pair *)(void *)strip, (int32_t)(s->tables - s->strip) / 8, NIBBLES & 0xffff); /* padding */
    for (int32_t group = 0; group < layer->groups; group++, group_codes += outs * s->triples)
        for (int32_t y = 0; y < rows; y += 2) {
            if (layer->stride_columns == 1 && layer->source_type == LEHR_TRIT)
                spread_strip(layer, source, group, y, strip);
            else
                make_ternary_strip(layer, source, group, y, strip);
            for (int32_t x = 0; x < columns; x += 8) {
                fill(sums, 4 * outs, 0);
                for (int32_t first = 0; first < s->triples; first += LEHR_BLOCK) {
                    const int32_t count = least(s->triples - first, LEHR_BLOCK);
                    const uint8_t *codes = group_codes + first * outs;
                    make_ternary_tables(strip + x, starts + 3 * first, count, (pair *)(void *)tables);
                    if (count == LEHR_BLOCK)
                        look_up_block(codes, tables, outs, sums);
                    else
                        look_up_rest(codes, count, tables, outs, sums);
                }
                finish_tile(layer, group, y, x, (const uint32_t *)(const void *)sums, target);
            }
        }
}

/* ---- LEHR_WIDE ---- */

/* Two neighbours as one number to the base 65536, so that sums of such are right in both halves. */
static inline uint32_t load_two(const int16_t *from)
{
    return (uint32_t)(int32_t)from[0] + ((uint32_t)(int32_t)from[1] << 16);
}

static inline pair load_four(const int16_t *from)
{
    return (pair){load_two(from), load_two(from + 2)};
}

#ifdef LOOK_UP
#define WIDE_TRIPLE(code, table) ENTRY(code, table, "%[at]", "%[x1]") "add %[first], %[at]\n\tadd %[second], %[x1]\n\t"
#define LOOK_UP_WIDE(triples)                                                                                      \
    do {                                                                                                           \
        uint32_t at_, codes_, x1_;                                                                                 \
        __asm__ volatile(triples                                                                                   \
                         : [at] "=&r"(at_), [codes] "=&r"(codes_), [x1] "=&r"(x1_), [tables] "+&r"(tables),        \
                           [from] "+&r"(codes), [first] "+&r"(sum.first), [second] "+&r"(sum.second)               \
                         :                                                                                         \
                         : "memory");                                                                              \
    } while (0)
#endif

static WITHIN pair look_up_wide(const uint8_t *codes, int32_t count, const uint8_t *tables, pair sum)
{
    const uint8_t *end = codes + count;
#ifdef LOOK_UP
    while (codes + 4 <= end)
        LOOK_UP_WIDE("ldr %[codes], [%[from]], #4\n\t" WIDE_TRIPLE("", "0") WIDE_TRIPLE(", ror #8", "216")
                         WIDE_TRIPLE(", ror #16", "432") WIDE_TRIPLE(", ror #24", "648") "add %[tables], #864\n\t");
    if (codes < end)
        LOOK_UP_WIDE("ldrh %[codes], [%[from]], #2\n\t" WIDE_TRIPLE("", "0") WIDE_TRIPLE(", ror #8", "216"));
#else
    for (; codes < end; codes += 2, tables += 2 * TABLE)
        sum = plus(plus(sum, *entry(tables, codes[0])), *entry(tables + TABLE, codes[1]));
#endif
    return sum;
}

static APART void make_wide_tables(const int16_t *strip, const uint16_t *start, int32_t count, pair *table)
{
    const pair zero = {0, 0};
    for (const uint16_t *end = start + 3 * count; start < end; start += 3)
        table = make_table(table, zero, load_four(strip + start[0]), load_four(strip + start[1]), load_four(strip + start[2]));
}

/* Add a block to the sums of all outputs of a group, one pair each. */
static APART void look_up_wide_block(const uint8_t *codes, int32_t count, const uint8_t *tables, int32_t outs, pair *sums)
{
    for (const pair *end = sums + outs; sums < end; codes += count) {
        const pair sum = look_up_wide(codes, count, tables, *sums);
        STORE(sum, sums);
    }
}

static APART void finish_wide(const lehr_layer *layer, int32_t group, int32_t y, int32_t x, const pair *sums, void *target)
{
    const int32_t outs = layer->out_channels / layer->groups, count = least(4, layer->out_columns - x);
    const size_t plane = (size_t)layer->out_rows * (size_t)layer->out_columns;
    const uint16_t *cuts = layer->cuts;
    const int8_t *directions = layer->directions;
    const int is_linear = layer->operation == LEHR_LINEAR;
    int32_t out = group * outs;
    size_t at = (size_t)out * plane + (size_t)(y * layer->out_columns + x);
    for (const pair *end = sums + outs; sums < end; sums++, out++, at += plane)
        if (is_linear) {
            put_output(layer, target, out, (int32_t)(sums->first & 0xffff));
        } else if (cuts != NULL) {
            const cut c = cut_of(cuts, directions, out);
            const uint32_t both = trits_of(c, sums->first) | trits_of(c, sums->second) << 4;
            put_trits(target, at, (both | both >> 14) & 0xff, count);
        } else {
            for (int32_t i = 0; i < count; i++) {
                const uint32_t word = i < 2 ? sums->first : sums->second;
                put_sum(layer, target, out, y, x + i, (int32_t)(i % 2 == 0 ? word & 0xffff : word >> 16) - layer->bias);
            }
        }
}

/* Sums begin at `bias`, with which none is negative in the end. */
void lehr_small_wide(const lehr_layer *layer, const void *source, void *target, void *scratch)
{
    const lehr_strips *s = layer->strips;
    const int32_t outs = layer->out_channels / layer->groups;
    int16_t *strip = (int16_t *)(void *)((uint8_t *)scratch + s->strip);
    uint8_t *tables = (uint8_t *)scratch + s->tables;
    pair *sums = (pair *)(void *)((uint8_t *)scratch + s->sums);
    uint16_t *starts = (uint16_t *)(void *)((uint8_t *)scratch + s->starts);
    const uint8_t *group_codes = layer->weights;
    LEHR_ASSERT(s->starts + 6 * (uint32_t)s->triples <= layer->scratch[INSTRUCTION_SET]);
    fill((pair *)(void *)strip, (int32_t)(s->tables - s->strip) / 8, 0);
    find_starts(layer, starts);
    for (int32_t group = 0; group < layer->groups; group++, group_codes += outs * s->triples)
        for (int32_t y = 0; y < layer->out_rows; y++) {
            make_wide_strip(layer, source, group, y, strip);
            for (int32_t x = 0; x < layer->out_columns; x += 4) {
                fill(sums, outs, layer->bias);
                for (int32_t first = 0; first < s->triples; first += LEHR_BLOCK) {
                    const int32_t count = least(s->triples - first, LEHR_BLOCK);
                    make_wide_tables(strip + x, starts + 3 * first, count, (pair *)(void *)tables);
                    look_up_wide_block(group_codes + first * outs, count, tables, outs, sums);
                }
                finish_wide(layer, group, y, x, sums, target);
            }
        }
}

/* ---- LEHR_COUNTERS ---- */

/* The inputs that are not zero: a list of those that are 1, and one of those that are -1, each filled up to a multiple of
 * 8 with the number of an input whose weights are zero. */
typedef struct inputs {
    const uint16_t *ones, *ones_end, *minus_ones, *minus_ones_end;
} inputs;

static APART inputs find_inputs(const lehr_layer *layer, const void *source, uint16_t *list)
{
    const int32_t n = layer->channels;
    uint16_t *up = list, *down = list + n + 16; /* from both ends */
    const uint16_t *end = down;
    if (layer->source_type == LEHR_TRIT) {
        const uint8_t *bytes = source;
        for (int32_t i = 0; i < n; i += 4) {
            uint32_t four = *bytes++;
            if (four == 0x55)
                continue; /* all zero */
            for (int32_t k = i; k < least(i + 4, n); k++, four >>= 2)
                if ((four & 3) == 2)
                    *up++ = (uint16_t)k;
                else if ((four & 3) == 0)
                    *--down = (uint16_t)k;
        }
    } else {
        for (int32_t i = 0; i < n; i++) {
            const int32_t value = lehr_load_int(layer->source_type, source, (size_t)i);
            if (value > 0)
                *up++ = (uint16_t)i;
            else if (value < 0)
                *--down = (uint16_t)i;
        }
    }
    while ((up - list) % 8 != 0)
        *up++ = (uint16_t)n;
    while ((end - down) % 8 != 0)
        *--down = (uint16_t)n;
    return (inputs){list, up, down, end};
}

/* A full adder for each bit: total + a + b = 2 * carry + the new total. */
#define ADD_BITS(carry, total, a, b)                         \
    do {                                                     \
        const uint32_t a_ = (a), b_ = (b), differ_ = a_ ^ b_; \
        (carry) = (a_ & b_) | (differ_ & (total));           \
        (total) ^= differ_;                                  \
    } while (0)

enum { PLANES = 20 }; /* bits of a count, of twice 65535 inputs, in whole nibbles */

/* Count the weights of eight inputs at a time: for each, of 32 outputs, the bits "1" and "not -1", whose number is the
 * weight plus one; for inputs of -1 both bits are turned round. */
static WITHIN void count_inputs(const uint16_t *input, const uint16_t *end, const pair *weights, uint32_t turn, uint32_t *planes)
{
    uint32_t ones = planes[0], twos = planes[1], fours = planes[2], eights = planes[3];
    for (; input < end; input += 8) {
        uint32_t two_a, two_b, four_a, four_b, eight_a, eight_b, carry;
#define TAKE(carry, i) ADD_BITS(carry, ones, weights[input[i]].first ^ turn, weights[input[i]].second ^ turn)
        TAKE(two_a, 0);
        TAKE(two_b, 1);
        ADD_BITS(four_a, twos, two_a, two_b);
        TAKE(two_a, 2);
        TAKE(two_b, 3);
        ADD_BITS(four_b, twos, two_a, two_b);
        ADD_BITS(eight_a, fours, four_a, four_b);
        TAKE(two_a, 4);
        TAKE(two_b, 5);
        ADD_BITS(four_a, twos, two_a, two_b);
        TAKE(two_a, 6);
        TAKE(two_b, 7);
        ADD_BITS(four_b, twos, two_a, two_b);
        ADD_BITS(eight_b, fours, four_a, four_b);
#undef TAKE
        ADD_BITS(carry, eights, eight_a, eight_b);
        for (uint32_t *plane = planes + 4; carry != 0; plane++) {
            const uint32_t both = *plane & carry;
            *plane ^= carry;
            carry = both;
        }
    }
    planes[0] = ones, planes[1] = twos, planes[2] = fours, planes[3] = eights;
}

static APART void count_ones(const inputs *found, const pair *weights, uint32_t *planes)
{
    count_inputs(found->ones, found->ones_end, weights, 0, planes);
}

static APART void count_minus_ones(const inputs *found, const pair *weights, uint32_t *planes)
{
    count_inputs(found->minus_ones, found->minus_ones_end, weights, 0xffffffff, planes);
}

/* Four planes, a bit of every output each, as nibbles: those of outputs i, i + 4, i + 8, .. in word i. */
static inline void gather_nibbles(uint32_t *planes)
{
    const uint32_t p0 = planes[0], p1 = planes[1], p2 = planes[2], p3 = planes[3];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        planes[i] = (p0 >> i & NIBBLES) | (p1 >> i & NIBBLES) << 1 | (p2 >> i & NIBBLES) << 2 | (p3 >> i & NIBBLES) << 3;
}

void lehr_small_counters(const lehr_layer *layer, const void *source, void *target, void *scratch)
{
    const pair *weights = layer->weights;
    const inputs found = find_inputs(layer, source, scratch);
    const int32_t taken = (int32_t)(found.ones_end - found.ones + (found.minus_ones_end - found.minus_ones));
    int32_t most = 4; /* planes that may hold a bit, a multiple of 4 */
    LEHR_ASSERT(2 * ((uint32_t)layer->channels + 16) <= layer->scratch[INSTRUCTION_SET]);
    while (2 * taken >> most != 0)
        most += 4;
    for (int32_t first = 0; first < layer->out_channels; first += 32, weights += layer->channels + 1) {
        uint32_t planes[PLANES] = {0};
        count_ones(&found, weights, planes);
        count_minus_ones(&found, weights, planes);
        for (int32_t k = 0; k < most; k += 4)
            gather_nibbles(planes + k);
        for (int32_t out = first; out < least(first + 32, layer->out_channels); out++) {
            int32_t sum = layer->bias - taken;
            for (int32_t k = 0; k < most; k += 4) {
                uint32_t *nibbles = planes + k + out % 4;
                sum += (int32_t)(*nibbles & 15) << k;
                *nibbles >>= 4;
            }
            put_output(layer, target, out, sum);
        }
    }
}

/* ---- LEHR_PLUS ---- */

void lehr_small_plus(const lehr_layer *layer, const void *source, void *target, void *scratch)
{
    const size_t pixels = (size_t)layer->rows * (size_t)layer->columns;
    const void *second = (const uint8_t *)source - layer->source + layer->second; /* values lie in one block */
    size_t at = 0;
    (void)scratch;
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
