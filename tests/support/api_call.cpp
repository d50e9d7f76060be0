#include "tests/support/api_call.h"
#include "tests/support/catch.h"
#include <algorithm>

namespace distile {

Call::Call(const distile_polykernel &polykernel, const distile_context_options &options, int32_t batch, int32_t height,
           int32_t width)
    : conv(convolution_of(polykernel)), context(make_context(options)), kernel(make_kernel(context, polykernel)),
      mask(make_mask(context)), input(batch, height, width, conv.in_channels),
      output(batch, reference_output_height(conv, height), reference_output_width(conv, width), conv.out_channels),
      residual(batch, output.view().height, output.view().width, conv.out_channels), input_view(input.view()),
      output_view(output.view()), residual_view(residual.view()) {
    input.draw(Values::Integers, random);
    residual.draw(Values::Integers, random);
    set_operator(reference, polykernel);
    reference.input = input_view;
    reference.filter = draw(Values::Integers, filter_size(conv), random);
    reference.bias = draw(Values::Integers, conv.out_channels, random);
    distile_weights_source source{};
    source.filter = reference.filter.data();
    source.order = DISTILE_HWIO;
    source.bias = reference.bias.data();
    weights = pack_weights(context, kernel, source);
    reference.mask.resize(size_t(output_view.batch) * output_view.height * output_view.width);
    std::generate(reference.mask.begin(), reference.mask.end(), [&] { return uint8_t(random() % 2); });
    set_mask();
    args.input = &input_view;
    args.output = &output_view;
    if (conv.residual) {
        args.residual = &residual_view;
        reference.residual = &residual_view;
    }
    args.weights = weights.get();
    args.mask = mask.get();
}

void Call::set_mask() {
    REQUIRE(distile_mask_set_bytes(mask.get(), reference.mask.data(), output_view.batch, output_view.height,
                                   output_view.width, int64_t{output_view.height} * output_view.width,
                                   output_view.width) == DISTILE_OK);
}

std::string Call::message() const {
    return distile_context_message(context.get());
}

void Call::refuse(distile_status status, const std::vector<std::string> &words) {
    const auto before = output.snapshot();
    CHECK(std::string(distile_status_name(distile_run(kernel.get(), &args))) == distile_status_name(status));
    for (const std::string &word : words) {
        INFO("the message is: " << message());
        CHECK(contains(message(), word));
    }
    CHECK(output.snapshot() == before);
}

void Call::accept() {
    distile_choice choice{};
    REQUIRE(distile_kernel_choose(kernel.get(), mask.get(), &choice) == DISTILE_OK);
    reference.tile_h = choice.tile_h;
    reference.tile_w = choice.tile_w;
    reference.dense = choice.dense != 0;
    reference.inactive = args.inactive;
    reference.store = args.store;
    reference.residual = args.residual;
    const ReferenceOutput expected = reference_masked_conv2d(reference);
    const auto before = output.snapshot();
    const distile_status status = distile_run(kernel.get(), &args);
    INFO("the message is: " << message());
    REQUIRE(status == DISTILE_OK);
    REQUIRE(output.difference(before, expected, 0) == "");
}

void Call::accept_variant(const char *name) {
    args.variant = name;
    const int32_t count = distile_kernel_num_variants(kernel.get());
    for (int32_t i = 0; i < count; i++) {
        if (std::string(distile_kernel_variant_name(kernel.get(), i)) == name) {
            accept();
        }
    }
    args.variant = nullptr;
}

distile_choice choose(const Call &call) {
    distile_choice choice{};
    REQUIRE(distile_kernel_choose(call.kernel.get(), call.mask.get(), &choice) == DISTILE_OK);
    return choice;
}

void activate_first(Call &call, size_t pixels) {
    std::fill(call.reference.mask.begin(), call.reference.mask.end(), uint8_t{0});
    std::fill_n(call.reference.mask.begin(), pixels, uint8_t{1});
    call.set_mask();
}

}  // namespace distile
