#include "stream.h"

#include <math.h>

void lehr_stream_start(lehr_stream *stream, int16_t *ring, int32_t channels, int32_t length, int32_t hop)
{
    stream->ring = ring;
    stream->channels = channels;
    stream->length = length;
    stream->hop = hop;
    stream->next = 0;
    stream->waiting = length;
}

int lehr_stream_push(lehr_stream *stream, const int16_t *sample)
{
    for (int32_t c = 0; c < stream->channels; c++)
        stream->ring[stream->next * stream->channels + c] = sample[c];
    stream->next = stream->next + 1 == stream->length ? 0 : stream->next + 1;
    if (--stream->waiting > 0) return 0;
    stream->waiting = stream->hop;
    return 1;
}

/* Sample `t` of the window, oldest first. */
static int16_t at(const lehr_stream *stream, int32_t channel, int32_t t)
{
    const int32_t place = stream->next + t;
    return stream->ring[(place < stream->length ? place : place - stream->length) * stream->channels + channel];
}

void lehr_stream_scaled(const lehr_stream *stream, const float *units, float *window)
{
    for (int32_t c = 0; c < stream->channels; c++)
        for (int32_t t = 0; t < stream->length; t++)
            window[c * stream->length + t] = (float)at(stream, c, t) * units[c];
}

void lehr_stream_z_normalized(const lehr_stream *stream, float *window)
{
    const int64_t n = stream->length;
    for (int32_t c = 0; c < stream->channels; c++) {
        int64_t sum = 0, squares = 0;
        for (int32_t t = 0; t < stream->length; t++) {
            const int32_t x = at(stream, c, t);
            sum += x;
            squares += (int64_t)x * x;
        }
        const int64_t spread = n * squares - sum * sum;
        const float root = sqrtf((float)spread);
        for (int32_t t = 0; t < stream->length; t++)
            window[c * stream->length + t] = spread ? (float)(n * at(stream, c, t) - sum) / root : 0.0f;
    }
}
