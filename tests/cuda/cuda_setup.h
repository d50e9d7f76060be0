/** \file
 * An operator with all that a call takes, on any driver.
 */
#ifndef DISTILE_TESTS_CUDA_SETUP_H
#define DISTILE_TESTS_CUDA_SETUP_H

#include "gpu_polykernels.h"
#include "tests/cuda/fake_session.h"
#include "tests/cuda/gpu_session.h"
#include "tests/support/reference.h"
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace distile {

/** Options of a context that may multiply as a PolyKernel does, and writes what a call did. */
inline distile_context_options allowing(const distile_polykernel &polykernel, distile_choice &traced) {
    distile_context_options options = tracing(traced);
    options.math = polykernel.math;
    return options;
}

/** A GPU and a kernel with all that a call takes, on any driver. */
struct Setup {
    explicit Setup(const distile_polykernel &polykernel = test_odd_cuda, int32_t batch = 2, int32_t height = 11,
                   int32_t width = 9, const distile_cuda_options &options = {})
        : polykernel(&polykernel), conv(convolution_of(polykernel)),
          context(make_cuda_context(options, allowing(polykernel, traced))), kernel(make_kernel(context, polykernel)),
          mask(make_mask(context)), out_height(reference_output_height(conv, height, polykernel.kind)),
          out_width(reference_output_width(conv, width, polykernel.kind)),
          num_pixels(static_cast<size_t>(batch) * out_height * out_width) {
        std::mt19937 random(4);
        const auto draw = [&](size_t count) {
            std::vector<float> values(count);
            for (float &value : values) {
                value = std::uniform_real_distribution<float>(-1, 1)(random);
            }
            return values;
        };
        set_operator(reference, polykernel);
        reference.filter = draw(filter_size(conv));
        reference.bias = draw(conv.out_channels);
        input_values = draw(static_cast<size_t>(batch) * height * width * conv.in_channels);
        residual_values = draw(num_pixels * conv.out_channels);
        source.filter = reference.filter.data();
        source.order = DISTILE_HWIO;
        source.bias = reference.bias.data();
        weights = pack_weights(context, kernel, source);
        input_memory = std::make_unique<DeviceArray<float>>(input_values.size());
        output_memory = std::make_unique<DeviceArray<float>>(residual_values.size());
        residual_memory = std::make_unique<DeviceArray<float>>(residual_values.size());
        mask_memory = std::make_unique<DeviceArray<uint8_t>>(num_pixels);
        input = distile_tensor_make(input_memory->data(), batch, height, width, conv.in_channels);
        output = distile_tensor_make(output_memory->data(), batch, out_height, out_width, conv.out_channels);
        input.dtype = output.dtype = type_of(polykernel);
        residual = output;
        residual.data = residual_memory->data();
        args.input = &input;
        args.output = &output;
        args.residual = conv.residual != 0 ? &residual : nullptr;
        args.weights = weights.get();
        args.mask = mask.get();
    }

    void set_mask() const {
        check(context, distile_mask_set_bytes(mask.get(), mask_memory->data(), output.batch, out_height, out_width,
                                              int64_t{out_height} * out_width, out_width));
    }
    void run() const {
        check(context, distile_run(kernel.get(), &args));
    }
    std::string message() const {
        return distile_context_message(context.get());
    }
    /** A call returns a status, and its message has some words. */
    void refuse(distile_status status, distile_status due, const std::vector<std::string> &words) const {
        CHECK(name_of(status) == name_of(due));
        for (const std::string &word : words) {
            INFO("the message is: " << message());
            CHECK(contains(message(), word));
        }
    }
    void refuse_run(distile_status due, const std::vector<std::string> &words) const {
        refuse(distile_run(kernel.get(), &args), due, words);
    }

    const distile_polykernel *polykernel;
    distile_conv2d conv;
    distile_choice traced{};  // What the last call did.
    Context context;
    Kernel kernel;
    Mask mask;
    Weights weights;
    int32_t out_height, out_width;
    size_t num_pixels;
    ReferenceArgs reference;
    std::vector<float> input_values, residual_values;
    distile_weights_source source{};
    std::unique_ptr<DeviceArray<float>> input_memory, output_memory, residual_memory;
    std::unique_ptr<DeviceArray<uint8_t>> mask_memory;
    distile_tensor input{}, output{}, residual{};
    distile_run_args args{};
};

inline std::vector<std::string> variants_of(const Setup &setup) {
    const distile_kernel *kernel = setup.kernel.get();
    std::vector<std::string> names;
    names.reserve(distile_kernel_num_variants(kernel));
    for (int32_t i = 0; i < distile_kernel_num_variants(kernel); i++) {
        names.emplace_back(distile_kernel_variant_name(kernel, i));
    }
    return names;
}

/** A dense candidate that tells where it should write. */
inline int write_nothing(void *user, void *, const distile_run_args *given) {
    *static_cast<const void **>(user) = given->output->data;
    return 0;
}

}  // namespace distile

#endif
