// Code for dot products in several threads: to the bit, it writes what one thread writes. ThreadSanitizer sees this
// code, and what it shares.
#include "kernels/cpu/matrix_tiles.h"
#include "kernels/dot_products.h"
#include "tests/support/callers.h"
#include "tests/support/catch.h"
#include "tests/support/cpu_features_of.h"
#include "tests/support/dot_product_kernel.h"
#include "tests/support/emulated_tiles.h"
#include "tests/support/reference.h"
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <distile/distile.hpp>
#include <distile/polykernel.h>
#include <distile/quantize.h>
#include <random>
#include <string>
#include <thread>
#include <vector>

using namespace distile;

namespace {

template<class Tiles> int call_emulated_tiles(const distile_dot_product_code *code, const distile_kernel_call *call) {
    return dot_product::Product<dot_product::Steps<dot_product::TileSet<Tiles>>>(*code, *call).run();
}

/** Instructions and the type of what they multiply. */
struct TypedSet : InstructionSet {
    distile_dtype dtype;
    bool skips_zeros = false;

    const char *layout() const {
        const bool quantized = dtype == DISTILE_UINT8;
        return skips_zeros ? (quantized ? "cpu-nonzero-quads" : "cpu-nonzeros") : quantized ? "cpu-k64" : "cpu-k32";
    }
};

constexpr TypedSet tiles(const char *name, const char *features, DotProductCall call, distile_dtype dtype) {
    return {{name, features, call, {{32, 32}, {16, 32}, {32, 16}}, false}, dtype};
}

const TypedSet instruction_sets[] = {
    tiles("tiles of bfloat16", "", call_emulated_tiles<EmulatedBfloat16Tiles>, DISTILE_BFLOAT16),
    tiles("tiles of int8", "", call_emulated_tiles<EmulatedInt8Tiles>, DISTILE_UINT8),
    {{"portable_int8", "", distile_call_portable_int8, {{4, 16}, {2, 32}, {1, 48}}}, DISTILE_UINT8},
#ifdef DISTILE_TEST_avx512_bf16
    {{"avx512_bf16",
      "avx512bw avx512dq avx512vl avx512_bf16",
      distile_call_avx512_bf16,
      {{14, 32}, {5, 64}, {9, 48}},
      false},
     DISTILE_BFLOAT16},
    tiles("amx_bf16", "avx512bw avx512dq avx512vl amx_bf16", distile_call_amx_bf16, DISTILE_BFLOAT16),
    tiles("amx_int8", "avx512bw avx512dq avx512vl amx_int8", distile_call_amx_int8, DISTILE_UINT8),
    {{"avx512_vnni", "avx512bw avx512dq avx512vl avx512_vnni", distile_call_avx512_vnni, {{14, 32}, {5, 64}, {9, 48}}},
     DISTILE_UINT8},
    {{"avx2_int8", "avx2", distile_call_avx2_int8, {{4, 16}, {2, 32}, {1, 64}}}, DISTILE_UINT8},
#endif
    {{"portable_int8_nonzeros",
      "",
      distile_call_portable_int8_nonzeros,
      {{16, 64}, {48, 64}, {32, 64}},
      false,
      DISTILE_CPU,
      {{4, 4}, {1, 1}, {2, 3}}},
     DISTILE_UINT8,
     true},
    {{"portable_nonzeros",
      "",
      distile_call_portable_nonzeros,
      {{16, 64}, {48, 64}, {32, 64}},
      false,
      DISTILE_CPU,
      {{4, 4}, {1, 1}, {2, 3}}},
     DISTILE_FLOAT32,
     true},
};

constexpr int32_t height = 11, width = 13, channels = 48;

const struct {
    const char *name;
    distile_operator_kind kind;
    distile_conv2d conv;
} operators[] = {
    {"3x3", DISTILE_MASKED_CONV2D, {24, channels, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, DISTILE_ACTIVATION_RELU, 0}},
    {"transposed",
     DISTILE_MASKED_CONV_TRANSPOSE2D,
     {8, channels, 1, 4, 4, 2, 2, 1, 1, 1, 1, 1, 1, DISTILE_ACTIVATION_NONE, 0}},
    {"depthwise",
     DISTILE_MASKED_CONV2D,
     {channels, channels, channels, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, DISTILE_ACTIVATION_NONE, 0}},
};

DotProductOperator operator_of(const distile_operator_kind kind, const distile_conv2d &conv, const TypedSet &set) {
    const distile_dtype dtype = set.dtype;
    const bool quantized = dtype == DISTILE_UINT8;
    std::vector<distile_operand> operands = {{DISTILE_ROLE_INPUT, dtype, conv.in_channels},
                                             {DISTILE_ROLE_WEIGHTS, quantized ? DISTILE_INT8 : DISTILE_FLOAT32, 0},
                                             {DISTILE_ROLE_BIAS, DISTILE_FLOAT32, 0}};
    if (quantized) {
        operands.push_back({DISTILE_ROLE_REQUANTIZATION, DISTILE_FLOAT32, 0});
    }
    return {kind, conv, dtype, set.layout(), operands};
}

/** Weights and an input, which every thread reads. */
class Layer {
public:
    Layer(const distile_polykernel &polykernel, const distile_conv2d &conv, distile_dtype dtype, distile_dtype filter,
          std::mt19937 &random)
        : polykernel_(polykernel), conv_(conv), dtype_(dtype) {
        input_.resize(static_cast<size_t>(height) * width * conv.in_channels * distile_dtype_size(dtype));
        for (uint8_t &byte : input_) {
            byte = static_cast<uint8_t>(random());
        }
        const auto bytes_of_number = static_cast<size_t>(distile_dtype_size(dtype));
        for (size_t i = bytes_of_number - 1; bytes_of_number > 1 && i < input_.size(); i += bytes_of_number) {
            input_[i] = 0x3f | (input_[i] & 0x80);  // Numbers below 2.
        }
        const size_t weights = filter_size(conv);
        const std::vector<float> floats = draw(Values::Floats, weights, random);
        std::vector<int8_t> bytes(weights);
        std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<int8_t>(random()); });
        const std::vector<float> scales(conv.out_channels, 1.0f / 128);
        distile_quantization numbers{};
        numbers.input = {.0625f, 120};
        numbers.filter_scales = scales.data();
        numbers.output = {.5f, 90};
        distile_weights_source source{};
        source.filter = floats.data();
        source.order = DISTILE_HWIO;
        if (dtype == DISTILE_UINT8) {
            source.filter = bytes.data();
            source.dtype = filter;
            source.quantization = &numbers;
        }
        const Context context = make_context({});
        weights_ = pack_weights(context, make_kernel(context, polykernel), source);
    }

    /** What a variant writes, with everything but the weights and the input its own. */
    std::vector<uint8_t> run(const distile_context_options &options, const std::vector<uint8_t> &active,
                             int32_t out_height, int32_t out_width, int32_t variant) const {
        const Context context = make_context(options);
        const Kernel kernel = make_kernel(context, polykernel_);
        const Mask mask = make_mask(context);
        check(context, distile_mask_set_bytes(mask.get(), active.data(), 1, out_height, out_width,
                                              int64_t{out_height} * out_width, out_width));
        std::vector<uint8_t> result(active.size() * conv_.out_channels * distile_dtype_size(dtype_), 0xa5);
        // The library only reads it.
        distile_tensor input =
            distile_tensor_make(const_cast<uint8_t *>(input_.data()), 1, height, width, conv_.in_channels);
        distile_tensor output = distile_tensor_make(result.data(), 1, out_height, out_width, conv_.out_channels);
        input.dtype = output.dtype = dtype_;
        distile_run_args args{};
        args.input = &input;
        args.output = &output;
        args.weights = weights_.get();
        args.mask = mask.get();
        check(context, distile_run_variant(kernel.get(), variant, &args));
        return result;
    }

private:
    const distile_polykernel &polykernel_;
    distile_conv2d conv_;
    distile_dtype dtype_;
    std::vector<uint8_t> input_;
    Weights weights_;
};

distile_context_options with_threads(int32_t threads) {
    distile_context_options options{};
    options.threads = threads;
    return options;
}

/** All variants, with few pixels, whose output channels the threads divide, and with many. */
void check_threads(const Layer &layer, int32_t out_height, int32_t out_width, std::mt19937 &random) {
    for (const int32_t percent : {2, 40, 100}) {
        std::vector<uint8_t> active(static_cast<size_t>(out_height) * out_width);
        std::generate(active.begin(), active.end(),
                      [&] { return static_cast<uint8_t>(static_cast<int32_t>(random() % 100) < percent); });
        active.back() = 1;
        for (int32_t variant = 0; variant < InstructionSet::num_variants; variant++) {
            INFO("variant " << variant << ", " << percent << " % of the pixels");
            const auto run = [&](const distile_context_options &options) {
                return layer.run(options, active, out_height, out_width, variant);
            };
            const std::vector<uint8_t> due = run(with_threads(1));
            CHECK(run(with_threads(4)) == due);
            CallersPool pool;
            distile_context_options options{};
            pool.use_in(options);
            CHECK(run(options) == due);
            // Contexts in several threads share the weights.
            std::vector<uint8_t> results[3];
            std::vector<std::thread> threads;
            for (std::vector<uint8_t> &result : results) {
                threads.emplace_back([&] { result = run(with_threads(2)); });
            }
            for (std::thread &thread : threads) {
                thread.join();
            }
            for (const std::vector<uint8_t> &result : results) {
                CHECK(result == due);
            }
        }
    }
}

}  // namespace

TEST_CASE("Dot products in several threads give what one thread gives", "[dot_product_threads]") {
    std::mt19937 random(8);
    for (const TypedSet &set : instruction_sets) {
        for (const auto &[name, kind, conv] : operators) {
            const bool depthwise = conv.groups > 1, quantized = set.dtype == DISTILE_UINT8;
            const DotProductKernel kernel(set, operator_of(kind, conv, set));
            const bool transposed = kind == DISTILE_MASKED_CONV_TRANSPOSE2D;
            const bool has_code = (!depthwise || set.depthwise) && (!transposed || !set.skips_zeros);
            if (!has_code || !can_run(kernel.polykernel())) {
                continue;
            }
            const int32_t scale = transposed ? 2 : 1;
            for (const distile_dtype filter : {DISTILE_INT8, DISTILE_INT4}) {
                // Filters of 4 bits differ in what a task unpacks: one operator shows it.
                if (filter == DISTILE_INT4 && (!quantized || depthwise || transposed)) {
                    continue;
                }
                INFO(set.name << ", " << name << (filter == DISTILE_INT4 ? ", filter of 4 bits" : ""));
                const Layer layer(kernel.polykernel(), conv, set.dtype, filter, random);
                check_threads(layer, scale * height, scale * width, random);
            }
        }
    }
}
