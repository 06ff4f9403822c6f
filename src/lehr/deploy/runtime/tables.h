/* Ternary weights without multiplications: sums of look-ups, many pixels at a time.
 *
 * Three weights in {-1, 0, 1} make 27 cases. For each group of three taps (a tap is one channel at one place of the
 * kernel) all 27 values of w0*a0 + w1*a1 + w2*a2 are made once, for a vector of pixels; then every output channel only
 * adds up the entries its weights name. A weight triple is stored as a byte: 8 * (9*(w0+1) + 3*(w1+1) + (w2+1)), which
 * processors scale to an address for free. Weights lie as (group of channels, block of 32 triples, output, triple),
 * the triples of an output padded with zero weights to an even number.
 *
 * The includer defines VECTOR (a type of VECTOR_BYTES bytes with + - & | ^ ~ << on lanes of 16 bits, or a plain word
 * whose lanes never carry into each other), SHIFT (lanes to the right), MOST (the larger lanes, of less than 0x8000),
 * KEEP (does nothing but keep compilers from reordering additions), IN_ORDER (the same for stores) and NAME; perhaps
 * OPAQUE (does nothing but hide from compilers what a word holds), where two codes are best loaded at once.
 *
 * TERNARY values take a nibble: entries hold the sum of 1 + w*a over three taps, 0 to 6, so two of them fit. A byte
 * holds two pixels: one and that VECTOR_BYTES further on, or, where 2x2 pools follow, one and that below it ("paired"
 * rows), so that a pool is a maximum of lanes. Nibbles widen to bytes at each step, bytes to lanes of 16 bits after
 * each block (16 steps of at most 12: 192).
 * WIDE values take a lane of 16 bits; the planner sends only layers whose sums stay in int16. */

#include "sums.h"
#include <string.h>

enum { TAPS = 3, ENTRIES = 27, BLOCK = 32, LANES = VECTOR_BYTES / 2, PIXELS = 2 * VECTOR_BYTES };
enum { AT_ONCE = VECTOR_BYTES > 32 ? BLOCK / 2 : BLOCK }; /* triples whose tables the first cache holds */
enum { WIDE_VECTORS = 2, WIDE_PIXELS = WIDE_VECTORS * LANES, WIDE_AT_ONCE = AT_ONCE / WIDE_VECTORS };

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

/* Plane (channel, residue, kx): the source's rows residue + i * step, shifted to where tap column kx reads them and
 * padded, one element for each output column. A tap then reads consecutive elements for consecutive output pixels.
 * Where rows are paired, an element is that of the row and that of the row below. */
typedef struct planes {
    int32_t step, rows, residues;
    size_t margin, size, count; /* elements before the first row, as many after the last; all of a plane; planes */
} planes;

/* Whether the planes of a channel are shifts of that of the kernel's middle column, which is the padded source. */
static inline int NAME(shifts)(const lehr_layer *layer)
{
    return layer->stride_rows == 1 && layer->stride_columns == 1 && layer->out_columns == layer->columns &&
           layer->kernel_columns % 2 == 1 && layer->padding_columns < layer->columns;
}

static inline planes NAME(planes)(const lehr_layer *layer, int paired)
{
    const int32_t reach = (layer->kernel_rows - 1) * layer->dilation_rows;
    planes p;
    p.step = paired ? 2 * layer->stride_rows : layer->stride_rows;
    p.rows = (paired ? layer->out_rows / 2 : layer->out_rows) + reach / p.step;
    p.residues = reach + 1 < p.step ? reach + 1 : p.step;
    p.margin = NAME(shifts)(layer) ? (size_t)layer->padding_columns : 0;
    p.size = (size_t)p.rows * (size_t)layer->out_columns + 2 * p.margin;
    p.count = (size_t)layer->channels * (size_t)p.residues * (size_t)layer->kernel_columns;
    return p;
}

/* Planes of elements of `width` bytes, 1 or 2, without margins, for any stride and padding. */
static void NAME(gather)(const lehr_layer *layer, const uint8_t *source, size_t width, uint8_t *to)
{
    const planes p = NAME(planes)(layer, 0);
    const int32_t stride = layer->stride_columns, out_columns = layer->out_columns;
    const size_t line = (size_t)layer->columns * width, out_line = (size_t)out_columns * width;
    for (int32_t c = 0; c < layer->channels; c++, source += (size_t)layer->rows * line)
        for (int32_t residue = 0; residue < p.residues; residue++)
            for (int32_t kx = 0; kx < layer->kernel_columns; kx++) {
                const int32_t left = kx * layer->dilation_columns - layer->padding_columns;
                int32_t first = 0, end = 0; /* output columns that lie inside the source */
                for (int32_t x = 0; x < out_columns; x++) {
                    first += x * stride + left < 0;
                    end += x * stride + left < layer->columns;
                }
                first = first < end ? first : end;
                for (int32_t y = 0; y < p.rows; y++, to += out_line) {
                    const int32_t row = y * p.step + residue - layer->padding_rows;
                    memset(to, 0, out_line);
                    if (row < 0 || row >= layer->rows || first == end)
                        continue;
                    const uint8_t *from = source + (size_t)row * line + (size_t)(first * stride + left) * width;
                    if (stride == 1)
                        memcpy(to + (size_t)first * width, from, (size_t)(end - first) * width);
                    else
                        for (int32_t x = first; x < end; x++, from += (size_t)stride * width)
                            for (size_t i = 0; i < width; i++)
                                to[(size_t)x * width + i] = from[i];
                }
            }
}

static inline size_t NAME(mask_bytes)(const lehr_layer *layer, size_t width)
{
    return (size_t)layer->columns * width + VECTOR_BYTES;
}

/* Which of the elements come from inside the source when a row is shifted by `left`: bits of a row, and of a vector
 * more. The high nibbles of bytes belong to elements `apart` bytes further on. */
static void NAME(make_mask)(const lehr_layer *layer, int32_t left, size_t width, size_t apart, uint8_t *mask)
{
    const size_t line = (size_t)layer->columns * width, n = NAME(mask_bytes)(layer, width);
    const size_t first = left < 0 ? (size_t)-left * width : 0, end = left > 0 ? line - (size_t)left * width : line;
    for (size_t i = 0, low = 0, high = apart % line; i < n; i++) {
        mask[i] = (uint8_t)((low >= first && low < end ? 0x0f : 0) | (high >= first && high < end ? 0xf0 : 0));
        low = low + 1 < line ? low + 1 : 0;
        high = high + 1 < line ? high + 1 : 0;
    }
}

/* Make all planes out of those of the middle column; elements from outside the source become `neutral`. */
static void NAME(shift_planes)(const lehr_layer *layer, const planes *p, size_t width, uint16_t neutral, size_t apart,
                               uint8_t *masks, uint8_t *planar)
{
    const int32_t columns = layer->kernel_columns, middle = columns / 2;
    const size_t line = (size_t)layer->columns * width, margin = p->margin * width, plane = p->size * width;
    const size_t bytes = plane - 2 * margin, further = VECTOR_BYTES % line, mask_bytes = NAME(mask_bytes)(layer, width);
    const size_t rest = bytes - VECTOR_BYTES, rest_column = rest % line; /* if there are as many */
    const VECTOR outside = NAME(splat)(neutral);
    for (int32_t kx = 0; kx < columns; kx++)
        NAME(make_mask)(layer, (kx - middle) * layer->dilation_columns, width, apart, masks + (size_t)kx * mask_bytes);
    for (size_t first = 0; first < p->count; first += (size_t)columns)
        for (int32_t kx = 0; kx < columns; kx++) {
            const uint8_t *mask = masks + (size_t)kx * mask_bytes;
            const uint8_t *from = planar + (first + (size_t)middle) * plane + margin +
                                  (ptrdiff_t)(kx - middle) * layer->dilation_columns * (ptrdiff_t)width;
            uint8_t *to = planar + (first + (size_t)kx) * plane + margin;
            size_t at = 0, column = 0;
            if (kx == middle)
                continue;
            for (; at + VECTOR_BYTES <= bytes; at += VECTOR_BYTES) {
                const VECTOR inside = NAME(load)(mask + column);
                NAME(store)(to + at, (NAME(load)(from + at) & inside) | (outside & ~inside));
                column = column + further < line ? column + further : column + further - line;
            }
            if (at < bytes && at > 0) { /* the rest, with what comes before it once more */
                const VECTOR inside = NAME(load)(mask + rest_column);
                NAME(store)(to + rest, (NAME(load)(from + rest) & inside) | (outside & ~inside));
            } else {
                for (; at < bytes; at++)
                    to[at] = (uint8_t)((from[at] & mask[at]) | ((uint8_t)neutral & ~mask[at]));
            }
            for (size_t i = 0; i < margin; i++) /* nobody asks for these, but they must not carry into others */
                to[bytes + i] = *(to - 1 - i) = (uint8_t)neutral;
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
static void NAME(find_taps)(const lehr_layer *layer, int32_t group, int paired, uint32_t *starts)
{
    const planes p = NAME(planes)(layer, paired);
    const int32_t channels = layer->channels / layer->groups, padded = TAPS * NAME(triples)(layer);
    int32_t tap = 0;
    for (int32_t c = group * channels; c < (group + 1) * channels; c++)
        for (int32_t ky = 0; ky < layer->kernel_rows; ky++) {
            const int32_t y = ky * layer->dilation_rows, residue = y % p.step;
            const size_t plane = ((size_t)c * (size_t)p.residues + (size_t)residue) * (size_t)layer->kernel_columns;
            size_t at = plane * p.size + p.margin + (size_t)(y / p.step) * (size_t)layer->out_columns;
            for (int32_t kx = 0; kx < layer->kernel_columns; kx++, at += p.size)
                starts[tap++] = (uint32_t)at;
        }
    for (; tap < padded; tap++)
        starts[tap] = starts[0];
}

/* The 27 sums of three vectors, each taken in one of three ways: minus, zero, plus; `apart` bytes from one another. */
static inline void NAME(fill_table)(const VECTOR a[3], const VECTOR b[3], const VECTOR c[3], size_t apart, uint8_t *table)
{
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) {
            const VECTOR two = a[i] + b[j];
            for (int k = 0; k < 3; k++) {
                NAME(store)(table + (size_t)(9 * i + 3 * j + k) * apart, two + c[k]);
                IN_ORDER; /* processors store neighbours together */
            }
        }
}

static inline const uint8_t *NAME(entry)(const uint8_t *tables, int32_t triple, size_t code, size_t apart)
{
    return tables + (size_t)triple * ENTRIES * apart + code * apart / 8;
}

/* ---- after the sums ---- */

static inline int NAME(pooled)(const lehr_layer *layer)
{
    return layer->pool_rows > 1 || layer->pool_columns > 1;
}

/* Maximum over pool windows, then thresholds, for one channel's int16 sums, which are overwritten. */
static void NAME(pool)(const lehr_layer *layer, int32_t channel, int16_t *sums, void *target)
{
    const int32_t columns = layer->out_columns, height = layer->pool_rows, width = layer->pool_columns;
    const int32_t pooled_rows = layer->out_rows / height, pooled_columns = columns / width;
    for (int32_t y = 0; y < pooled_rows; y++) {
        int16_t *restrict row = sums + (size_t)(y * height) * (size_t)columns;
        for (int32_t part = 1; part < height; part++) {
            const int16_t *restrict other = row + (size_t)part * (size_t)columns;
            for (int32_t x = 0; x < columns; x++)
                row[x] = other[x] > row[x] ? other[x] : row[x];
        }
        int16_t *pooled = sums + (size_t)y * (size_t)pooled_columns;
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

/* ---- scratch ---- */

typedef struct areas { /* offsets in bytes */
    size_t planes, tables, sums, starts, kept, masks, values, total;
} areas;

static inline size_t NAME(after)(size_t at, size_t bytes)
{
    return at + (bytes + 63) / 64 * 64;
}

/* For elements of `width` bytes, `table` bytes of tables and `vectors` accumulators an output. */
static areas NAME(areas)(const lehr_layer *layer, int paired, size_t width, size_t table, size_t vectors, size_t values)
{
    const planes p = NAME(planes)(layer, paired);
    const size_t outs = (size_t)(layer->out_channels / layer->groups);
    const size_t pixels = (size_t)layer->out_rows * (size_t)layer->out_columns;
    const int keeps = NAME(pooled)(layer) && !paired;
    areas a;
    a.planes = 0; /* vectors may reach past the last plane */
    a.tables = NAME(after)(a.planes, p.size * p.count * width + 4 * VECTOR_BYTES);
    a.sums = NAME(after)(a.tables, table);
    a.starts = NAME(after)(a.sums, outs * vectors * VECTOR_BYTES);
    a.kept = NAME(after)(a.starts, (size_t)NAME(triples)(layer) * TAPS * sizeof(uint32_t));
    a.masks = NAME(after)(a.kept, keeps ? (size_t)layer->out_channels * pixels * sizeof(int16_t) : 0);
    a.values = NAME(after)(a.masks, (size_t)layer->kernel_columns * NAME(mask_bytes)(layer, width));
    a.total = NAME(after)(a.values, values);
    return a;
}

/* ---- values in {-1, 0, 1} ---- */

/* Whether rows can be paired: 2x2 pools that fill the output, sums of 15 bits. */
static inline int NAME(paired)(const lehr_layer *layer)
{
    return NAME(shifts)(layer) && layer->pool_rows == 2 && layer->pool_columns == 2 && layer->out_rows % 2 == 0 &&
           layer->out_columns % 2 == 0 && 2 * TAPS * NAME(triples)(layer) <= 0x7fff;
}

static inline areas NAME(ternary_areas)(const lehr_layer *layer)
{
    /* a channel with its padding and margins, a row more, which paired rows need, and what vectors reach past it */
    const size_t padded = ((size_t)layer->rows + 2 * (size_t)layer->padding_rows + 1) * (size_t)layer->columns +
                          2 * (size_t)layer->padding_columns + 2 * VECTOR_BYTES;
    return NAME(areas)(layer, NAME(paired)(layer), 1, AT_ONCE * ENTRIES * VECTOR_BYTES, 4, padded);
}

/* Bytes -1, 0, 1 of two pixels as nibbles 0, 1, 2 of one byte. */
static inline VECTOR NAME(join_nibbles)(const uint8_t *low, const uint8_t *high)
{
    const VECTOR three = NAME(splat)(0x0303);
    return (((NAME(load)(low) & three) | (NAME(load)(high) & three) << 4) + NAME(splat)(0x1111)) & NAME(splat)(0x3333);
}

/* Planes of nibbles, where they are shifts of one another. `channel` is zero around where a channel is copied to. */
static void NAME(pack_shifts)(const lehr_layer *layer, const planes *p, int paired, const uint8_t *source,
                              uint8_t *channel, uint8_t *masks, uint8_t *planar)
{
    const size_t columns = (size_t)layer->columns, area = (size_t)layer->rows * columns;
    uint8_t *to = planar + (size_t)(layer->kernel_columns / 2) * p->size;
    for (int32_t c = 0; c < layer->channels; c++, source += area) {
        memcpy(channel + p->margin + (size_t)layer->padding_rows * columns, source, area);
        for (int32_t residue = 0; residue < p->residues; residue++, to += (size_t)layer->kernel_columns * p->size) {
            if (!paired) {
                for (size_t i = 0; i < p->size; i += VECTOR_BYTES)
                    NAME(store)(to + i, NAME(join_nibbles)(channel + i, channel + i + VECTOR_BYTES));
                continue;
            }
            for (int32_t y = 0; y < p->rows; y++) {
                const uint8_t *row = channel + p->margin + (size_t)(2 * y + residue) * columns;
                uint8_t *line = to + p->margin + (size_t)y * columns;
                for (size_t x = 0; x < columns; x += VECTOR_BYTES)
                    NAME(store)(line + x, NAME(join_nibbles)(row + x, row + columns + x));
            }
            for (size_t i = 0; i < p->margin; i++)
                to[i] = to[p->size - 1 - i] = 0x11;
        }
    }
    NAME(shift_planes)(layer, p, 1, 0x1111, paired ? 0 : VECTOR_BYTES, masks, planar);
}

/* Planes of nibbles, 0x11 after the last. */
static void NAME(pack)(const lehr_layer *layer, const areas *a, const uint8_t *source, uint8_t *scratch)
{
    const int paired = NAME(paired)(layer);
    const planes p = NAME(planes)(layer, paired);
    uint8_t *planar = scratch + a->planes, *channel = scratch + a->values;
    if (NAME(shifts)(layer)) {
        memset(channel, 0, a->total - a->values);
        NAME(pack_shifts)(layer, &p, paired, source, channel, scratch + a->masks, planar);
        memset(planar + p.size * p.count, 0x11, 4 * VECTOR_BYTES);
        return;
    }
    NAME(gather)(layer, source, 1, planar);
    memset(planar + p.size * p.count, 0, 4 * VECTOR_BYTES);
    for (size_t i = 0; i < p.size * p.count + 3 * VECTOR_BYTES; i++)
        planar[i] = (uint8_t)(0x11 + planar[i] + (planar[i + VECTOR_BYTES] << 4));
}

static void NAME(ternary_tables)(const uint8_t *pixels, const uint32_t *starts, int32_t count, uint8_t *tables)
{
    const VECTOR one = NAME(splat)(0x1111), two = one + one;
    for (int32_t t = 0; t < count; t++, starts += TAPS, tables += ENTRIES * VECTOR_BYTES) {
        const VECTOR a = NAME(load)(pixels + starts[0]), b = NAME(load)(pixels + starts[1]);
        const VECTOR c = NAME(load)(pixels + starts[2]);
        const VECTOR as[3] = {two - a, one, a}, bs[3] = {two - b, one, b}, cs[3] = {two - c, one, c};
        NAME(fill_table)(as, bs, cs, VECTOR_BYTES, tables);
    }
}

/* The entries of a triple and the next one, added. Two codes in one load leave more of them to the vectors; they stay
 * one word, OPAQUE to compilers, which would take its second byte apart in a slower way. */
static inline VECTOR NAME(look_up)(const uint8_t *tables, int32_t triple, const uint8_t *codes)
{
#ifdef OPAQUE
    uint16_t word;
    memcpy(&word, codes, sizeof word);
    uint64_t both = word;
    OPAQUE(both);
    const size_t first = both & 0xff, second = both >> 8; /* of a processor with the low byte first */
#else
    const size_t first = codes[0], second = codes[1];
#endif
    return NAME(load)(NAME(entry)(tables, triple, first, VECTOR_BYTES)) +
           NAME(load)(NAME(entry)(tables, triple + 1, second, VECTOR_BYTES));
}

/* Look up `count` triples for all outputs, whose codes lie `apart` bytes from one another. */
static inline void NAME(ternary_block)(const uint8_t *codes, int32_t apart, const uint8_t *tables, int32_t outs,
                                       int32_t count, int fresh, uint8_t *sums)
{
    const VECTOR nibble = NAME(splat)(0x0f0f), byte = NAME(splat)(0x00ff);
    for (int32_t out = 0; out < outs; out++, codes += apart, sums += 4 * VECTOR_BYTES) {
        VECTOR low = NAME(splat)(0), high = low;
#pragma GCC unroll 16
        for (int32_t t = 0; t < count; t += 2) {
            const VECTOR both = NAME(look_up)(tables, t, codes + t);
            low += both & nibble;
            high += SHIFT(both, 4); /* each lane: high nibbles, and 16 times the odd low nibble */
            KEEP(low, high);
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

/* Sums of all outputs for the pixels of one vector. */
static void NAME(ternary_sums)(const uint8_t *pixels, const uint32_t *starts, int32_t triples, const uint8_t *codes,
                               int32_t outs, uint8_t *tables, uint8_t *sums)
{
    for (int32_t first = 0; first < triples; first += BLOCK) {
        const int32_t block = triples - first < BLOCK ? triples - first : BLOCK;
        for (int32_t at = 0; at < block; at += AT_ONCE) {
            const int32_t count = block - at < AT_ONCE ? block - at : AT_ONCE;
            NAME(ternary_tables)(pixels, starts + TAPS * (first + at), count, tables);
            if (count == AT_ONCE) /* a constant count lets the compiler unroll */
                NAME(ternary_block)(codes + at, block, tables, outs, AT_ONCE, first + at == 0, sums);
            else
                NAME(ternary_block)(codes + at, block, tables, outs, count, first + at == 0, sums);
        }
        codes += (size_t)block * (size_t)outs;
    }
}

/* Accumulators of one output in the order of the pixels, as int16 without the 3 that every entry carries. */
static inline void NAME(order)(const uint8_t *sums, int32_t triples, int16_t *ordered)
{
    const uint16_t one = 1;
    const size_t odd = *(const uint8_t *)&one, even = 1 - odd; /* which half of a lane comes first in memory */
    for (size_t half = 0; half < 2; half++, ordered += VECTOR_BYTES) {
        uint16_t first[LANES], second[LANES];
        memcpy(first, sums + (2 * half + even) * VECTOR_BYTES, VECTOR_BYTES);
        memcpy(second, sums + (2 * half + odd) * VECTOR_BYTES, VECTOR_BYTES);
        for (int i = 0; i < LANES; i++) {
            ordered[2 * i] = (int16_t)(first[i] - TAPS * triples);
            ordered[2 * i + 1] = (int16_t)(second[i] - TAPS * triples);
        }
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

/* Thresholds on the lanes of `n` vectors, which become levels, as bytes 0 to 255. For biased sums and thresholds in
 * 0..0x7fff, bit 15 of sum + 0x8000 - threshold tells sum >= threshold. */
static inline void NAME(cut)(const lehr_layer *layer, int32_t channel, int32_t triples, VECTOR *sums, int n)
{
    const int32_t *thresholds = (const int32_t *)layer->thresholds + (size_t)channel * (size_t)layer->steps;
    const int32_t direction = layer->directions[channel], bias = TAPS * triples, most = 2 * bias;
    /* -sum >= t is not sum >= 1 - t: then codes count down from the last level; 0x100 keeps lanes from borrowing */
    const VECTOR start = NAME(splat)((uint16_t)(0x100 + (uint8_t)layer->levels[direction > 0 ? 0 : layer->steps]));
    VECTOR code[4] = {start, start, start, start};
    for (int32_t k = 0; k < layer->steps; k++) {
        const int32_t bound = thresholds[k] > most ? most : thresholds[k] < -most ? -most : thresholds[k];
        const int32_t biased = (direction > 0 ? bound : 1 - bound) + bias;
        const int32_t cut = biased < 0 ? 0 : biased > 0x8000 ? 0x8000 : biased;
        const VECTOR offset = NAME(splat)((uint16_t)(0x8000 - cut));
        for (int i = 0; i < n; i++) {
            const VECTOR reached = SHIFT(sums[i] + offset, 15);
            code[i] = direction > 0 ? code[i] + reached : code[i] - reached;
        }
    }
    for (int i = 0; i < n; i++)
        sums[i] = code[i] & NAME(splat)(0x00ff);
}

/* Levels of one output's pixels. */
static inline void NAME(finish_cut)(const lehr_layer *layer, int32_t channel, int32_t triples, const uint8_t *sums,
                                    int32_t n, uint8_t *to)
{
    VECTOR codes[4], bytes[2];
    for (int i = 0; i < 4; i++)
        codes[i] = NAME(load)(sums + i * VECTOR_BYTES);
    NAME(cut)(layer, channel, triples, codes, 4);
    bytes[0] = codes[0] | codes[1] << 8;
    bytes[1] = codes[2] | codes[3] << 8;
    if (n == PIXELS)
        memcpy(to, bytes, PIXELS);
    else
        memcpy(to, bytes, (size_t)n);
}

/* Levels of one output's paired rows, pooled: maxima of even and odd columns, and of both rows. */
static inline void NAME(finish_paired)(const lehr_layer *layer, int32_t channel, int32_t triples, int cuttable,
                                       const uint8_t *sums, int32_t n, void *target, size_t at)
{
    VECTOR most = MOST(MOST(NAME(load)(sums), NAME(load)(sums + VECTOR_BYTES)),
                       MOST(NAME(load)(sums + 2 * VECTOR_BYTES), NAME(load)(sums + 3 * VECTOR_BYTES)));
    uint16_t lanes[LANES];
    if (cuttable) {
        uint8_t *to = (uint8_t *)target + at;
        NAME(cut)(layer, channel, triples, &most, 1);
        NAME(store)(lanes, most);
        if (n == LANES)
            for (int i = 0; i < LANES; i++)
                to[i] = (uint8_t)lanes[i];
        else
            for (int32_t i = 0; i < n; i++)
                to[i] = (uint8_t)lanes[i];
        return;
    }
    int16_t pooled[LANES];
    NAME(store)(lanes, most);
    for (int i = 0; i < LANES; i++)
        pooled[i] = (int16_t)(lanes[i] - TAPS * triples);
    lehr_finish_short(layer, channel, pooled, n, target, at);
}

static void NAME(ternary)(const lehr_layer *layer, const void *source, void *target, void *scratch)
{
    const areas a = NAME(ternary_areas)(layer);
    uint8_t *planar = (uint8_t *)scratch + a.planes, *tables = (uint8_t *)scratch + a.tables;
    uint8_t *sums = (uint8_t *)scratch + a.sums;
    uint32_t *starts = (uint32_t *)(void *)((uint8_t *)scratch + a.starts);
    const int paired = NAME(paired)(layer);
    int16_t *kept = NAME(pooled)(layer) && !paired ? (int16_t *)(void *)((uint8_t *)scratch + a.kept) : NULL;
    const int32_t triples = NAME(triples)(layer), outs = layer->out_channels / layer->groups;
    const int32_t pixels = layer->out_rows * layer->out_columns;
    const int cuttable = kept == NULL && NAME(can_cut)(layer, triples);
    const uint8_t *weights = layer->weights;

    NAME(pack)(layer, &a, source, scratch);
    for (int32_t group = 0; group < layer->groups; group++, weights += (size_t)triples * (size_t)outs) {
        NAME(find_taps)(layer, group, paired, starts);
        for (int32_t pixel = 0; pixel < pixels; pixel += PIXELS) {
            const int32_t n = pixels - pixel < PIXELS ? pixels - pixel : PIXELS;
            NAME(ternary_sums)(planar + pixel / (paired ? 2 : 1), starts, triples, weights, outs, tables, sums);
            for (int32_t out = 0; out < outs; out++) {
                const int32_t channel = group * outs + out;
                const size_t at = (size_t)channel * (size_t)pixels + (size_t)pixel;
                const uint8_t *sum = sums + (size_t)out * 4 * VECTOR_BYTES;
                int16_t ordered[PIXELS];
                if (paired) {
                    NAME(finish_paired)(layer, channel, triples, cuttable, sum, n / 4, target, at / 4);
                } else if (cuttable) {
                    NAME(finish_cut)(layer, channel, triples, sum, n, (uint8_t *)target + at);
                } else {
                    NAME(order)(sum, triples, ordered);
                    NAME(deliver)(layer, channel, ordered, at, n, kept, target);
                }
            }
        }
    }
    if (kept != NULL)
        for (int32_t out = 0; out < layer->out_channels; out++)
            NAME(pool)(layer, out, kept + (size_t)out * (size_t)pixels, target);
}

static size_t NAME(ternary_scratch)(const lehr_layer *layer)
{
    return NAME(ternary_areas)(layer).total;
}

/* ---- other values: lanes of 16 bits ---- */

static inline areas NAME(wide_areas)(const lehr_layer *layer)
{
    const size_t elements = (size_t)layer->channels * (size_t)layer->rows * (size_t)layer->columns;
    return NAME(areas)(layer, 0, 2, WIDE_AT_ONCE * ENTRIES * WIDE_VECTORS * VECTOR_BYTES, WIDE_VECTORS,
                       elements * sizeof(int16_t));
}

/* Planes of int16, 0 after the last. */
static void NAME(gather_wide)(const lehr_layer *layer, const areas *a, const void *source, uint8_t *scratch)
{
    const planes p = NAME(planes)(layer, 0);
    const size_t area = (size_t)layer->rows * (size_t)layer->columns, elements = (size_t)layer->channels * area;
    const size_t above = (size_t)layer->padding_rows * (size_t)layer->columns;
    uint8_t *planar = scratch + a->planes;
    int16_t *values = (int16_t *)(void *)(scratch + a->values);
    if (layer->source_type == LEHR_INT8)
        for (size_t i = 0; i < elements; i++)
            values[i] = ((const int8_t *)source)[i];
    else
        memcpy(values, source, elements * sizeof *values);
    memset(planar + 2 * p.size * p.count, 0, 4 * VECTOR_BYTES);
    if (!NAME(shifts)(layer)) {
        NAME(gather)(layer, (const uint8_t *)values, sizeof *values, planar);
        return;
    }
    int16_t *to = (int16_t *)(void *)planar + (size_t)(layer->kernel_columns / 2) * p.size;
    for (int32_t c = 0; c < layer->channels; c++, to += (size_t)layer->kernel_columns * p.size, values += area) {
        memset(to, 0, p.size * sizeof *to);
        memcpy(to + p.margin + above, values, area * sizeof *to);
    }
    NAME(shift_planes)(layer, &p, sizeof *to, 0, 0, scratch + a->masks, planar);
}

static void NAME(wide_tables)(const int16_t *pixels, const uint32_t *starts, int32_t count, uint8_t *tables)
{
    const VECTOR zero = NAME(splat)(0);
    for (int32_t t = 0; t < count; t++, starts += TAPS, tables += ENTRIES * WIDE_VECTORS * VECTOR_BYTES)
        for (int v = 0; v < WIDE_VECTORS; v++) {
            const VECTOR a = NAME(join)(NAME(load)(pixels + starts[0] + v * LANES));
            const VECTOR b = NAME(join)(NAME(load)(pixels + starts[1] + v * LANES));
            const VECTOR c = NAME(join)(NAME(load)(pixels + starts[2] + v * LANES));
            const VECTOR as[3] = {zero - a, zero, a}, bs[3] = {zero - b, zero, b}, cs[3] = {zero - c, zero, c};
            NAME(fill_table)(as, bs, cs, WIDE_VECTORS * VECTOR_BYTES, tables + v * VECTOR_BYTES);
        }
}

static inline void NAME(wide_block)(const uint8_t *codes, int32_t apart, const uint8_t *tables, int32_t outs,
                                    int32_t count, int fresh, uint8_t *sums)
{
    for (int32_t out = 0; out < outs; out++, codes += apart, sums += WIDE_VECTORS * VECTOR_BYTES) {
        VECTOR first = fresh ? NAME(splat)(0) : NAME(load)(sums);
        VECTOR second = fresh ? NAME(splat)(0) : NAME(load)(sums + VECTOR_BYTES);
        for (int32_t t = 0; t < count; t += 2) {
            const uint8_t *one = NAME(entry)(tables, t, codes[t], WIDE_VECTORS * VECTOR_BYTES);
            const uint8_t *two = NAME(entry)(tables, t + 1, codes[t + 1], WIDE_VECTORS * VECTOR_BYTES);
            first += NAME(load)(one) + NAME(load)(two);
            second += NAME(load)(one + VECTOR_BYTES) + NAME(load)(two + VECTOR_BYTES);
        }
        NAME(store)(sums, first);
        NAME(store)(sums + VECTOR_BYTES, second);
    }
}

static void NAME(wide)(const lehr_layer *layer, const void *source, void *target, void *scratch)
{
    const areas a = NAME(wide_areas)(layer);
    const int16_t *planar = (const int16_t *)(const void *)((uint8_t *)scratch + a.planes);
    uint8_t *tables = (uint8_t *)scratch + a.tables, *sums = (uint8_t *)scratch + a.sums;
    uint32_t *starts = (uint32_t *)(void *)((uint8_t *)scratch + a.starts);
    int16_t *kept = NAME(pooled)(layer) ? (int16_t *)(void *)((uint8_t *)scratch + a.kept) : NULL;
    const int32_t pixels = layer->out_rows * layer->out_columns, triples = NAME(triples)(layer);
    const int32_t outs = layer->out_channels / layer->groups;
    const uint8_t *weights = layer->weights;

    NAME(gather_wide)(layer, &a, source, scratch);
    for (int32_t group = 0; group < layer->groups; group++, weights += (size_t)triples * (size_t)outs) {
        NAME(find_taps)(layer, group, 0, starts);
        for (int32_t pixel = 0; pixel < pixels; pixel += WIDE_PIXELS) {
            const uint8_t *codes = weights;
            for (int32_t first = 0; first < triples; first += BLOCK) {
                const int32_t block = triples - first < BLOCK ? triples - first : BLOCK;
                for (int32_t at = 0; at < block; at += WIDE_AT_ONCE) {
                    const int32_t count = block - at < WIDE_AT_ONCE ? block - at : WIDE_AT_ONCE;
                    NAME(wide_tables)(planar + pixel, starts + TAPS * (first + at), count, tables);
                    NAME(wide_block)(codes + at, block, tables, outs, count, first + at == 0, sums);
                }
                codes += (size_t)block * (size_t)outs;
            }
            const int32_t n = pixels - pixel < WIDE_PIXELS ? pixels - pixel : WIDE_PIXELS;
            for (int32_t out = 0; out < outs; out++) {
                const uint8_t *sum = sums + (size_t)out * WIDE_VECTORS * VECTOR_BYTES;
                const int32_t channel = group * outs + out;
                const size_t at = (size_t)channel * (size_t)pixels + (size_t)pixel;
                int16_t ordered[WIDE_PIXELS];
                for (int v = 0; v < WIDE_VECTORS; v++)
                    NAME(store)(ordered + v * LANES, NAME(split)(NAME(load)(sum + v * VECTOR_BYTES)));
                if (n == WIDE_PIXELS) /* a constant number lets the compiler unroll */
                    NAME(deliver)(layer, channel, ordered, at, WIDE_PIXELS, kept, target);
                else
                    NAME(deliver)(layer, channel, ordered, at, n, kept, target);
            }
        }
    }
    if (kept != NULL)
        for (int32_t out = 0; out < layer->out_channels; out++)
            NAME(pool)(layer, out, kept + (size_t)out * (size_t)pixels, target);
}

static size_t NAME(wide_scratch)(const lehr_layer *layer)
{
    return NAME(wide_areas)(layer).total;
}
