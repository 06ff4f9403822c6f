/* Run a network: layer after layer, each by its routine. */
#include "lehr.h"
#include "values.h"
#ifdef LEHR_HAVE_AVX2
#include "processor.h"
#endif

#ifdef LEHR_DEVICE
/* An export for one device: model.c names the functions that its layers use, and the linker drops all others. */
#include "model.h"
#define OPERATION(layer) model_operations[(layer)->operation]
#define ROUTINE(layer, built_for) model_routines[(layer)->routine]

int lehr_best_instruction_set(void)
{
    return MODEL_INSTRUCTION_SET;
}
#else
#define OPERATION(layer) lehr_naive_operations[(layer)->operation]
#define ROUTINE(layer, built_for) routines[built_for][(layer)->routine]

/* The routines of each instruction set; those of a file that is not built are not there. */
static lehr_routine_function *const *const routines[LEHR_INSTRUCTION_SETS] = {
#ifdef LEHR_HAVE_SMALL
    [LEHR_SMALL] = lehr_small_routines,
#endif
    [LEHR_SCALAR] = lehr_scalar_routines,
#ifdef LEHR_HAVE_VECTOR
    [LEHR_VECTOR] = lehr_vector_routines,
#endif
#ifdef LEHR_HAVE_AVX2
    [LEHR_AVX2] = lehr_avx2_routines,
#endif
#ifdef LEHR_HAVE_AVX512
    [LEHR_AVX512] = lehr_avx512_routines,
#endif
#ifdef LEHR_HAVE_AMX
    [LEHR_AMX] = lehr_amx_routines,
#endif
};

/* An instruction set uses routines of those before it, so it counts only if they are built too. */
int lehr_best_instruction_set(void)
{
#ifdef LEHR_HAVE_AVX2
#ifdef LEHR_HAVE_AVX512
#ifdef LEHR_HAVE_AMX
    if (lehr_amx_usable())
        return LEHR_AMX;
#endif
    if (lehr_cpu_has(LEHR_CPU_ZMM, LEHR_CPU_AVX512BW | LEHR_CPU_AVX512VL))
        return LEHR_AVX512;
#endif
    if (lehr_cpu_has(LEHR_CPU_YMM, LEHR_CPU_AVX2))
        return LEHR_AVX2;
#endif
#ifdef LEHR_HAVE_VECTOR
    return LEHR_VECTOR;
#else
    return LEHR_SCALAR;
#endif
}
#endif

size_t lehr_memory(const lehr_net *net, int instruction_set)
{
    return net->memory[instruction_set];
}

static uint8_t *aligned(const void *memory)
{
    return (uint8_t *)(((uintptr_t)memory + 63) / 64 * 64);
}

void lehr_run(const lehr_net *net, const void *image, void *memory, int instruction_set)
{
    uint8_t *values = aligned(memory);
    LEHR_ASSERT(net->memory[instruction_set] > 0);
    for (int32_t i = 0; i < net->count; i++) {
        const lehr_layer *layer = &net->layers[i];
        const int32_t built_for = layer->built_for[instruction_set];
        const void *source = layer->source == LEHR_IMAGE ? image : values + layer->source;
        (void)built_for; /* a device has one routine */
        LEHR_ASSERT(layer->scratch_at % 64 == 0 && layer->scratch_at + layer->scratch[built_for] + 63 < net->memory[instruction_set]);
        if (layer->routine == LEHR_NAIVE) {
            const void *second = layer->second == LEHR_IMAGE ? NULL : values + layer->second;
            OPERATION(layer)(layer, source, second, values + layer->target);
        } else {
            LEHR_ASSERT(ROUTINE(layer, built_for) != NULL);
            ROUTINE(layer, built_for)(layer, source, values + layer->target, values + layer->scratch_at);
        }
    }
}

int32_t lehr_score(const lehr_net *net, const void *memory, int32_t index)
{
    return lehr_load_int(net->scores_type, aligned(memory) + net->scores, (size_t)index);
}

float lehr_logit(const lehr_net *net, const void *memory, int32_t index)
{
    return lehr_load_float(net->logits_type, aligned(memory) + net->logits, (size_t)index);
}

int32_t lehr_class(const lehr_net *net, const void *memory)
{
    int32_t best = 0;
    for (int32_t i = 1; i < net->outputs; i++)
        if (lehr_logit(net, memory, i) > lehr_logit(net, memory, best))
            best = i;
    return best;
}

void lehr_run_batch(const lehr_net *net, const void *images, size_t count, void *memory, int instruction_set,
                    int32_t *scores, float *logits)
{
    for (size_t i = 0; i < count; i++) {
        lehr_run(net, (const uint8_t *)images + i * net->image_bytes, memory, instruction_set);
        for (int32_t out = 0; out < net->outputs; out++) {
            if (scores != NULL)
                scores[i * (size_t)net->outputs + (size_t)out] = lehr_score(net, memory, out);
            if (logits != NULL)
                logits[i * (size_t)net->outputs + (size_t)out] = lehr_logit(net, memory, out);
        }
    }
}
