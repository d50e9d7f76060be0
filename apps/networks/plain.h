/** \file
 * Every layer as plain loops in double precision, at the active pixels. `active` has one byte for each pixel of the
 * output.
 */
#ifndef DISTILE_NETWORKS_PLAIN_H
#define DISTILE_NETWORKS_PLAIN_H

#include "engine.h"

namespace distile::networks::plain {

using Bytes = std::vector<uint8_t>;

void run(const Layer &layer, const Tensor &input, const Tensor &output, const Bytes &active, const Tensor *residual,
         int32_t threads);
void attend(const Layer &layer, const Tensor &query, const Tensor &key, const Tensor &value, const Tensor &output,
            const Bytes &active, int32_t threads);
void normalize(const Norm &norm, const Tensor &input, const Tensor &output, const Bytes &active);
void max_pool(const Tensor &input, const Tensor &output, int32_t kernel, int32_t stride, int32_t padding);
void mean_of_pixels(const Tensor &input, const Tensor &output);
void copy(const Tensor &input, const Tensor &output, const Bytes &active, distile_activation activation);

/** The layer's filter [output channel][input channel][row][column] and bias. */
struct Drawn {
    std::vector<float> filter, bias;
    distile_weights_source source() const;
};
Drawn draw_weights(const Layer &layer);

}  // namespace distile::networks::plain

#endif
