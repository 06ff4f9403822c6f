/* What JavaScript calls: model.mjs says how. The image goes to `lehr_input`, `lehr_classify` runs it. */
#include "model.h"

#define EXPORT(name) __attribute__((export_name(#name))) name

static uint64_t memory[(MODEL_MEMORY + 7) / 8];
static model_input input[MODEL_INPUTS];

model_input *EXPORT(lehr_input)(void)
{
    return input;
}

/* How many bytes a number of the input has: 4 for float, negative for signed integers. */
int32_t EXPORT(lehr_input_type)(void)
{
    const model_input below_zero = (model_input)-1;
    return sizeof(model_input) == 1 && below_zero < 0 ? -1 : (int32_t)sizeof(model_input);
}

int32_t EXPORT(lehr_channels)(void)
{
    return MODEL_CHANNELS;
}

int32_t EXPORT(lehr_rows)(void)
{
    return MODEL_ROWS;
}

int32_t EXPORT(lehr_columns)(void)
{
    return MODEL_COLUMNS;
}

int32_t EXPORT(lehr_outputs)(void)
{
    return MODEL_OUTPUTS;
}

const char *EXPORT(lehr_class_name)(int32_t index)
{
    return model_classes[index];
}

/* Run the image and return the number of its class. */
int32_t EXPORT(lehr_classify)(void)
{
    lehr_run(&model, input, memory, MODEL_INSTRUCTION_SET);
    return lehr_class(&model, memory);
}

/* Whether there are integer scores. */
int32_t EXPORT(lehr_has_scores)(void)
{
    return model.scores_type != LEHR_FLOAT;
}

int32_t EXPORT(lehr_score_of)(int32_t index)
{
    return lehr_score(&model, memory, index);
}

float EXPORT(lehr_logit_of)(int32_t index)
{
    return lehr_logit(&model, memory, index);
}
