#include "tests/support/operator_test.h"
#include "reference/tensors.h"
#include "tests/support/callers.h"
#include "tests/support/catch.h"
#include "tests/support/conv2d_cases.h"
#include "tests/support/pairwise.h"
#include "tests/support/reference.h"
#include "tests/support/test_tensor.h"
#include <algorithm>
#include <cstdint>
#include <distile/distile.hpp>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace distile {

namespace {

/** Rows and columns of the input. */
constexpr std::pair<int32_t, int32_t> sizes[] = {{17, 13}, {40, 40}, {1, 1}, {5, 64}, {65, 9}};

constexpr int32_t batches[] = {1, 3};

/** The values that the parameters of a case take, in the order of combine_pairwise(). */
enum Parameter {
    Variant,
    Size,
    Batch,
    Mask_,
    InputLayout,
    OutputLayout,
    Residual,
    Inactive,
    Store,
    Threads,
    Allocator,
    InputFlush,
    OutputFlush,
    Bias,
    NumParameters
};

constexpr int num_thread_modes = 4;
const char *const thread_modes[num_thread_modes] = {"1", "2", "5", "the caller's"};

/** A context with the kernel, kept for all cases with its threads and allocator, so that what is cached in it meets
 * other masks and shapes. */
struct Session {
    CallersPool pool;
    CallersAllocator allocator;
    distile_choice traced{};
    Context context;
    Kernel kernel;
    Mask mask;
    Weights weights[2][2];  // [Values][with bias]
};

class OperatorTest {
public:
    explicit OperatorTest(const distile_polykernel &polykernel, double zeros = 0, const char *cpu_features = nullptr,
                          int32_t sharing = 1, Kept kept = Kept::Anything)
        : polykernel_(polykernel), conv_(convolution_of(polykernel)), dtype_(type_of(polykernel)),
          cpu_features_(cpu_features) {
        for (Values values : {Values::Floats, Values::Integers}) {
            std::vector<float> &filter = filters_[static_cast<int>(values)];
            filter = distile::draw(values, filter_size(conv_), random_);
            if (zeros > 0) {
                prune(filter, zeros, sharing);
            }
            keep(filter, conv_.out_channels, kept);
            biases_[static_cast<int>(values)] = distile::draw(values, conv_.out_channels, random_);
        }
    }

    /** The sizes above are small enough for the runtime to put a border around inputs that lack one. On a large image
     * the code itself handles the edges. */
    void run_large() {
        set_layouts();
        sizes_ = {{81, 76}};
        layouts_.erase(
            std::remove_if(layouts_.begin(), layouts_.end(),
                           [](const NamedLayout &layout) {
                               const TensorLayout &its = layout.layout;
                               return its.border_top + its.border_bottom + its.border_left + its.border_right > 0 &&
                                      std::string(layout.name).find("only") == std::string::npos;
                           }),
            layouts_.end());
        std::vector<int> values(NumParameters, 0);
        values[Threads] = 1;
        for (values[Variant] = 0; values[Variant] < polykernel_.num_variants; values[Variant]++) {
            for (values[InputLayout] = 0; values[InputLayout] < static_cast<int>(layouts_.size());
                 values[InputLayout]++) {
                values[Mask_] = (values[Variant] + values[InputLayout]) % static_cast<int>(std::size(mask_names));
                run_case(values, Values::Floats);
            }
        }
    }

    void run() {
        for (auto size : sizes) {
            if (polykernel_.kind != DISTILE_MASKED_CONV2D && polykernel_.kind != DISTILE_MASKED_LINEAR) {
                // Their outputs are larger.
                size = {(size.first + 1) / 2, (size.second + 1) / 2};
            }
            if (reference_output_height(conv_, size.first, polykernel_.kind) > 0 &&
                reference_output_width(conv_, size.second, polykernel_.kind) > 0) {
                sizes_.push_back(size);
            }
        }
        set_layouts();
        std::vector<int> num_values(NumParameters, 2);
        // The last one is the dispatcher's own choice.
        num_values[Variant] = polykernel_.num_variants + 1;
        num_values[Size] = static_cast<int>(sizes_.size());
        num_values[Mask_] = static_cast<int>(std::size(mask_names));
        num_values[InputLayout] = static_cast<int>(layouts_.size());
        num_values[OutputLayout] = static_cast<int>(output_layouts_.size());
        // The last one is the output itself.
        num_values[Residual] = conv_.residual ? static_cast<int>(residual_layouts_.size()) + 1 : 1;
        num_values[Threads] = num_thread_modes;
        for (const std::vector<int> &values : combine_pairwise(num_values, random_)) {
            run_case(values, Values::Floats);
            // Integers are exact whatever the order of the sums.
            if (keeps_integers(conv_.epilogue)) {
                run_case(values, Values::Integers);
            }
        }
        for (auto &[key, session] : sessions_) {
            session->mask.reset();
            session->kernel.reset();
            session->context.reset();
            INFO(polykernel_.name << ", threads: " << thread_modes[key.first]);
            // The weights outlive the context.
            CHECK((session->allocator.blocks_in_use() > 0) == (key.second == 1));
            for (auto &weights : session->weights) {
                weights[0].reset();
                weights[1].reset();
            }
            CHECK(session->allocator.blocks_in_use() == 0);
            CHECK(session->allocator.mistakes() == 0);
        }
    }

private:
    /** Output channels that share zeros do not stand side by side, and each has some of its own. */
    void prune(std::vector<float> &filter, double zeros, int32_t sharing) {
        std::bernoulli_distribution is_zero(zeros), is_zero_alone(sharing > 1 ? .05 : 0);
        const size_t outputs = conv_.out_channels, groups = (outputs + sharing - 1) / sharing;
        std::vector<char> zero(groups);
        for (size_t i = 0; i < filter.size(); i++) {
            const size_t output = i % outputs;
            if (output < groups) {
                zero[output] = is_zero(random_) ? 1 : 0;
            }
            if (zero[output % groups] != 0 || (sharing > 1 && is_zero_alone(random_))) {
                filter[i] = 0;
            }
        }
    }
    void set_layouts() {
        distile_conv2d bordered = conv_;
        const Border border = padding_of(conv_, polykernel_.kind);
        bordered.pad_top = border.top;
        bordered.pad_bottom = border.bottom;
        bordered.pad_left = border.left;
        bordered.pad_right = border.right;
        layouts_ = input_layouts(bordered);
        output_layouts_ = output_layouts(conv_);
        residual_layouts_ = residual_layouts(conv_);
    }

    Session &session_for(int threads, int allocator) {
        std::unique_ptr<Session> &session = sessions_[{threads, allocator}];
        if (!session) {
            session = std::make_unique<Session>();
            distile_context_options options{};
            options.cpu_features = cpu_features_;
            const int32_t numbers[] = {1, 2, 5};
            if (threads < 3) {
                options.threads = numbers[threads];
            } else {
                session->pool.use_in(options);
            }
            if (allocator == 1) {
                session->allocator.use_in(options);
            }
            options.trace = [](void *user, const distile_choice *choice) {
                *static_cast<distile_choice *>(user) = *choice;
            };
            options.trace_user = &session->traced;
            session->context = make_context(options);
            session->kernel = make_kernel(session->context, polykernel_);
            session->mask = make_mask_object(session->context);
            for (int values = 0; values < 2; values++) {
                for (int bias = 0; bias < 2; bias++) {
                    distile_weights_source source{};
                    source.filter = filters_[values].data();
                    source.order = DISTILE_HWIO;
                    source.bias = bias ? biases_[values].data() : nullptr;
                    source.slope = &tested_slope;
                    session->weights[values][bias] = pack_weights(session->context, session->kernel, source);
                }
            }
        }
        return *session;
    }

    static Mask make_mask_object(const Context &context) {
        return distile::make_mask(context);
    }

    const char *residual_name(size_t value) const {
        return !conv_.residual                    ? "none"
               : value < residual_layouts_.size() ? residual_layouts_[value].name
                                                  : "the output itself";
    }

    std::string describe(const std::vector<int> &values, Values kind, const char *variant) const {
        std::ostringstream text;
        text << polykernel_.name << ", variant " << (values[Variant] == polykernel_.num_variants ? "automatic: " : "")
             << variant << ", input of " << sizes_[values[Size]].first << " x " << sizes_[values[Size]].second
             << ", batch " << batches[values[Batch]] << ", mask: " << mask_names[values[Mask_]]
             << ", input: " << layouts_[values[InputLayout]].name
             << ", output: " << output_layouts_[values[OutputLayout]].name
             << ", residual: " << residual_name(values[Residual]) << ", " << (values[Inactive] ? "zero" : "keep")
             << ", " << (values[Store] ? "tiles" : "exact") << ", threads: " << thread_modes[values[Threads]]
             << ", allocator: " << (values[Allocator] ? "the caller's" : "own") << ", guard "
             << (values[InputFlush] ? "behind" : "before") << " the input and "
             << (values[OutputFlush] ? "behind" : "before") << " the output, " << (values[Bias] ? "bias" : "no bias")
             << ", " << (kind == Values::Floats ? "floats" : "integers");
        return text.str();
    }

    void run_case(const std::vector<int> &values, Values kind) {
        const auto [in_height, in_width] = sizes_[values[Size]];
        const int32_t batch = batches[values[Batch]];
        const int32_t height = reference_output_height(conv_, in_height, polykernel_.kind);
        const int32_t width = reference_output_width(conv_, in_width, polykernel_.kind);
        const Flush input_flush = values[InputFlush] ? Flush::Back : Flush::Front;
        const Flush output_flush = values[OutputFlush] ? Flush::Back : Flush::Front;
        Session &session = session_for(values[Threads], values[Allocator]);

        TestTensor input(batch, in_height, in_width, conv_.in_channels, layouts_[values[InputLayout]].layout,
                         input_flush, dtype_);
        input.draw(kind, random_);
        TestTensor output(batch, height, width, conv_.out_channels, output_layouts_[values[OutputLayout]].layout,
                          output_flush, dtype_);
        std::unique_ptr<TestTensor> own_residual;
        const distile_tensor *residual = nullptr;
        if (conv_.residual && values[Residual] == static_cast<int>(residual_layouts_.size())) {
            output.draw(kind, random_);
            residual = &output.view();
        } else if (conv_.residual) {
            own_residual =
                std::make_unique<TestTensor>(batch, height, width, conv_.out_channels,
                                             residual_layouts_[values[Residual]].layout, input_flush, dtype_);
            own_residual->draw(kind, random_);
            residual = &own_residual->view();
        }

        ReferenceArgs reference;
        reference.slope = tested_slope;
        set_operator(reference, polykernel_);
        reference.input = input.view();
        reference.filter = filters_[static_cast<int>(kind)];
        if (values[Bias]) {
            reference.bias = biases_[static_cast<int>(kind)];
        }
        reference.residual = residual;
        reference.mask = make_mask(mask_names[values[Mask_]], batch, height, width, random_);
        reference.inactive = static_cast<distile_inactive>(values[Inactive]);
        reference.store = static_cast<distile_store>(values[Store]);

        REQUIRE(distile_mask_set_bytes(session.mask.get(), reference.mask.data(), batch, height, width,
                                       int64_t{height} * width, width) == DISTILE_OK);
        distile_choice choice{};
        REQUIRE(distile_kernel_choose(session.kernel.get(), session.mask.get(), &choice) == DISTILE_OK);
        const bool automatic = values[Variant] == polykernel_.num_variants;
        const int32_t index = automatic ? choice.variant_index : values[Variant];
        const distile_variant &variant = polykernel_.variants[index];
        INFO(describe(values, kind, variant.name));
        reference.tile_h = variant.tile_h;
        reference.tile_w = variant.tile_w;
        reference.dense = variant.dense != 0;
        ReferenceOutput expected = reference_masked_conv2d(reference);

        distile_run_args args{};
        args.input = &input.view();
        args.residual = residual;
        args.output = &output.view();
        args.weights = session.weights[static_cast<int>(kind)][values[Bias]].get();
        args.mask = session.mask.get();
        args.inactive = reference.inactive;
        args.store = reference.store;
        args.variant = automatic ? nullptr : variant.name;
        const auto input_before = input.snapshot(), output_before = output.snapshot();
        const auto residual_before = own_residual ? own_residual->snapshot() : std::vector<uint32_t>();
        session.traced = {};
        const distile_status status = distile_run(session.kernel.get(), &args);
        INFO(distile_context_message(session.context.get()));
        REQUIRE(status == DISTILE_OK);

        if (args.residual == args.output && args.inactive == DISTILE_ZERO && args.store == DISTILE_STORE_TILES) {
            forget_inactive(expected, reference.mask, output);
        }
        REQUIRE((kind == Values::Floats ? output.difference(output_before, expected)
                                        : output.difference(output_before, expected, 0)) == "");
        REQUIRE(input.snapshot() == input_before);
        REQUIRE((!own_residual || own_residual->snapshot() == residual_before));

        const std::vector<uint8_t> all(reference.mask.size(), 1);
        REQUIRE(session.traced.variant_index == index);
        REQUIRE(session.traced.tiles == reference_active_tiles(variant.dense ? all : reference.mask, batch, height,
                                                               width, variant.tile_h, variant.tile_w));
        REQUIRE(session.traced.active_pixels == std::count_if(reference.mask.begin(), reference.mask.end(),
                                                              [](uint8_t active) { return active != 0; }));
    }

    const distile_polykernel &polykernel_;
    const distile_conv2d conv_;
    const distile_dtype dtype_;
    const char *const cpu_features_;
    std::mt19937 random_{1};
    std::vector<float> filters_[2], biases_[2];
    std::vector<std::pair<int32_t, int32_t>> sizes_;
    std::vector<NamedLayout> layouts_, output_layouts_, residual_layouts_;
    std::map<std::pair<int, int>, std::unique_ptr<Session>> sessions_;
};

/** Runs every variant on a call. */
void check_call(const Context &context, const Kernel &kernel, const Mask &mask, const SpecialCalls &calls,
                const SpecialCall &call) {
    INFO(call.name);
    distile_weights_source source{};
    source.filter = call.filter.data();
    source.order = DISTILE_HWIO;
    source.bias = call.bias.data();
    const Weights weights = pack_weights(context, kernel, source);
    for (int32_t i = 0; i < distile_kernel_num_variants(kernel.get()); i++) {
        TestTensor output = calls.output();
        const auto before = output.snapshot();
        distile_run_args args{};
        args.input = &call.input->view();
        args.residual = call.residual ? &call.residual->view() : nullptr;
        args.output = &output.view();
        args.weights = weights.get();
        args.mask = mask.get();
        args.variant = distile_kernel_variant_name(kernel.get(), i);
        INFO("variant " << args.variant);
        check(context, distile_run(kernel.get(), &args));
        CHECK(output.difference(before, call.expected) == "");
    }
}

}  // namespace

bool can_run_or_warn(const distile_polykernel &polykernel) {
    const Context context = make_context();
    distile_kernel *kernel = nullptr;
    const distile_status status = distile_kernel_create(context.get(), &polykernel, &kernel);
    const Kernel owned(kernel);
    if (status == DISTILE_ERROR_UNSUPPORTED_DEVICE) {
        WARN("skipped: " << distile_context_message(context.get()));
        return false;
    }
    REQUIRE(status == DISTILE_OK);
    distile_kernel_info info{};
    REQUIRE(distile_kernel_get_info(kernel, &info) == DISTILE_OK);
    return info.name == polykernel.name;
}

void test_operator(const distile_polykernel &polykernel, double zeros, const char *cpu_features, int32_t sharing,
                   Kept kept) {
    OperatorTest(polykernel, zeros, cpu_features, sharing, kept).run();
}

void test_large_edges(const distile_polykernel &polykernel) {
    OperatorTest(polykernel).run_large();
}

ValueClasses check_special_values(const Context &context, const Kernel &kernel, const SpecialCalls &calls) {
    const Mask mask = make_mask(context);
    check(context, distile_mask_set_bytes(mask.get(), calls.mask().data(), 1, calls.height(), calls.width(),
                                          int64_t{calls.height()} * calls.width(), calls.width()));
    return calls.visit([&](const SpecialCall &call) { check_call(context, kernel, mask, calls, call); });
}

}  // namespace distile
