/** \file
 * What the files of the oneDNN wrapper share. Not for applications.
 */
#ifndef DISTILE_ONEDNN_ENGINE_H
#define DISTILE_ONEDNN_ENGINE_H

#include "bench/peers/onednn/onednn_conv2d.h"
#include <oneapi/dnnl/dnnl.hpp>

namespace distile {

struct OneDnnEngine::Impl {
    Impl() : engine(dnnl::engine::kind::cpu, 0), stream(engine) {
    }

    dnnl::engine engine;
    dnnl::stream stream;
};

}  // namespace distile

#endif
