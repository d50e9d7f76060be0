#include "runtime/kinds/weight_layout.h"
#include "facts/channel_blocks.h"
#include "runtime/kinds/operator_kind.h"
#include <cstring>

namespace distile {

namespace {

const WeightLayout layouts[] = {
    {"cpu-o16", WeightOrder::ChannelBlocks, DISTILE_CPU_CHANNEL_BLOCK, DISTILE_ROLE_WEIGHTS},
    {"cpu-k32", WeightOrder::DotProduct, 32, DISTILE_ROLE_INPUT},
    {"cpu-k64", WeightOrder::QuantizedDotProduct, 64, DISTILE_ROLE_WEIGHTS, true},
    {"cuda-o32", WeightOrder::ChannelBlocks, DISTILE_CUDA_CHANNEL_BLOCK, DISTILE_ROLE_WEIGHTS, false,
     GroupReaders::Threads},
    {"opencl-o32", WeightOrder::ChannelBlocks, DISTILE_OPENCL_CHANNEL_BLOCK, DISTILE_ROLE_WEIGHTS, false,
     GroupReaders::Threads},
    {"cuda-k64", WeightOrder::QuantizedDotProduct, 64, DISTILE_ROLE_WEIGHTS},
    {"cuda-k8", WeightOrder::QuantizedTensorCore, 128, DISTILE_ROLE_WEIGHTS},
    // On tensor cores, 16-bit types multiply the input's type, float32 multiplies TF32.
    {"cuda-k16", WeightOrder::TensorCore, 64, DISTILE_ROLE_INPUT},
    {"cuda-k32", WeightOrder::TensorCore, 32, DISTILE_ROLE_WEIGHTS}};

}  // namespace

const WeightLayout *find_layout(const char *name) {
    for (const WeightLayout &known : layouts) {
        if (std::strcmp(known.name, name) == 0) {
            return &known;
        }
    }
    return nullptr;
}

distile_dtype stored_type(const WeightLayout &layout, const distile_polykernel &polykernel, distile_role role) {
    return find_operand(polykernel, role == DISTILE_ROLE_WEIGHTS ? layout.type_of : role)->dtype;
}

}  // namespace distile
