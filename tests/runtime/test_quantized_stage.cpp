// Stages of quantized tensors on a CPU, against plain loops step by step, with the code of each instruction set.
#include "runtime/base/context.h"
#include "runtime/cpu/architectures/cpu_architecture.h"
#include "runtime/cpu/cpu_features.h"
#include "runtime/stage/check_stage.h"
#include "tests/support/cpu_machine.h"
#include "tests/support/quantized_stage_tests.h"

#include <functional>
#include <string>
#include <vector>

using namespace distile;

namespace {

constexpr distile_dtype types[] = {DISTILE_UINT8, DISTILE_INT8};

/** Calls test(machine, type) for the code of each instruction set that this CPU has. */
template<typename Test> void for_each_code(const Test &test) {
    for (const QuantizedProducts *products : known_quantized_products()) {
        if (missing_cpu_feature(products->features).empty()) {
            for (const distile_dtype type : types) {
                INFO("features " << products->features << ", type " << type);
                test(CpuMachine(products->features), type);
            }
        }
    }
}

}  // namespace

TEST_CASE("A quantized stage on a CPU computes what its steps do one by one, to the bit", "[stage]") {
    for_each_code([](const CpuMachine &cpu, distile_dtype type) {
        for (const double density : {-1., .1, .5, 1., 0.}) {
            TestedQuantizedStage<CpuMachine> stage(cpu, type, 5);
            add_quantized_blocks(stage, 2, 7, 19, 40, 24, 2, density, density == .5);
            stage.check(0);
        }
    });
}

TEST_CASE("Quantized steps on a CPU have any window, channels and groups", "[stage]") {
    for_each_code([](const CpuMachine &cpu, distile_dtype type) {
        for (const int32_t least : {1, 7, 16}) {
            TestedQuantizedStage<CpuMachine> stage(cpu, type, 6);
            add_quantized_kinds(stage, least);
            // Windows reach outside what has no border.
            auto &x = stage.image(1, 5, 6, 12), &y = stage.image(1, 5, 6, 20);
            stage.conv(x, y, 5, nullptr, {1, 2, 4});
            stage.check(0);
        }
    });
}

TEST_CASE("What is wrong with a quantized step is said before it runs", "[stage]") {
    struct Step {
        Step() {
            x.dtype = y.dtype = DISTILE_INT8;
            given.input = &x;
            given.output = &y;
            given.window = {1, 1, 1, 1, 1, 1, 0, 0, DISTILE_WINDOW_CONV};
            given.weights = memory;
        }
        distile_status check(const StageTarget &target) const {
            distile_stage_args args{};
            args.steps = &given;
            args.num_steps = 1;
            return guarded(context.get(), "a test", [&] {
                checked_stage(context.get(), args, target);
                return DISTILE_OK;
            });
        }

        Context context = make_context();
        alignas(128) float memory[2048]{};
        distile_tensor x = distile_tensor_make(memory, 1, 4, 8, 32), y = distile_tensor_make(memory + 512, 1, 4, 8, 32);
        Mask mask = make_mask(context);
        distile_stage_step given{};
    };
    struct Fault {
        const char *what;
        distile_status status;
        std::function<void(Step &)> make;
    };
    const Fault faults[] = {
        {"none", DISTILE_OK, [](Step &) {}},
        {"an output of float32", DISTILE_OK, [](Step &s) { s.y.dtype = DISTILE_FLOAT32; }},
        {"an output of another type", DISTILE_ERROR_BAD_TYPE, [](Step &s) { s.y.dtype = DISTILE_UINT8; }},
        {"a residual of another type", DISTILE_ERROR_BAD_TYPE,
         [](Step &s) {
             s.y.dtype = DISTILE_FLOAT32;
             s.given.residual = &s.x;
         }},
        {"a bias", DISTILE_ERROR_BAD_VALUE, [](Step &s) { s.given.bias = s.memory; }},
        {"later pixels", DISTILE_ERROR_BAD_VALUE, [](Step &s) { s.given.later = s.mask.get(); }},
        {"a type of weights", DISTILE_ERROR_BAD_VALUE, [](Step &s) { s.given.weights_dtype = DISTILE_INT8; }},
        {"alignment of weights", DISTILE_ERROR_BAD_ALIGNMENT, [](Step &s) { s.given.weights = s.memory + 8; }},
        {"no weights", DISTILE_ERROR_NULL_POINTER, [](Step &s) { s.given.weights = nullptr; }},
        {"a sum", DISTILE_ERROR_BAD_TYPE, [](Step &s) { s.given.kind = DISTILE_STEP_SUM; }},
        {"a norm", DISTILE_ERROR_BAD_TYPE, [](Step &s) { s.given.kind = DISTILE_STEP_NORMALIZE; }},
    };
    for (const Fault &fault : faults) {
        INFO(fault.what);
        Step step;
        fault.make(step);
        for (const StageTarget *const target : {&gpu_stage_target, step.context.get()->device->stage_target()}) {
            const distile_status status = step.check(*target);
            INFO(distile_context_message(step.context.get()));
            CHECK(distile_status_name(status) == std::string(distile_status_name(fault.status)));
        }
    }
    // A GPU reads 16 channels at a time.
    Step narrow;
    narrow.x.channels = 24;
    CHECK(narrow.check(*narrow.context.get()->device->stage_target()) == DISTILE_OK);
    CHECK(narrow.check(gpu_stage_target) == DISTILE_ERROR_BAD_CHANNELS);
}

TEST_CASE("Packing quantized weights of a stage checks its arguments", "[stage]") {
    struct Packing {
        distile_status pack() {
            source.filter = from;
            source.dtype = type;
            source.order = DISTILE_OHWI;
            source.quantization = &quantization;
            return distile_pack_quantized_stage_weights(context.get(), &step, &source, packed.data());
        }

        Context context = make_context();
        std::vector<int8_t> filter = std::vector<int8_t>(24);
        std::vector<float> scales = std::vector<float>(3, .5f);
        std::vector<unsigned char> packed = std::vector<unsigned char>(size_t{1} << 16);
        distile_quantized_step step{{3, 8, 1, 1}, 0, DISTILE_UINT8, DISTILE_UINT8, DISTILE_ACTIVATION_NONE, {}};
        distile_quantization quantization{{.5f, 3}, scales.data(), nullptr, {.5f, 4}, {}, {}};
        const void *from = filter.data();
        distile_dtype type = DISTILE_INT8;
        distile_weights_source source{};
    };
    struct Fault {
        const char *what;
        distile_status status;
        std::function<void(Packing &)> make;
    };
    const Fault faults[] = {
        {"none", DISTILE_OK, [](Packing &) {}},
        {"a residual", DISTILE_OK,
         [](Packing &p) {
             p.quantization.residual = {.25f, 5};
         }},
        {"float16", DISTILE_ERROR_BAD_TYPE, [](Packing &p) { p.step.input = DISTILE_FLOAT16; }},
        {"another type of the output", DISTILE_ERROR_BAD_TYPE, [](Packing &p) { p.step.output = DISTILE_INT8; }},
        {"a scale of float32", DISTILE_ERROR_BAD_VALUE, [](Packing &p) { p.step.output = DISTILE_FLOAT32; }},
        {"no scale of the output", DISTILE_ERROR_BAD_VALUE, [](Packing &p) { p.quantization.output = {}; }},
        {"a zero point", DISTILE_ERROR_BAD_VALUE, [](Packing &p) { p.quantization.input.zero_point = -1; }},
        {"no scales", DISTILE_ERROR_NULL_POINTER, [](Packing &p) { p.quantization.filter_scales = nullptr; }},
        {"a scale of 0", DISTILE_ERROR_BAD_VALUE, [](Packing &p) { p.scales[1] = 0; }},
        {"a filter of float32", DISTILE_ERROR_BAD_TYPE, [](Packing &p) { p.type = DISTILE_FLOAT32; }},
        {"no filter", DISTILE_ERROR_NULL_POINTER, [](Packing &p) { p.from = nullptr; }},
        {"no rows", DISTILE_ERROR_BAD_CHANNELS, [](Packing &p) { p.step.extents.kernel_h = 0; }},
        {"fewer than no groups", DISTILE_ERROR_BAD_CHANNELS, [](Packing &p) { p.step.groups = -1; }},
        {"groups that do not divide", DISTILE_ERROR_BAD_CHANNELS, [](Packing &p) { p.step.groups = 2; }},
        {"reserved", DISTILE_ERROR_BAD_VALUE, [](Packing &p) { p.step.reserved[3] = 1; }},
        {"reserved of the source", DISTILE_ERROR_BAD_VALUE, [](Packing &p) { p.source.reserved[1] = 1; }},
    };
    for (const Fault &fault : faults) {
        INFO(fault.what);
        Packing packing;
        fault.make(packing);
        const distile_status status = packing.pack();
        INFO(distile_context_message(packing.context.get()));
        CHECK(distile_status_name(status) == std::string(distile_status_name(fault.status)));
    }
    Packing right;
    const distile_context *const context = right.context.get();
    // A block of 16 channels of 16 packs of 4 inputs; biases; and a header, offsets and multipliers.
    CHECK(distile_quantized_stage_weights_bytes(context, &right.step) == 16 * 64 + 64 + 3 * 64);
    CHECK(distile_quantized_stage_weights_bytes(context, nullptr) == 0);
    CHECK(distile_quantized_stage_weights_bytes(nullptr, &right.step) == 0);
    right.step.groups = 2;
    CHECK(distile_quantized_stage_weights_bytes(context, &right.step) == 0);
    CHECK(distile_pack_quantized_stage_weights(nullptr, &right.step, &right.source, right.packed.data()) ==
          DISTILE_ERROR_NULL_POINTER);
    CHECK(distile_pack_quantized_stage_weights(right.context.get(), nullptr, &right.source, right.packed.data()) ==
          DISTILE_ERROR_NULL_POINTER);
    right.step.groups = 0;
    CHECK(distile_pack_quantized_stage_weights(right.context.get(), &right.step, &right.source, nullptr) ==
          DISTILE_ERROR_NULL_POINTER);
}
