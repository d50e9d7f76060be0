// Operators that read a key or a value, on GPUs, against the plain loops: every variant of every PolyKernel, on all
// pairs of shapes, masks, layouts and modes, by name and chosen by the GPU, in graphs and again and again.
#include "attention_polykernels.h"
#include "reference/error_bounds.h"
#include "tests/gpu/device_tensor.h"
#include "tests/gpu/gpu_session.h"
#include "tests/support/catch.h"
#include "tests/support/pairwise.h"
#include "tests/support/short_tests.h"
#include "tests/support/token_call.h"
#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

using namespace distile;

namespace {

/** Visits the PolyKernels that the GPU runs. */
template<typename Visit> void for_each_kernel(const Gpu &gpu, const Visit &visit) {
    int visited = 0;
    for (const auto &linked : linked_polykernels) {
        distile_kernel *made = nullptr;
        const distile_status status = distile_kernel_create(gpu.context.get(), linked.polykernel, &made);
        const Kernel kernel(made);
        if (status == DISTILE_ERROR_UNSUPPORTED_DEVICE) {
            WARN("skipped: " << distile_context_message(gpu.context.get()));
            continue;
        }
        gpu.check(status);
        visit(*linked.polykernel, kernel);
        visited++;
    }
    CHECK(visited > 0);
}

/** A mask of tokens, set from bytes on the device. */
class TokenMask {
public:
    TokenMask(const Gpu &gpu, const std::vector<uint8_t> &bytes, int32_t batch)
        : mask_(gpu.make_mask()), bytes_(bytes), batch_(batch), tokens_(static_cast<int32_t>(bytes.size()) / batch) {
        set(gpu);
    }
    void set(const Gpu &gpu) const {
        gpu.check(distile_mask_set_bytes(mask_.get(), bytes_.data(), batch_, 1, tokens_, tokens_, tokens_));
    }
    void change(const std::vector<uint8_t> &bytes) {
        bytes_.set(bytes);
    }
    const Mask &get() const {
        return mask_;
    }

private:
    Mask mask_;
    DeviceArray<uint8_t> bytes_;
    int32_t batch_, tokens_;
};

size_t num_bytes(const TestTensor &tensor) {
    return tensor.num_own_words() * distile_dtype_size(tensor.view().dtype);
}

/** Copies what a tensor holds to one of the same layout. */
void copy(const TestTensor &from, TestTensor &to) {
    std::memcpy(to.own_words(), from.own_words(), num_bytes(to));
}

/** The tensors and masks of a call, on the GPU. */
class DeviceCall {
public:
    DeviceCall(const Gpu &gpu, const distile_polykernel &polykernel, const TokenCall &call, std::mt19937 &random)
        : polykernel_(polykernel), tensors(polykernel, call, random), input_(*tensors.input, false),
          key_(on_device(tensors.key_memory(), true)), value_(on_device(tensors.value_memory(), false)),
          output_(*tensors.output, true), rows(gpu, call.rows, call.batch), before_(tensors.output->snapshot()) {
        if (!call.key_mask.empty()) {
            keys = std::make_unique<TokenMask>(gpu, call.key_mask, call.batch);
        }
        // Loops take long, so they are a sample's.
        tensors.most_rows = 12;
        // Tensor cores round probabilities; other factors to TF32 only.
        const std::string layout = polykernel.variants[0].layout;
        const bool rounds_all = layout == "cuda-k32" && !call.as_tf32;
        const bool is_attention = tensors.op.scores && tensors.op.values;
        tensors.math = rounds_all ? DISTILE_MATH_TF32 : DISTILE_MATH_FLOAT32;
        if (is_attention && !rounds_all && (layout == "cuda-k16" || layout == "cuda-k32")) {
            tensors.weight_error = probability_error(tensors.input->view().dtype);
        }
        args = tensors.args(rows.get(), keys ? keys->get() : rows.get());
        args.input = &input_.view();
        args.key = key_ ? &key_->view() : nullptr;
        args.value = value_ ? &value_->view() : nullptr;
        args.output = &output_.view();
    }

    /** "" if the output is what the call must have made of it. */
    std::string difference() {
        const bool guarded = output_.download();
        std::string text = tensors.difference(before_);
        return guarded ? text : text + "; memory around the output changed";
    }
    /** The output's memory as it is now. */
    std::vector<uint32_t> download() {
        output_.download();
        return tensors.output->snapshot();
    }
    /** Brings what the host's tensors hold to the GPU. */
    void upload() {
        for (DeviceTensor *tensor : {&input_, key_.get(), value_.get(), &output_}) {
            if (tensor) {
                tensor->upload();
            }
        }
        before_ = tensors.output->snapshot();
    }
    /** Takes other rows, keys and values of the same shape, with which a graph can be launched again. */
    void take(const TokenCall &call, std::mt19937 &random) {
        const TokenTensors next(polykernel_, call, random);
        tensors.call = call;
        copy(*next.input, *tensors.input);
        copy(*next.output, *tensors.output);
        for (const auto &[from, to] : {std::pair(next.key_memory(), tensors.key_memory()),
                                       std::pair(next.value_memory(), tensors.value_memory())}) {
            if (from) {
                copy(*from, *to);
            }
        }
        upload();
        rows.change(call.rows);
        keys->change(call.key_mask);
    }

private:
    const distile_polykernel &polykernel_;

public:
    TokenTensors tensors;

private:
    static std::unique_ptr<DeviceTensor> on_device(TestTensor *tensor, bool guarded) {
        return tensor ? std::make_unique<DeviceTensor>(*tensor, guarded) : nullptr;
    }

    DeviceTensor input_;
    std::unique_ptr<DeviceTensor> key_, value_;
    DeviceTensor output_;

public:
    TokenMask rows;
    std::unique_ptr<TokenMask> keys;
    distile_run_args args{};

private:
    std::vector<uint32_t> before_;
};

enum class Active { None, One, Few, Half, Every, NoneInFirst };

std::vector<uint8_t> draw_active(Active active, int32_t batch, int32_t tokens, std::mt19937 &random) {
    const size_t count = static_cast<size_t>(batch) * tokens;
    std::vector<uint8_t> mask(count, active == Active::Every ? 1 : 0);
    if (active == Active::One) {
        mask[random() % count] = 1;
    } else if (active == Active::Few || active == Active::Half) {
        mask = draw_mask(count, active == Active::Few ? 100 : 500, random);
    } else if (active == Active::NoneInFirst) {
        mask = draw_mask(count, 700, random);
        std::fill_n(mask.begin(), tokens, uint8_t{0});
    }
    return mask;
}

/** Calls in which all pairs of values occur. Blocks are of 64 to 256 rows and keys. Gaps are whole 16 bytes. */
std::vector<TokenCall> all_pairs(const distile_polykernel &polykernel, std::mt19937 &random) {
    const int32_t gap = distile_dtype_size(polykernel.operands[0].dtype) == 1 ? 16 : 8;
    const std::vector<int32_t> batches = {1, 3, 35}, tokens = {1, 7, 64, 197, 300}, keys = {1, 5, 128, 193, 421};
    const std::vector<float> scales = {0, 0.05f, -1};
    const Active rows[] = {Active::None, Active::One, Active::Few, Active::Half, Active::Every, Active::NoneInFirst};
    std::vector<TokenCall> calls;
    for (const std::vector<int> &values : combine_pairwise({3, 5, 5, 6, 7, 3, 2, 3, 2}, random)) {
        TokenCall call;
        call.batch = batches[values[0]];
        call.tokens = call.batch > 3 ? std::min(tokens[values[1]], 65) : tokens[values[1]];
        call.keys = keys[values[2]];
        call.rows = draw_active(rows[values[3]], call.batch, call.tokens, random);
        if (values[4] < 6) {
            call.key_mask = draw_active(rows[values[4]], call.batch, call.keys, random);
        }
        call.scale = scales[values[5]];
        call.inactive = values[6] == 0 ? DISTILE_KEEP : DISTILE_ZERO;
        call.as_tf32 = values[8] == 0;
        for (TensorLayout *layout : {&call.input, &call.key, &call.value, &call.output}) {
            layout->pixel_gap = values[7] == 1 ? gap : values[7] == 2 ? static_cast<int32_t>(random() % 5) * gap : 0;
            layout->image_gap = values[7] == 2 ? static_cast<int32_t>(random() % 3) * gap : 0;
        }
        calls.push_back(call);
    }
    return calls;
}

TokenCall plain_call(int32_t batch, int32_t tokens, int32_t keys, uint32_t rows_in_thousand, uint32_t keys_in_thousand,
                     std::mt19937 &random) {
    TokenCall call;
    call.batch = batch;
    call.tokens = tokens;
    call.keys = keys;
    call.rows = draw_mask(static_cast<size_t>(batch) * tokens, rows_in_thousand, random);
    call.as_tf32 = true;
    if (keys_in_thousand < 1000) {
        call.key_mask = draw_mask(static_cast<size_t>(batch) * keys, keys_in_thousand, random);
    }
    return call;
}

/** Runs one variant; the number of variants stands for the choice. */
void run(const Gpu &gpu, const Kernel &kernel, const distile_polykernel &polykernel, int32_t variant,
         const distile_run_args &args) {
    gpu.check(variant == polykernel.num_variants ? distile_run(kernel.get(), &args)
                                                 : distile_run_variant(kernel.get(), variant, &args));
}

/** Every variant of every PolyKernel, with masks of rows and keys; shapes are batches, tokens and keys. */
void run_plain_calls(uint32_t seed, uint32_t rows_in_thousand,
                     const std::vector<std::tuple<int32_t, int32_t, int32_t>> &shapes) {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    std::mt19937 random(seed);
    for_each_kernel(gpu, [&](const distile_polykernel &polykernel, const Kernel &kernel) {
        for (const auto &[batch, tokens, keys] : shapes) {
            const TokenCall of = plain_call(batch, tokens, keys, rows_in_thousand, 600, random);
            for (int32_t variant = 0; variant < polykernel.num_variants; variant++) {
                CAPTURE(polykernel.name, variant, batch, tokens, keys);
                DeviceCall call(gpu, polykernel, of, random);
                run(gpu, kernel, polykernel, variant, call.args);
                REQUIRE(call.difference() == "");
            }
        }
    });
}

}  // namespace

TEST_CASE("Code that reads keys computes on a GPU what the loops do", "[gpu_attention]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    std::mt19937 random(1);
    for_each_kernel(gpu, [&](const distile_polykernel &polykernel, const Kernel &kernel) {
        for (const TokenCall &of : all_pairs(polykernel, random)) {
            for (int32_t variant = 0; variant <= polykernel.num_variants; variant++) {
                CAPTURE(polykernel.name, variant, of.batch, of.tokens, of.keys, of.key_mask.size(), of.scale,
                        of.inactive, of.as_tf32);
                DeviceCall call(gpu, polykernel, of, random);
                run(gpu, kernel, polykernel, variant, call.args);
                REQUIRE(call.difference() == "");
            }
        }
    });
}

TEST_CASE("Code that reads keys goes through more items than there are multiprocessors", "[gpu_attention]") {
    run_plain_calls(2, 300, {{60, 70, 65}, {150, 40, 30}, {1, 1500, 1500}});
}

TEST_CASE("Every variant of code that reads keys computes a few tokens on a GPU", "[gpu_small]") {
    run_plain_calls(6, 500, {{2, 70, 65}, {1, 300, 197}});
}

TEST_CASE("Code that reads keys computes the same bits each time", "[gpu_attention]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    std::mt19937 random(3);
    for_each_kernel(gpu, [&](const distile_polykernel &polykernel, const Kernel &kernel) {
        DeviceCall call(gpu, polykernel, plain_call(2, 1500, 1100, 500, 700, random), random);
        for (int32_t variant = 0; variant < polykernel.num_variants; variant++) {
            CAPTURE(polykernel.name, variant);
            run(gpu, kernel, polykernel, variant, call.args);
            const std::vector<uint32_t> first = call.download();
            for (int repeat = 0; repeat < (short_tests() ? 3 : 20); repeat++) {
                run(gpu, kernel, polykernel, variant, call.args);
                REQUIRE(call.download() == first);
            }
        }
    });
}

TEST_CASE("A graph of code that reads keys takes other rows and keys at every launch", "[gpu_attention]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    std::mt19937 random(4);
    const StreamInUse stream(gpu);
    for_each_kernel(gpu, [&](const distile_polykernel &polykernel, const Kernel &kernel) {
        TokenCall of = plain_call(3, 300, 200, 500, 500, random);
        DeviceCall call(gpu, polykernel, of, random);
        const auto record = [&] {
            call.rows.set(gpu);
            call.keys->set(gpu);
            gpu.check(distile_run_variant(kernel.get(), 0, &call.args));
        };
        record();
        REQUIRE(call.difference() == "");
        const Graph graph(stream.get(), record);
        for (const uint32_t density : {0, 30, 1000, 400}) {
            CAPTURE(polykernel.name, density);
            // Tokens that were inactive before are not numbers.
            of.rows = draw_mask(of.rows.size(), density, random);
            of.key_mask = draw_mask(of.key_mask.size(), density, random);
            call.take(of, random);
            graph.launch();
            stream.finish();
            REQUIRE(call.difference() == "");
        }
    });
}

TEST_CASE("The GPU chooses a variant of code that reads keys at every launch of a graph", "[gpu_attention]") {
    const Gpu gpu(true);
    if (!gpu) {
        return;
    }
    std::mt19937 random(5);
    const StreamInUse stream(gpu);
    for_each_kernel(gpu, [&](const distile_polykernel &polykernel, const Kernel &kernel) {
        TokenCall of = plain_call(2, 300, 200, 500, 500, random);
        // The first variant takes least time for few rows, the last for many.
        const auto tokens = static_cast<int64_t>(of.rows.size());
        for (int32_t variant = 0; variant < polykernel.num_variants; variant++) {
            const char *name = polykernel.variants[variant].name;
            gpu.check(distile_kernel_add_time(kernel.get(), name, 1, 1 + variant));
            gpu.check(distile_kernel_add_time(kernel.get(), name, tokens, 100 - variant));
        }
        DeviceCall call(gpu, polykernel, of, random);
        const auto record = [&] {
            call.rows.set(gpu);
            call.keys->set(gpu);
            gpu.check(distile_run(kernel.get(), &call.args));
        };
        record();
        REQUIRE(call.difference() == "");
        const Graph graph(stream.get(), record);
        for (const uint32_t density : {0, 30, 1000, 30}) {
            CAPTURE(polykernel.name, density);
            of.rows = draw_mask(of.rows.size(), density, random);
            of.key_mask = draw_mask(of.key_mask.size(), std::max<uint32_t>(density, 400), random);
            call.take(of, random);
            graph.launch();
            stream.finish();
            REQUIRE(call.difference() == "");
            if (polykernel.num_variants > 1 && density > 0) {
                CHECK(gpu.last_variant(kernel) == (density < 1000 ? 0 : polykernel.num_variants - 1));
            }
        }
    });
}

TEST_CASE("Code that reads keys takes 8192 of them on a GPU", "[gpu_attention]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    std::mt19937 random(6);
    for_each_kernel(gpu, [&](const distile_polykernel &polykernel, const Kernel &kernel) {
        // A matrix of all scores would need gigabytes.
        const int32_t tokens = polykernel.kind == DISTILE_MASKED_ATTENTION ? 8192 : 60;
        TokenCall of = plain_call(1, tokens, 8192, 0, 600, random);
        of.rows.front() = of.rows[tokens / 2] = of.rows.back() = 1;
        for (int32_t variant = 0; variant < polykernel.num_variants; variant++) {
            CAPTURE(polykernel.name, variant);
            DeviceCall call(gpu, polykernel, of, random);
            run(gpu, kernel, polykernel, variant, call.args);
            REQUIRE(call.difference() == "");
        }
    });
}

TEST_CASE("Large scores overflow no exponential on a GPU", "[gpu_attention]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    std::mt19937 random(7);
    for_each_kernel(gpu, [&](const distile_polykernel &polykernel, const Kernel &kernel) {
        TokenCall of = plain_call(2, 20, 40, 1000, 1000, random);
        // Scores of hundreds, whose rounding the bound allows for.
        of.magnitude = 20;
        for (int32_t variant = 0; variant < polykernel.num_variants; variant++) {
            CAPTURE(polykernel.name, variant);
            DeviceCall call(gpu, polykernel, of, random);
            run(gpu, kernel, polykernel, variant, call.args);
            REQUIRE(call.difference() == "");
        }
    });
}

TEST_CASE("NaN in an active query, key or value reaches what reads it on a GPU, and nothing else", "[gpu_attention]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    std::mt19937 random(8);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for_each_kernel(gpu, [&](const distile_polykernel &polykernel, const Kernel &kernel) {
        DeviceCall call(gpu, polykernel, plain_call(2, 40, 33, 1000, 1000, random), random);
        TokenTensors &tensors = call.tensors;
        tensors.most_rows = 0;
        // A row multiplies the values of keys that it does not see by 0, which NaN outlives, as in PyTorch.
        TestTensor *const value = tensors.op.causal ? nullptr : tensors.value_memory();
        for (TestTensor *const tensor : {tensors.input.get(), tensors.key_memory(), value}) {
            if (!tensor) {
                continue;
            }
            // In head 0 of image 1.
            const float kept = tensor->get(1, 0, 7, 3);
            tensor->set(1, 0, 7, 3, nan);
            call.upload();
            for (int32_t variant = 0; variant < polykernel.num_variants; variant++) {
                CAPTURE(polykernel.name, variant, tensor == tensors.input.get(), tensor == value);
                run(gpu, kernel, polykernel, variant, call.args);
                REQUIRE(call.difference() == "");
            }
            tensor->set(1, 0, 7, 3, kept);
        }
    });
}
