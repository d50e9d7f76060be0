#include "onednn_dense.h"
#ifdef DISTILE_HAS_ONEDNN
#include <onednn_conv2d.h>
#include <stdexcept>
#endif

namespace distile {

#ifdef DISTILE_HAS_ONEDNN

VendorDense make_onednn_dense(const Layer &layer) {
    struct State {
        OneDnnConv2d convolution;
        distile_tensor input, output;
        Floats memory;
    };
    distile_weights_source weights{};
    weights.filter = layer.filter.data();
    weights.order = DISTILE_OIHW;
    weights.bias = layer.bias.data();
    // Shared, because a std::function must be one that can be copied.
    const auto state = std::make_shared<State>(State{OneDnnConv2d(OneDnnEngine(), layer.conv2d(), weights), layer.input,
                                                     layer.output, Floats(layer.pixels() * layer.output.channels)});
    state->output.data = state->memory.get();

    VendorDense dense;
    dense.run = [state] { state->convolution.run(state->input, nullptr, state->output); };
    dense.run();
    if (!(layer.error_of(state->memory.get()) < largest_fair_error)) {
        throw std::runtime_error("its result differs from that of the plain loop");
    }
    dense.name = "oneDNN " + OneDnnEngine::version() + ", " +
                 state->convolution.implementation(state->input, nullptr, state->output);
    return dense;
}

#else

VendorDense make_onednn_dense(const Layer & /*layer*/) {
    return {};
}

#endif

}  // namespace distile
