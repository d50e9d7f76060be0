// The functions of layers.h on a GPU, against plain loops.
#include "tests/gpu/device_tensor.h"
#include "tests/gpu/gpu_session.h"
#include "tests/support/layer_tests.h"
#include <limits>

using namespace distile;

namespace {

/** A GPU as the tests of every device use it. */
struct Machine : Gpu {
    template<typename T> using Array = DeviceArray<T>;
    using Tensor = DeviceTensor;
    void set_mask(const Mask &mask, const Array<uint8_t> &bytes, int32_t batch, int32_t height, int32_t width) const {
        check(distile_mask_set_bytes(mask.get(), bytes.data(), batch, height, width, int64_t{height} * width, width));
    }
    static std::vector<float> read(const Array<float> &array) {
        return array.get();
    }
    static std::vector<uint32_t> read_words(const uint32_t *words, size_t count) {
        return read_device(words, count);
    }
};

}  // namespace

TEST_CASE("Layers on a GPU compute what the plain loops do, and touch nothing else", "[gpu_layers]") {
    const Machine gpu;
    if (!gpu) {
        return;
    }
    std::mt19937 random(55);
    int number = 0;
    for (distile_dtype dtype : float_types) {
        for (int i = 0; i < 84; i++) {
            test_pooling(gpu, dtype, number, random);
            test_global_pooling(gpu, dtype, number, random);
            test_combination(gpu, dtype, number++, random);
        }
    }
    test_concatenation(gpu, random);
    test_special_layers(gpu);
}

TEST_CASE("Group norm on a GPU and masks from scores are those of the plain loops", "[gpu_layers]") {
    const Machine gpu;
    if (!gpu) {
        return;
    }
    std::mt19937 random(59);
    int number = 0;
    for (distile_dtype dtype : float_types) {
        for (int i = 0; i < 96; i++) {
            test_group_norm(gpu, dtype, number, random);
            test_scores(gpu, dtype, number++, random);
        }
    }
}

TEST_CASE("A graph pools and combines whatever its mask then is", "[gpu_layers]") {
    const Machine gpu;
    if (!gpu) {
        return;
    }
    const StreamInUse stream(gpu);
    std::mt19937 random(56);
    constexpr int32_t batch = 2, height = 12, width = 20, channels = 24;
    TestTensor input(batch, height, width, channels), pooled(batch, height, width, channels),
        gate(batch, 1, 1, channels);
    input.draw(Values::Floats, random);
    const DeviceTensor device_input(input, false);
    DeviceTensor device_pooled(pooled, false), device_gate(gate, false);
    DeviceArray<uint8_t> bytes(std::vector<uint8_t>(size_t{batch} * height * width, 1));
    const Mask mask = gpu.make_mask();
    distile_pool_args pool{};
    pool.input = &device_input.view();
    pool.output = &device_pooled.view();
    pool.mask = mask.get();
    pool.window = {3, 3, 1, 1, 1, 1, 1, 1, DISTILE_WINDOW_CONV};
    pool.pooling = DISTILE_AVERAGE_POOLING;
    pool.inactive = DISTILE_ZERO;
    distile_global_pool_args global{};
    global.input = &device_input.view();
    global.output = &device_gate.view();
    global.mask = mask.get();
    global.pooling = DISTILE_AVERAGE_POOLING;
    distile_combine_args excite{};
    excite.input = excite.output = &device_pooled.view();
    excite.other = &device_gate.view();
    excite.mask = mask.get();
    excite.combination = DISTILE_MULTIPLY;
    excite.other_activation = DISTILE_ACTIVATION_SIGMOID;
    const auto record = [&] {
        gpu.set_mask(mask, bytes, batch, height, width);
        gpu.check(distile_pool(gpu.context.get(), &pool));
        gpu.check(distile_global_pool(gpu.context.get(), &global));
        gpu.check(distile_combine(gpu.context.get(), &excite));
    };
    record();
    const Graph graph(stream.get(), record);
    for (const char *name : {"random", "empty", "blob", "full", "one image"}) {
        CAPTURE(name);
        const std::vector<uint8_t> active = make_mask(name, batch, height, width, random);
        bytes.set(active);
        graph.launch();
        stream.finish();
        const std::vector<uint32_t> before = pooled.snapshot();
        REQUIRE(device_pooled.download());
        REQUIRE(device_gate.download());
        CHECK(gate.difference(gate.snapshot(), plain_global_pool(input.view(), active, global.pooling)) == "");
        ReferenceOutput expected = plain_pool(input.view(), pooled.view(), active, pool);
        for (size_t i = 0; i < expected.exact.size(); i++) {
            const auto image = static_cast<int32_t>(i / (size_t{height} * width * channels));
            const auto channel = static_cast<int32_t>(i % channels);
            expected.exact[i] *= apply_epilogue(DISTILE_ACTIVATION_SIGMOID, gate.get(image, 0, 0, channel));
            expected.values[i] = static_cast<float>(expected.exact[i]);
        }
        CHECK(pooled.difference(before, expected) == "");
    }
}
