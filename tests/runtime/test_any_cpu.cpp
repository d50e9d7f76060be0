// One binary for any CPU: which PolyKernel of a chain a kernel takes, that each computes the same, and that what is
// named and timed is the one that was taken.
#include "test_conv3_16_48_avx2.h"
#include "test_conv3_16_48_avx512.h"
#include "tests/support/catch.h"
#include "tests/support/contains.h"
#include "tests/support/cpu_features_of.h"
#include "tests/support/descriptors.h"
#include "tests/support/reference.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_tensor.h"
#include <algorithm>
#include <cstring>
#include <distile/distile.hpp>
#include <optional>
#include <random>
#include <string>
#include <vector>

using namespace distile;

namespace {

/** The features of two levels of CPUs. */
const char *const avx2 = test_conv3_16_48_avx2.features;
const char *const avx512 = test_conv3_16_48_avx512.features;

/** PolyKernels for these levels and for any CPU: the build chained the last two. */
distile_polykernel whole_chain() {
    distile_polykernel chain = test_conv3_16_48_avx512;
    chain.fallback = &test_conv3_16_48_avx2;
    return chain;
}

const distile_polykernel &portable() {
    return *test_conv3_16_48_avx2.fallback;
}

Context context_of(const char *features) {
    distile_context_options options{};
    options.cpu_features = features;
    options.threads = 2;
    return make_context(options);
}

/** The PolyKernel of a chain that a kernel took. */
const distile_polykernel *taken_by(const Kernel &kernel, const distile_polykernel &chain) {
    distile_kernel_info info{};
    REQUIRE(distile_kernel_get_info(kernel.get(), &info) == DISTILE_OK);
    for (const distile_polykernel *one = &chain; one; one = one->fallback) {
        if (one->name == info.name) {
            CHECK(one->features == info.features);
            return one;
        }
    }
    return nullptr;
}

/** What is taken of a chain by a context that knows these features; null, and the message, if nothing is. */
const distile_polykernel *taken(const distile_polykernel &chain, const char *features, std::string *message = nullptr) {
    const Context context = context_of(features);
    distile_kernel *kernel = nullptr;
    const distile_status status = distile_kernel_create(context.get(), &chain, &kernel);
    const Kernel owned(kernel);
    if (message) {
        *message = distile_context_message(context.get());
    }
    CHECK((status == DISTILE_OK) == (kernel != nullptr));
    CHECK((status == DISTILE_OK || status == DISTILE_ERROR_UNSUPPORTED_DEVICE));
    return kernel ? taken_by(owned, chain) : nullptr;
}

}  // namespace

TEST_CASE("The build chains a plan and the portable one", "[any_cpu]") {
    const distile_polykernel &tuned = test_conv3_16_48_avx2;
    CHECK(std::string(tuned.name) == "test_conv3_16_48_avx2");
    REQUIRE(tuned.fallback != nullptr);
    CHECK(std::string(portable().name) == "test_conv3_16_48_portable");
    // Every CPU of the architecture has these.
    CHECK(missing_cpu_feature(portable().features, "").empty());
    CHECK_FALSE(missing_cpu_feature(tuned.features, "").empty());
    CHECK(portable().num_times == 0);
    CHECK(portable().fallback == nullptr);
    CHECK(portable().kind == tuned.kind);
    CHECK(std::memcmp(portable().op, tuned.op, sizeof(distile_conv2d)) == 0);
    REQUIRE(portable().num_operands == tuned.num_operands);
    CHECK(std::memcmp(portable().operands, tuned.operands, sizeof(distile_operand) * tuned.num_operands) == 0);
    for (const distile_polykernel *one : {&portable(), &tuned}) {
        for (int32_t i = 0; i < one->num_variants; i++) {
            CHECK(std::string(one->variants[i].layout) == "cpu-o16");
        }
    }
    // A fine and a dense variant.
    REQUIRE(portable().num_variants == 2);
    CHECK(portable().variants[0].tile_h * portable().variants[0].tile_w == 1);
    CHECK(portable().variants[0].dense == 0);
    CHECK(portable().variants[1].dense == 1);
    // Told NO_PORTABLE, it adds none.
    CHECK(test_conv3_16_48_avx512.fallback == nullptr);
}

TEST_CASE("A kernel takes the first of a chain that the CPU can run", "[any_cpu]") {
    const distile_polykernel chain = whole_chain();
    CHECK(taken(chain, nullptr) == (can_run(test_conv3_16_48_avx512) ? &chain : &test_conv3_16_48_avx2));
    CHECK(taken(chain, avx512) == (can_run(test_conv3_16_48_avx512) ? &chain : &test_conv3_16_48_avx2));
    CHECK(taken(chain, avx2) == &test_conv3_16_48_avx2);
    // In any order, and with more than is needed.
    const std::vector<std::string> needed = features_of(test_conv3_16_48_avx2),
                                   more = features_of(test_conv3_16_48_avx512);
    CHECK(taken(chain, ("  " + joined({needed.rbegin(), needed.rend()}) + "  ").c_str()) == &test_conv3_16_48_avx2);
    for (size_t left_out = 0; left_out < more.size(); left_out++) {
        std::vector<std::string> less = more;
        less.erase(less.begin() + static_cast<int64_t>(left_out));
        CAPTURE(joined(less));
        const bool is_needed = std::find(needed.begin(), needed.end(), more[left_out]) != needed.end();
        // What every CPU of the architecture has cannot be left out.
        if (!missing_cpu_feature(more[left_out].c_str(), "").empty()) {
            CHECK(taken(chain, joined(less).c_str()) == (is_needed ? &portable() : &test_conv3_16_48_avx2));
        }
    }
    for (const std::string &alone : needed) {
        CHECK(taken(chain, alone.c_str()) ==
              (missing_cpu_feature(avx2, alone.c_str()).empty() ? &test_conv3_16_48_avx2 : &portable()));
    }
    CHECK(taken(chain, "") == &portable());
    // A limit adds nothing that the CPU lacks.
    distile_polykernel impossible = chain;
    const std::string quantum = std::string(avx2) + " quantum";
    impossible.features = quantum.c_str();
    CHECK(taken(impossible, nullptr) == &test_conv3_16_48_avx2);
}

TEST_CASE("A chain without a PolyKernel for this CPU is refused", "[any_cpu]") {
    distile_polykernel tuned = test_conv3_16_48_avx2;
    tuned.fallback = nullptr;
    distile_polykernel chain = test_conv3_16_48_avx512;
    chain.fallback = &tuned;
    std::string message;
    std::vector<std::string> less = features_of(tuned);
    const std::string last = less.back();
    less.pop_back();
    CHECK(taken(chain, joined(less).c_str(), &message) == nullptr);
    for (const std::string &words :
         {last + ", which 'test_conv3_16_48_avx2' needs", std::string("which 'test_conv3_16_48_avx512' needs"),
          std::string("this device lacks")}) {
        INFO(message);
        CHECK(contains(message, words));
    }
    // The one that would be taken may be of another version.
    distile_polykernel old = portable();
    old.version = DISTILE_POLYKERNEL_VERSION - 1;
    tuned.fallback = &old;
    const Context context = context_of("");
    distile_kernel *kernel = nullptr;
    CHECK(distile_kernel_create(context.get(), &chain, &kernel) == DISTILE_ERROR_VERSION);
    CHECK(kernel == nullptr);
}

TEST_CASE("The limit of a context's CPU features is checked and copied", "[any_cpu]") {
    for (const char *bad : {"avx3", "avx,avx2", "AVX", "avx2 -fma"}) {
        distile_context_options options{};
        options.cpu_features = bad;
        distile_context *context = nullptr;
        CHECK(distile_context_create(&options, &context) == DISTILE_ERROR_BAD_VALUE);
        CHECK(context == nullptr);
    }
    std::string features = avx2;
    const Context context = context_of(features.c_str());
    std::fill(features.begin(), features.end(), 'x');
    const distile_polykernel chain = whole_chain();
    CHECK(taken_by(make_kernel(context, chain), chain) == &test_conv3_16_48_avx2);
}

TEST_CASE("Every PolyKernel of a chain computes the same from the same weights, under its own names", "[any_cpu]") {
    const distile_polykernel chain = whole_chain();
    std::mt19937 random(7);
    constexpr int32_t height = 11, width = 13, in_channels = 16, out_channels = 48;
    TestTensor input(1, height, width, in_channels);
    input.draw(Values::Integers, random);
    ReferenceArgs reference;
    set_operator(reference, chain);
    reference.input = input.view();
    reference.filter = draw(Values::Integers, 9 * in_channels * out_channels, random);
    reference.mask.resize(height * width);
    std::generate(reference.mask.begin(), reference.mask.end(), [&] { return uint8_t(random() % 3 == 0); });
    distile_weights_source source{};
    source.filter = reference.filter.data();
    source.order = DISTILE_HWIO;
    const Context packing = context_of("");
    const Weights weights = pack_weights(packing, make_kernel(packing, chain), source);

    for (const char *features : {avx512, avx2, ""}) {
        distile_choice traced{};
        distile_context_options options{};
        options.cpu_features = features;
        options.trace = [](void *user, const distile_choice *choice) {
            *static_cast<distile_choice *>(user) = *choice;
        };
        options.trace_user = &traced;
        const Context context = make_context(options);
        const Kernel kernel = make_kernel(context, chain);
        const Mask mask = make_mask(context);
        check(context,
              distile_mask_set_bytes(mask.get(), reference.mask.data(), 1, height, width, height * width, width));
        const distile_polykernel &expected_kernel = *taken_by(kernel, chain);
        REQUIRE(distile_kernel_num_variants(kernel.get()) == expected_kernel.num_variants);
        // The last round is the dispatcher's: without times it computes the fewest pixels.
        for (int32_t i = 0; i <= expected_kernel.num_variants; i++) {
            const distile_variant &variant = expected_kernel.variants[i % expected_kernel.num_variants];
            CAPTURE(features, i, variant.name);
            CHECK(std::string(distile_kernel_variant_name(kernel.get(), i % expected_kernel.num_variants)) ==
                  variant.name);
            TestTensor output(1, height, width, out_channels);
            const auto before = output.snapshot();
            distile_run_args args{};
            args.input = &input.view();
            args.output = &output.view();
            args.weights = weights.get();
            args.mask = mask.get();
            args.variant = i < expected_kernel.num_variants ? variant.name : nullptr;
            check(context, distile_run(kernel.get(), &args));
            CHECK(output.difference(before, reference_masked_conv2d(reference), 0) == "");
            CHECK(std::string(traced.kernel) == expected_kernel.name);
            CHECK(std::string(traced.variant) == variant.name);
            CHECK(traced.predicted_us == 0);
        }
    }
}

TEST_CASE("The times of a chain are those of the PolyKernel that was taken", "[any_cpu]") {
    const TemporaryFolder folder;
    const distile_polykernel chain = whole_chain();
    const auto table = [&](const distile_polykernel &of, const char *variant, int us) {
        return folder.write("times.json",
                            time_table(of, std::string(R"({"variant": ")") + variant +
                                               R"(", "threads": 1, "tiles": 1, "us": )" + std::to_string(us) + "}"));
    };
    const Context context = context_of("");
    const Kernel kernel = make_kernel(context, chain);
    const Mask mask = make_mask(context);
    std::vector<uint8_t> bytes(40 * 40);
    bytes[50] = 1;
    check(context, distile_mask_set_bytes(mask.get(), bytes.data(), 1, 40, 40, 1600, 40));
    const auto choose = [&] {
        distile_choice choice{};
        check(context, distile_kernel_choose(kernel.get(), mask.get(), &choice));
        return choice;
    };
    CHECK(choose().predicted_us == 0);
    CHECK(choose().tile_h * choose().tile_w == 1);
    for (const distile_polykernel *other : {&chain, chain.fallback}) {
        CHECK(distile_kernel_load_times(kernel.get(), table(*other, "dense", 3).c_str()) ==
              DISTILE_ERROR_OTHER_OPERATOR);
        CHECK(contains(distile_context_message(context.get()), portable().name));
        CHECK(choose().predicted_us == 0);
    }
    check(context, distile_kernel_load_times(kernel.get(), table(portable(), "dense", 7).c_str()));
    // The time for one tile, times all 40 x 40 tiles.
    CHECK(std::string(choose().variant) == "dense");
    CHECK(choose().predicted_us == 7 * 1600);
    check(context, distile_kernel_add_time(kernel.get(), "fine", 1, 5));
    CHECK(std::string(choose().variant) == "fine");
    CHECK(choose().predicted_us == 5);

    // What is built in belongs to one of them, too.
    const distile_time_point times[] = {{0, 1, 1, 11.0}};
    distile_polykernel timed = portable();
    timed.num_times = 1;
    timed.times = times;
    distile_polykernel head = test_conv3_16_48_avx2;
    head.fallback = &timed;
    const Kernel limited = make_kernel(context, head);
    distile_choice choice{};
    check(context, distile_kernel_choose(limited.get(), mask.get(), &choice));
    CHECK(choice.predicted_us == 11);
}
