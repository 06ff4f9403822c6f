/* Integer sums on the tiles of AMX: any weights and values in int8. Compile this file alone with the flags in build.py.
 *
 * Sums are a matrix product, (pixels, taps) x (taps, outputs), made for one block of output rows after the other; a block
 * holds whole pool windows. Values that only such layers read are interleaved, (row, column, channel). Usually tiles are
 * loaded straight from a padded copy of the source, (64 channels, row, column, channel), so that the lines of a tile are
 * neighbours and do not fight for the same sets of the first cache: where output rows are not whole tiles of 16
 * pixels, from one copy for each column of the kernel, shifted so that the rows of a tile follow each other. The 64 taps
 * of a step are then 64 channels of one place in the kernel, and all places come before the next 64 channels.
 * Layers with few channels or unfit strides make a panel of it instead, a line of taps (kernel row, kernel column,
 * channel) for each pixel.
 *
 * Weights lie as (group, pair of tiles, 64 taps, tile of the pair, taps / 4, 16 outputs, 4 taps), padded with zeros: what
 * kernels.py prepares when a network is loaded. Trits take two bits, their last two: a byte holds those of four rows of a
 * tile, one below the other, the first row's in its highest bits. They are expanded just before use, as reading them costs
 * more than that, and to -64, 0 and 64, as shifting and masking is then all there is to do: sums come out 64 times as
 * large. */
#define _GNU_SOURCE /* syscall */
#ifdef LEHR_HAVE_AMX

#include "lehr.h"
#include "sums.h"
#include <cpuid.h>
#include <immintrin.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    SIDE = 16,          /* pixels or outputs of a tile */
    DEPTH = 64,         /* taps of a tile */
    TILE = SIDE * DEPTH,
    UNIT = 64,          /* what trits are multiplied with, */
    MOST = LEHR_TILE_MOST,
    PAIR = 2 * SIDE,    /* pixels or outputs of the two tiles that are multiplied with two others */
    SLACK = LEHR_TILE_SLACK,
    STEPS = LEHR_TILE_STEPS, /* steps of 64 taps at a time, so that their tiles stay in the first cache, */
    FEW_STEPS = 9,      /* with room for their neighbours */
    FEW_PIXELS = 64     /* where new ones come soon, as a block has not more pixels */
};

/* (channel, pixel) to (pixel, channel). */
static void interleave(const lehr_layer *layer, const int8_t *source, int8_t *to)
{
    const size_t pixels = (size_t)layer->rows * (size_t)layer->columns, channels = (size_t)layer->channels;
    for (size_t c = 0; c < channels; c++)
        for (size_t i = 0; i < pixels; i++)
            to[i * channels + c] = source[c * pixels + i];
}

/* Some channels of a row of the source, `n` pixels; the rest of the slice is zero. */
static void pad_row(const int8_t *from, size_t apart, size_t n, size_t channels, size_t slice, int8_t *to)
{
    if (slice == DEPTH) {
        const __mmask64 here = channels >= DEPTH ? ~UINT64_C(0) : (UINT64_C(1) << channels) - 1;
        for (size_t x = 0; x < n; x++)
            _mm512_storeu_si512(to + x * DEPTH, _mm512_maskz_loadu_epi8(here, from + x * apart));
        return;
    }
    if (apart == slice) { /* neighbours there as here */
        memcpy(to, from, n * slice);
        return;
    }
    for (size_t x = 0; x < n; x++)
        memcpy(to + x * slice, from + x * apart, channels);
}

/* The source of a group with its padding: (slice, plane, row, column, channel of the slice). */
static void pad(const lehr_layer *layer, const lehr_tiles *s, const int8_t *source, int8_t *to)
{
    const int32_t stride = s->shifted ? layer->stride_columns : 1;
    const size_t slice = (size_t)s->slice, apart = (size_t)layer->channels * (size_t)stride;
    for (int32_t part = 0; part < s->slices; part++) {
        const int32_t left_over = layer->channels / layer->groups - part * s->slice;
        const size_t channels = (size_t)(left_over < s->slice ? left_over : s->slice);
        for (int32_t plane = 0; plane < s->planes; plane++) {
            const int32_t left = plane * layer->dilation_columns - layer->padding_columns;
            int32_t first = 0, end = 0; /* columns of the plane that lie inside the source */
            for (int32_t x = 0; x < s->plane_columns; x++) {
                first += x * stride + left < 0;
                end += x * stride + left < layer->columns;
            }
            first = first < end ? first : end;
            for (int32_t y = 0; y < s->plane_rows; y++, to += (size_t)s->plane_columns * slice) {
                const int32_t row = y - layer->padding_rows;
                if (row < 0 || row >= layer->rows) {
                    memset(to, 0, (size_t)s->plane_columns * slice);
                    continue;
                }
                const ptrdiff_t pixel = row * layer->columns + first * stride + left;
                memset(to, 0, (size_t)first * slice);
                memset(to + (size_t)end * slice, 0, (size_t)(s->plane_columns - end) * slice);
                pad_row(source + pixel * layer->channels + part * s->slice, apart, (size_t)(end - first), channels, slice,
                        to + (size_t)first * slice);
            }
        }
    }
}

/* The taps of each pixel of an output row from the padded source. Where it is faster, up to 15 bytes more are copied than
 * belong there: to taps that come next, or that pad, whose weights are zero. */
static void fill_row(const lehr_layer *layer, const lehr_tiles *s, const int8_t *padded, int32_t y, int8_t *to)
{
    const int32_t columns = layer->kernel_columns, step = layer->dilation_columns;
    const int32_t runs = step == 1 ? 1 : columns; /* neighbouring columns lie in one run */
    const size_t n = (size_t)(step == 1 ? columns : 1) * (size_t)s->deep;
    const size_t line = (size_t)s->plane_columns * (size_t)s->deep, taps = (size_t)s->taps;
    const size_t apart = (size_t)layer->stride_columns * (size_t)s->deep, pixels = (size_t)layer->out_columns;
    size_t tap = 0;
    padded += (size_t)(y * layer->stride_rows) * line;
    for (int32_t ky = 0; ky < layer->kernel_rows; ky++, padded += (size_t)layer->dilation_rows * line)
        for (int32_t run = 0; run < runs; run++, tap += n) {
            const int8_t *from = padded + run * step * s->deep;
            if (n <= SLACK && tap + SLACK <= taps) /* a constant size spares the call */
                for (size_t x = 0; x < pixels; x++)
                    memcpy(to + x * taps + tap, from + x * apart, SLACK);
            else
                for (size_t x = 0; x < pixels; x++)
                    memcpy(to + x * taps + tap, from + x * apart, n);
        }
}

/* What a block multiplies: where the 16 lines of a tile start, how far they lie apart, and where the next 64 taps are. */
typedef struct operand {
    const int8_t *base;
    size_t line;
    const uint32_t *offsets; /* of each step */
} operand;

static const int8_t *tile_of(const lehr_layer *layer, const lehr_tiles *s, const operand *a, int32_t top, int32_t pixel)
{
    if (!s->straight)
        return a->base + (size_t)pixel * a->line;
    const int32_t y = top + pixel / layer->out_columns, x = pixel % layer->out_columns;
    if (y >= layer->out_rows) /* a padding tile: any will do */
        return a->base;
    const size_t row = (size_t)(y * layer->stride_rows) * (size_t)s->plane_columns;
    return a->base + row * (size_t)s->slice + (size_t)x * a->line;
}

/* Trits of four rows of a tile at a time, times UNIT. */
static inline void expand(const uint8_t *packed, size_t fours, int8_t *to)
{
    const __m512i field = _mm512_set1_epi8((char)0xc0);
    for (size_t four = 0; four < fours; four++, packed += DEPTH, to += 4 * DEPTH) {
        const __m512i bits = _mm512_loadu_si512(packed);
        _mm512_storeu_si512(to, _mm512_and_si512(bits, field));
        _mm512_storeu_si512(to + DEPTH, _mm512_and_si512(_mm512_slli_epi16(bits, 2), field));
        _mm512_storeu_si512(to + 2 * DEPTH, _mm512_and_si512(_mm512_slli_epi16(bits, 4), field));
        _mm512_storeu_si512(to + 3 * DEPTH, _mm512_and_si512(_mm512_slli_epi16(bits, 6), field));
    }
}

/* 32 pixels x 32 outputs, `steps` steps of 64 taps, added to `sums` (pixel, output) unless `fresh`. */
static void multiply(const int8_t *upper, const int8_t *lower, size_t line, const uint32_t *offsets,
                     const int8_t *weights, int32_t steps, int fresh, int32_t *sums)
{
    int32_t *const below = sums + SIDE * PAIR;
    const size_t bytes = PAIR * sizeof *sums;
    if (fresh) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, sums, bytes);
        _tile_loadd(1, sums + SIDE, bytes);
        _tile_loadd(2, below, bytes);
        _tile_loadd(3, below + SIDE, bytes);
    }
    for (int32_t i = 0; i < steps; i++, weights += 2 * TILE) {
        _tile_loadd(4, upper + offsets[i], line);
        _tile_loadd(5, lower + offsets[i], line);
        _tile_loadd(6, weights, DEPTH);
        _tile_loadd(7, weights + TILE, DEPTH);
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
    }
    _tile_stored(0, sums, bytes);
    _tile_stored(1, sums + SIDE, bytes);
    _tile_stored(2, below, bytes);
    _tile_stored(3, below + SIDE, bytes);
}

/* The sums of a block for a pair of tiles of outputs, (pixel, output). `trits` has room for STEPS pairs of tiles, or is NULL
 * for int8 weights. */
static void multiply_block(const lehr_layer *layer, const lehr_tiles *s, const operand *a, int32_t top, const uint8_t *weights,
                           int8_t *trits, int32_t *sums)
{
    const int32_t steps = s->taps / DEPTH, most = s->pixels <= FEW_PIXELS ? FEW_STEPS : STEPS;
    for (int32_t first = 0; first < steps; first += most) {
        const int32_t count = steps - first < most ? steps - first : most;
        const int8_t *pair = trits != NULL ? trits : (const int8_t *)weights + (size_t)first * 2 * TILE;
        if (trits != NULL)
            expand(weights + (size_t)first * 2 * TILE / 4, (size_t)count * PAIR / 4, trits);
        for (int32_t pixel = 0; pixel < s->pixels; pixel += PAIR)
            multiply(tile_of(layer, s, a, top, pixel), tile_of(layer, s, a, top, pixel + SIDE), a->line,
                     a->offsets + first, pair, count, first == 0, sums + pixel * PAIR);
    }
}

/* Thresholds and levels of `n` outputs of one pixel. `cuts` holds (step, output), `directions` +1 or -1. */
static void cut_line(const lehr_layer *layer, int32_t n, const int32_t *restrict sums, const int32_t *restrict cuts,
                     const int32_t *restrict directions, int32_t *restrict values)
{
    const int32_t outs = layer->out_channels / layer->groups;
    for (int32_t i = 0; i < n; i++)
        values[i] = 0;
    for (int32_t k = 0; k < layer->steps; k++, cuts += outs)
        for (int32_t i = 0; i < n; i++)
            values[i] += directions[i] * sums[i] >= cuts[i];
    for (int32_t i = 0; i < n; i++)
        values[i] = layer->levels[values[i]];
}

/* The largest of each sum of a pool window, or the sums themselves: (pixel, output) of a pair of tiles. */
static inline __m512i most_of(const int32_t *window, int32_t height, int32_t width, int32_t columns)
{
    __m512i most = _mm512_loadu_si512(window);
    for (int32_t part = 1; part < height * width; part++)
        most = _mm512_max_epi32(most, _mm512_loadu_si512(window + (part / width * columns + part % width) * PAIR));
    return most;
}

/* The usual case, a pair of tiles: three levels in int8, interleaved. */
static inline void finish_ternary(const lehr_layer *layer, int32_t n, int32_t rows, int32_t height, int32_t width,
                                  const int32_t *sums, const int32_t *cuts, const int32_t *directions, int8_t *to)
{
    const int32_t outs = layer->out_channels / layer->groups, columns = layer->out_columns;
    const __mmask32 here = n >= PAIR ? 0xffffffffu : (1u << n) - 1;
    const __mmask16 left = (__mmask16)here, right = (__mmask16)(here >> SIDE);
    const __m512i zero = _mm512_setzero_si512();
    const __m512i first[2] = {_mm512_maskz_loadu_epi32(left, cuts), _mm512_maskz_loadu_epi32(right, cuts + SIDE)};
    const __m512i second[2] = {_mm512_maskz_loadu_epi32(left, cuts + outs),
                               _mm512_maskz_loadu_epi32(right, cuts + outs + SIDE)};
    const __mmask16 minus[2] = {_mm512_movepi32_mask(_mm512_maskz_loadu_epi32(left, directions)),
                                _mm512_movepi32_mask(_mm512_maskz_loadu_epi32(right, directions + SIDE))};
    const __m256i levels[3] = {_mm256_set1_epi8((char)layer->levels[0]), _mm256_set1_epi8((char)layer->levels[1]),
                               _mm256_set1_epi8((char)layer->levels[2])};
    for (int32_t y = 0; y < rows; y += height)
        for (int32_t x = 0; x + width <= columns; x += width, to += layer->out_channels) {
            const int32_t *window = sums + (size_t)(y * columns + x) * PAIR;
            __m512i a = most_of(window, height, width, columns), b = most_of(window + SIDE, height, width, columns);
            a = _mm512_mask_sub_epi32(a, minus[0], zero, a);
            b = _mm512_mask_sub_epi32(b, minus[1], zero, b);
            const __mmask32 middle =
                _mm512_kunpackw(_mm512_cmpge_epi32_mask(b, first[1]), _mm512_cmpge_epi32_mask(a, first[0]));
            const __mmask32 high =
                _mm512_kunpackw(_mm512_cmpge_epi32_mask(b, second[1]), _mm512_cmpge_epi32_mask(a, second[0]));
            const __m256i codes = _mm256_mask_mov_epi8(_mm256_mask_mov_epi8(levels[0], middle, levels[1]), high, levels[2]);
            _mm256_mask_storeu_epi8(to, here, codes);
        }
}

/* Pool, thresholds and levels for `n` outputs from `out` on, a pair of tiles of a group's block. */
static void finish(const lehr_layer *layer, int32_t group, int32_t top, int32_t rows, int32_t out,
                   int32_t *sums, const int32_t *cuts, const int32_t *directions, void *target)
{
    const int32_t outs = layer->out_channels / layer->groups, columns = layer->out_columns;
    const int32_t n = outs - out < PAIR ? outs - out : PAIR, height = layer->pool_rows, width = layer->pool_columns;
    const int32_t pooled_rows = layer->out_rows / height, pooled_columns = columns / width;
    const size_t pixels = (size_t)pooled_rows * (size_t)pooled_columns, channel = (size_t)(group * outs + out);
    const size_t start = (size_t)(top / height) * (size_t)pooled_columns;
    int8_t *line = (int8_t *)target + start * (size_t)layer->out_channels + channel; /* if interleaved */
    cuts += out;
    directions += out;
    if (layer->steps == 2 && layer->target_interleaved) {
        if (height == 1 && width == 1) /* constants, so that the compiler unrolls */
            finish_ternary(layer, n, rows, 1, 1, sums, cuts, directions, line);
        else if (height == 2 && width == 2)
            finish_ternary(layer, n, rows, 2, 2, sums, cuts, directions, line);
        else
            finish_ternary(layer, n, rows, height, width, sums, cuts, directions, line);
        return;
    }
    size_t pixel = start;
    int32_t values[PAIR];
    for (int32_t y = 0; y < rows; y += height)
        for (int32_t x = 0; x < pooled_columns; x++, pixel++, line += layer->out_channels) {
            int32_t *most = sums + (size_t)(y * columns + x * width) * PAIR;
            for (int32_t part = 1; part < height * width; part++) {
                const int32_t *other = most + (size_t)(part / width * columns + part % width) * PAIR;
                for (int32_t i = 0; i < n; i++)
                    most[i] = other[i] > most[i] ? other[i] : most[i];
            }
            if (layer->steps > 0) {
                cut_line(layer, n, most, cuts, directions, values);
                most = values;
            }
            for (int32_t i = 0; i < n && layer->steps == 0 && layer->routine == LEHR_TRITS; i++)
                most[i] /= UNIT;
            for (int32_t i = 0; i < n && layer->multipliers != NULL; i++)
                most[i] = lehr_requantized(layer, (int32_t)channel + i, most[i]);
            for (int32_t i = 0; i < n; i++)
                if (layer->target_interleaved)
                    line[i] = (int8_t)most[i];
                else
                    lehr_store(layer->target_type, target, (channel + (size_t)i) * pixels + pixel, most[i]);
        }
}

/* Where each step of 64 taps starts, seen from a tile's first line. */
static void find_steps(const lehr_layer *layer, const lehr_tiles *s, uint32_t *offsets)
{
    const int32_t places = layer->kernel_rows * layer->kernel_columns;
    for (int32_t i = 0; i < s->taps / DEPTH; i++) {
        const int32_t place = i % places, ky = place / layer->kernel_columns, kx = place % layer->kernel_columns;
        const int32_t right = s->shifted ? kx * s->plane_rows * s->plane_columns : kx * layer->dilation_columns;
        const int32_t pixel = ky * layer->dilation_rows * s->plane_columns + right;
        const int32_t slice = i / places * s->planes * s->plane_rows * s->plane_columns;
        offsets[i] = (uint32_t)((s->straight ? slice + pixel : i) * DEPTH);
    }
}

/* A threshold for sums of weights times UNIT; beyond MOST only "always" and "never" are left. */
static int32_t cut_at(int32_t threshold, int times_unit)
{
    if (!times_unit)
        return threshold;
    return (threshold < -MOST ? -MOST : threshold > MOST - 1 ? MOST - 1 : threshold) * UNIT;
}

static void amx_matrix(const lehr_layer *layer, const void *source, void *target, void *scratch)
{
    const lehr_tiles s = *layer->tiles;
    uint8_t *const base = scratch;
    int8_t *const padded = (int8_t *)base + s.padded, *const panel = (int8_t *)base + s.panel;
    int8_t *const trits = layer->routine == LEHR_TRITS ? (int8_t *)base + s.trits : NULL;
    int32_t *sums = (int32_t *)(void *)(base + s.sums), *cuts = (int32_t *)(void *)(base + s.cuts);
    int32_t *directions = (int32_t *)(void *)(base + s.directions);
    uint32_t *offsets = (uint32_t *)(void *)(base + s.offsets);
    const int32_t apart = s.shifted ? s.slice : s.slice * layer->stride_columns;
    const operand lines = {s.straight ? padded : panel, (size_t)(s.straight ? apart : s.taps), offsets};
    const int32_t outs = layer->out_channels / layer->groups, columns = layer->out_columns;
    const int32_t last = layer->out_rows / layer->pool_rows * layer->pool_rows;
    const int32_t *thresholds = layer->thresholds;
    const int8_t *values = source;
    const uint8_t *weights = layer->weights;
    const size_t pair_bytes = (size_t)s.taps * PAIR / (trits != NULL ? 4 : 1);
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16]; /* of a row */
        uint8_t rows[16];
    } tiles = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

    /* areas in their order; a tile may reach SIDE pixels past the last plane, fill_row SLACK bytes past a panel */
    LEHR_ASSERT(layer->source_interleaved ||
                (size_t)layer->channels * (size_t)layer->rows * (size_t)layer->columns <= s.padded - s.values);
    LEHR_ASSERT(((size_t)s.planes * (size_t)s.plane_rows * (size_t)s.plane_columns + SIDE) * (size_t)s.deep + SLACK <=
                s.panel - s.padded);
    LEHR_ASSERT(s.straight || (size_t)s.pixels * (size_t)s.taps + SLACK <= s.trits - s.panel);
    LEHR_ASSERT(trits == NULL || STEPS * 2 * TILE <= s.sums - s.trits);
    LEHR_ASSERT((size_t)s.pixels * PAIR * sizeof *sums <= s.offsets - s.sums);
    LEHR_ASSERT((size_t)(s.taps / DEPTH) * sizeof *offsets <= s.cuts - s.offsets);
    LEHR_ASSERT((size_t)(layer->steps * outs) * sizeof *cuts <= s.directions - s.cuts);
    LEHR_ASSERT((size_t)outs * sizeof *directions <= layer->scratch[LEHR_AMX] - s.directions);
    if (!layer->source_interleaved) {
        values = (const int8_t *)base + s.values;
        interleave(layer, source, (int8_t *)base + s.values);
    }
    find_steps(layer, &s, offsets);
    _tile_loadconfig(&tiles);
    for (int32_t group = 0; group < layer->groups; group++, weights += pair_bytes * (size_t)s.outs / PAIR, values += layer->channels / layer->groups) {
        for (int32_t i = 0; i < outs && layer->steps > 0; i++) {
            directions[i] = layer->directions[group * outs + i];
            for (int32_t k = 0; k < layer->steps; k++)
                cuts[k * outs + i] = cut_at(thresholds[(group * outs + i) * layer->steps + k], trits != NULL);
        }
        pad(layer, &s, values, padded);
        for (int32_t top = 0; top < last; top += s.rows) {
            const int32_t rows = last - top < s.rows ? last - top : s.rows;
            for (int32_t y = 0; y < rows && !s.straight; y++)
                fill_row(layer, &s, padded, top + y, panel + (size_t)(y * columns) * (size_t)s.taps);
            for (int32_t out = 0; out < outs; out += PAIR) {
                multiply_block(layer, &s, &lines, top, weights + (size_t)out * pair_bytes / PAIR, trits, sums);
                finish(layer, group, top, rows, out, sums, cuts, directions, target);
            }
        }
    }
    _tile_release();
}

/* What bit_planes of bits.inc makes, 32 trits at a time. */
static void bit_planes(const int8_t *trits, size_t n, uint32_t *planes)
{
    for (size_t first = 0; first < n; first += 32, planes += 4) {
        const __mmask32 here = n - first < 32 ? (1u << (n - first)) - 1 : 0xffffffffu;
        const __m256i some = _mm256_maskz_loadu_epi8(here, trits + first);
        planes[0] = planes[1] = _mm256_test_epi8_mask(some, some);
        planes[2] = planes[3] = _mm256_movepi8_mask(some);
    }
}

/* Bit-planes (bits.inc) with an instruction that counts: a block of outputs is one vector. */
static void amx_bits(const lehr_layer *layer, const void *source, void *target, void *scratch)
{
    enum { AHEAD = 32 }; /* words; weights are long and far away */
    const int32_t words = layer->words;
    const int32_t *weights = layer->weights, *values = scratch;
    LEHR_ASSERT(layer->channels <= 32 * words && (size_t)words * 16 <= layer->scratch[LEHR_AMX]);
    bit_planes(source, (size_t)layer->channels, scratch);
    for (int32_t block = 0; block < layer->out_channels; block += LEHR_BITS_OUTPUTS) {
        __m512i both = _mm512_setzero_si512(), differ = both;
        int32_t sums[LEHR_BITS_OUTPUTS];
        for (int32_t word = 0; word < words; word++, weights += 2 * LEHR_BITS_OUTPUTS) {
            const __m512i nonzero = _mm512_and_si512(_mm512_set1_epi32(values[4 * word]), _mm512_loadu_si512(weights));
            const __m512i signs = _mm512_xor_si512(_mm512_set1_epi32(values[4 * word + 2]),
                                                   _mm512_loadu_si512(weights + LEHR_BITS_OUTPUTS));
            _mm_prefetch((const char *)(weights + AHEAD * 2 * LEHR_BITS_OUTPUTS), _MM_HINT_T0);
            _mm_prefetch((const char *)(weights + AHEAD * 2 * LEHR_BITS_OUTPUTS + LEHR_BITS_OUTPUTS), _MM_HINT_T0);
            both = _mm512_add_epi32(both, _mm512_popcnt_epi32(nonzero));
            differ = _mm512_add_epi32(differ, _mm512_popcnt_epi32(_mm512_and_si512(nonzero, signs)));
        }
        _mm512_storeu_si512(sums, _mm512_sub_epi32(both, _mm512_slli_epi32(differ, 1)));
        for (int32_t i = 0; i < LEHR_BITS_OUTPUTS && block + i < layer->out_channels; i++)
            lehr_finish_int(layer, block + i, &sums[i], 1, target, (size_t)(block + i));
    }
}

lehr_routine_function *const lehr_amx_routines[LEHR_ROUTINES] = {
    [LEHR_MATRIX] = amx_matrix,
    [LEHR_TRITS] = amx_matrix,
    [LEHR_BITS] = amx_bits,
};

int lehr_amx_usable(void)
{
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* arch_prctl: Linux grants tiles on demand */
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & 1u << 24) || !(d & 1u << 25) || !(c & 1u << 14))
        return 0; /* tiles, int8 tiles, vector population count */
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

#else
typedef int lehr_without_amx; /* C99 wants a declaration in every file */
#endif
