/* Run the test vector at every level this processor has and compare with the scores of the reference run. */
#include "model.h"
#include "test_vector.h"
#include <stdio.h>

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
    int differ = 0;
    for (int level = LEHR_SCALAR; level <= lehr_best_level(); level++) {
        if (lehr_memory(&model, level) > sizeof memory) {
            printf("level %d needs %lu bytes, more than the %lu stated\n", level,
                   (unsigned long)lehr_memory(&model, level), (unsigned long)sizeof memory);
            return 1;
        }
        for (int32_t image = 0; image < TEST_IMAGES; image++) {
            int same = 1;
            lehr_run(&model, test_images[image], memory, level);
            for (int32_t i = 0; i < MODEL_OUTPUTS; i++)
                same &= equal(image, i);
            differ += !same;
        }
    }
    printf("%d images, %d levels, %lu bytes of memory: %d differ\n", TEST_IMAGES, lehr_best_level() + 1,
           (unsigned long)sizeof memory, differ);
    return differ != 0;
}
