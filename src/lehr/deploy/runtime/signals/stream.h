/* The front end of a network of signals: windows of the samples of a sensor, which arrive one after another.
 *
 *     static int16_t ring[MODEL_INPUTS];
 *     static float window[MODEL_INPUTS];
 *     lehr_stream stream;
 *     lehr_stream_start(&stream, ring, MODEL_CHANNELS, MODEL_COLUMNS, hop);
 *     for each sample, an int16_t of each channel:
 *         if (lehr_stream_push(&stream, sample)) {
 *             lehr_stream_scaled(&stream, units, window);
 *             lehr_run(&model, window, memory, lehr_best_instruction_set());
 *         }
 *
 * lehr.data.windows and lehr.data.z_normalized are the same in Python, bit by bit. */
#ifndef STREAM_H
#define STREAM_H

#include <stdint.h>

typedef struct {
    int16_t *ring;   /* (time, channel), the newest `length` samples */
    int32_t channels, length, hop;
    int32_t next;    /* where the next sample goes: the oldest one is there */
    int32_t waiting; /* samples until a window is due */
} lehr_stream;

/* ring: channels * length numbers. A window is due after `length` samples, and then every `hop`. */
void lehr_stream_start(lehr_stream *stream, int16_t *ring, int32_t channels, int32_t length, int32_t hop);

/* Takes one number of each channel; 1 if a window is due, else 0. */
int lehr_stream_push(lehr_stream *stream, const int16_t *sample);

/* window[channel][time] = sample * units[channel]: a network that was trained on units, such as g, gets them. */
void lehr_stream_scaled(const lehr_stream *stream, const float *units, float *window);

/* window[channel][time] with mean 0 and standard deviation 1 in each channel; a constant channel becomes 0.
 * Sums are of 64 bits: exact for windows of up to 92681 samples. */
void lehr_stream_z_normalized(const lehr_stream *stream, float *window);

#endif
