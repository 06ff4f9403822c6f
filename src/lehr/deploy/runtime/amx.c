/* Integer sums on the tiles of AMX: any weights and values in int8. Compile this file alone with AMX_FLAGS (engine.py).
 *
 * Sums are a matrix product, (pixels, taps) x (taps, outputs). A block of whole output rows, complete pool windows, is
 * laid out as a panel, a line of taps for each pixel in the order (kernel row, kernel column, channel). Values between
 * two such layers are interleaved, (row, column, channel), so a line is a few copies.
 *
 * Weights lie as (group, pair of tiles, 64 taps, tile of the pair, taps / 4, 16 outputs, 4 taps), padded with zeros: what
 * the engine prepares when a network is loaded. Trits take two bits, trit + 1: byte i of a row of a tile holds its bytes
 * i, i + 16, i + 32 and i + 48. They are expanded just before use, as reading them costs more than that. */
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
    SIDE = 16,         /* pixels or outputs of a tile */
    DEPTH = 64,        /* taps of a tile */
    TILE = SIDE * DEPTH,
    PIXELS = 64,       /* of a block, about: with fewer, weights would be read too often */
    STEPS = 18         /* tile steps whose panel for 32 pixels, 36 KB, stays in the first cache */
};

static inline int32_t up(int32_t n, int32_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

typedef struct shape {
    int32_t channels, taps, outs; /* of a group; taps and outs padded to whole tiles */
    int32_t rows, pixels;         /* output rows of a block; its pixels, padded to pairs of tiles */
} shape;

static shape shape_of(const lehr_layer *layer)
{
    const int32_t fit = PIXELS / layer->out_columns / layer->pool_rows * layer->pool_rows;
    const int32_t whole = layer->out_rows / layer->pool_rows * layer->pool_rows;
    shape s;
    s.channels = layer->channels / layer->groups;
    s.taps = up(s.channels * layer->kernel_rows * layer->kernel_columns, DEPTH);
    s.outs = up(layer->out_channels / layer->groups, 2 * SIDE);
    s.rows = fit > whole ? whole : fit > 0 ? fit : layer->pool_rows;
    s.pixels = up(s.rows * layer->out_columns, 2 * SIDE);
    return s;
}

/* (channel, pixel) to (pixel, channel). */
static void interleave(const lehr_layer *layer, const int8_t *source, int8_t *to)
{
    const size_t pixels = (size_t)layer->rows * (size_t)layer->columns, channels = (size_t)layer->channels;
    for (size_t c = 0; c < channels; c++)
        for (size_t i = 0; i < pixels; i++)
            to[i * channels + c] = source[c * pixels + i];
}

/* The taps of one output pixel, without those that pad. */
static void fill_line(const lehr_layer *layer, const shape *s, const int8_t *source, int32_t y, int32_t x, int8_t *to)
{
    const int32_t left = x * layer->stride_columns - layer->padding_columns, width = layer->kernel_columns;
    const size_t n = (size_t)s->channels;
    const int whole = layer->groups == 1 && layer->dilation_columns == 1 && left >= 0 && left + width <= layer->columns;
    for (int32_t ky = 0; ky < layer->kernel_rows; ky++) {
        const int32_t row = y * layer->stride_rows + ky * layer->dilation_rows - layer->padding_rows;
        const int8_t *line = source + (ptrdiff_t)row * layer->columns * layer->channels;
        if (row < 0 || row >= layer->rows) {
            memset(to, 0, (size_t)width * n);
            to += (size_t)width * n;
        } else if (whole) {
            memcpy(to, line + (size_t)left * n, (size_t)width * n);
            to += (size_t)width * n;
        } else {
            for (int32_t kx = 0; kx < width; kx++, to += n) {
                const int32_t column = left + kx * layer->dilation_columns;
                if (column < 0 || column >= layer->columns)
                    memset(to, 0, n);
                else
                    memcpy(to, line + (size_t)column * (size_t)layer->channels, n);
            }
        }
    }
}

/* 32 pixels x 32 outputs, `steps` steps of 64 taps, added to `sums` unless `fresh`. */
static void multiply(const int8_t *panel, size_t line, const int8_t *weights, int32_t steps, int fresh, int32_t *sums,
                     size_t stride)
{
    int32_t *const lower = sums + SIDE * stride;
    const size_t bytes = stride * sizeof *sums;
    if (fresh) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, sums, bytes);
        _tile_loadd(1, sums + SIDE, bytes);
        _tile_loadd(2, lower, bytes);
        _tile_loadd(3, lower + SIDE, bytes);
    }
    for (int32_t i = 0; i < steps; i++, panel += DEPTH, weights += 2 * TILE) {
        _tile_loadd(4, panel, line);
        _tile_loadd(5, panel + SIDE * line, line);
        _tile_loadd(6, weights, DEPTH);
        _tile_loadd(7, weights + TILE, DEPTH);
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
    }
    _tile_stored(0, sums, bytes);
    _tile_stored(1, sums + SIDE, bytes);
    _tile_stored(2, lower, bytes);
    _tile_stored(3, lower + SIDE, bytes);
}

/* Trits of whole tiles as int8; meanwhile the next ones, as many, are fetched. */
static void expand(const uint8_t *packed, size_t rows, int8_t *to)
{
    const __m512i shifts = _mm512_set_epi64(6, 6, 4, 4, 2, 2, 0, 0), field = _mm512_set1_epi8(3), one = _mm512_set1_epi8(1);
    const uint8_t *next = packed + rows * SIDE;
    for (size_t row = 0; row < rows; row++, packed += SIDE, next += SIDE, to += DEPTH) {
        const __m512i four = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)packed));
        const __m512i digits = _mm512_and_si512(_mm512_srlv_epi64(four, shifts), field);
        _mm512_storeu_si512(to, _mm512_sub_epi8(digits, one));
        if (row % 4 == 0)
            _mm_prefetch((const char *)next, _MM_HINT_T0);
    }
}

/* All sums of a block: (pixel, output). `trits` has room for STEPS pairs of tiles, or is NULL for int8 weights. */
static void multiply_block(const shape *s, const int8_t *panel, const void *weights, int8_t *trits, int32_t *sums)
{
    const int32_t steps = s->taps / DEPTH;
    for (int32_t first = 0; first < steps; first += STEPS) {
        const int32_t count = steps - first < STEPS ? steps - first : STEPS;
        for (int32_t out = 0; out < s->outs; out += 2 * SIDE) {
            const size_t at = ((size_t)out / (2 * SIDE) * (size_t)steps + (size_t)first) * 2 * TILE;
            const int8_t *pair = trits != NULL ? trits : (const int8_t *)weights + at;
            if (trits != NULL)
                expand((const uint8_t *)weights + at / 4, (size_t)count * 2 * SIDE, trits);
            for (int32_t pixel = 0; pixel < s->pixels; pixel += 2 * SIDE)
                multiply(panel + (size_t)pixel * (size_t)s->taps + (size_t)first * DEPTH, (size_t)s->taps, pair, count,
                         first == 0, sums + (size_t)pixel * (size_t)s->outs + out, (size_t)s->outs);
        }
    }
}

/* Thresholds and levels of all outputs of one pixel. `cuts` holds (step, output), `directions` +1 or -1. */
static void cut_line(const lehr_layer *layer, int32_t outs, const int32_t *restrict sums, const int32_t *restrict cuts,
                     const int32_t *restrict directions, int32_t *restrict values)
{
    for (int32_t i = 0; i < outs; i++)
        values[i] = 0;
    for (int32_t k = 0; k < layer->steps; k++, cuts += outs)
        for (int32_t i = 0; i < outs; i++)
            values[i] += directions[i] * sums[i] >= cuts[i];
    for (int32_t i = 0; i < outs; i++)
        values[i] = layer->levels[values[i]];
}

/* The same for three neighbouring levels in int8, the usual case, in one pass. */
static void cut_ternary(int32_t outs, const int32_t *restrict sums, const int32_t *restrict cuts,
                        const int32_t *restrict directions, int32_t lowest, int8_t *restrict to)
{
    const int32_t *restrict second = cuts + outs;
    for (int32_t i = 0; i < outs; i++) {
        const int32_t sum = directions[i] * sums[i];
        to[i] = (int8_t)(lowest + (sum >= cuts[i]) + (sum >= second[i]));
    }
}

/* Pool, thresholds and levels for one block of a group. */
static void finish(const lehr_layer *layer, const shape *s, int32_t group, int32_t top, int32_t rows, int32_t *sums,
                   const int32_t *cuts, const int32_t *directions, int32_t *values, void *target)
{
    const int32_t outs = layer->out_channels / layer->groups, columns = layer->out_columns;
    const int32_t pooled_rows = layer->out_rows / layer->pool_rows, pooled_columns = columns / layer->pool_columns;
    const size_t pixels = (size_t)pooled_rows * (size_t)pooled_columns;
    const int16_t *levels = layer->levels;
    const int ternary = layer->steps == 2 && layer->target_interleaved && levels[1] == levels[0] + 1 &&
                        levels[2] == levels[0] + 2;
    for (int32_t y = 0; y < rows; y += layer->pool_rows)
        for (int32_t x = 0; x < pooled_columns; x++) {
            int32_t *most = sums + (size_t)(y * columns + x * layer->pool_columns) * (size_t)s->outs;
            for (int32_t part = 1; part < layer->pool_rows * layer->pool_columns; part++) {
                const int32_t below = part / layer->pool_columns, right = part % layer->pool_columns;
                const int32_t *other = most + (size_t)(below * columns + right) * (size_t)s->outs;
                for (int32_t i = 0; i < outs; i++)
                    most[i] = other[i] > most[i] ? other[i] : most[i];
            }
            const size_t pixel = (size_t)((top + y) / layer->pool_rows) * (size_t)pooled_columns + (size_t)x;
            int8_t *line = (int8_t *)target + pixel * (size_t)layer->out_channels + (size_t)(group * outs);
            if (ternary) {
                cut_ternary(outs, most, cuts, directions, levels[0], line);
                continue;
            }
            if (layer->steps > 0) {
                cut_line(layer, outs, most, cuts, directions, values);
                most = values;
            }
            for (int32_t i = 0; i < outs; i++)
                if (layer->target_interleaved)
                    line[i] = (int8_t)most[i];
                else
                    lehr_store(layer->target_type, target, (size_t)(group * outs + i) * pixels + pixel, most[i]);
        }
}

typedef struct areas { /* offsets in scratch, in bytes */
    size_t values, panel, trits, sums, cuts, directions, codes, total;
} areas;

static areas areas_of(const lehr_layer *layer)
{
    const shape s = shape_of(layer);
    const size_t outs = (size_t)(layer->out_channels / layer->groups), word = sizeof(int32_t);
    const size_t elements = (size_t)layer->channels * (size_t)layer->rows * (size_t)layer->columns;
    areas a;
    a.values = 0;
    a.panel = a.values + (layer->source_interleaved ? 0 : (elements + 63) / 64 * 64);
    a.trits = a.panel + (size_t)s.pixels * (size_t)s.taps;
    a.sums = a.trits + (layer->kernel == LEHR_TRITS ? STEPS * 2 * TILE : 0);
    a.cuts = a.sums + (size_t)s.pixels * (size_t)s.outs * word;
    a.directions = a.cuts + (size_t)layer->steps * outs * word;
    a.codes = a.directions + outs * word;
    a.total = a.codes + outs * word;
    return a;
}

void lehr_amx_matrix(const lehr_layer *layer, const void *source, void *target, void *scratch)
{
    const shape s = shape_of(layer);
    const areas a = areas_of(layer);
    uint8_t *const base = scratch;
    int8_t *panel = (int8_t *)base + a.panel;
    int32_t *sums = (int32_t *)(void *)(base + a.sums), *cuts = (int32_t *)(void *)(base + a.cuts);
    int32_t *directions = (int32_t *)(void *)(base + a.directions), *codes = (int32_t *)(void *)(base + a.codes);
    const int32_t outs = layer->out_channels / layer->groups, columns = layer->out_columns;
    const int32_t last = layer->out_rows / layer->pool_rows * layer->pool_rows;
    const int32_t *thresholds = layer->thresholds;
    const int8_t *values = source;
    const uint8_t *weights = layer->weights;
    int8_t *trits = layer->kernel == LEHR_TRITS ? (int8_t *)base + a.trits : NULL;
    const size_t weight_bytes = (size_t)s.taps * (size_t)s.outs / (trits != NULL ? 4 : 1);
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16]; /* of a row */
        uint8_t rows[16];
    } tiles = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

    if (!layer->source_interleaved) {
        values = (const int8_t *)base + a.values;
        interleave(layer, source, (int8_t *)base + a.values);
    }
    memset(panel, 0, (size_t)s.pixels * (size_t)s.taps);
    _tile_loadconfig(&tiles);
    for (int32_t group = 0; group < layer->groups; group++, weights += weight_bytes) {
        for (int32_t i = 0; i < outs && layer->steps > 0; i++) {
            directions[i] = layer->directions[group * outs + i];
            for (int32_t k = 0; k < layer->steps; k++)
                cuts[k * outs + i] = thresholds[(group * outs + i) * layer->steps + k];
        }
        for (int32_t top = 0; top < last; top += s.rows) {
            const int32_t rows = last - top < s.rows ? last - top : s.rows;
            for (int32_t y = 0; y < rows; y++)
                for (int32_t x = 0; x < columns; x++)
                    fill_line(layer, &s, values + (size_t)group * (size_t)s.channels, top + y, x,
                              panel + (size_t)(y * columns + x) * (size_t)s.taps);
            multiply_block(&s, panel, weights, trits, sums); /* padding pixels make sums that nobody reads */
            finish(layer, &s, group, top, rows, sums, cuts, directions, codes, target);
        }
    }
    _tile_release();
}

size_t lehr_amx_scratch(const lehr_layer *layer)
{
    return areas_of(layer).total;
}

/* Bit-planes (bits.h) by counting whole vectors: compilers turn this loop into vpopcntq. */
void lehr_amx_bits(const lehr_layer *layer, const void *source, void *target, void *scratch)
{
    const size_t words = ((size_t)layer->channels + 31) / 32, pairs = words / 2;
    const uint32_t *weights = layer->weights, *values = scratch;
    lehr_bit_planes(source, (size_t)layer->channels, scratch);
    for (int32_t out = 0; out < layer->out_channels; out++, weights += 2 * words) {
        int64_t both = 0, differ = 0;
        for (size_t i = 0; i < pairs; i++) {
            uint64_t value[2], weight[2];
            memcpy(&value[0], values + 2 * i, 8);
            memcpy(&value[1], values + words + 2 * i, 8);
            memcpy(&weight[0], weights + 2 * i, 8);
            memcpy(&weight[1], weights + words + 2 * i, 8);
            both += __builtin_popcountll(value[0] & weight[0]);
            differ += __builtin_popcountll((value[1] ^ weight[1]) & value[0] & weight[0]);
        }
        if (words % 2) {
            const uint32_t last = values[words - 1] & weights[words - 1];
            both += __builtin_popcount(last);
            differ += __builtin_popcount((values[2 * words - 1] ^ weights[2 * words - 1]) & last);
        }
        const int32_t sum = (int32_t)(both - 2 * differ);
        lehr_finish_int(layer, out, &sum, 1, target, (size_t)out);
    }
}

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
