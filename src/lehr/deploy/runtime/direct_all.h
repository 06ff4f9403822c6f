/* direct.h for every type of source, and the choice among them: DIRECT_KERNEL. */

#define DIRECT direct_int8
#define SOURCE int8_t
#define WEIGHT int8_t
#define SUM int32_t
#define FINISH lehr_finish_int
#include "direct.h"

#define DIRECT direct_int16
#define SOURCE int16_t
#define WEIGHT int8_t
#define SUM int32_t
#define FINISH lehr_finish_int
#include "direct.h"

#define DIRECT direct_int32
#define SOURCE int32_t
#define WEIGHT int8_t
#define SUM int32_t
#define FINISH lehr_finish_int
#include "direct.h"

/* Floats are summed in double and rounded once. */
#define DIRECT direct_float
#define SOURCE float
#define WEIGHT float
#define SUM double
#define FINISH lehr_finish_float
#include "direct.h"

static void DIRECT_KERNEL(const lehr_layer *layer, const void *source, void *target, void *scratch)
{
    switch (layer->source_type) {
    case LEHR_INT8: direct_int8(layer, source, target, scratch); break;
    case LEHR_INT16: direct_int16(layer, source, target, scratch); break;
    case LEHR_INT32: direct_int32(layer, source, target, scratch); break;
    default: direct_float(layer, source, target, scratch); break;
    }
}

#undef DIRECT_KERNEL
