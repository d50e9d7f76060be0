#include "onednn_dense.h"
#ifdef DISTILE_HAS_ONEDNN
#include "bench/peers/onednn/onednn_conv2d.h"
#include <stdexcept>
#endif

namespace distile {

#ifdef DISTILE_HAS_ONEDNN

VendorDense make_onednn_dense(const Layer &layer) {
    struct State {
        explicit State(const Layer &layer)
            : convolution(OneDnnEngine(), layer.conv2d(), layer.weights_source()), input(layer.input),
              output(1, layer.height, layer.width, layer.output.channels) {
        }
        OneDnnConv2d convolution;
        distile_tensor input;
        BorderedTensor output;
    };
    // Shared, because a std::function must be copyable.
    const auto state = std::make_shared<State>(layer);

    VendorDense dense;
    dense.run = [state] { state->convolution.run(state->input, nullptr, state->output.view()); };
    dense.run();
    if (!(layer.error_of(state->output.memory().data()) < largest_fair_error)) {
        throw std::runtime_error("its result differs from the plain loop's");
    }
    dense.name = "oneDNN " + OneDnnEngine::version() + ", " +
                 state->convolution.implementation(state->input, nullptr, state->output.view());
    return dense;
}

#else

VendorDense make_onednn_dense(const Layer & /*layer*/) {
    return {};
}

#endif

}  // namespace distile
