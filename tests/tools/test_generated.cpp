// The generated code: every kind of operator in every type, on the CPUs that this one can stand for, against plain
// loops in double precision; the epilogues and the conversions of types by themselves.
#include "generators/epilogue.h"
#include "generators/storage_type.h"
#include "runtime/kinds/group_blocks.h"
#include "tests/support/activation_tests.h"
#include "tests/support/catch.h"
#include "tests/support/short_tests.h"
#include "tests/tools/generated_operator.h"
#include "tests/tools/plan_files.h"

#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <regex>
#include <sstream>

using namespace distile;

namespace {

const char *const portable = "x86-64-linux";

/** The targets whose code this CPU runs. */
std::vector<const char *> targets() {
    const Halide::Target host = Halide::get_host_target();
    std::vector<const char *> result = {portable};
    if (host.has_feature(Halide::Target::AVX2)) {
        result.push_back(avx2);
    }
    if (host.has_feature(Halide::Target::AVX512_Skylake)) {
        result.push_back(avx512);
    }
    return result;
}

/** The targets, and those of GPUs that Halide finds. What their drivers never free, AddressSanitizer would report. */
std::vector<const char *> targets_with_gpus() {
    std::vector<const char *> result = targets();
#ifndef __SANITIZE_ADDRESS__
    for (const char *gpu : {"host-cuda", "host-opencl"}) {
        if (Halide::host_supports_target_device(Halide::Target(gpu))) {
            result.push_back(gpu);
        }
    }
#endif
    return result;
}

/** A binary format: its bits, those of the fraction, and the exponent of its least normal number. */
struct Format {
    const char *name;
    distile_dtype dtype;
    int bits, fraction, least;
    double largest;
    bool has_infinity = true; /**< Otherwise only magnitudes of all ones are no numbers: NaN. */

    uint32_t sign() const {
        return uint32_t{1} << (bits - 1);
    }
};

const Format float32 = {"float32", DISTILE_FLOAT32, 32, 23, -126, std::numeric_limits<float>::max()};
const Format float16 = {"float16", DISTILE_FLOAT16, 16, 10, -14, 65504};
const Format bfloat16 = {"bfloat16", DISTILE_BFLOAT16, 16, 7, -126, 3.38953138925153547590470800371487866880e38};
const Format float8_e4m3fn = {"float8_e4m3fn", DISTILE_FLOAT8_E4M3FN, 8, 3, -6, 448, false};
const Format float8_e5m2 = {"float8_e5m2", DISTILE_FLOAT8_E5M2, 8, 2, -14, 57344};
const Format formats[] = {float32, float16, bfloat16, float8_e4m3fn, float8_e5m2};
const Format narrow_formats[] = {float16, bfloat16, float8_e4m3fn, float8_e5m2};

/** The code of types of 8 bits differs from that of others by the constants of their conversions: one target shows it.
 */
std::vector<const char *> targets_of(const Format &format) {
    std::vector<const char *> all = targets();
    return format.bits == 8 ? std::vector<const char *>{all[format.fraction % all.size()]} : all;
}

/** Half of the distance of the format's numbers around a value. */
double half_unit(const Format &format, double value) {
    const int exponent = value == 0 ? format.least : std::max(std::ilogb(value), format.least);
    return std::ldexp(1.0, exponent - format.fraction - 1);
}

/** What a format has for a value that exceeds its numbers; other values as they are. */
double limited(const Format &format, double value) {
    return std::abs(value) > format.largest ? std::copysign(format.has_infinity ? HUGE_VAL : format.largest, value)
                                            : value;
}

/** The nearest number of a format, ties to even. */
double rounded(const Format &format, double value) {
    if (!std::isfinite(value) || value == 0) {
        return limited(format, value);
    }
    const double unit = 2 * half_unit(format, value);
    return limited(format, std::nearbyint(value / unit) * unit);
}

float float_of_bits(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

bool same(double a, double b) {
    return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

/** What the bits of a format stand for. */
double value_of(const Format &format, uint32_t bits) {
    const uint32_t magnitude = bits & (format.sign() - 1), ones = format.sign() - 1;
    const uint32_t fraction = magnitude & ((uint32_t{1} << format.fraction) - 1);
    const auto exponent = static_cast<int>(magnitude >> format.fraction);
    double value = std::ldexp(fraction + (exponent ? 1 << format.fraction : 0),
                              std::max(exponent, 1) - 1 + format.least - format.fraction);
    if (format.has_infinity && magnitude >> format.fraction == ones >> format.fraction) {
        value = fraction ? NAN : HUGE_VAL;
    } else if (!format.has_infinity && magnitude == ones) {
        value = NAN;
    }
    return bits & format.sign() ? -value : value;
}

/** Applies a function of Exprs to every element of a vector, as vector code or a kernel of a target. */
template<typename Out, typename In> std::vector<Out> apply(const std::vector<In> &values, const char *target,
                                                           const std::function<Halide::Expr(Halide::Expr)> &function) {
    Halide::Buffer<In> input(const_cast<In *>(values.data()), static_cast<int>(values.size()));
    Halide::Buffer<Out> output(static_cast<int>(values.size()));
    input.set_host_dirty();
    Halide::Var x, thread;
    Halide::Func f;
    f(x) = function(input(x));
    if (Halide::Target(target).has_gpu_feature()) {
        f.gpu_tile(x, thread, 64, Halide::TailStrategy::GuardWithIf);
    } else {
        f.vectorize(x, 16, Halide::TailStrategy::GuardWithIf);
    }
    f.realize(Halide::Pipeline::RealizationArg(output), Halide::Target(target));
    output.copy_to_host();
    return std::vector<Out>(output.begin(), output.end());
}

Theta conv_theta(const char *target, int tile) {
    return {{"tile_h", tile}, {"tile_w", tile}, {"pixels", target == portable ? 2 : 5},
            {"channels", 16}, {"group", 4},     {"channel_splits", 1},
            {"order", 0},     {"unroll", 1}};
}

/** Counts the loads from the input, and those of vectors whose lanes are neither beside each other nor one. */
class CountLoads : public Halide::Internal::IRMutator {
public:
    CountLoads(int &gathers, int &loads) : gathers_(gathers), loads_(loads) {
    }

private:
    using IRMutator::visit;
    Halide::Expr visit(const Halide::Internal::Load *op) override {
        if (op->name == "input") {
            const auto *ramp = op->index.as<Halide::Internal::Ramp>();
            const bool beside = ramp && Halide::Internal::is_const_one(ramp->stride);
            loads_++;
            gathers_ += op->type.is_scalar() || beside ? 0 : 1;
        }
        return IRMutator::visit(op);
    }
    int &gathers_, &loads_;
};

Theta depthwise_theta(const char *target, int tile) {
    return {{"tile_h", tile}, {"tile_w", tile}, {"pixels", target == portable ? 2 : 5},
            {"channels", 16}, {"tasks", 2},     {"unroll", 2}};
}

/** What the code stores is what the definition says, up to the rounding of sums in float32 and one rounding to the
 * type. */
void check_run(const GeneratedCase &generated, const Format &format, const GeneratedCode &code,
               const GeneratedArrays &arrays) {
    const ReferenceValues reference = reference_values(generated, arrays);
    const size_t channels = reference.values.size() / arrays.mask.size();
    for (Reads reads : {Reads::InPlace, Reads::Staged}) {
        const GeneratedRun run = code.bind(arrays, reads);
        REQUIRE(run.run() == 0);
        const std::vector<float> output = run.values();
        REQUIRE(output.size() == reference.values.size());
        size_t wrong_states = 0, wrong_values = 0;
        for (size_t i = 0; i < output.size(); i++) {
            if (!arrays.mask[i / channels]) {
                wrong_states += std::isnan(output[i]) ? 0 : 1;
                continue;
            }
            const double value = format.has_infinity ? reference.values[i] : limited(format, reference.values[i]),
                         sums = std::ldexp(4 * reference.scales[i], -23);
            const double epilogue = 1e-6 * std::max(1.0, std::abs(value));
            const bool right = std::isfinite(value)
                                   ? std::abs(output[i] - value) <= half_unit(format, value) + 2 * (sums + epilogue)
                                   : same(output[i], value);
            wrong_values += right ? 0 : 1;
        }
        CAPTURE(reads == Reads::InPlace);
        CHECK(wrong_states == 0);
        CHECK(wrong_values == 0);
    }
}

const std::vector<float> all_specials = {NAN, -NAN, HUGE_VALF, -HUGE_VALF};

/** Runs code on random values, and with each special value in some elements of the input. */
void check_values(const GeneratedCase &generated, const Format &format, int height = 9, int width = 11,
                  const std::vector<float> &specials = all_specials) {
    std::ostringstream name;
    for (const auto &[param, value] : generated.params) {
        name << " " << param << "=" << value;
    }
    CAPTURE(generated.generator, generated.target, name.str());
    const GeneratedArrays arrays = random_arrays(generated, 2, height, width, .4);
    const GeneratedCode code(generated);
    check_run(generated, format, code, arrays);
    for (const float special : specials) {
        CAPTURE(special);
        GeneratedArrays spoilt = arrays;
        for (size_t i = 5; i < spoilt.input.size(); i += 331) {
            spoilt.input[i] = static_cast<float>(limited(format, special));
        }
        check_run(generated, format, code, spoilt);
    }
}

}  // namespace

TEST_CASE("Every activation in generated code is that of the reference", "[generated]") {
    for (const char *target : targets_with_gpus()) {
        CAPTURE(target);
        check_activations([&](const Activation &activation, const std::vector<float> &values) {
            return apply<float>(values, target, [&](const Halide::Expr &value) {
                return apply_epilogue(activation.function, value, activation.slope);
            });
        });
    }
}

TEST_CASE("Every number of a storage type becomes its float32", "[generated]") {
    for (const Format &format : narrow_formats) {
        for (const char *target : targets_with_gpus()) {
            const StorageConversion conversion{Halide::Target(target)};
            std::vector<uint32_t> bits(size_t{1} << format.bits);
            std::iota(bits.begin(), bits.end(), 0);
            const std::vector<float> found = apply<float>(bits, target, [&](const Halide::Expr &value) {
                return conversion.to_float32(Halide::cast(stored_type(format.dtype), value), format.dtype);
            });
            int wrong = 0;
            for (size_t i = 0; i < bits.size(); i++) {
                wrong += same(found[i], value_of(format, bits[i])) ? 0 : 1;
            }
            CAPTURE(format.name, target);
            CHECK(wrong == 0);
        }
    }
}

TEST_CASE("Float32 is rounded to the nearest number of a storage type, and NaN stays NaN", "[generated]") {
    for (const Format &format : narrow_formats) {
        // All numbers of the type, the ties between them and what is next to both; NaNs of few bits; and any others.
        std::vector<float> values;
        for (uint32_t i = 0; i < uint32_t{1} << format.bits; i++) {
            const double value = value_of(format, i), next = value_of(format, i + 1);
            for (double exact : {value, (value + next) / 2}) {
                const auto single = static_cast<float>(exact);
                values.insert(values.end(),
                              {single, std::nextafter(single, -HUGE_VALF), std::nextafter(single, HUGE_VALF)});
            }
        }
        for (uint32_t nan : {0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu, 0x7fc00000u, 0x7f808000u}) {
            values.push_back(float_of_bits(nan));
        }
        for (float value : {463.9f, 464.0f, 480.0f, 61439.9f, 61440.0f, 65519.9f, 65520.0f, 65535.0f, 65536.0f, 1e30f,
                            -1e30f, 3.4e38f, 1e-45f, HUGE_VALF, -HUGE_VALF}) {
            values.push_back(value);
        }
        std::mt19937 random(3);
        for (int i = 0; i < 1 << 20; i++) {
            values.push_back(float_of_bits(random()));
        }
        for (const char *target : targets_with_gpus()) {
            const StorageConversion conversion{Halide::Target(target)};
            const std::vector<uint32_t> found = apply<uint32_t>(values, target, [&](const Halide::Expr &value) {
                return Halide::cast<uint32_t>(conversion.from_float32(value, format.dtype));
            });
            int wrong = 0;
            for (size_t i = 0; i < values.size(); i++) {
                wrong += same(value_of(format, found[i]), rounded(format, values[i])) ? 0 : 1;
            }
            CAPTURE(format.name, target);
            CHECK(wrong == 0);
        }
    }
}

TEST_CASE("Every kind computes its definition in every type", "[generated]") {
    int number = 0;
    for (const Format &format : formats) {
        for (const char *target : targets_of(format)) {
            const auto check = [&](const char *generator, std::map<std::string, std::string> params, const Theta &theta,
                                   int height = 9, int width = 11, const std::vector<float> &specials = all_specials) {
                if (left_out(number++)) {
                    return;
                }
                params["dtype"] = format.name;
                check_values({generator, params, target, theta}, format, height, width, specials);
            };
            check("masked_conv2d",
                  {{"in_channels", "12"},
                   {"out_channels", "20"},
                   {"groups", "4"},
                   {"stride_h", "2"},
                   {"epilogue", "silu"},
                   {"residual", "true"}},
                  conv_theta(target, 1));
            check("masked_depthwise_conv2d", {{"channels", "40"}, {"epilogue", "relu6"}, {"residual", "true"}},
                  depthwise_theta(target, 2));
            if (format.bits == 8) {
                continue;  // The other kinds load and store by the same code.
            }
            check("masked_linear",
                  {{"in_channels", "24"}, {"out_channels", "40"}, {"epilogue", "gelu"}, {"residual", "true"}},
                  {{"tile_h", 1},
                   {"tile_w", 3},
                   {"pixels", 2},
                   {"channels", 16},
                   {"group", 3},
                   {"channel_splits", 3},
                   {"order", 0},
                   {"unroll", 4}},
                  1, 70);
            check("masked_linear", {{"in_channels", "17"}, {"out_channels", "3"}, {"epilogue", "hardswish"}},
                  conv_theta(target, 1), 1, 33);
            check("masked_conv2d", {{"in_channels", "16"}, {"out_channels", "48"}, {"epilogue", "gelu"}},
                  conv_theta(target, 2));
            check("masked_conv2d", {{"in_channels", "32"}, {"out_channels", "32"}, {"groups", "2"}},
                  conv_theta(target, 1));
            check("masked_conv_transpose2d",
                  {{"in_channels", "16"},
                   {"out_channels", "17"},
                   {"kernel_h", "4"},
                   {"kernel_w", "4"},
                   {"stride_h", "2"},
                   {"stride_w", "2"},
                   {"residual", "true"}},
                  conv_theta(target, 2), 5, 6);
            // No infinities: the sum of the weights that multiply one may have another sign than one of them.
            check("masked_upsample_conv2d", {{"in_channels", "8"}, {"out_channels", "16"}, {"epilogue", "relu"}},
                  conv_theta(target, 4), 5, 6, {NAN, -NAN});
        }
    }
}

TEST_CASE("Groups of any width load their inputs as vectors or broadcast them", "[generated]") {
    // ResNeXt's and RegNet's widths, and unequal ones; register tiles as wide as the spaces allow.
    for (const auto &[inputs, outputs, groups, channels] : {std::tuple(4, 4, 32, 16),
                                                            {8, 8, 16, 16},
                                                            {8, 8, 13, 16},  // The last block is half full.
                                                            {4, 4, 5, 16},
                                                            {24, 24, 2, 32},
                                                            {40, 40, 2, 48},
                                                            {56, 56, 2, 64},
                                                            {100, 100, 2, 112},
                                                            {3, 5, 4, 16},
                                                            {1, 3, 8, 16}}) {
        const GroupBlocks blocks{groups, inputs, outputs, 16};
        Theta theta = blocks.form() == GroupForm::Diagonals ? depthwise_theta(avx512, 1) : conv_theta(avx512, 1);
        theta["channels"] = channels;
        theta["pixels"] = 2;
        theta["unroll"] = 1;
        const GeneratedPipeline made = scheduled_pipeline({"masked_conv2d",
                                                           {{"in_channels", std::to_string(groups * inputs)},
                                                            {"out_channels", std::to_string(groups * outputs)},
                                                            {"groups", std::to_string(groups)}},
                                                           avx512,
                                                           theta});
        int gathers = 0, loads = 0;
        Halide::Pipeline pipeline = made.pipeline;
        // The pipeline takes ownership of its passes.
        // NOLINTNEXTLINE(cppcoreguidelines-owning-memory)
        pipeline.add_custom_lowering_pass(new CountLoads(gathers, loads));
        pipeline.compile_to_module(pipeline.infer_arguments(), "code", Halide::Target(avx512));
        CAPTURE(inputs, outputs, groups);
        CHECK(loads > 0);
        CHECK(gathers == 0);
    }
}

TEST_CASE("Groups of any width compute their definition", "[generated]") {
    // Input and output channels of a group, groups, and channels of a register tile: groups side by side in a block, of
    // which the last is not full; groups that begin a block, in one register tile or several; unequal widths.
    constexpr int shapes[][4] = {{1, 1, 5, 8}, {2, 2, 3, 8},    {4, 4, 5, 8},  {8, 8, 3, 8},  {8, 8, 2, 16},
                                 {3, 5, 2, 8}, {24, 24, 2, 24}, {6, 40, 2, 8}, {17, 20, 2, 8}};
    const std::vector<const char *> known = targets();
    int number = 0;
    for (const auto &[inputs, outputs, groups, channels] : shapes) {
        // The targets and the tiles in turn.
        const char *const target = known[number / 2 % known.size()];
        const int tile = 1 + number++ % 2;
        const bool diagonals = GroupBlocks{groups, inputs, outputs, 16}.form() == GroupForm::Diagonals;
        Theta theta = diagonals ? depthwise_theta(target, tile) : conv_theta(target, tile);
        const int lanes = Halide::Target(target).natural_vector_size<float>();
        theta["channels"] = target == portable && inputs == 8 ? 8 : round_up(channels, lanes);
        theta["pixels"] = channels > 16 || (diagonals && inputs >= 4) ? 1 : 2;
        theta["unroll"] = 1;
        check_values({"masked_conv2d",
                      {{"in_channels", std::to_string(groups * inputs)},
                       {"out_channels", std::to_string(groups * outputs)},
                       {"groups", std::to_string(groups)},
                       {"stride_w", std::to_string(tile)},
                       {"epilogue", "relu6"},
                       {"residual", tile == 1 ? "true" : "false"}},
                      target,
                      theta},
                     float32, 6, 7, {NAN});
    }
}

TEST_CASE("Weights may be stored in the type of the activations", "[generated]") {
    for (const Format &format : narrow_formats) {
        for (const char *target : targets_of(format)) {
            check_values({"masked_conv2d",
                          {{"in_channels", "16"},
                           {"out_channels", "32"},
                           {"dtype", format.name},
                           {"weights_dtype", format.name}},
                          target,
                          conv_theta(target, 1)},
                         format);
        }
    }
}

TEST_CASE("Generated code calls nothing but Halide's runtime", "[generated]") {
    for (const Format &format : formats) {
        const std::vector<const char *> all = {portable, avx2, avx512, "arm-64-linux",
                                               "arm-64-linux-arm_dot_prod-arm_fp16"};
        for (const char *name : format.bits == 8 ? std::vector<const char *>{avx2, "arm-64-linux"} : all) {
            GeneratedCase generated{"masked_conv2d",
                                    {{"in_channels", "16"},
                                     {"out_channels", "16"},
                                     {"dtype", format.name},
                                     {"weights_dtype", format.name},
                                     {"epilogue", "gelu"},
                                     {"residual", "true"}},
                                    name,
                                    conv_theta(name, 1)};
            const GeneratedPipeline made = scheduled_pipeline(generated);
            const Halide::Target target = Halide::Target(name).with_feature(Halide::Target::NoRuntime);
            std::ostringstream text;
            {
                const Halide::Internal::TemporaryFile file("generated", ".s");
                Halide::Pipeline pipeline = made.pipeline;
                pipeline.compile_to_assembly(file.pathname(), pipeline.infer_arguments(), "kernel", target);
                const std::vector<char> assembly = Halide::Internal::read_entire_file(file.pathname());
                text.write(assembly.data(), static_cast<std::streamsize>(assembly.size()));
            }
            const std::string assembly = text.str();
            const std::regex call("\\s(?:call[a-z]*|bl)\\s+\\*?([A-Za-z_][A-Za-z_0-9.]*)");
            int calls = 0;
            for (std::sregex_iterator it(assembly.begin(), assembly.end(), call), end; it != end; ++it, calls++) {
                const std::string callee = (*it)[1];
                CAPTURE(format.name, name, callee);
                CHECK((callee.rfind("halide_", 0) == 0 || callee.rfind("kernel", 0) == 0));
            }
            CHECK(calls > 0);
        }
    }
}

TEST_CASE("A generator refuses types that are not for storage", "[generated]") {
    GeneratedCase generated{"masked_conv2d", {{"dtype", "int8"}}, portable, conv_theta(portable, 1)};
    CHECK_THROWS_AS(scheduled_pipeline(generated), Halide::CompileError);
}
