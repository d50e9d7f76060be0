// The functions of layers.h on a CPU, against plain loops.
#include "runtime/cpu/simd/simd_level.h"
#include "tests/support/layer_tests.h"
#include "tests/support/session.h"
#include <cmath>
#include <distile/distile.hpp>
#include <limits>
#include <string>
#include <vector>

using namespace distile;

namespace {

/** The CPU as the tests of every device use it. */
struct Cpu {
    explicit Cpu(int32_t threads) {
        distile_context_options options{};
        options.threads = threads;
        context = make_context(options);
    }
    template<typename T> using Array = std::vector<T>;
    /** The host's own. */
    class Tensor {
    public:
        Tensor(TestTensor &host, bool) : view_(host.view()) {
        }
        const distile_tensor &view() const {
            return view_;
        }
        static bool download() {
            return true;
        }

    private:
        distile_tensor view_;
    };
    void check(distile_status status) const {
        distile::check(context, status);
    }
    Mask make_mask() const {
        return distile::make_mask(context);
    }
    void set_mask(const Mask &mask, const Array<uint8_t> &bytes, int32_t batch, int32_t height, int32_t width) const {
        check(distile_mask_set_bytes(mask.get(), bytes.data(), batch, height, width, int64_t{height} * width, width));
    }

    static std::vector<float> read(const Array<float> &array) {
        return array;
    }
    static std::vector<uint32_t> read_words(const uint32_t *words, size_t count) {
        return {words, words + count};
    }

    Context context;
};

}  // namespace

TEST_CASE("Pooling computes what the plain loops do, and touches nothing else", "[layers]") {
    std::mt19937 random(51);
    int number = 0;
    for (int32_t threads : {1, 3}) {
        const Cpu cpu(threads);
        for (distile_dtype dtype : float_types) {
            for (int i = 0; i < 84; i++) {
                test_pooling(cpu, dtype, number++, random);
            }
        }
    }
}

TEST_CASE("Global pooling computes what the plain loops do", "[layers]") {
    std::mt19937 random(52);
    int number = 0;
    for (int32_t threads : {1, 3}) {
        const Cpu cpu(threads);
        for (distile_dtype dtype : float_types) {
            for (int i = 0; i < 70; i++) {
                test_global_pooling(cpu, dtype, number++, random);
            }
        }
    }
}

TEST_CASE("Combinations compute what the plain loops do, and touch nothing else", "[layers]") {
    std::mt19937 random(53);
    int number = 0;
    for (int32_t threads : {1, 3}) {
        const Cpu cpu(threads);
        for (distile_dtype dtype : float_types) {
            for (int i = 0; i < 120; i++) {
                test_combination(cpu, dtype, number++, random);
            }
        }
        test_concatenation(cpu, random);
        test_special_layers(cpu);
    }
}

TEST_CASE("Convolutions concatenate their channels without a copy", "[layers]") {
    constexpr int32_t channels = 48;
    Session first, second({}, 2);
    second.reference.mask = first.reference.mask;
    const int32_t height = first.height, width = first.width;
    TestTensor wide(1, height, width, 2 * channels);
    const std::vector<uint32_t> before = wide.snapshot();
    const ReferenceOutput of_first = reference_masked_conv2d(first.reference);
    const ReferenceOutput of_second = reference_masked_conv2d(second.reference);
    ReferenceOutput expected;
    for (size_t pixel = 0; pixel < of_first.states.size(); pixel++) {
        expected.states.push_back(of_first.states[pixel]);
        for (const ReferenceOutput *of : {&of_first, &of_second}) {
            const auto values = of->values.begin() + static_cast<int64_t>(pixel) * channels;
            expected.values.insert(expected.values.end(), values, values + channels);
        }
    }
    distile_tensor slice = wide.view();
    slice.channels = channels;
    for (const Session *session : {&first, &second}) {
        check(session->context, distile_mask_set_bytes(session->mask.get(), first.reference.mask.data(), 1, height,
                                                       width, int64_t{height} * width, width));
        distile_run_args args{};
        args.input = &session->input.view();
        args.output = &slice;
        args.weights = session->weights.get();
        args.mask = session->mask.get();
        check(session->context, distile_run(session->kernel.get(), &args));
        slice.data = static_cast<float *>(slice.data) + channels;
    }
    CHECK(wide.difference(before, expected, 0) == "");
}

TEST_CASE("Group norm and its statistics are those of the plain loops", "[layers]") {
    std::mt19937 random(57);
    int number = 0;
    for (int32_t threads : {1, 3}) {
        const Cpu cpu(threads);
        for (distile_dtype dtype : float_types) {
            for (int i = 0; i < 96; i++) {
                test_group_norm(cpu, dtype, number++, random);
            }
        }
    }
}

TEST_CASE("Scores above a threshold set a mask", "[layers]") {
    std::mt19937 random(58);
    int number = 0;
    for (int32_t threads : {1, 3}) {
        const Cpu cpu(threads);
        for (distile_dtype dtype : float_types) {
            for (int i = 0; i < 70; i++) {
                test_scores(cpu, dtype, number++, random);
            }
        }
    }
}

TEST_CASE("Every activation of every level is that of the reference", "[layers]") {
    for (const SimdLevel &level : supported_simd_levels()) {
        CAPTURE(level.name);
        check_activations([&](const Activation &activation, std::vector<float> values) {
            level.channels.activate(activation, static_cast<int64_t>(values.size()), values.data());
            return values;
        });
    }
}

TEST_CASE("Every level computes channels alike", "[layers]") {
    std::mt19937 random(54);
    for (int64_t count : {1, 7, 8, 15, 16, 33, 200}) {
        std::vector<float> a(count), b(count);
        for (int64_t i = 0; i < count; i++) {
            a[i] = 20 * draw(Values::Floats, random);
            b[i] = i % 5 == 0 ? a[i] : draw(Values::Floats, random);
        }
        std::vector<std::vector<float>> first;
        for (const SimdLevel &level : supported_simd_levels()) {
            const ChannelLoops &loops = level.channels;
            std::vector<std::vector<float>> results;
            for (int activation = 0; activation < DISTILE_NUM_ACTIVATIONS; activation++) {
                std::vector<float> values = a;
                loops.activate({static_cast<distile_activation>(activation), .25f}, count, values.data());
                results.push_back(values);
            }
            for (const auto function : {loops.add, loops.multiply, loops.maximize}) {
                std::vector<float> values(count + 1, 77), in_place = a;
                function(a.data(), b.data(), count, values.data());
                function(in_place.data(), b.data(), count, in_place.data());
                CHECK(values.back() == 77);
                values.pop_back();
                CHECK(values == in_place);
                results.push_back(values);
            }
            std::vector<float> divided = a;
            loops.divide(3, count, divided.data());
            results.push_back(divided);
            std::vector<double> sums(count, 0.5), squares(count, 0.25);
            loops.add_moments(a.data(), count, sums.data(), squares.data());
            for (int64_t i = 0; i < count; i++) {
                CHECK(sums[i] == 0.5 + double{a[i]});
                CHECK(squares[i] == 0.25 + double{a[i]} * double{a[i]});
            }
            std::vector<float> standardized = a;
            loops.standardize(a.data(), count, {b.data(), a.data(), b.data()}, standardized.data());
            results.push_back(standardized);
            results.push_back({loops.dot(a.data(), b.data(), count)});
            double product = 0, largest = 0;
            for (int64_t i = 0; i < count; i++) {
                const double deviation = double{a[i]} - double{b[i]};
                CHECK(std::abs(standardized[i] - (deviation * a[i] + b[i])) <= 1e-4);
                product += double{a[i]} * double{b[i]};
                largest += std::abs(double{a[i]} * double{b[i]});
            }
            CHECK(std::abs(results.back()[0] - product) <= 1e-6 * largest);
            first = first.empty() ? results : first;
            CAPTURE(level.name, count);
            CHECK(results == first);
        }
    }
}

TEST_CASE("Calls of layers refuse what makes no sense, in words", "[layers]") {
    const Cpu cpu(1);
    std::vector<float> values(1000, 1);
    const distile_tensor input = distile_tensor_make(values.data(), 2, 6, 7, 4);
    const distile_tensor output = distile_tensor_make(values.data() + 400, 2, 3, 4, 4);
    const Mask mask = cpu.make_mask();
    cpu.set_mask(mask, std::vector<uint8_t>(24, 1), 2, 3, 4);
    const auto refuse = [&](distile_status status, distile_status due, const std::vector<std::string> &words) {
        const std::string message = distile_context_message(cpu.context.get());
        INFO("the message is: " << message);
        CHECK(distile_status_name(status) == std::string(distile_status_name(due)));
        for (const std::string &word : words) {
            CHECK(message.find(word) != std::string::npos);
        }
        CHECK(values == std::vector<float>(values.size(), 1));
    };
    distile_pool_args right{};
    right.input = &input;
    right.output = &output;
    right.mask = mask.get();
    right.window = {2, 2, 2, 2, 1, 1, 0, 0, DISTILE_WINDOW_CONV};
    const auto refuse_pool = [&](distile_status due, const std::vector<std::string> &words, const auto &change) {
        distile_pool_args args = right;
        change(args);
        refuse(distile_pool(cpu.context.get(), &args), due, words);
    };
    refuse_pool(DISTILE_ERROR_BAD_SHAPE, {"distile_pool", "output column 3", "2 x 6 x 7"},
                [](distile_pool_args &args) { args.window.stride_w = 3; });
    refuse_pool(DISTILE_ERROR_BAD_SHAPE, {"output row 0"}, [](distile_pool_args &args) { args.window.pad_top = 2; });
    refuse_pool(DISTILE_ERROR_BAD_SHAPE, {"output row 1"}, [](distile_pool_args &args) {
        // Taps at rows -1 and 6.
        args.window.pad_top = 3;
        args.window.dilation_h = 7;
    });
    refuse_pool(DISTILE_ERROR_BAD_VALUE, {"kind is not DISTILE_WINDOW_CONV"},
                [](distile_pool_args &args) { args.window.kind = DISTILE_WINDOW_TRANSPOSED; });
    refuse_pool(DISTILE_ERROR_BAD_VALUE, {"count_padding is 2"},
                [](distile_pool_args &args) { args.count_padding = 2; });
    const distile_tensor two = distile_tensor_make(values.data() + 400, 1, 3, 4, 4);
    refuse_pool(DISTILE_ERROR_BAD_SHAPE, {"output has 1 images", "input has 2"},
                [&](distile_pool_args &args) { args.output = &two; });
    distile_global_pool_args global{};
    global.input = &input;
    global.output = &output;
    refuse(distile_global_pool(cpu.context.get(), &global), DISTILE_ERROR_BAD_SHAPE,
           {"distile_global_pool", "3 x 4", "1 x 1"});
    const distile_tensor pixel = distile_tensor_make(values.data() + 400, 2, 1, 1, 4);
    global.output = &pixel;
    global.mask = mask.get();
    refuse(distile_global_pool(cpu.context.get(), &global), DISTILE_ERROR_BAD_MASK,
           {"mask is 2 x 3 x 4", "input is 2 x 6 x 7"});
    distile_combine_args combine{};
    combine.input = &output;
    combine.output = &output;
    combine.mask = mask.get();
    combine.other = &input;
    refuse(distile_combine(cpu.context.get(), &combine), DISTILE_ERROR_BAD_VALUE, {"copy", "second operand"});
    combine.combination = DISTILE_ADD;
    refuse(distile_combine(cpu.context.get(), &combine), DISTILE_ERROR_BAD_SHAPE,
           {"second operand is 2 x 6 x 7", "2 x 3 x 4", "2 x 1 x 1"});
    const distile_tensor first_pixels = distile_tensor_make(values.data() + 396, 2, 1, 1, 4);
    combine.other = &first_pixels;
    refuse(distile_combine(cpu.context.get(), &combine), DISTILE_ERROR_ALIASING, {"second operand overlaps"});
    distile_group_norm_args norm{};
    norm.input = norm.output = &output;
    norm.mask = mask.get();
    norm.groups = 3;
    refuse(distile_group_norm(cpu.context.get(), &norm), DISTILE_ERROR_BAD_VALUE,
           {"distile_group_norm", "groups is 3", "4 channels"});
    norm.groups = 2;
    norm.mean = values.data();
    refuse(distile_group_norm(cpu.context.get(), &norm), DISTILE_ERROR_NULL_POINTER, {"variance is null"});
    norm.mean = nullptr;
    norm.shared_statistics = 1;
    refuse(distile_group_norm(cpu.context.get(), &norm), DISTILE_ERROR_NULL_POINTER, {"mean is null"});
    refuse(distile_mask_set_scores(mask.get(), &input, nullptr, 0, std::nanf("")), DISTILE_ERROR_BAD_VALUE,
           {"distile_mask_set_scores", "threshold is NaN"});
}
