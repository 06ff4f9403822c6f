/* Run the test vector on every instruction set of this build and compare with the scores of the reference run. */
#include "model.h"
#include "test_vector.h"
#include <stdio.h>

#ifdef STACK_USED
size_t stack_used(void); /* startup.c */
#endif

static uint64_t memory[(MODEL_MEMORY + 7) / 8];

/* Networks with float scores may differ in the last bit, as sums of floats may be ordered differently. */
static int equal(int32_t image, int32_t i)
{
    if (model.scores_type != LEHR_FLOAT)
        return lehr_score(&model, memory, i) == test_scores[image][i];
    const float logit = lehr_logit(&model, memory, i), expected = test_logits[image][i];
    const float size = expected < 0 ? -expected : expected, difference = logit - expected;
    return (difference < 0 ? -difference : difference) <= 1e-6f + 1e-5f * size;
}

int main(void)
{
    const int best = lehr_best_instruction_set();
    int differ = 0, sets = 0;
    for (int instruction_set = LEHR_REFERENCE; instruction_set <= best; instruction_set++) {
        if (lehr_memory(&model, instruction_set) == 0)
            continue; /* the weights are laid out for others */
        if (lehr_memory(&model, instruction_set) > sizeof memory) {
            printf("instruction set %d needs %lu bytes, more than the %lu stated\n", instruction_set,
                   (unsigned long)lehr_memory(&model, instruction_set), (unsigned long)sizeof memory);
            return 1;
        }
        for (int32_t image = 0; image < TEST_IMAGES; image++) {
            int same = 1;
            lehr_run(&model, test_images[image], memory, instruction_set);
            for (int32_t i = 0; i < MODEL_OUTPUTS; i++)
                same &= equal(image, i);
            differ += !same;
        }
        sets++;
    }
#ifdef STACK_USED
    const unsigned long stack = (unsigned long)stack_used();
    printf("%lu bytes of stack\n", stack);
#endif
    printf("%d images, %d instruction sets, %lu bytes of memory: %d differ\n", TEST_IMAGES, sets,
           (unsigned long)sizeof memory, differ);
    return differ != 0;
}
