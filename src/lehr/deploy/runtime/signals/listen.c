/* listen HOP z            classifies a window every HOP samples of standard input, each window z-normalised
 * listen HOP UNIT...      or each channel times its unit (one for all, or one each)
 *
 * Input is int16_t, a number of each channel, sample after sample. A line for each window: the number of the sample it
 * ends at, the class and its score. On a microcontroller the loop is the same: lehr_stream_push where a sample
 * arrives, the rest in the main loop. RAM: ring, window and memory. */
#include <stdio.h>
#include <stdlib.h>

#include "model.h"
#include "stream.h"

static int16_t ring[MODEL_INPUTS];
static model_input window[MODEL_INPUTS];
static uint64_t memory[(MODEL_MEMORY + 7) / 8];

int main(int argc, char **argv)
{
    const int32_t hop = argc > 2 ? atoi(argv[1]) : 0;
    if (hop < 1 || (argc != 3 && argc != 2 + MODEL_CHANNELS)) {
        fprintf(stderr, "usage: listen HOP z|UNIT... < samples.raw\n");
        return 2;
    }
    float units[MODEL_CHANNELS];
    for (int c = 0; c < MODEL_CHANNELS; c++) units[c] = strtof(argv[argc == 3 ? 2 : 2 + c], NULL);
    lehr_stream stream;
    lehr_stream_start(&stream, ring, MODEL_CHANNELS, MODEL_COLUMNS, hop);
    int16_t sample[MODEL_CHANNELS];
    for (long number = 1; fread(sample, sizeof sample, 1, stdin) == 1; number++) {
        if (!lehr_stream_push(&stream, sample)) continue;
        if (argv[2][0] == 'z')
            lehr_stream_z_normalized(&stream, window);
        else
            lehr_stream_scaled(&stream, units, window);
        lehr_run(&model, window, memory, lehr_best_instruction_set());
        const int32_t best = lehr_class(&model, memory);
        printf("%ld %s %.9g\n", number, model_classes[best], (double)lehr_logit(&model, memory, best));
        fflush(stdout);
    }
    return 0;
}
