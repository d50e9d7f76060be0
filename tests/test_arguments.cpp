// Every function of the C API with every argument wrong in turn: it says so, and its objects are as usable as before.
#include "temporary_folder.h"
#include "test_polykernels.h"
#include "wrong_arguments.h"
#include <climits>
#include <cmath>
#include <distile/distile.hpp>
#include <distile/layout.h>
#include <distile/mask_algebra.h>
#include <distile/planner.h>
#include <distile/polykernel.h>
#include <distile/upsample.h>
#include <limits>
#include <vector>

using namespace distile;

namespace {

constexpr int32_t images = 2, rows = 6, columns = 7;
constexpr int64_t most64 = std::numeric_limits<int64_t>::max(), least64 = std::numeric_limits<int64_t>::min();

/** A tensor with memory of its own. */
struct Activation {
    explicit Activation(int32_t channels)
        : values(static_cast<size_t>(images) * rows * columns * channels, 0.5f),
          view(distile_tensor_make(values.data(), images, rows, columns, channels)) {
    }
    std::vector<float> values;
    distile_tensor view;
};

int run_nothing(void *, const distile_tensor *, const distile_tensor *, const distile_tensor *) {
    return 0;
}

/** Everything that no tensor may be: refuse(status, the tensor with one member spoilt, or null) must be called for
 * each. Of the shape and the channels that is what no function allows; each has more that do not fit its other
 * arguments. */
template<typename Refuse> void spoil_tensor(const distile_tensor &right, const Refuse &refuse) {
    const auto spoil = [&](distile_status status, const auto &change) {
        distile_tensor spoilt = right;
        change(spoilt);
        refuse(status, &spoilt);
    };
    refuse(DISTILE_ERROR_NULL_POINTER, nullptr);
    spoil(DISTILE_ERROR_NULL_POINTER, [](distile_tensor &view) { view.data = nullptr; });
    for (int32_t dtype : {0, -1, 2, INT_MIN, INT_MAX}) {
        spoil(DISTILE_ERROR_BAD_TYPE, [&](distile_tensor &view) { std::memcpy(&view.dtype, &dtype, sizeof(dtype)); });
    }
    for (int32_t bad : {0, -1, 65536, INT_MIN, INT_MAX}) {
        spoil(DISTILE_ERROR_BAD_SHAPE, [&](distile_tensor &view) { view.batch = bad; });
        spoil(DISTILE_ERROR_BAD_SHAPE, [&](distile_tensor &view) { view.height = bad; });
        spoil(DISTILE_ERROR_BAD_SHAPE, [&](distile_tensor &view) { view.width = bad; });
    }
    for (int32_t bad : {0, -1, INT_MIN}) {
        spoil(DISTILE_ERROR_BAD_CHANNELS, [&](distile_tensor &view) { view.channels = bad; });
    }
    for (int64_t bad : {int64_t{0}, int64_t{-1}, int64_t{1} << 31, least64, most64}) {
        spoil(DISTILE_ERROR_BAD_STRIDE, [&](distile_tensor &view) { view.stride_n = bad; });
        spoil(DISTILE_ERROR_BAD_STRIDE, [&](distile_tensor &view) { view.stride_h = bad; });
        spoil(DISTILE_ERROR_BAD_STRIDE, [&](distile_tensor &view) { view.stride_w = bad; });
    }
}

/** What the functions are called with. */
struct Fixture {
    Fixture() {
        set(mask);
        set(other_mask);
        const std::vector<uint8_t> bytes(static_cast<size_t>(images) * rows * columns, 1);
        check(elsewhere,
              distile_mask_set_bytes(foreign_mask.get(), bytes.data(), images, rows, columns, rows * columns, columns));
        source.filter = filter.data();
        source.order = DISTILE_OIHW;
        weights = pack_weights(context, kernel, source);
        const Kernel other = make_kernel(context, test_point_17_48_avx2);
        other_weights = pack_weights(context, other, source);
        run.input = &input.view;
        run.residual = &residual.view;
        run.output = &output.view;
        run.weights = weights.get();
        run.mask = mask.get();
    }

    void set(const Mask &which) const {
        std::vector<uint8_t> bytes(static_cast<size_t>(images) * rows * columns, 0);
        bytes[5] = bytes[20] = 1;
        check(context,
              distile_mask_set_bytes(which.get(), bytes.data(), images, rows, columns, rows * columns, columns));
    }
    std::string message() const {
        return distile_context_message(context.get());
    }
    WrongArguments functions() const {
        return {[this] { return message(); }, [this] { distile_mask_set_bytes(mask.get(), &byte, 1, 1, -77, 1, 1); }};
    }

    TemporaryFolder folder;
    Context context = make_context(), elsewhere = make_context();
    // 48 -> 16 channels, 3 x 3, padding 1, with a residual.
    const distile_polykernel &polykernel = test_conv3_48_16_residual_avx2;
    Kernel kernel = make_kernel(context, polykernel);
    Mask mask = make_mask(context), other_mask = make_mask(context), result = make_mask(context),
         unset = make_mask(context), foreign_mask = make_mask(elsewhere);
    std::vector<float> filter = std::vector<float>(size_t{9} * 48 * 48, 0.25f);
    distile_weights_source source{};
    Weights weights, other_weights;
    Activation input{48}, residual{16}, output{16};
    distile_run_args run{};
    const uint8_t byte = 1;
};

}  // namespace

TEST_CASE("Every function of the C API refuses every argument that is wrong", "[arguments]") {
    Fixture f;
    WrongArguments all = f.functions();
    const int32_t beyond = 65536;
    distile_context *const context = f.context.get();
    distile_mask *const mask = f.mask.get(), *const other = f.other_mask.get(), *const result = f.result.get();
    distile_mask *const unset = f.unset.get(), *const foreign = f.foreign_mask.get();
    distile_kernel *const kernel = f.kernel.get();

    // distile.h
    {
        distile_context *made = nullptr;
        const distile_context_options options{};
        const auto allocate = [](void *, size_t, size_t) -> void * { return nullptr; };
        const auto deallocate = [](void *, void *) {};
        all.of("distile_context_create", distile_context_create, &options, &made)
            .then([&] {
                distile_context_destroy(made);
                made = nullptr;
            })
            .without_message()
            .any<0>({nullptr})
            .wrong<0>(DISTILE_ERROR_BAD_VALUE, &distile_context_options::threads, {-1, 4097, INT_MIN, INT_MAX})
            .wrong<0>(DISTILE_ERROR_BAD_VALUE, &distile_context_options::allocate, {+allocate})
            .wrong<0>(DISTILE_ERROR_BAD_VALUE, &distile_context_options::deallocate, {+deallocate})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr});
        all.note("distile_context_destroy");
        distile_context_destroy(nullptr);
        all.note("distile_context_message");
        CHECK(distile_context_message(nullptr) != nullptr);
        all.note("distile_context_threads");
        CHECK(distile_context_threads(nullptr) == 0);
        all.note("distile_status_name");
        for (int32_t status : {-1, 1000, INT_MAX, INT_MIN}) {
            distile_status unknown{};
            std::memcpy(&unknown, &status, sizeof(status));
            CHECK(std::string(distile_status_name(unknown)) == "unknown status");
        }
    }
    {
        distile_mask *made = nullptr;
        all.of("distile_mask_create", distile_mask_create, context, &made)
            .then([&] {
                distile_mask_destroy(made);
                made = nullptr;
            })
            .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr});
        all.note("distile_mask_destroy");
        distile_mask_destroy(nullptr);

        const std::vector<uint8_t> bytes(size_t{images} * rows * columns, 1);
        all.of("distile_mask_set_bytes", distile_mask_set_bytes, mask, bytes.data(), images, rows, columns,
               rows * columns, columns)
            .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<2>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
            .wrong<3>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
            .wrong<4>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
            .wrong<5>(DISTILE_ERROR_BAD_STRIDE, {0, -42, 41, least64})
            .wrong<6>(DISTILE_ERROR_BAD_STRIDE, {0, -7, 6, 8, least64, most64});

        const uint64_t *words = nullptr;
        int32_t words_per_row = 0;
        all.of("distile_mask_bits", distile_mask_bits, mask, &words, &words_per_row)
            .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<0>(DISTILE_ERROR_BAD_MASK, {unset})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr});
        int64_t number = 0;
        all.of("distile_mask_active_pixels", distile_mask_active_pixels, mask, &number)
            .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<0>(DISTILE_ERROR_BAD_MASK, {unset})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr});
        all.of("distile_mask_count_tiles", distile_mask_count_tiles, mask, 2, 3, &number)
            .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<0>(DISTILE_ERROR_BAD_MASK, {unset})
            .wrong<1>(DISTILE_ERROR_BAD_VALUE, {0, -1, beyond, INT_MIN, INT_MAX})
            .wrong<2>(DISTILE_ERROR_BAD_VALUE, {0, -1, beyond, INT_MIN, INT_MAX})
            .wrong<3>(DISTILE_ERROR_NULL_POINTER, {nullptr});
        distile_tile_list list{};
        all.of("distile_mask_tiles", distile_mask_tiles, mask, 2, 3, &list)
            .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<0>(DISTILE_ERROR_BAD_MASK, {unset})
            .wrong<1>(DISTILE_ERROR_BAD_VALUE, {0, -1, beyond, INT_MIN, INT_MAX})
            .wrong<2>(DISTILE_ERROR_BAD_VALUE, {0, -1, beyond, INT_MIN, INT_MAX})
            .wrong<3>(DISTILE_ERROR_NULL_POINTER, {nullptr});
    }
    {
        // It only fills in a struct.
        all.note("distile_tensor_make");
        CHECK(distile_tensor_make(nullptr, -1, INT_MAX, INT_MAX, INT_MIN).data == nullptr);

        distile_polykernel version = f.polykernel, features = f.polykernel, gpu = f.polykernel;
        version.version = 0;
        features.cpu_features = "none_such";
        gpu.compute_capability = 70;
        distile_kernel *made = nullptr;
        all.of("distile_kernel_create", distile_kernel_create, context, &f.polykernel, &made)
            .then([&] {
                distile_kernel_destroy(made);
                made = nullptr;
            })
            .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_VERSION, {&version})
            .wrong<1>(DISTILE_ERROR_UNSUPPORTED_CPU, {&features})
            .wrong<1>(DISTILE_ERROR_BAD_VALUE, {&gpu})
            .wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr});
        all.note("distile_kernel_destroy");
        distile_kernel_destroy(nullptr);
        all.note("distile_kernel_polykernel");
        CHECK(distile_kernel_polykernel(nullptr) == nullptr);
        all.note("distile_kernel_border");
        CHECK(distile_kernel_border(nullptr).top == 0);
        all.note("distile_kernel_num_variants");
        CHECK(distile_kernel_num_variants(nullptr) == 0);
        all.note("distile_kernel_variant_name");
        CHECK(distile_kernel_variant_name(nullptr, 0) == nullptr);
        for (int32_t index : {-1, f.polykernel.num_variants, INT_MIN, INT_MAX}) {
            CHECK(distile_kernel_variant_name(kernel, index) == nullptr);
        }

        const auto table = [&](const char *name, const std::string &text) {
            return f.folder.write(name, R"({"distile_times": 1, "kernel": ")" + text);
        };
        const std::string first = f.polykernel.variants[0].name;
        const std::string row = R"("times": [{"variant": ")" + first + R"(", "threads": 1, "tiles": 4, "us": 3}]})";
        const std::string good = table("good", f.polykernel.name + (R"(", )" + row)), none = f.folder.path() + "/none";
        const std::string others = table("others", "another\", " + row), broken = table("broken", "");
        const std::string newer = f.folder.write("newer", R"({"distile_times": 2})");
        all.of("distile_kernel_load_times", distile_kernel_load_times, kernel, good.c_str())
            .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_BAD_FILE, {none.c_str(), broken.c_str(), "", f.folder.path().c_str()})
            .wrong<1>(DISTILE_ERROR_VERSION, {newer.c_str()})
            .wrong<1>(DISTILE_ERROR_OTHER_OPERATOR, {others.c_str()});
        const double infinite = std::numeric_limits<double>::infinity(), nan = std::nan("");
        all.of("distile_kernel_add_time", distile_kernel_add_time, kernel, first.c_str(), 4, 3.0)
            .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_BAD_VALUE, {"none", ""})
            .wrong<2>(DISTILE_ERROR_BAD_VALUE, {0, -1, least64})
            .wrong<3>(DISTILE_ERROR_BAD_VALUE, {0, -1, infinite, nan});

        const distile_dense_candidate candidate{"mine", run_nothing, nullptr};
        const Kernel another = make_kernel(f.context, f.polykernel);
        distile_kernel *added = another.get();
        // Names are taken once, so that every call has its own.
        static int calls = 0;
        const auto add = [](distile_kernel *to, const distile_dense_candidate *given) {
            distile_dense_candidate fresh = given ? *given : distile_dense_candidate{};
            const std::string name = fresh.name ? fresh.name + std::to_string(calls++) : "";
            fresh.name = fresh.name && std::string(fresh.name) == "mine" ? name.c_str() : fresh.name;
            return distile_kernel_add_dense(to, given ? &fresh : nullptr);
        };
        all.of("distile_kernel_add_dense", +add, added, &candidate)
            .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, &distile_dense_candidate::name, {nullptr})
            .wrong<1>(DISTILE_ERROR_BAD_VALUE, &distile_dense_candidate::name, {first.c_str()})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, &distile_dense_candidate::run, {nullptr});

        distile_choice choice{};
        all.of("distile_kernel_choose", distile_kernel_choose, kernel, mask, &choice)
            .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_BAD_MASK, {unset, foreign})
            .wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr});
    }
    {
        const std::vector<float> vector(16, 0.5f), negative(16, -3.0f), nan(16, std::nanf(""));
        distile_weights_source source = f.source;
        source.bn_mean = source.bn_variance = vector.data();
        distile_weights *made = nullptr;
        all.of("distile_weights_pack", distile_weights_pack, kernel, &source, &made)
            .then([&] {
                distile_weights_destroy(made);
                made = nullptr;
            })
            .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, &distile_weights_source::filter, {nullptr})
            .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &distile_weights_source::order, {0, -1, 5, INT_MAX})
            .wrong<1>(DISTILE_ERROR_BAD_VALUE, &distile_weights_source::bn_mean, {nullptr})
            .wrong<1>(DISTILE_ERROR_BAD_VALUE, &distile_weights_source::bn_variance,
                      {nullptr, negative.data(), nan.data()})
            .wrong<1>(DISTILE_ERROR_BAD_VALUE, &distile_weights_source::bn_epsilon, {-1.0f, std::nanf("")})
            .wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr});
        all.note("distile_weights_destroy");
        distile_weights_destroy(nullptr);
    }
    {
        auto run = all.of("distile_run", distile_run, kernel, &f.run);
        using Tensor = const distile_tensor *;
        run.wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, &distile_run_args::weights, {nullptr})
            .wrong<1>(DISTILE_ERROR_BAD_WEIGHTS, &distile_run_args::weights, {f.other_weights.get()})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, &distile_run_args::mask, {nullptr})
            .wrong<1>(DISTILE_ERROR_BAD_MASK, &distile_run_args::mask, {unset, foreign})
            .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &distile_run_args::inactive, {-1, 2, INT_MAX})
            .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &distile_run_args::store, {-1, 2, INT_MAX})
            .wrong<1>(DISTILE_ERROR_BAD_VALUE, &distile_run_args::variant, {"none", ""});
        // And every member of the three tensors.
        for (Tensor distile_run_args::*tensor :
             {&distile_run_args::input, &distile_run_args::residual, &distile_run_args::output}) {
            spoil_tensor(*(f.run.*tensor),
                         [&](distile_status status, Tensor spoilt) { run.wrong<1>(status, tensor, {spoilt}); });
            for (int32_t bad : {15, beyond, INT_MAX}) {
                distile_tensor spoilt = *(f.run.*tensor);
                spoilt.channels = bad;
                run.wrong<1>(DISTILE_ERROR_BAD_CHANNELS, tensor, {&spoilt});
            }
        }
        for (int32_t distile_tensor::*border : {&distile_tensor::border_top, &distile_tensor::border_bottom,
                                                &distile_tensor::border_left, &distile_tensor::border_right}) {
            for (int32_t bad : {-1, beyond, INT_MIN, INT_MAX}) {
                distile_tensor spoilt = f.input.view;
                spoilt.*border = bad;
                run.wrong<1>(DISTILE_ERROR_BAD_VALUE, &distile_run_args::input, {&spoilt});
            }
        }
        const distile_tensor over = distile_tensor_make(f.input.view.data, images, rows, columns, 16);
        run.wrong<1>(DISTILE_ERROR_ALIASING, &distile_run_args::output, {&over});
    }

    // layout.h
    {
        std::vector<float> memory(f.input.values.size());
        const distile_nchw planes = distile_nchw_make(memory.data(), 48, rows, columns);
        all.note("distile_nchw_make");
        CHECK(distile_nchw_make(nullptr, INT_MAX, INT_MIN, INT_MAX).data == nullptr);
        const auto spoil = [&](auto &function, auto planes_at, auto tensor_at) {
            constexpr size_t p = decltype(planes_at)::value, t = decltype(tensor_at)::value;
            function.template wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
                .template wrong<p>(DISTILE_ERROR_NULL_POINTER, {nullptr})
                .template wrong<p>(DISTILE_ERROR_NULL_POINTER, &distile_nchw::data, {nullptr})
                .template wrong<p>(DISTILE_ERROR_BAD_STRIDE, &distile_nchw::stride_n,
                                   {int64_t{0}, int64_t{-1}, least64})
                .template wrong<p>(DISTILE_ERROR_BAD_STRIDE, &distile_nchw::stride_c,
                                   {int64_t{0}, int64_t{-1}, most64, least64})
                .template wrong<p>(DISTILE_ERROR_BAD_STRIDE, &distile_nchw::stride_h,
                                   {int64_t{0}, int64_t{-1}, most64, least64});
            spoil_tensor(f.input.view, [&](distile_status status, const distile_tensor *spoilt) {
                function.template wrong<t>(status, {spoilt});
            });
        };
        using First = std::integral_constant<size_t, 1>;
        using Second = std::integral_constant<size_t, 2>;
        auto from = all.of("distile_from_nchw", distile_from_nchw, context, &planes, &f.input.view);
        spoil(from, First(), Second());
        auto to = all.of("distile_to_nchw", distile_to_nchw, context, &f.input.view, &planes);
        spoil(to, Second(), First());
    }

    // mask_algebra.h
    {
        f.set(f.mask);
        all.note("distile_kernel_window");
        CHECK(distile_kernel_window(nullptr).kernel_h == 0);
        const distile_window window = distile_kernel_window(kernel);
        const auto transfer = [&](const char *name, auto *called) {
            auto function = all.of(name, called, result, mask, &window, rows, columns);
            function.template wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
                .template wrong<0>(DISTILE_ERROR_BAD_MASK, {foreign})
                .template wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
                .template wrong<1>(DISTILE_ERROR_BAD_MASK, {unset, foreign})
                .template wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr})
                .template wrong<3>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
                .template wrong<4>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX});
            for (int32_t distile_window::*extent :
                 {&distile_window::kernel_h, &distile_window::kernel_w, &distile_window::stride_h,
                  &distile_window::stride_w, &distile_window::dilation_h, &distile_window::dilation_w}) {
                function.template wrong<2>(DISTILE_ERROR_BAD_VALUE, extent, {0, -1, 65536, INT_MIN, INT_MAX});
            }
            function.template wrong_number<2>(DISTILE_ERROR_BAD_VALUE, &distile_window::kind,
                                              {-1, 3, INT_MIN, INT_MAX});
            for (int32_t distile_window::*pad : {&distile_window::pad_top, &distile_window::pad_left}) {
                function.template wrong<2>(DISTILE_ERROR_BAD_VALUE, pad, {-1, 65536, INT_MIN, INT_MAX});
            }
        };
        transfer("distile_mask_needed_input", distile_mask_needed_input);
        transfer("distile_mask_affected_output", distile_mask_affected_output);
        const auto with_numbers = [&](const char *name, auto *called, std::initializer_list<int32_t> bad) {
            all.of(name, called, result, mask, 1, 2)
                .template wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
                .template wrong<0>(DISTILE_ERROR_BAD_MASK, {foreign})
                .template wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
                .template wrong<1>(DISTILE_ERROR_BAD_MASK, {unset, foreign})
                .template wrong<2>(DISTILE_ERROR_BAD_VALUE, bad)
                .template wrong<3>(DISTILE_ERROR_BAD_VALUE, bad);
        };
        with_numbers("distile_mask_dilate", distile_mask_dilate, {-1, 32768, INT_MIN, INT_MAX});
        with_numbers("distile_mask_pool", distile_mask_pool, {0, -1, 65536, INT_MIN, INT_MAX});
        const Mask small = make_mask(f.context);
        check(f.context, distile_mask_set_bytes(small.get(), &f.byte, 1, 1, 1, 1, 1));
        const auto combine = [&](const char *name, auto *called) {
            all.of(name, called, result, mask, other)
                .template wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
                .template wrong<0>(DISTILE_ERROR_BAD_MASK, {foreign})
                .template wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
                .template wrong<1>(DISTILE_ERROR_BAD_MASK, {unset, foreign})
                .template wrong<1>(DISTILE_ERROR_BAD_SHAPE, {small.get()})
                .template wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr})
                .template wrong<2>(DISTILE_ERROR_BAD_MASK, {unset, foreign})
                .template wrong<2>(DISTILE_ERROR_BAD_SHAPE, {small.get()});
        };
        combine("distile_mask_unite", distile_mask_unite);
        combine("distile_mask_intersect", distile_mask_intersect);
        combine("distile_mask_subtract", distile_mask_subtract);
        all.of("distile_mask_invert", distile_mask_invert, result, mask)
            .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<0>(DISTILE_ERROR_BAD_MASK, {foreign})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_BAD_MASK, {unset, foreign});
        auto difference = all.of("distile_mask_set_difference", distile_mask_set_difference, result, &f.output.view,
                                 &f.residual.view, 0.25f);
        const auto spoil = [&](auto place) {
            constexpr size_t t = decltype(place)::value;
            spoil_tensor(f.output.view, [&](distile_status status, const distile_tensor *spoilt) {
                difference.wrong<t>(status, {spoilt});
            });
            difference.wrong<t>(DISTILE_ERROR_BAD_SHAPE, &distile_tensor::channels, {15})
                .template wrong<t>(DISTILE_ERROR_BAD_SHAPE, &distile_tensor::batch, {1})
                .template wrong<t>(DISTILE_ERROR_BAD_SHAPE, &distile_tensor::height, {5})
                .template wrong<t>(DISTILE_ERROR_BAD_SHAPE, &distile_tensor::width, {6});
        };
        difference.wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<3>(DISTILE_ERROR_BAD_VALUE, {-1.0f, std::nanf(""), -std::numeric_limits<float>::infinity()});
        spoil(std::integral_constant<size_t, 1>());
        spoil(std::integral_constant<size_t, 2>());
    }

    // planner.h
    {
        f.set(f.mask);
        const distile_planner_options options{};
        distile_planner *made = nullptr;
        all.of("distile_planner_create", distile_planner_create, context, &options, &made)
            .then([&] {
                distile_planner_destroy(made);
                made = nullptr;
            })
            .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .any<1>({nullptr})
            .wrong<1>(DISTILE_ERROR_BAD_VALUE, &distile_planner_options::buffers, {1, -1, 65, INT_MIN, INT_MAX})
            .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &distile_planner_options::clearing, {-1, 3, INT_MIN, INT_MAX})
            .wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr});
        all.note("distile_planner_destroy");
        distile_planner_destroy(nullptr);
        all.note("distile_planner_bytes");
        CHECK(distile_planner_bytes(nullptr) == 0);
        const Planner planner = make_planner(f.context);
        const distile_output_spec spec{images, rows, columns, 4, 1, 1, 1, 1};
        distile_tensor tensor{};
        distile_store no_store{}, neither{};
        const int32_t below = -1, above = 2;
        std::memcpy(&no_store, &below, sizeof(below));
        std::memcpy(&neither, &above, sizeof(above));
        auto next = all.of("distile_planner_next", distile_planner_next, planner.get(), &spec, mask,
                           DISTILE_STORE_EXACT, &tensor);
        next.wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_BAD_MASK, &distile_output_spec::batch, {0, 1, -1, 65536, INT_MIN, INT_MAX})
            .wrong<1>(DISTILE_ERROR_BAD_MASK, &distile_output_spec::height, {0, 1, -1, 65536, INT_MIN, INT_MAX})
            .wrong<1>(DISTILE_ERROR_BAD_MASK, &distile_output_spec::width, {0, 1, -1, 65536, INT_MIN, INT_MAX})
            .wrong<1>(DISTILE_ERROR_BAD_VALUE, &distile_output_spec::channels, {0, -1, INT_MIN})
            .wrong<1>(DISTILE_ERROR_BAD_STRIDE, &distile_output_spec::channels, {INT_MAX})
            .wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<2>(DISTILE_ERROR_BAD_MASK, {unset, foreign})
            .wrong<3>(DISTILE_ERROR_BAD_VALUE, {no_store, neither})
            .wrong<4>(DISTILE_ERROR_NULL_POINTER, {nullptr});
        for (int32_t distile_output_spec::*border :
             {&distile_output_spec::border_top, &distile_output_spec::border_bottom, &distile_output_spec::border_left,
              &distile_output_spec::border_right}) {
            next.wrong<1>(DISTILE_ERROR_BAD_VALUE, border, {-1, 65536, INT_MIN, INT_MAX});
        }
    }

    // upsample.h
    {
        distile_upsample_args upsample{};
        upsample.input = &f.residual.view;
        upsample.output = &f.output.view;
        upsample.mask = mask;
        upsample.scale_h = upsample.scale_w = 1;
        auto function = all.of("distile_upsample_nearest", distile_upsample_nearest, context, &upsample);
        function.wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, &distile_upsample_args::mask, {nullptr})
            .wrong<1>(DISTILE_ERROR_BAD_MASK, &distile_upsample_args::mask, {unset, foreign})
            .wrong<1>(DISTILE_ERROR_BAD_VALUE, &distile_upsample_args::scale_h, {0, -1, INT_MIN})
            .wrong<1>(DISTILE_ERROR_BAD_VALUE, &distile_upsample_args::scale_w, {0, -1, INT_MIN})
            .wrong<1>(DISTILE_ERROR_BAD_SHAPE, &distile_upsample_args::scale_h, {2, INT_MAX})
            .wrong<1>(DISTILE_ERROR_BAD_SHAPE, &distile_upsample_args::scale_w, {2, INT_MAX})
            .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &distile_upsample_args::inactive, {-1, 2, INT_MAX});
        for (const distile_tensor *distile_upsample_args::*tensor :
             {&distile_upsample_args::input, &distile_upsample_args::output}) {
            spoil_tensor(*(upsample.*tensor), [&](distile_status status, const distile_tensor *spoilt) {
                function.wrong<1>(status, tensor, {spoilt});
            });
        }
        function.wrong<1>(DISTILE_ERROR_ALIASING, &distile_upsample_args::output, {upsample.input});
    }
    const auto headers = {"distile.h", "layout.h", "mask_algebra.h", "planner.h", "upsample.h"};
    CHECK(all.tested() == declared_functions(DISTILE_INCLUDE_FOLDER, headers));
    CHECK(all.undocumented(DISTILE_INCLUDE_FOLDER, headers) == "");
}
