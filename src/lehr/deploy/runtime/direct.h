/* Direct sums, for any kernel, stride, padding, dilation and groups: a template over its types.
 *
 * Define before including: DIRECT (the function's name), SOURCE, WEIGHT, SUM (types) and FINISH (from sums.h).
 * One row of sums at a time: for each weight, add weight * source along the row. The loop over a row has no
 * branches and unit stride where the layer has, so compilers vectorise it. */

static void DIRECT(const lehr_layer *layer, const void *source, void *target, void *scratch)
{
    const SOURCE *in = source;
    const WEIGHT *weight = layer->weights;
    SUM *sums = scratch;
    const int32_t channels = layer->channels / layer->groups, outs = layer->out_channels / layer->groups;
    const int32_t columns = layer->out_columns, stride = layer->stride_columns;
    const int32_t pooled_rows = layer->out_rows / layer->pool_rows, pooled_columns = columns / layer->pool_columns;

    if (layer->operation == LEHR_LINEAR) {
        for (int32_t out = 0; out < layer->out_channels; out++, weight += channels) {
            SUM sum = 0;
            for (int32_t c = 0; c < channels; c++)
                sum += (SUM)weight[c] * (SUM)in[c];
            FINISH(layer, out, &sum, 1, target, (size_t)out);
        }
        return;
    }
    for (int32_t out = 0; out < layer->out_channels; out++) {
        const SOURCE *group = in + (size_t)(out / outs * channels) * (size_t)layer->rows * (size_t)layer->columns;
        for (int32_t pooled = 0; pooled < pooled_rows; pooled++) {
            for (int32_t part = 0; part < layer->pool_rows; part++) {
                SUM *row = sums + (size_t)part * (size_t)columns;
                const int32_t top = (pooled * layer->pool_rows + part) * layer->stride_rows - layer->padding_rows;
                const WEIGHT *w = weight;
                for (int32_t x = 0; x < columns; x++)
                    row[x] = 0;
                for (int32_t c = 0; c < channels; c++) {
                    for (int32_t ky = 0; ky < layer->kernel_rows; ky++) {
                        const int32_t y = top + ky * layer->dilation_rows;
                        if (y < 0 || y >= layer->rows) {
                            w += layer->kernel_columns;
                            continue;
                        }
                        const SOURCE *line = group + ((size_t)c * (size_t)layer->rows + (size_t)y) * (size_t)layer->columns;
                        for (int32_t kx = 0; kx < layer->kernel_columns; kx++, w++) {
                            const SUM factor = (SUM)*w;
                            const int32_t left = kx * layer->dilation_columns - layer->padding_columns;
                            /* first..last: the outputs whose source column lies inside the row */
                            const int32_t first = left >= 0 ? 0 : (-left + stride - 1) / stride;
                            const int32_t room = layer->columns - 1 - left;
                            const int32_t end = room < 0 ? 0 : room / stride + 1;
                            const int32_t last = end < columns ? end : columns;
                            if (factor == 0)
                                continue;
                            if (stride == 1)
                                for (int32_t x = first; x < last; x++)
                                    row[x] += factor * (SUM)line[left + x];
                            else
                                for (int32_t x = first; x < last; x++)
                                    row[x] += factor * (SUM)line[left + x * stride];
                        }
                    }
                }
            }
            if (layer->pool_rows > 1 || layer->pool_columns > 1)
                for (int32_t x = 0; x < pooled_columns; x++) {
                    SUM most = sums[(size_t)x * (size_t)layer->pool_columns];
                    for (int32_t part = 0; part < layer->pool_rows; part++)
                        for (int32_t i = 0; i < layer->pool_columns; i++) {
                            const SUM sum = sums[part * columns + x * layer->pool_columns + i];
                            most = sum > most ? sum : most;
                        }
                    sums[x] = most;
                }
            FINISH(layer, out, sums, pooled_columns, target,
                   ((size_t)out * (size_t)pooled_rows + (size_t)pooled) * (size_t)pooled_columns);
        }
        weight += (size_t)channels * (size_t)layer->kernel_rows * (size_t)layer->kernel_columns;
    }
}

#undef DIRECT
#undef SOURCE
#undef WEIGHT
#undef SUM
#undef FINISH
