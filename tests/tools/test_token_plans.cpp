// Operators that read keys in operator files and plans: their parameters and sizes, the C emitted for them, and the
// schedules that the bound ranks first.
#include "autoscheduler/bound/bound.h"
#include "autoscheduler/bound/bound_plan.h"
#include "autoscheduler/bound/buildable.h"
#include "autoscheduler/bound/code_choice.h"
#include "kernels/halide/code.h"
#include "kernels/tensor_core/code.h"
#include "plans/emit.h"
#include "plans/operator.h"
#include "plans/operator_schema.h"
#include "plans/plan.h"
#include "plans/tensor_core.h"
#include "tests/support/catch.h"
#include "tests/support/contains.h"
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>

using namespace distile;

namespace {

Operator parse(const std::string &generator, const std::string &params,
               const std::string &typical = R"({"batch": 2, "tokens": 50, "key_tokens": 40})") {
    return parse_operator(nlohmann::json::parse(R"({"distile_operator": 1, "name": "op", "generator": ")" + generator +
                                                R"(", "params": )" + params + R"(, "typical": )" + typical + "}"),
                          "test");
}

template<typename Function> std::string message_of(const Function &function) {
    try {
        function();
    } catch (const FileError &error) {
        return error.what();
    }
    return "";
}

std::string refusal(const std::string &generator, const std::string &params) {
    return message_of([&] { parse(generator, params); });
}

}  // namespace

TEST_CASE("operators that read keys have heads, and tokens of both sequences", "[token_plans]") {
    const Operator attention = parse("masked_attention", R"({"heads": 3, "head_dim": 40, "causal": true})");
    CHECK(attention.in_channels() == 120);
    CHECK(attention.out_channels() == 120);
    CHECK(attention.typical_keys == 40);
    CHECK(attention.typical_mask().height == 1);
    CHECK(attention.filter_elements() == 0);
    CHECK(attention.summary() == "attention, 3 heads of 40 channels, causal");
    CHECK(attention.operands().size() == 4);
    CHECK(parse_operator(to_json(attention), "again") == attention);

    const Operator scores = parse("masked_scores", R"({"heads": 3, "head_dim": 64, "softmax": true})");
    CHECK(scores.out_channels() == 40);
    CHECK(scores.operands().back().channels == 0);
    CHECK(scores.typical_output().height == 3);
    CHECK(scores.typical_mask().height == 1);

    const Operator packed = parse("masked_scores", R"({"heads": 3, "packed_columns": true})");
    CHECK(packed.summary() == "scores of attention, 3 heads of 64 channels, packed columns");
    CHECK(parse_operator(to_json(packed), "again") == packed);
    CHECK(parse("masked_values", R"({"packed_columns": true})").is_set("packed_columns"));

    const Operator values = parse("masked_values", R"({"heads": 3, "head_dim": 64})", R"({"tokens": 50})");
    CHECK(values.in_channels() == 50);
    CHECK(values.typical_height == 3);
    CHECK(values.typical_output().height == 1);
    CHECK(values.reads("DISTILE_ROLE_VALUE"));
    CHECK(!values.reads("DISTILE_ROLE_KEY"));
}

TEST_CASE("operator files of operators that read keys are refused in words", "[token_plans]") {
    CHECK(contains(refusal("masked_attention", R"({"epilogue": "relu"})"), R"(has no parameter "epilogue")"));
    CHECK(contains(refusal("masked_attention", R"({"residual": true})"), R"(has no parameter "residual")"));
    CHECK(contains(refusal("masked_attention", R"({"softmax": true})"), R"(has no parameter "softmax")"));
    CHECK(contains(refusal("masked_attention", R"({"packed_columns": true})"), R"(no parameter "packed_columns")"));
    CHECK(contains(refusal("masked_attention", R"({"causal": 1})"), "not true or false"));
    CHECK(contains(refusal("masked_scores", R"({"head_dim": 12})"), "must be a multiple of 8"));
    CHECK(contains(refusal("masked_linear", R"({"causal": true})"), R"(has no parameter "causal")"));
}

TEST_CASE("plans of operators that read keys", "[token_plans]") {
    for (const char *generator : {"masked_attention", "masked_scores", "masked_values"}) {
        const Operator op = parse(generator, R"({"heads": 2, "head_dim": 64})");
        for (const char *device : {"generic_avx512", "generic_avx2", "generic_x86_64"}) {
            const Plan plan = bound_plan("plan", op, generic_device_profile(device), 2);
            CAPTURE(generator, device);
            CHECK_NOTHROW(check_buildable(plan));
            const std::string c = emit_polykernels({plan}, "made");
            CHECK(contains(c, "distile_call_row_blocks"));
            CHECK(!contains(c, "DISTILE_ROLE_WEIGHTS"));
            // More rows take longer, and more threads do not.
            Workload workload = workload_of(op, generic_device_profile(device));
            workload.threads = 1;
            const Theta &theta = plan.variants.front().theta;
            const double few = bound(workload, theta, 10).us, many = bound(workload, theta, 100).us;
            CHECK(few < many);
            workload.threads = 2;
            CHECK(bound(workload, theta, 100).us <= many);
        }
        for (const char *device : {"generic_cuda", "generic_opencl"}) {
            const DeviceProfile profile = generic_device_profile(device);
            Plan plan = bound_plan("plan", op, profile, 2);
            CAPTURE(generator, device);
            CHECK_NOTHROW(check_buildable(plan));
            CHECK(contains(emit_polykernels({plan}, "made"), "distile_call_token_lists"));
            const Workload workload = workload_of(op, profile);
            const Theta theta = plan.variants.front().theta;
            CHECK(bound(workload, theta, 100).us < bound(workload, theta, 100000).us);
            Workload more_keys = workload;
            more_keys.keys *= 100;
            CHECK(bound(workload, theta, 100).us < bound(more_keys, theta, 100).us);
            for (const auto &[knob, value, message] :
                 {std::tuple("block_keys", 12, "block_keys that are multiples of 8"),
                  {"block_rows", 4096, "threads per block"},
                  {"thread_rows", 16, "at most 8 of them"}}) {
                plan.variants.front().theta = theta;
                plan.variants.front().theta[knob] = value;
                CHECK(contains(message_of([&] { check_buildable(plan); }), message));
            }
        }
    }
}

TEST_CASE("Attention in float32 may run on tensor cores in TF32, by code for 8.0", "[token_plans]") {
    const Operator op = parse("masked_attention", R"({"heads": 2, "head_dim": 64})");
    const std::vector<Plan> plans = bound_plans(op, cuda_backend(), true);
    REQUIRE(plans.size() == 2);
    CHECK(plans[0].name == "op_tf32_sm80");
    CHECK(plans[0].math == Math::TF32);
    CHECK(plans[0].features() == "sm_80");
    CHECK(plans[1].name == "op_cuda");
    CHECK(plans[1].math == Math::Float32);
    CHECK_NOTHROW(check_chain(plans));
    for (const Plan &plan : plans) {
        CHECK_NOTHROW(check_buildable(plan));
    }
    CHECK(contains(emit_polykernels(plans, "made"), "distile_call_attention"));
    CHECK(contains(tensor_core_source(plans[0]), "using Element = Tf32;"));
    CHECK(contains(tensor_core_source(plans[0]), "AttentionSm80<Operator, "));

    // GPUs with better tensor cores run the same code.
    const std::string hopper = "x86-64-linux-cuda-cuda_capability_90a", ampere = plans[0].target;
    const DeviceProfile device = generic_device_profile("generic_cuda_sm90");
    CHECK(choose_code(op, device, "", Math::TF32).target == ampere);
    CHECK(choose_code(op, device, "", Math::Float32).target == halide_target(device));
    CHECK(contains(message_of([&] { choose_code(op, device, hopper, Math::TF32); }), "8.0 only"));
    Plan wrong = plans[0];
    wrong.target = hopper;
    CHECK(contains(message_of([&] { check_buildable(wrong); }), "8.0 only"));

    // They multiply half as fast as in 16 bits.
    const Operator narrow = parse("masked_attention", R"({"heads": 2, "head_dim": 64, "dtype": "float16"})");
    const Workload workload = workload_of(op, device, {ampere, Math::TF32});
    const Theta &theta = plans[0].variants.front().theta;
    CHECK(bound(workload, theta, 100000).us > bound(workload_of(narrow, device, {ampere}), theta, 100000).us);
}
