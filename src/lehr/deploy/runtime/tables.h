/* Ternary weights without multiplications: sums of look-ups, many pixels at a time.
 *
 * Three weights in {-1, 0, 1} make 27 cases. For each group of three taps (a tap is one channel at one place of the
 * kernel) all 27 values of w0*a0 + w1*a1 + w2*a2 are made once, for a vector of pixels; then every output channel only
 * adds up the entries its weights name. A weight triple is stored as a byte: 8 * (9*(w0+1) + 3*(w1+1) + (w2+1)), which
 * processors scale to an address for free. Weights lie as (group of channels, block of 16 triples, output, triple),
 * the triples of an output padded with zero weights to an even number.
 *
 * The includer defines VECTOR (a type of VECTOR_BYTES bytes with + - & ^ << on lanes of 16 bits, or a plain word
 * whose lanes never carry into each other), SHIFT (lanes to the right), KEEP and NAME.
 *
 * TERNARY values take a nibble: entries hold the sum of 1 + w*a over three taps, 0 to 6, so two of them fit. Byte i of
 * a vector holds pixel i and pixel i + VECTOR_BYTES. Nibbles widen to bytes at each step, bytes to lanes of 16 bits
 * every two blocks (16 steps of at most 12: 192).
 * WIDE values take a lane of 16 bits; the planner sends only layers whose sums stay in int16. */

#include "sums.h"
#include <string.h>

enum { TAPS = 3, ENTRIES = 27, BLOCK = 16, LANES = VECTOR_BYTES / 2, PIXELS = 2 * VECTOR_BYTES };

static inline VECTOR NAME(load)(const void *from)
{
    VECTOR v;
    memcpy(&v, from, sizeof v);
    return v;
}

static inline void NAME(store)(void *to, VECTOR v)
{
    memcpy(to, &v, sizeof v);
}

static inline VECTOR NAME(splat)(uint16_t lane)
{
    uint16_t lanes[LANES];
    for (int i = 0; i < LANES; i++)
        lanes[i] = lane;
    return NAME(load)(lanes);
}

/* Signed lanes as one number to the base 65536, where words can be added although lanes are negative; and back.
 * For true vectors both are the identity. */
static inline VECTOR NAME(join)(VECTOR v)
{
    const VECTOR bias = NAME(splat)(0x8000);
    return (v ^ bias) - bias;
}

static inline VECTOR NAME(split)(VECTOR v)
{
    const VECTOR bias = NAME(splat)(0x8000);
    return (v + bias) ^ bias;
}

/* ---- sources, one plane for each column of the kernel ---- */

/* Plane (channel, residue, kx): the source's rows residue + i * stride, shifted to where tap column kx reads them and
 * padded, one element for each output column. A tap then reads consecutive elements for consecutive output pixels. */
typedef struct planes {
    int32_t rows, residues;
    size_t size, count; /* elements of a plane; number of planes */
} planes;

static inline planes NAME(planes)(const lehr_layer *layer)
{
    const int32_t reach = (layer->kernel_rows - 1) * layer->dilation_rows;
    planes p;
    p.rows = layer->out_rows + reach / layer->stride_rows;
    p.residues = reach + 1 < layer->stride_rows ? reach + 1 : layer->stride_rows;
    p.size = (size_t)p.rows * (size_t)layer->out_columns;
    p.count = (size_t)layer->channels * (size_t)p.residues * (size_t)layer->kernel_columns;
    return p;
}

/* One row of a plane, element by element: any stride. `width` is the size of an element, 1 or 2. */
static void NAME(gather_row)(const lehr_layer *layer, const uint8_t *line, int32_t left, size_t width, uint8_t *to)
{
    for (int32_t x = 0; x < layer->out_columns; x++, to += width) {
        const int32_t column = x * layer->stride_columns + left;
        if (column < 0 || column >= layer->columns)
            memset(to, 0, width);
        else
            memcpy(to, line + (size_t)column * width, width);
    }
}

/* A whole plane whose rows are as long as the source's: one shifted copy, then zeros where it wrapped around. */
static void NAME(gather_shifted)(const lehr_layer *layer, const uint8_t *channel, int32_t left, size_t width,
                                 int32_t first, int32_t last, uint8_t *to)
{
    const int32_t columns = layer->columns, skip = left < 0 ? -left : 0, over = left > 0 ? left : 0;
    const size_t line = (size_t)columns * width;
    const uint8_t *from = channel + (size_t)(first - layer->padding_rows) * line;
    memcpy(to + (size_t)first * line + (size_t)skip * width, from + (size_t)over * width,
           (size_t)(last - first) * line - (size_t)(skip + over) * width);
    to += (size_t)first * line;
    for (int32_t y = first; y < last; y++, to += line) { /* a few bytes each: loops are faster than memset */
        for (size_t i = 0; i < (size_t)skip * width; i++)
            to[i] = 0;
        for (size_t i = line - (size_t)over * width; i < line; i++)
            to[i] = 0;
    }
}

static void NAME(gather)(const lehr_layer *layer, const uint8_t *source, size_t width, uint8_t *to)
{
    const planes p = NAME(planes)(layer);
    const size_t line = (size_t)layer->columns * width, out_line = (size_t)layer->out_columns * width;
    for (int32_t c = 0; c < layer->channels; c++, source += (size_t)layer->rows * line)
        for (int32_t residue = 0; residue < p.residues; residue++)
            for (int32_t kx = 0; kx < layer->kernel_columns; kx++, to += p.size * width) {
                const int32_t left = kx * layer->dilation_columns - layer->padding_columns;
                int32_t first = 0, last = 0; /* rows of the plane that lie inside the source */
                for (int32_t y = 0; y < p.rows; y++) {
                    const int32_t row = y * layer->stride_rows + residue - layer->padding_rows;
                    first += row < 0;
                    last += row < layer->rows;
                }
                first = first < last ? first : last;
                memset(to, 0, (size_t)first * out_line);
                memset(to + (size_t)last * out_line, 0, (size_t)(p.rows - last) * out_line);
                if (layer->stride_rows == 1 && layer->stride_columns == 1 && layer->out_columns == layer->columns &&
                    left > -layer->columns && left < layer->columns && first < last) {
                    NAME(gather_shifted)(layer, source, left, width, first, last, to);
                    continue;
                }
                for (int32_t y = first; y < last; y++) {
                    const int32_t row = y * layer->stride_rows + residue - layer->padding_rows;
                    NAME(gather_row)(layer, source + (size_t)row * line, left, width, to + (size_t)y * out_line);
                }
            }
}

/* ---- taps and their tables ---- */

static inline int32_t NAME(triples)(const lehr_layer *layer)
{
    const int32_t taps = layer->channels / layer->groups * layer->kernel_rows * layer->kernel_columns;
    const int32_t triples = (taps + TAPS - 1) / TAPS;
    return triples + triples % 2;
}

/* Where each tap of a group of channels starts in the planes, in elements. Padding taps repeat the first one. */
static void NAME(find_taps)(const lehr_layer *layer, int32_t group, uint32_t *starts)
{
    const planes p = NAME(planes)(layer);
    const int32_t channels = layer->channels / layer->groups, padded = TAPS * NAME(triples)(layer);
    int32_t tap = 0;
    for (int32_t c = group * channels; c < (group + 1) * channels; c++)
        for (int32_t ky = 0; ky < layer->kernel_rows; ky++) {
            const int32_t y = ky * layer->dilation_rows, residue = y % layer->stride_rows;
            const size_t plane = ((size_t)c * (size_t)p.residues + (size_t)residue) * (size_t)layer->kernel_columns;
            const size_t row = (size_t)(y / layer->stride_rows) * (size_t)layer->out_columns;
            for (int32_t kx = 0; kx < layer->kernel_columns; kx++)
                starts[tap++] = (uint32_t)((plane + (size_t)kx) * p.size + row);
        }
    for (; tap < padded; tap++)
        starts[tap] = starts[0];
}

/* The 27 sums of three vectors, each taken in one of three ways: minus, zero, plus. */
static inline void NAME(fill_table)(const VECTOR a[3], const VECTOR b[3], const VECTOR c[3], uint8_t *table)
{
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) {
            const VECTOR two = a[i] + b[j];
            for (int k = 0; k < 3; k++)
                NAME(store)(table + (9 * i + 3 * j + k) * VECTOR_BYTES, two + c[k]);
        }
}

static inline const uint8_t *NAME(entry)(const uint8_t *tables, int32_t triple, uint8_t code)
{
    return tables + triple * (ENTRIES * VECTOR_BYTES) + (size_t)code * VECTOR_BYTES / 8;
}

/* ---- after the sums ---- */

static inline int NAME(pooled)(const lehr_layer *layer)
{
    return layer->pool_rows > 1 || layer->pool_columns > 1;
}

/* Maximum over pool windows, then thresholds, for one channel's int16 sums; `sums` is overwritten. `halved` sums are
 * maxima of two neighbouring columns already. */
static void NAME(pool)(const lehr_layer *layer, int32_t channel, int16_t *sums, int halved, void *target)
{
    const int32_t columns = halved ? layer->out_columns / 2 : layer->out_columns;
    const int32_t height = layer->pool_rows, width = halved ? 1 : layer->pool_columns;
    const int32_t pooled_rows = layer->out_rows / height, pooled_columns = columns / width;
    for (int32_t y = 0; y < pooled_rows; y++) {
        int16_t *restrict row = sums + (size_t)(y * height) * (size_t)columns;
        for (int32_t part = 1; part < height; part++) {
            const int16_t *restrict other = row + (size_t)part * (size_t)columns;
            for (int32_t x = 0; x < columns; x++)
                row[x] = other[x] > row[x] ? other[x] : row[x];
        }
        int16_t *pooled = sums + (size_t)y * (size_t)pooled_columns;
        if (width == 1)
            memmove(pooled, row, (size_t)columns * sizeof *row);
        else
            for (int32_t x = 0; x < pooled_columns; x++) {
                int16_t most = row[x * width];
                for (int32_t i = 1; i < width; i++)
                    most = row[x * width + i] > most ? row[x * width + i] : most;
                pooled[x] = most;
            }
    }
    const int32_t n = pooled_rows * pooled_columns;
    lehr_finish_short(layer, channel, sums, n, target, (size_t)channel * (size_t)n);
}

/* Sums of `n` pixels of a channel: kept until the channel is complete if there is a pool, else finished. */
static inline void NAME(deliver)(const lehr_layer *layer, int32_t channel, const int16_t *sums, size_t at, int32_t n,
                                 int16_t *kept, void *target)
{
    if (kept != NULL)
        memcpy(kept + at, sums, (size_t)n * sizeof *sums);
    else
        lehr_finish_short(layer, channel, sums, n, target, at);
}

/* ---- scratch: planes, starts of taps, tables, accumulators, sums kept for pooling ---- */

typedef struct areas { /* offsets in bytes */
    size_t planes, tables, bytes, sums, starts, kept, values, total;
} areas;

static inline size_t NAME(after)(size_t at, size_t bytes)
{
    return at + (bytes + 63) / 64 * 64;
}

/* For elements of `width` bytes and `vectors` accumulators an output. */
static areas NAME(areas)(const lehr_layer *layer, size_t width, size_t vectors)
{
    const planes p = NAME(planes)(layer);
    const size_t outs = (size_t)(layer->out_channels / layer->groups);
    const size_t pixels = (size_t)layer->out_rows * (size_t)layer->out_columns;
    const size_t elements = (size_t)layer->channels * (size_t)layer->rows * (size_t)layer->columns;
    areas a;
    a.planes = 0; /* vectors may reach past the last plane */
    a.tables = NAME(after)(a.planes, p.size * p.count * width + 4 * VECTOR_BYTES);
    a.bytes = NAME(after)(a.tables, BLOCK * ENTRIES * VECTOR_BYTES);
    a.sums = NAME(after)(a.bytes, width == 1 ? outs * 2 * VECTOR_BYTES : 0);
    a.starts = NAME(after)(a.sums, outs * vectors * VECTOR_BYTES);
    a.kept = NAME(after)(a.starts, (size_t)NAME(triples)(layer) * TAPS * sizeof(uint32_t));
    a.values = NAME(after)(a.kept, NAME(pooled)(layer) ? (size_t)layer->out_channels * pixels * sizeof(int16_t) : 0);
    a.total = NAME(after)(a.values, width == 1 ? 0 : elements * width);
    return a;
}

/* ---- values in {-1, 0, 1} ---- */

/* Turn planes of -1, 0, 1 into bytes of two nibbles 0, 1, 2, in place: pixel i and pixel i + VECTOR_BYTES. */
static void NAME(pack)(uint8_t *digits, size_t n)
{
    for (size_t i = 0; i < n; i++)
        digits[i] = (uint8_t)(0x11 + digits[i] + (digits[i + VECTOR_BYTES] << 4));
}

static void NAME(ternary_tables)(const uint8_t *pixels, const uint32_t *starts, int32_t count, uint8_t *tables)
{
    const VECTOR one = NAME(splat)(0x1111), two = one + one;
    for (int32_t t = 0; t < count; t++, starts += TAPS, tables += ENTRIES * VECTOR_BYTES) {
        const VECTOR a = NAME(load)(pixels + starts[0]), b = NAME(load)(pixels + starts[1]);
        const VECTOR c = NAME(load)(pixels + starts[2]);
        const VECTOR as[3] = {two - a, one, a}, bs[3] = {two - b, one, b}, cs[3] = {two - c, one, c};
        NAME(fill_table)(as, bs, cs, tables);
    }
}

/* Look up one block for all outputs. Bytes are carried from an even block to the next, then widened. */
static inline void NAME(ternary_block)(const uint8_t *codes, const uint8_t *tables, int32_t outs, int32_t count,
                                       int carried, int widen, int fresh, uint8_t *bytes, uint8_t *sums)
{
    const VECTOR nibble = NAME(splat)(0x0f0f), byte = NAME(splat)(0x00ff), zero = NAME(splat)(0);
    for (int32_t out = 0; out < outs; out++, codes += count, bytes += 2 * VECTOR_BYTES, sums += 4 * VECTOR_BYTES) {
        VECTOR low = carried ? NAME(load)(bytes) : zero;
        VECTOR high = carried ? NAME(load)(bytes + VECTOR_BYTES) : zero;
        for (int32_t t = 0; t < count; t += 2) {
            const VECTOR both =
                NAME(load)(NAME(entry)(tables, t, codes[t])) + NAME(load)(NAME(entry)(tables, t + 1, codes[t + 1]));
            low += both & nibble;
            high += SHIFT(both, 4); /* each lane: high nibbles, and 16 times the odd low nibble */
            KEEP(low, high);
        }
        if (!widen) {
            NAME(store)(bytes, low);
            NAME(store)(bytes + VECTOR_BYTES, high);
            continue;
        }
        const VECTOR odd_low = SHIFT(low, 8), even_low = low & byte;
        high -= odd_low << 4;
        const VECTOR odd_high = SHIFT(high, 8), even_high = high & byte;
        if (fresh) {
            NAME(store)(sums, even_low);
            NAME(store)(sums + VECTOR_BYTES, odd_low);
            NAME(store)(sums + 2 * VECTOR_BYTES, even_high);
            NAME(store)(sums + 3 * VECTOR_BYTES, odd_high);
        } else {
            NAME(store)(sums, NAME(load)(sums) + even_low);
            NAME(store)(sums + VECTOR_BYTES, NAME(load)(sums + VECTOR_BYTES) + odd_low);
            NAME(store)(sums + 2 * VECTOR_BYTES, NAME(load)(sums + 2 * VECTOR_BYTES) + even_high);
            NAME(store)(sums + 3 * VECTOR_BYTES, NAME(load)(sums + 3 * VECTOR_BYTES) + odd_high);
        }
    }
}

/* Accumulators of one output: biased sums of even and odd pixels, first for the low nibbles, then for the high ones. */
typedef struct quarters {
    uint16_t even[2][LANES], odd[2][LANES];
} quarters;

static inline quarters NAME(quarters)(const uint8_t *sums)
{
    const uint16_t one = 1;
    const size_t odd = *(const uint8_t *)&one, even = 1 - odd; /* which half of a lane comes first in memory */
    quarters q;
    for (size_t half = 0; half < 2; half++) {
        memcpy(q.even[half], sums + (2 * half + even) * VECTOR_BYTES, VECTOR_BYTES);
        memcpy(q.odd[half], sums + (2 * half + odd) * VECTOR_BYTES, VECTOR_BYTES);
    }
    return q;
}

/* int16 sums in the order of the pixels, without the 3 that every entry carries. */
static inline void NAME(order)(const uint8_t *sums, int32_t triples, int16_t *ordered)
{
    const quarters q = NAME(quarters)(sums);
    for (int half = 0; half < 2; half++, ordered += VECTOR_BYTES)
        for (int i = 0; i < LANES; i++) {
            ordered[2 * i] = (int16_t)(q.even[half][i] - TAPS * triples);
            ordered[2 * i + 1] = (int16_t)(q.odd[half][i] - TAPS * triples);
        }
}

/* The same for the maxima of neighbouring columns: half as many. */
static inline void NAME(order_halved)(const uint8_t *sums, int32_t triples, int16_t *ordered)
{
    const quarters q = NAME(quarters)(sums);
    for (int half = 0; half < 2; half++, ordered += LANES)
        for (int i = 0; i < LANES; i++) {
            const uint16_t most = q.even[half][i] > q.odd[half][i] ? q.even[half][i] : q.odd[half][i];
            ordered[i] = (int16_t)(most - TAPS * triples);
        }
}

/* Whether `cut` can be used: neighbouring levels in int8, few thresholds, sums of 15 bits. */
static inline int NAME(can_cut)(const lehr_layer *layer, int32_t triples)
{
    if (layer->steps == 0 || layer->steps > 15 || layer->target_type != LEHR_INT8 || 2 * TAPS * triples > 0x7fff)
        return 0;
    for (int32_t k = 0; k < layer->steps; k++)
        if (layer->levels[k + 1] != layer->levels[0] + k + 1)
            return 0;
    return 1;
}

/* Thresholds on lanes, without leaving them. For biased sums and thresholds in 0..0x7fff, bit 15 of
 * sum + 0x8000 - threshold tells sum >= threshold. Writes PIXELS codes. */
static inline void NAME(cut)(const lehr_layer *layer, int32_t channel, const uint8_t *sums, int32_t triples, uint8_t *to)
{
    const int32_t *thresholds = (const int32_t *)layer->thresholds + (size_t)channel * (size_t)layer->steps;
    const int32_t direction = layer->directions[channel], bias = TAPS * triples, most = 2 * bias;
    /* -sum >= t is not sum >= 1 - t: then codes count down from the last level; 0x100 keeps lanes from borrowing */
    const VECTOR start = NAME(splat)((uint16_t)(0x100 + (uint8_t)layer->levels[direction > 0 ? 0 : layer->steps]));
    const VECTOR byte = NAME(splat)(0x00ff);
    VECTOR code[4] = {start, start, start, start};
    for (int32_t k = 0; k < layer->steps; k++) {
        const int32_t bound = thresholds[k] > most ? most : thresholds[k] < -most ? -most : thresholds[k];
        const int32_t biased = (direction > 0 ? bound : 1 - bound) + bias;
        const int32_t cut = biased < 0 ? 0 : biased > 0x8000 ? 0x8000 : biased;
        const VECTOR offset = NAME(splat)((uint16_t)(0x8000 - cut));
        for (int i = 0; i < 4; i++) {
            const VECTOR reached = SHIFT(NAME(load)(sums + i * VECTOR_BYTES) + offset, 15);
            code[i] = direction > 0 ? code[i] + reached : code[i] - reached;
        }
    }
    NAME(store)(to, (code[0] & byte) | (code[1] & byte) << 8);
    NAME(store)(to + VECTOR_BYTES, (code[2] & byte) | (code[3] & byte) << 8);
}

static void NAME(ternary)(const lehr_layer *layer, const void *source, void *target, void *scratch)
{
    const planes p = NAME(planes)(layer);
    const areas a = NAME(areas)(layer, 1, 4);
    uint8_t *planar = (uint8_t *)scratch + a.planes, *tables = (uint8_t *)scratch + a.tables;
    uint8_t *bytes = (uint8_t *)scratch + a.bytes, *sums = (uint8_t *)scratch + a.sums;
    uint32_t *starts = (uint32_t *)(void *)((uint8_t *)scratch + a.starts);
    int16_t *kept = NAME(pooled)(layer) ? (int16_t *)(void *)((uint8_t *)scratch + a.kept) : NULL;
    const int32_t pixels = layer->out_rows * layer->out_columns, triples = NAME(triples)(layer);
    const int32_t outs = layer->out_channels / layer->groups;
    const uint8_t *weights = layer->weights;
    const int halved = kept != NULL && layer->pool_columns == 2 && layer->out_columns % 2 == 0;
    const int cuttable = kept == NULL && NAME(can_cut)(layer, triples);

    NAME(gather)(layer, source, 1, planar);
    memset(planar + p.size * p.count, 0, 4 * VECTOR_BYTES);
    NAME(pack)(planar, p.size * p.count + 3 * VECTOR_BYTES);
    for (int32_t group = 0; group < layer->groups; group++, weights += (size_t)triples * (size_t)outs) {
        NAME(find_taps)(layer, group, starts);
        for (int32_t pixel = 0; pixel < pixels; pixel += PIXELS) {
            const uint8_t *codes = weights;
            for (int32_t first = 0, block = 0; first < triples; first += BLOCK, block++) {
                const int32_t count = triples - first < BLOCK ? triples - first : BLOCK;
                const int carried = block % 2, widen = block % 2 || first + count == triples, fresh = block < 2;
                NAME(ternary_tables)(planar + pixel, starts + TAPS * first, count, tables);
                if (count == BLOCK) /* a constant count lets the compiler unroll */
                    NAME(ternary_block)(codes, tables, outs, BLOCK, carried, widen, fresh, bytes, sums);
                else
                    NAME(ternary_block)(codes, tables, outs, count, carried, widen, fresh, bytes, sums);
                codes += (size_t)count * (size_t)outs;
            }
            const int32_t n = pixels - pixel < PIXELS ? pixels - pixel : PIXELS;
            for (int32_t out = 0; out < outs; out++) {
                const int32_t channel = group * outs + out;
                const size_t at = (size_t)channel * (size_t)pixels + (size_t)pixel;
                const uint8_t *sum = sums + (size_t)out * 4 * VECTOR_BYTES;
                int16_t ordered[PIXELS];
                if (halved) {
                    NAME(order_halved)(sum, triples, ordered);
                    memcpy(kept + at / 2, ordered, (size_t)(n / 2) * sizeof *kept);
                } else if (cuttable) {
                    uint8_t codes_now[PIXELS];
                    NAME(cut)(layer, channel, sum, triples, codes_now);
                    memcpy((uint8_t *)target + at, codes_now, (size_t)n);
                } else {
                    NAME(order)(sum, triples, ordered);
                    NAME(deliver)(layer, channel, ordered, at, n, kept, target);
                }
            }
        }
    }
    if (kept != NULL)
        for (int32_t out = 0; out < layer->out_channels; out++)
            NAME(pool)(layer, out, kept + (size_t)out * (size_t)pixels / (halved ? 2 : 1), halved, target);
}

static size_t NAME(ternary_scratch)(const lehr_layer *layer)
{
    return NAME(areas)(layer, 1, 4).total;
}

/* ---- other values: lanes of 16 bits ---- */

static void NAME(wide_tables)(const int16_t *pixels, const uint32_t *starts, int32_t count, uint8_t *tables)
{
    const VECTOR zero = NAME(splat)(0);
    for (int32_t t = 0; t < count; t++, starts += TAPS, tables += ENTRIES * VECTOR_BYTES) {
        const VECTOR a = NAME(join)(NAME(load)(pixels + starts[0])), b = NAME(join)(NAME(load)(pixels + starts[1]));
        const VECTOR c = NAME(join)(NAME(load)(pixels + starts[2]));
        const VECTOR as[3] = {zero - a, zero, a}, bs[3] = {zero - b, zero, b}, cs[3] = {zero - c, zero, c};
        NAME(fill_table)(as, bs, cs, tables);
    }
}

static inline void NAME(wide_block)(const uint8_t *codes, const uint8_t *tables, int32_t outs, int32_t count, int fresh,
                                    uint8_t *sums)
{
    for (int32_t out = 0; out < outs; out++, codes += count, sums += VECTOR_BYTES) {
        VECTOR sum = fresh ? NAME(splat)(0) : NAME(load)(sums);
        for (int32_t t = 0; t < count; t++)
            sum += NAME(load)(NAME(entry)(tables, t, codes[t]));
        NAME(store)(sums, sum);
    }
}

static void NAME(wide)(const lehr_layer *layer, const void *source, void *target, void *scratch)
{
    const planes p = NAME(planes)(layer);
    const areas a = NAME(areas)(layer, 2, 1);
    uint8_t *planar = (uint8_t *)scratch + a.planes, *tables = (uint8_t *)scratch + a.tables;
    uint8_t *sums = (uint8_t *)scratch + a.sums;
    uint32_t *starts = (uint32_t *)(void *)((uint8_t *)scratch + a.starts);
    int16_t *kept = NAME(pooled)(layer) ? (int16_t *)(void *)((uint8_t *)scratch + a.kept) : NULL;
    const int32_t pixels = layer->out_rows * layer->out_columns, triples = NAME(triples)(layer);
    const int32_t outs = layer->out_channels / layer->groups;
    const size_t elements = (size_t)layer->channels * (size_t)layer->rows * (size_t)layer->columns;
    const uint8_t *weights = layer->weights;
    int16_t *values = (int16_t *)(void *)((uint8_t *)scratch + a.values);

    if (layer->source_type == LEHR_INT8)
        for (size_t i = 0; i < elements; i++)
            values[i] = ((const int8_t *)source)[i];
    else
        memcpy(values, source, elements * sizeof *values);
    NAME(gather)(layer, (const uint8_t *)values, 2, planar);
    memset(planar + 2 * p.size * p.count, 0, 4 * VECTOR_BYTES);
    for (int32_t group = 0; group < layer->groups; group++, weights += (size_t)triples * (size_t)outs) {
        NAME(find_taps)(layer, group, starts);
        for (int32_t pixel = 0; pixel < pixels; pixel += LANES) {
            const uint8_t *codes = weights;
            for (int32_t first = 0; first < triples; first += BLOCK) {
                const int32_t count = triples - first < BLOCK ? triples - first : BLOCK;
                NAME(wide_tables)((const int16_t *)(const void *)planar + pixel, starts + TAPS * first, count, tables);
                NAME(wide_block)(codes, tables, outs, count, first == 0, sums);
                codes += (size_t)count * (size_t)outs;
            }
            const int32_t n = pixels - pixel < LANES ? pixels - pixel : LANES;
            for (int32_t out = 0; out < outs; out++) {
                int16_t ordered[LANES];
                const VECTOR sum = NAME(split)(NAME(load)(sums + (size_t)out * VECTOR_BYTES));
                NAME(store)(ordered, sum);
                const int32_t channel = group * outs + out;
                NAME(deliver)(layer, channel, ordered, (size_t)channel * (size_t)pixels + (size_t)pixel, n, kept, target);
            }
        }
    }
    if (kept != NULL)
        for (int32_t out = 0; out < layer->out_channels; out++)
            NAME(pool)(layer, out, kept + (size_t)out * (size_t)pixels, 0, target);
}

static size_t NAME(wide_scratch)(const lehr_layer *layer)
{
    return NAME(areas)(layer, 2, 1).total;
}
