#include "gpu_layer.h"
#include <stdexcept>

namespace distile {

struct GpuLayer::State {};

GpuLayer::GpuLayer(const Layer & /*layer*/) {
    throw std::runtime_error("this program was built without a CUDA toolkit");
}

GpuLayer::~GpuLayer() = default;

std::string GpuLayer::device() const {
    return "";
}

GpuTimes GpuLayer::measure(const ByteMask & /*bytes*/) {
    return {};
}

}  // namespace distile
