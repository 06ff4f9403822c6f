/* Classify raw images from standard input: model_input, (channel, row, column), one after the other.
 * Prints a line for each: its class and, in the order of the classes, the scores (or, without integer scores, logits). */
#include "model.h"
#include <stdio.h>

static uint64_t memory[(MODEL_MEMORY + 7) / 8];
static model_input image[MODEL_INPUTS];

int main(void)
{
    const int instruction_set = lehr_best_instruction_set();
    if (lehr_memory(&model, instruction_set) > sizeof memory) {
        fprintf(stderr, "MODEL_MEMORY is %lu, the model needs %lu\n", (unsigned long)sizeof memory,
                (unsigned long)lehr_memory(&model, instruction_set));
        return 1;
    }
    size_t bytes;
    while ((bytes = fread(image, 1, sizeof image, stdin)) == sizeof image) {
        lehr_run(&model, image, memory, instruction_set);
        printf("%s:", model_classes[lehr_class(&model, memory)]);
        for (int32_t i = 0; i < MODEL_OUTPUTS; i++)
            if (model.scores_type == LEHR_FLOAT)
                printf(" %g", (double)lehr_logit(&model, memory, i));
            else
                printf(" %ld", (long)lehr_score(&model, memory, i));
        printf("\n");
    }
    if (bytes != 0) {
        fprintf(stderr, "the input ends inside an image: %lu of %lu bytes\n", (unsigned long)bytes,
                (unsigned long)sizeof image);
        return 1;
    }
    return 0;
}
