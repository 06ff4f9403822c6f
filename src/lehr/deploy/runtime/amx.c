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

#include "amx_source.inc"

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

#include "amx_finish.inc"

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

#include "amx_bits.inc"

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
