// Operators that read keys, as generators make them, against the plain loops: every PolyKernel on all pairs of shapes,
// masks, layouts and modes.
#include "tests/support/catch.h"
#include "tests/support/operator_test.h"
#include "tests/support/pairwise.h"
#include "tests/support/token_call.h"
#include "token_test_polykernels.h"
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

using namespace distile;

namespace {

enum class Rows { None, One, Few, Half, Every };
enum class Keys { Unmasked, One, Few, Every, NoneInFirst };

std::vector<uint8_t> draw_rows(Rows rows, int32_t batch, int32_t tokens, std::mt19937 &random) {
    const size_t count = static_cast<size_t>(batch) * tokens;
    switch (rows) {
    case Rows::None:
        return std::vector<uint8_t>(count, 0);
    case Rows::One: {
        std::vector<uint8_t> mask(count, 0);
        mask[random() % count] = 1;
        return mask;
    }
    case Rows::Few:
        return draw_mask(count, 100, random);
    case Rows::Half:
        return draw_mask(count, 500, random);
    case Rows::Every:
        break;
    }
    return std::vector<uint8_t>(count, 1);
}

std::vector<uint8_t> draw_keys(Keys keys, int32_t batch, int32_t tokens, std::mt19937 &random) {
    const size_t count = static_cast<size_t>(batch) * tokens;
    std::vector<uint8_t> mask;
    switch (keys) {
    case Keys::Unmasked:
        break;
    case Keys::One:
        mask = draw_rows(Rows::One, batch, tokens, random);
        break;
    case Keys::Few:
        mask = draw_mask(count, 300, random);
        break;
    case Keys::Every:
        mask.assign(count, 1);
        break;
    case Keys::NoneInFirst:
        mask = draw_mask(count, 700, random);
        std::fill_n(mask.begin(), tokens, uint8_t{0});
        break;
    }
    return mask;
}

/** Calls in which all pairs of values occur. */
std::vector<TokenCall> all_pairs(std::mt19937 &random) {
    const std::vector<int32_t> batches = {1, 3}, tokens = {1, 7, 32, 53, 130}, keys = {1, 5, 31, 70, 131};
    const std::vector<float> scales = {0, 0.05f, -1};
    std::vector<TokenCall> calls;
    for (const std::vector<int> &values : combine_pairwise({2, 5, 5, 5, 5, 3, 2, 2, 4}, random)) {
        TokenCall call;
        call.batch = batches[values[0]];
        call.tokens = tokens[values[1]];
        call.keys = keys[values[2]];
        call.rows = draw_rows(static_cast<Rows>(values[3]), call.batch, call.tokens, random);
        call.key_mask = draw_keys(static_cast<Keys>(values[4]), call.batch, call.keys, random);
        call.scale = scales[values[5]];
        call.inactive = values[6] == 0 ? DISTILE_KEEP : DISTILE_ZERO;
        call.flush = values[7] == 0 ? Flush::Back : Flush::Front;
        for (TensorLayout *layout : {&call.input, &call.key, &call.value, &call.output}) {
            layout->pixel_gap = values[8] == 1 ? 3 : values[8] == 2 ? static_cast<int32_t>(random() % 40) : 0;
            layout->image_gap = values[8] == 3 ? static_cast<int32_t>(random() % 20) : 0;
        }
        calls.push_back(call);
    }
    return calls;
}

/** A build has code for CPUs that this one may not be. */
std::vector<const distile_polykernel *> polykernels_of_this_cpu() {
    std::vector<const distile_polykernel *> found;
    for (const distile_polykernel *polykernel : token_test_polykernels) {
        if (can_run_or_warn(*polykernel)) {
            found.push_back(polykernel);
        }
    }
    REQUIRE_FALSE(found.empty());
    return found;
}

TokenCall plain_call(int32_t batch, int32_t tokens, int32_t keys) {
    TokenCall call;
    call.batch = batch;
    call.tokens = tokens;
    call.keys = keys;
    call.rows.assign(static_cast<size_t>(batch) * tokens, 1);
    return call;
}

}  // namespace

TEST_CASE("kernels that read keys compute what the loops do", "[attention]") {
    std::mt19937 random(1);
    distile_context_options one{}, three{};
    one.threads = 1;
    three.threads = 3;
    const Context contexts[] = {make_context(one), make_context(three)};
    for (const distile_polykernel *polykernel : polykernels_of_this_cpu()) {
        const Kernel kernels[] = {make_kernel(contexts[0], *polykernel), make_kernel(contexts[1], *polykernel)};
        size_t turn = 0;
        for (const TokenCall &call : all_pairs(random)) {
            const size_t i = turn++ % 2;
            CAPTURE(polykernel->name, i == 0 ? one.threads : three.threads, call.batch, call.tokens, call.keys,
                    call.key_mask.size(), call.scale, call.inactive);
            REQUIRE(run_token_call(contexts[i], kernels[i], *polykernel, call, random) == "");
        }
    }
}

TEST_CASE("code for every level of CPUs attends alike", "[attention]") {
    std::mt19937 random(2);
    int ran = 0;
    for (const distile_polykernel *polykernel : token_test_polykernels) {
        for (const distile_polykernel *lesser = polykernel->fallback; lesser; lesser = lesser->fallback) {
            distile_context_options options{};
            options.cpu_features = lesser->features;
            const Context context = make_context(options);
            const Kernel kernel = make_kernel(context, *polykernel);
            ran++;
            for (const TokenCall &call : all_pairs(random)) {
                CAPTURE(lesser->name, lesser->features, call.batch, call.tokens, call.keys, call.key_mask.size());
                REQUIRE(run_token_call(context, kernel, *lesser, call, random) == "");
            }
        }
    }
    CHECK(ran > 0);
}

TEST_CASE("attention to many keys", "[attention]") {
    std::mt19937 random(3);
    const Context context = make_context();
    for (const distile_polykernel *polykernel : polykernels_of_this_cpu()) {
        const Kernel kernel = make_kernel(context, *polykernel);
        // A matrix of all scores would need gigabytes.
        const int32_t tokens = polykernel->kind == DISTILE_MASKED_ATTENTION ? 8192 : 60;
        TokenCall call = plain_call(1, tokens, 8192);
        // The loops take long for a row.
        call.rows.assign(tokens, 0);
        call.rows.front() = call.rows.back() = 1;
        call.key_mask = draw_mask(8192, 600, random);
        CAPTURE(polykernel->name);
        REQUIRE(run_token_call(context, kernel, *polykernel, call, random) == "");
    }
}

TEST_CASE("large scores overflow no exponential", "[attention]") {
    std::mt19937 random(4);
    const Context context = make_context();
    for (const distile_polykernel *polykernel : polykernels_of_this_cpu()) {
        if (polykernel->operands[0].dtype != DISTILE_FLOAT32) {
            continue;
        }
        const Kernel kernel = make_kernel(context, *polykernel);
        TokenCall call = plain_call(2, 20, 40);
        // Scores of hundreds, whose rounding the bound allows for.
        call.magnitude = 20;
        CAPTURE(polykernel->name);
        REQUIRE(run_token_call(context, kernel, *polykernel, call, random) == "");
    }
}

TEST_CASE("a row's result depends neither on other rows nor on threads", "[attention]") {
    std::mt19937 random(5);
    for (const distile_polykernel *polykernel : polykernels_of_this_cpu()) {
        TokenCall call = plain_call(2, 90, 70);
        call.key_mask = draw_mask(140, 600, random);
        const TokenTensors tensors(*polykernel, call, random);
        if (tensors.op.causal) {
            continue;  // A block reads no more keys than its last row sees, and compilers add fewer in another order.
        }
        const distile_tensor &view = tensors.output->view();
        std::vector<float> first;
        for (const int32_t threads : {1, 2, 16}) {
            for (const uint32_t density : {1000, 300}) {
                distile_context_options options{};
                options.threads = threads;
                const Context context = make_context(options);
                const Kernel kernel = make_kernel(context, *polykernel);
                const Mask rows = make_mask(context), keys = make_mask(context);
                const std::vector<uint8_t> bytes = draw_mask(180, density, random);
                check(context, distile_mask_set_bytes(rows.get(), bytes.data(), 2, 1, 90, 90, 90));
                check(context, distile_mask_set_bytes(keys.get(), call.key_mask.data(), 2, 1, 70, 70, 70));
                distile_run_args args = tensors.args(rows, keys);
                args.inactive = DISTILE_ZERO;
                check(context, distile_run(kernel.get(), &args));
                std::vector<float> values;
                bool same = true;
                for (int32_t n = 0; n < 2; n++) {
                    for (int32_t y = 0; y < view.height; y++) {
                        for (int32_t x = 0; x < 90; x++) {
                            for (int32_t c = 0; c < view.channels; c++) {
                                const float value = tensors.output->get(n, y, x, c);
                                values.push_back(value);
                                same = same &&
                                       (first.empty() || bytes[n * 90 + x] == 0 || value == first[values.size() - 1]);
                            }
                        }
                    }
                }
                CAPTURE(polykernel->name, threads, density);
                CHECK(same);
                if (first.empty()) {
                    first = values;
                }
            }
        }
    }
}

TEST_CASE("NaN in an active query, key or value reaches what reads it, and nothing else", "[attention]") {
    std::mt19937 random(6);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const Context context = make_context();
    for (const distile_polykernel *polykernel : polykernels_of_this_cpu()) {
        const Kernel kernel = make_kernel(context, *polykernel);
        TokenCall call = plain_call(2, 40, 33);
        const TokenTensors tensors(*polykernel, call, random);
        const Mask rows = make_mask(context);
        check(context, distile_mask_set_bytes(rows.get(), call.rows.data(), 2, 1, 40, 40, 40));
        const auto before = tensors.output->snapshot();
        const auto run = [&] {
            const distile_run_args args = tensors.args(rows, rows);
            check(context, distile_run(kernel.get(), &args));
        };
        CAPTURE(polykernel->name);
        // In head 0 of image 1.
        const float query = tensors.input->get(1, 0, 7, 3);
        tensors.input->set(1, 0, 7, 3, nan);
        run();
        REQUIRE(tensors.difference(before) == "");
        tensors.input->set(1, 0, 7, 3, query);
        // A row multiplies the values of keys that it does not see by 0, which NaN outlives, as in PyTorch.
        const distile_tensor *value = tensors.op.causal ? nullptr : tensors.value();
        for (const distile_tensor *operand : {tensors.key(), value}) {
            if (operand) {
                const auto bytes = static_cast<int64_t>(distile_dtype_size(operand->dtype));
                char *place =
                    static_cast<char *>(operand->data) + (operand->stride_n + 5 * operand->stride_w + 2) * bytes;
                const float kept = load_as(operand->dtype, place);
                store_as(operand->dtype, nan, place);
                run();
                REQUIRE(tensors.difference(before) == "");
                store_as(operand->dtype, kept, place);
            }
        }
    }
}

TEST_CASE("a caller's allocator that fails makes an error", "[attention]") {
    std::mt19937 random(7);
    struct Failing {
        int64_t left = -1;
    } failing;
    distile_context_options options{};
    options.allocator_user = &failing;
    options.allocate = [](void *user, size_t bytes, size_t alignment) -> void * {
        auto &state = *static_cast<Failing *>(user);
        if (state.left == 0) {
            return nullptr;
        }
        state.left -= state.left > 0 ? 1 : 0;
        return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    };
    options.deallocate = [](void *, void *memory) { std::free(memory); };
    const Context context = make_context(options);
    const distile_polykernel &polykernel = *polykernels_of_this_cpu().front();
    const Kernel kernel = make_kernel(context, polykernel);
    const TokenTensors tensors(polykernel, plain_call(1, 50, 60), random);
    const Mask rows = make_mask(context);
    check(context, distile_mask_set_bytes(rows.get(), tensors.call.rows.data(), 1, 1, 50, 50, 50));
    const distile_run_args args = tensors.args(rows, rows);
    int failures = 0;
    for (int64_t allowed = 0; allowed < 20; allowed++) {
        failing.left = allowed;
        const distile_status status = distile_run(kernel.get(), &args);
        failing.left = -1;
        CHECK((status == DISTILE_OK || status == DISTILE_ERROR_OUT_OF_MEMORY));
        failures += status == DISTILE_OK ? 0 : 1;
    }
    CHECK(failures > 0);
    CHECK(distile_run(kernel.get(), &args) == DISTILE_OK);
}
