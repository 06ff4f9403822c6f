/* Run the test vector on every instruction set of this build and compare with the scores of the reference run. */
#include "model.h"
#include "test_vector.h"
#include <stdio.h>

static uint64_t memory[(MODEL_MEMORY + 7) / 8];

#ifdef LEHR_DEVICE
/* The stack below main, painted before the runs: as deep as the paint is gone they went. */
enum { PAINTED = 6144, OWN = 128, PAINT = 0x5a };
static volatile uint8_t *painted;

__attribute__((noinline)) static void paint_stack(void)
{
    painted = (volatile uint8_t *)((uintptr_t)__builtin_frame_address(0) - PAINTED);
    for (int i = 0; i < PAINTED - OWN; i++) /* all but what this function itself may have there */
        painted[i] = PAINT;
}

static unsigned long stack_used(void)
{
    int left = 0;
    while (left < PAINTED - OWN && painted[left] == PAINT)
        left++;
    return (unsigned long)(PAINTED - left);
}
#endif

/* Networks with float scores may differ in the last bit, as sums of floats may be ordered differently. */
static int equal(const lehr_net *output, int32_t i, int32_t image, int32_t at)
{
    if (output->scores_type != LEHR_FLOAT)
        return lehr_score(output, memory, i) == test_scores[image][at];
    const float logit = lehr_logit(output, memory, i), expected = test_logits[image][at];
    const float size = expected < 0 ? -expected : expected, difference = logit - expected;
    return (difference < 0 ? -difference : difference) <= 1e-6f + 1e-5f * size;
}

int main(void)
{
    const int best = lehr_best_instruction_set();
    int differ = 0, sets = 0;
#ifdef LEHR_DEVICE
    paint_stack();
#endif
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
            int32_t at = 0;
            lehr_run(&model, test_images[image], memory, instruction_set);
            for (int result = 0; result < MODEL_RESULTS; result++)
                for (int32_t i = 0; i < model_results[result]->outputs; i++)
                    same &= equal(model_results[result], i, image, at++);
            differ += !same;
        }
        sets++;
    }
#ifdef LEHR_DEVICE
    const unsigned long stack = stack_used();
    printf("%lu bytes of stack\n", stack);
#endif
    printf("%d images, %d instruction sets, %lu bytes of memory: %d differ\n", TEST_IMAGES, sets,
           (unsigned long)sizeof memory, differ);
    return differ != 0;
}
