/* Classify raw images from standard input: model_input, (channel, row, column), one after the other.
 * Prints a line for each: its class and, in the order of the classes, the scores (or, without integer scores, logits). Of
 * a network with several outputs, a line for each output: its name and these numbers. */
#include "model.h"
#include <stdio.h>

static uint64_t memory[(MODEL_MEMORY + 7) / 8];
static model_input image[MODEL_INPUTS];

static void print(const lehr_net *output)
{
    for (int32_t i = 0; i < output->outputs; i++)
        if (output->scores_type == LEHR_FLOAT)
            printf(" %g", (double)lehr_logit(output, memory, i));
        else
            printf(" %ld", (long)lehr_score(output, memory, i));
    printf("\n");
}

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
        for (int result = 0; result < MODEL_RESULTS; result++) {
            printf("%s:", MODEL_RESULTS > 1 ? model_result_names[result] : model_classes[lehr_class(&model, memory)]);
            print(model_results[result]);
        }
    }
    if (bytes != 0) {
        fprintf(stderr, "the input ends inside an image: %lu of %lu bytes\n", (unsigned long)bytes,
                (unsigned long)sizeof image);
        return 1;
    }
    return 0;
}
