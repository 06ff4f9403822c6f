/* Read and write one number of any type. */
#ifndef LEHR_VALUES_H
#define LEHR_VALUES_H

#include "lehr.h"

static inline int32_t lehr_load_int(int32_t type, const void *source, size_t at)
{
    switch (type) {
    case LEHR_INT8: return ((const int8_t *)source)[at];
    case LEHR_INT16: return ((const int16_t *)source)[at];
    case LEHR_TRIT: return (((const uint8_t *)source)[at / 4] >> 2 * (at % 4) & 3) - 1;
    default: return ((const int32_t *)source)[at];
    }
}

static inline size_t lehr_size_of(int32_t type)
{
    return type == LEHR_INT8 ? 1 : type == LEHR_INT16 ? 2 : 4;
}

static inline float lehr_load_float(int32_t type, const void *source, size_t at)
{
    return type == LEHR_FLOAT ? ((const float *)source)[at] : (float)lehr_load_int(type, source, at);
}

static inline void lehr_store(int32_t type, void *target, size_t at, int32_t value)
{
    switch (type) {
    case LEHR_INT8: ((int8_t *)target)[at] = (int8_t)value; break;
    case LEHR_INT16: ((int16_t *)target)[at] = (int16_t)value; break;
    case LEHR_INT32: ((int32_t *)target)[at] = value; break;
    case LEHR_TRIT: {
        uint8_t *byte = (uint8_t *)target + at / 4;
        const int shift = (int)(2 * (at % 4));
        *byte = (uint8_t)((*byte & ~(3 << shift)) | (value + 1) << shift);
        break;
    }
    default: ((float *)target)[at] = (float)value; break;
    }
}

#endif
