// The bound of tensor cores and of dot products, and which code schedules are ranked for.
#include "autoscheduler/bound/bound.h"
#include "autoscheduler/bound/bound_plan.h"
#include "autoscheduler/bound/candidates.h"
#include "autoscheduler/bound/code_choice.h"
#include "autoscheduler/bound/rank.h"
#include "schedules/dot_product_space.h"
#include "schedules/tensor_core_space.h"
#include "tests/support/catch.h"
#include "tests/tools/bound_cases.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

using namespace distile;
using nlohmann::json;

TEST_CASE("The bound of tensor cores is as worked by hand", "[bound]") {
    DeviceProfile device = simple_gpu();
    device.features = "sm_90";
    device.ghz = 1;
    set_derived(device);
    const Workload workload = workload_of(make_operator(point_params(64, 64), 16, 16), device, {hopper, Math::TF32});
    const Theta theta = {{"tile_h", 1}, {"tile_w", 1}, {"block_pixels", 64}, {"block_channels", 64},
                         {"stages", 4}, {"splits", 1}, {"balanced", 0}};
    // Two blocks on each of two multiprocessors, with two steps of 32 channels: four items are one wave.
    const Bound all = bound(workload, theta, 256);
    CHECK(all.terms.at("items") == 4);
    CHECK(all.terms.at("steps") == 2);
    CHECK(all.terms.at("resident") == 2);
    CHECK(all.terms.at("waves") == 1);
    CHECK(all.terms.at("idle") == 0);
    CHECK(all.terms.at("t_multiply") == Approx(4 * 64 * 64 * 32 / (1024 * .7) * 1e-3));
    CHECK(all.terms.at("t_rows") == Approx(4 * 64 * 128 / 80. * 1e-3));
    CHECK(all.terms.at("t_L2") == Approx(4 * 128 * 128 / 128. * 1e-3));
    CHECK(all.terms.at("t_shared") == Approx(4 * (2 * 128 * 128) / 1000. * 1e-3));
    CHECK(all.terms.at("t_latency") == Approx(2 * 4.5 * .2 / 4));
    CHECK(all.terms.at("t_global") == Approx((256 * 64 + (64 + 256) * 64) * 4 / 100. * 1e-3));
    CHECK(all.terms.at("launch_us") == Approx(2 + 2 + 1.7));
    CHECK(all.us > all.terms.at("t_global") + all.terms.at("launch_us"));
    CHECK(bound(workload, theta, 257).terms.at("waves") == 2);

    // One item fills a quarter.
    const Bound one = bound(workload, theta, 64);
    CHECK(one.terms.at("t_rows") == Approx(2 * 64 * 128 / 80. * 1e-3));
    Theta other = theta;
    other["balanced"] = 1;
    CHECK(bound(workload, other, 256).us == Approx(all.us));
    CHECK(bound(workload, other, 64).us == Approx(one.us));
    // With 64 steps it is worth it that all four blocks share them, and add their sums.
    const Workload deep = workload_of(make_operator(point_params(2048, 64), 16, 16), device, {hopper, Math::TF32});
    const Bound alone = bound(deep, theta, 64), balanced = bound(deep, other, 64);
    CHECK(alone.terms.at("steps") == 64);
    CHECK(balanced.terms.at("t_latency") == Approx(alone.terms.at("t_latency") / 4));
    CHECK(balanced.terms.at("t_rows") == Approx(alone.terms.at("t_rows") / 2));
    CHECK(balanced.terms.at("launch_us") == Approx(alone.terms.at("launch_us") + 4.2 + 5.3 * 64 * 64 / (128 * 256)));
    other = theta;
    other["splits"] = 2;
    const Bound split = bound(workload, other, 64);
    CHECK(split.terms.at("t_rows") == Approx(one.terms.at("t_rows") / 2));
    CHECK(split.terms.at("launch_us") == Approx(one.terms.at("launch_us") + 1.3));

    // 16-bit numbers: one step, at twice the rate.
    json params = point_params(64, 64);
    params["dtype"] = "bfloat16";
    const Workload narrow = workload_of(make_operator(params, 16, 16), device, {hopper, Math::Float32});
    const Bound half = bound(narrow, theta, 256);
    CHECK(half.terms.at("steps") == 1);
    CHECK(half.terms.at("t_multiply") == Approx(all.terms.at("t_multiply") / 2));
    CHECK(half.terms.at("t_global") == Approx(all.terms.at("t_global") / 2));
}

TEST_CASE("Groups on tensor cores are judged by the blocks that begin with them", "[bound]") {
    DeviceProfile device = simple_gpu();
    device.features = "sm_90";
    set_derived(device);
    const auto workload_for = [&](int channels, int groups, const char *type) {
        json params = point_params(channels, channels);
        params["groups"] = groups;
        params["dtype"] = type;
        const Operator op = make_operator(params, 16, 16);
        CHECK(language_of(op, {hopper, Math::Float32}) == Language::TensorCore);
        return workload_of(op, device, {hopper, Math::Float32});
    };
    Theta theta = {{"tile_h", 1}, {"tile_w", 1}, {"block_pixels", 64}, {"block_channels", 64},
                   {"stages", 4}, {"splits", 1}, {"balanced", 0}};
    const auto of = [&](const Workload &workload) { return bound(workload, theta, 256); };
    const auto why = [&](const Workload &workload) {
        return tensor_core_space(TensorCores::Sm90, workload.problem).why_illegal(theta, workload.problem);
    };
    // Two groups of 128 channels: each of the 4 x 4 blocks reads those of its group.
    const Workload whole = workload_for(256, 1, "float16"), halves = workload_for(256, 2, "float16");
    CHECK(of(whole).terms.at("items") == 4 * 4);
    CHECK(of(halves).terms.at("items") == 4 * 4);
    CHECK(of(whole).terms.at("steps") == 4);
    CHECK(of(halves).terms.at("steps") == 2);
    CHECK(of(halves).terms.at("t_multiply") == Approx(of(whole).terms.at("t_multiply") / 2));
    // Eight of 40 take a block of 64 each, and those of 8 one of 32, of which quantized ones share one.
    const Workload of40 = workload_for(320, 8, "bfloat16"), of8 = workload_for(64, 8, "bfloat16");
    CHECK(of(of40).terms.at("items") == 4 * 8);
    CHECK(of(of40).terms.at("steps") == 1);
    CHECK(why(of40).empty());
    CHECK(why(of8).find("no block beyond the channels") != std::string::npos);
    theta["block_channels"] = 32;
    CHECK(of(of40).terms.at("items") == 4 * 16);
    CHECK(of(of8).terms.at("items") == 4 * 8);
    CHECK(why(of8).empty());
    const Workload quantized = workload_for(64, 8, "int8");
    CHECK(of(quantized).terms.at("items") == 4 * 2);
    CHECK(of(quantized).terms.at("steps") == 1);
    CHECK(why(quantized).empty());
}

TEST_CASE("Schedules for dot products are judged by what their instructions multiply", "[bound]") {
    const json params = {{"in_channels", 256}, {"out_channels", 256}, {"dtype", "bfloat16"}};
    const Operator op = make_operator(params);
    const DeviceProfile device = generic_device_profile("generic_avx512");
    const std::string base = halide_target(device), pairs = base + "-avx512_bf16", tiles = base + "-amx_bf16";
    const auto workload_for = [&](const std::string &target) {
        const CodeChoice code = choose_code(op, device, target, Math::Float32);
        CHECK(language_of(op, code) == (target == base ? Language::Halide : Language::DotProduct));
        Workload workload = workload_of(op, device, code);
        workload.threads = 1;
        return workload;
    };
    const Workload by_pairs = workload_for(pairs), by_tiles = workload_for(tiles);
    CHECK(&space_of("cpu", workload_for(base).problem) == &space_of("cpu"));
    CHECK(&space_of("cpu", by_pairs.problem) == &dot_product_space(DotProducts::Avx512Bf16));
    CHECK(&space_of("cpu", by_tiles.problem) == &dot_product_space(DotProducts::AmxBf16));
    refuse([&] { choose_code(conv3x3_256(), device, pairs, Math::Float32); }, {pairs, "Halide", "bfloat16"});
    // Without a target, the best that a device has for the operator.
    DeviceProfile capable = device;
    const auto target_of = [&](const json &of, const char *features) {
        capable.features = device.features + features;
        return choose_code(make_operator(of), capable, "", Math::Float32).target;
    };
    CHECK(target_of(params, "") == base);
    CHECK(target_of(params, " avx512_bf16") == pairs);
    CHECK(target_of(params, " avx512_bf16 amx_bf16 amx_int8") == tiles);
    for (const auto &[knob, value] : {std::pair<const char *, json>("dtype", "float32"), {"groups", 256}}) {
        json other = params;
        other[knob] = value;
        CHECK(target_of(other, " avx512_bf16 amx_bf16") == base);
    }
    json grouped = params;
    grouped["groups"] = 2;
    CHECK(target_of(grouped, " avx512_bf16 amx_bf16") == tiles);
    grouped["groups"] = 64;
    CHECK(target_of(grouped, " avx512_bf16 amx_bf16") == pairs);
    const json float16 = {{"in_channels", 256}, {"out_channels", 256}, {"dtype", "float16"}};
    CHECK(target_of(float16, " avx512_bf16") == base);
    CHECK(target_of(float16, " amx_bf16") == tiles);
    CHECK(target_of(float16, " amx_bf16 amx_fp16") == base + "-amx_fp16");

    // One task of 96 pixels x 256 channels: 16 vectors, and 72 steps of 16 pairs.
    Theta theta = {{"tile_h", 1},    {"tile_w", 1}, {"pixels", 12},
                   {"channels", 32}, {"staged", 8}, {"channel_splits", 1}};
    const Bound one = bound(by_pairs, theta, 96), two = bound(by_pairs, theta, 192);
    CHECK(one.terms.at("tasks") == 1);
    CHECK(one.terms.at("operations") == 96 * 16 * 72 * 16);
    CHECK(two.terms.at("rounds") == 2);
    CHECK(two.terms.at("t_fma") == Approx(2 * one.terms.at("t_fma")));
    CHECK(two.terms.at("t_stage") == Approx(2 * one.terms.at("t_stage")));
    CHECK(one.terms.at("loads") == Approx(96 * 16 * 72 * 16 * (1 / 12. + 1 / 2.)));
    theta["pixels"] = 32;
    theta["staged"] = 3;
    CHECK(bound(by_tiles, theta, 96).terms.at("operations") == 6 * 16 * 72);
    CHECK(bound(by_tiles, theta, 96).us < one.us);
    // Two tiles of each factor make four products; one of pixels and two of channels, two.
    CHECK(bound(by_tiles, theta, 96).terms.at("loads") == 6 * 16 * 72);
    Theta narrow = theta;
    narrow["pixels"] = 16;
    narrow["staged"] = 6;
    CHECK(bound(by_tiles, narrow, 96).terms.at("loads") == 9 * 16 * 72);
    // Two parts of the channels stage every pixel twice.
    theta["channel_splits"] = 2;
    const Bound split = bound(by_tiles, theta, 96);
    CHECK(split.terms.at("tasks") == 2);
    CHECK(
        split.terms.at("t_stage") ==
        Approx(
            2 *
            bound(
                by_tiles,
                {{"tile_h", 1}, {"tile_w", 1}, {"pixels", 32}, {"channels", 32}, {"staged", 3}, {"channel_splits", 1}},
                96)
                .terms.at("t_stage")));
    for (const Workload &workload : {by_pairs, by_tiles}) {
        const Ranking ranking = rank(workload, {density_bucket(workload, .1), density_bucket(workload, 1)});
        REQUIRE_FALSE(ranking.kept.empty());
        for (const Candidate &candidate : ranking.kept) {
            CHECK(space_of("cpu", workload.problem).why_illegal(candidate.theta, workload.problem).empty());
        }
    }
}

TEST_CASE("Schedules of quantized operators are judged by the instructions of the device", "[bound]") {
    const Operator op = make_operator({{"in_channels", 256}, {"out_channels", 256}, {"dtype", "uint8"}});
    const auto workload_for = [&](const char *profile, const char *word) {
        const DeviceProfile device = generic_device_profile(profile);
        const CodeChoice code = choose_code(op, device, "", Math::Float32);
        CHECK(code.target == halide_target(device) + word);
        CHECK(language_of(op, code) == Language::DotProduct);
        Workload workload = workload_of(op, device, code);
        workload.threads = 1;
        return workload;
    };
    const Workload vnni = workload_for("generic_avx512", "-avx512_vnni"), avx2 = workload_for("generic_avx2", ""),
                   any = workload_for("generic_x86_64", "");
    CHECK(&space_of("cpu", vnni.problem) == &dot_product_space(DotProducts::Avx512Vnni));
    CHECK(&space_of("cpu", avx2.problem) == &dot_product_space(DotProducts::Avx2Int8));
    CHECK(&space_of("cpu", any.problem) == &dot_product_space(DotProducts::PortableInt8));
    // One task of 96 pixels x 256 channels: 16 vectors, and 36 steps of 16 groups of four.
    Theta theta = {{"tile_h", 1},    {"tile_w", 1}, {"pixels", 12},
                   {"channels", 32}, {"staged", 8}, {"channel_splits", 1}};
    CHECK(bound(vnni, theta, 96).terms.at("operations") == 96 * 16 * 36 * 16);
    theta["pixels"] = 2;
    CHECK(bound(avx2, theta, 96).us > 2 * bound(vnni, theta, 96).us);
    for (const Workload &workload : {vnni, avx2, any}) {
        const Ranking ranking = rank(workload, {density_bucket(workload, .1)});
        REQUIRE_FALSE(ranking.kept.empty());
        for (const Candidate &candidate : ranking.kept) {
            CHECK(space_of("cpu", workload.problem).why_illegal(candidate.theta, workload.problem).empty());
        }
    }
}

TEST_CASE("Quantized operators run on tensor cores of GPUs, or by dot products beside them", "[bound]") {
    const auto make = [](int channels) {
        return make_operator({{"in_channels", channels}, {"out_channels", 256}, {"dtype", "uint8"}});
    };
    const Operator op = make(256);
    for (const char *profile : {"generic_cuda", "generic_cuda_sm90"}) {
        const DeviceProfile device = generic_device_profile(profile);
        const CodeChoice code = choose_code(op, device, "", Math::Float32);
        CHECK(language_of(op, code) == Language::TensorCore);
        const Workload workload = workload_of(op, device, code);
        CHECK(&space_of("cuda", workload.problem) == &tensor_core_space(*workload.problem.tensor_cores, true));
        const Ranking ranking = rank(workload, {density_bucket(workload, .1)});
        REQUIRE_FALSE(ranking.kept.empty());
        for (const Candidate &candidate : ranking.kept) {
            CHECK(space_of("cuda", workload.problem).why_illegal(candidate.theta, workload.problem).empty());
        }
        const CodeChoice other = choose_code(make(24), device, "", Math::Float32);
        CHECK(other.target == "x86-64-linux-cuda-cuda_capability_75");
        CHECK(language_of(make(24), other) == Language::DotProduct);
        refuse([&] { choose_code(make(24), device, "x86-64-linux-cuda-cuda_capability_80", Math::Float32); },
               {"quantized", "multiples of 16", other.target});
    }
    const std::vector<PlannedCode> planned = planned_codes(op, cuda_backend(), true);
    REQUIRE(planned.size() == 3);
    CHECK(planned.front().name == "conv_sm90");
    CHECK(planned.back().name == "conv_cuda");
    CHECK(planned_codes(op, cuda_backend(), false).size() == 1);
    CHECK(planned_codes(make(24), cuda_backend(), true).size() == 1);
}

TEST_CASE("Schedules for dot products on GPUs are judged by their blocks", "[bound]") {
    const DeviceProfile device = generic_device_profile("generic_cuda");
    const auto workload_for = [&](const json &params) {
        const Operator op = make_operator(params);
        return workload_of(op, device, choose_code(op, device, "", Math::Float32));
    };
    const Workload workload = workload_for({{"in_channels", 24}, {"out_channels", 128}, {"dtype", "uint8"}});
    const Space &space = space_of("cuda", workload.problem);
    CHECK(&space == &dot_product_space(DotProducts::Dp4a));
    const Theta theta = {{"tile_h", 1},    {"tile_w", 1}, {"pixels", 128},
                         {"channels", 64}, {"staged", 1}, {"channel_splits", 1}};
    CHECK(space.why_illegal(theta, workload.problem).empty());
    for (const auto &[knob, value] :
         {std::pair("pixels", 64), {"channels", 32}, {"staged", 2}, {"channel_splits", 2}}) {
        Theta illegal = theta;
        illegal[knob] = value;
        CHECK_FALSE(space.why_illegal(illegal, workload.problem).empty());
    }
    // 216 elements are four steps.
    const Bound one = bound(workload, theta, 128), many = bound(workload, theta, 128 * 1000);
    CHECK(one.terms.at("steps") == 4);
    CHECK(one.terms.at("blocks") == 2);
    CHECK(one.terms.at("rounds") == 1);
    CHECK(many.us > 10 * one.us);
    Theta small = theta;
    small["pixels"] = 32;
    CHECK(bound(workload, small, 32).us < bound(workload, theta, 32).us);
    CHECK(bound(workload, small, 128 * 1000).terms.at("t_L2") > many.terms.at("t_L2"));
    // Blocks mean nothing for a depthwise convolution.
    const Workload depthwise =
        workload_for({{"in_channels", 40}, {"out_channels", 40}, {"groups", 40}, {"dtype", "int8"}});
    const Ranking ranking = rank(depthwise, {density_bucket(depthwise, .1)});
    REQUIRE_FALSE(ranking.kept.empty());
    for (const Candidate &candidate : ranking.kept) {
        CHECK(candidate.theta.at("pixels") == 32);
        CHECK(candidate.theta.at("channels") == 16);
    }
}

TEST_CASE("Schedules of quantized convolutions with groups are judged by what their channels read", "[bound]") {
    const DeviceProfile device = generic_device_profile("generic_avx512");
    const auto workload_for = [&](const json &params, const std::string &word) {
        const Operator op = make_operator(params);
        Workload workload =
            workload_of(op, device, choose_code(op, device, halide_target(device) + word, Math::Float32));
        workload.threads = 1;
        return workload;
    };
    const auto of_groups = [&](int groups) {
        return workload_for({{"in_channels", 256}, {"out_channels", 256}, {"groups", groups}, {"dtype", "int8"}},
                            "-avx512_vnni");
    };
    // One task of 96 pixels x 256 channels: 16 vectors.
    const Theta theta = {{"tile_h", 1},    {"tile_w", 1}, {"pixels", 12},
                         {"channels", 16}, {"staged", 8}, {"channel_splits", 1}};
    const auto operations = [&](const Workload &workload) { return bound(workload, theta, 96).terms.at("operations"); };
    CHECK(operations(of_groups(1)) == 96 * 16 * 36 * 16);
    CHECK(operations(of_groups(4)) == 96 * 16 * 9 * 16);
    // A block of 16 channels reads 16 inputs, which are 36 packs of 4 numbers; with groups of 4, each vector multiplies
    // a pack of every group.
    CHECK(operations(of_groups(16)) == 96 * 16 * 36);
    CHECK(operations(of_groups(64)) == 96 * 16 * 9);
    CHECK(bound(of_groups(64), theta, 96).terms.at("t_fma") < bound(of_groups(16), theta, 96).terms.at("t_fma"));
    CHECK(bound(of_groups(64), theta, 96).terms.at("t_stage") ==
          Approx(bound(of_groups(16), theta, 96).terms.at("t_stage")));
    // 3 columns of 3 taps, which count as 4.
    CHECK(operations(of_groups(256)) == 96 * 16 * 3);
    // Taps are interleaved in vectors of up to 64 channels, so 48 take two.
    const auto stage = [&](int channels) {
        const Theta block = {{"tile_h", 1},          {"tile_w", 1}, {"pixels", 6},
                             {"channels", channels}, {"staged", 8}, {"channel_splits", 1}};
        return bound(of_groups(256), block, 96).terms.at("t_stage");
    };
    CHECK(stage(16) > stage(48));
    CHECK(stage(48) > stage(32));
    CHECK(stage(32) > stage(64));
    Theta wide = theta;
    wide["channels"] = 32;
    const auto why = [&](int groups) {
        const Workload workload = of_groups(groups);
        return space_of("cpu", workload.problem).why_illegal(wide, workload.problem);
    };
    CHECK(why(1).empty());
    CHECK(why(8).empty());
    CHECK(why(16).find("those of a group") != std::string::npos);
    CHECK(why(256).empty());
    // Groups of 24 are padded to 32: 2 of them have 4 vectors, and read 54 packs each.
    const auto of_width = [&](const json &type, const std::string &word) {
        return workload_for({{"in_channels", 48}, {"out_channels", 48}, {"groups", 2}, {"dtype", type}}, word);
    };
    CHECK(operations(of_width("int8", "-avx512_vnni")) == 96 * 4 * 54);
    CHECK(operations(of_width("bfloat16", "-avx512_bf16")) == 96 * 4 * 108);
    // Tiles are whole: 216 numbers are 7 steps.
    CHECK(operations(of_width("bfloat16", "-amx_bf16")) == 6 * 4 * 7);
    // AMX has no code for depthwise convolutions.
    const auto instructions_for = [&](int groups) {
        const json params = {{"in_channels", 256}, {"out_channels", 256}, {"groups", groups}, {"dtype", "uint8"}};
        return workload_for(params, "-amx_int8").problem.dot_products;
    };
    CHECK(instructions_for(4) == DotProducts::AmxInt8);
    CHECK(instructions_for(64) == DotProducts::AmxInt8);
    CHECK(instructions_for(256) == DotProducts::Avx512Vnni);
    // AMX has no code for groups of bfloat16 that share a block: a 0 of theirs times infinity would be no 0.
    const auto of_bfloat16 = [&](int groups) {
        return workload_for({{"in_channels", 256}, {"out_channels", 256}, {"groups", groups}, {"dtype", "bfloat16"}},
                            "-amx_bf16");
    };
    CHECK(of_bfloat16(4).problem.dot_products == DotProducts::AmxBf16);
    CHECK(of_bfloat16(64).problem.dot_products == DotProducts::Avx512Bf16);

    const Operator upsampled = parse_operator({{"distile_operator", 1},
                                               {"name", "conv"},
                                               {"generator", "masked_upsample_conv2d"},
                                               {"params", {{"dtype", "int8"}}}},
                                              "here");
    refuse([&] { choose_code(upsampled, device, "", Math::Float32); }, {"quantized", "upsampling"});
}

TEST_CASE("The code that schedules are ranked for follows from the operator, the device, the target and the math",
          "[rank]") {
    const Operator conv = conv3x3_256();
    json params = {{"in_channels", 256}, {"out_channels", 256}, {"dtype", "float16"}};
    const Operator narrow = make_operator(params);
    params["in_channels"] = 3;
    const Operator odd = make_operator(params);
    const DeviceProfile sm90 = generic_device_profile("generic_cuda_sm90"),
                        sm80 = generic_device_profile("generic_cuda"), cpu = generic_device_profile("generic_avx2");
    const auto space_for = [](const Operator &op, const DeviceProfile &device, const std::string &target, Math math) {
        const CodeChoice code = choose_code(op, device, target, math);
        const Workload workload = workload_of(op, device, code);
        CHECK(workload.problem.tensor_cores.has_value() == (language_of(op, code) == Language::TensorCore));
        return &space_of(device.backend, workload.problem);
    };
    const Space *const halide = &space_of("cuda"), *const of_sm90 = &tensor_core_space(TensorCores::Sm90),
                       *const of_sm80 = &tensor_core_space(TensorCores::Sm80);
    CHECK(space_for(conv, sm90, "", Math::Float32) == halide);
    CHECK(space_for(conv, sm90, "", Math::TF32) == of_sm90);
    CHECK(space_for(conv, sm90, ampere, Math::TF32) == of_sm80);
    CHECK(space_for(conv, sm80, "", Math::TF32) == of_sm80);
    CHECK(space_for(conv, sm80, ampere, Math::Float32) == halide);
    CHECK(space_for(narrow, sm90, "", Math::Float32) == of_sm90);
    CHECK(space_for(narrow, sm90, halide_target(sm90), Math::Float32) == halide);
    CHECK(space_for(odd, sm90, "", Math::Float32) == halide);
    CHECK(space_for(narrow, cpu, "", Math::Float32) == &space_of("cpu"));
    refuse([&] { choose_code(narrow, sm90, "", Math::TF32); }, {"float16", "--math"});
    refuse([&] { choose_code(conv, cpu, "", Math::TF32); }, {"TF32", "CPUs"});
    refuse([&] { choose_code(conv, sm80, hopper, Math::TF32); }, {sm80.name, "sm_80", hopper});
    refuse([&] { choose_code(conv, sm90, hopper, Math::Float32); }, {hopper, "--math tf32"});
    refuse([&] { choose_code(conv, sm90, halide_target(sm90), Math::TF32); }, {"TF32", "80, 86 or 90a"});
    refuse([&] { choose_code(odd, sm90, hopper, Math::Float32); }, {hopper, "multiples of 8"});

    // The more pixels, the larger the best blocks; and one multiprocessor needs no splits.
    for (const auto &[device, target] : {std::pair(sm90, hopper), {sm80, ampere}}) {
        Workload workload = workload_of(conv, device, {target, Math::TF32});
        const Ranking ranking = rank(workload, {density_bucket(workload, .02), density_bucket(workload, 1)});
        const auto best = [&](size_t bucket) {
            return std::min_element(ranking.kept.begin(), ranking.kept.end(),
                                    [&](const Candidate &a, const Candidate &b) { return a.us[bucket] < b.us[bucket]; })
                ->theta;
        };
        const auto size = [](const Theta &theta) { return theta.at("block_pixels") * theta.at("block_channels"); };
        CHECK(size(best(0)) < size(best(1)));
        // So few pixels fill the same blocks in small tiles, too.
        CHECK(best(0).at("tile_h") * best(0).at("tile_w") <= 4);
        workload.threads = 1;
        CHECK(rank(workload, {density_bucket(workload, 1)}).kept.front().theta.at("splits") == 1);
    }
}
