// Every function of the C API with every argument wrong in turn: it says so, and its objects are as usable as before.
#include "descriptors.h"
#include "shared_arguments.h"
#include "temporary_folder.h"
#include "test_polykernels.h"
#include <distile/distile.hpp>
#include <distile/layout.h>
#include <distile/mask_algebra.h>
#include <distile/planner.h>
#include <distile/polykernel.h>
#include <distile/upsample.h>
#include <vector>

using namespace distile;

namespace {

constexpr int32_t images = 2, rows = 6, columns = 7;

/** A tensor with memory of its own. */
struct Activation {
    explicit Activation(int32_t channels)
        : values(static_cast<size_t>(images) * rows * columns * channels, 0.5f),
          view(distile_tensor_make(values.data(), images, rows, columns, channels)) {
    }
    std::vector<float> values;
    distile_tensor view;
};

int run_nothing(void *, void *, const distile_tensor *, const distile_tensor *, const distile_tensor *) {
    return 0;
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
            .wrong<0>(DISTILE_ERROR_BAD_VALUE, &distile_context_options::cpu_features, {"avx3", "avx2,fma"})
            .reserved<0>(&distile_context_options::reserved)
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr});
        all.note("distile_context_destroy");
        distile_context_destroy(nullptr);
        all.note("distile_context_message");
        CHECK(distile_context_message(nullptr) != nullptr);
        all.note("distile_context_threads");
        CHECK(distile_context_threads(nullptr) == 0);
        all.note("distile_context_device");
        CHECK(static_cast<int>(distile_context_device(nullptr)) == 0);
        all.note("distile_version");
        CHECK(distile_version() == DISTILE_VERSION);
        all.note("distile_dtype_size");
        for (int32_t dtype : {-1, 0, 4, INT_MIN, INT_MAX}) {
            distile_dtype unknown{};
            std::memcpy(&unknown, &dtype, sizeof(dtype));
            CHECK(distile_dtype_size(unknown) == 0);
        }
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

        const std::vector<uint32_t> given(size_t{images} * rows, 0x55);
        all.of("distile_mask_set_bits", distile_mask_set_bits, mask, given.data(), images, rows, columns, 1)
            .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<2>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
            .wrong<3>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
            .wrong<4>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
            .wrong<5>(DISTILE_ERROR_BAD_STRIDE, {0, -1, least64, most64});
        const std::vector<int32_t> indices = {0, 41, 7, 7, 12, 3}, outside = {0, 42, 7, 7, 12, 3},
                                   negative = {0, 41, 7, 7, -1, 3}, counts = {3, 2}, many = {3, 4}, few = {-1, 2};
        all.of("distile_mask_set_indices", distile_mask_set_indices, mask, indices.data(), counts.data(), images, rows,
               columns, 3)
            .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_BAD_VALUE, {outside.data(), negative.data()})
            .any<2>({nullptr})
            .wrong<2>(DISTILE_ERROR_BAD_VALUE, {many.data(), few.data()})
            .wrong<3>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
            .wrong<4>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
            .wrong<5>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
            .wrong<6>(DISTILE_ERROR_BAD_STRIDE, {-1, least64, most64});

        f.set(f.mask);
        const uint32_t *words = nullptr;
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
        all.note("distile_tokens_make");
        CHECK(distile_tokens_make(nullptr, -1, INT_MAX, INT_MIN).height == 1);

        distile_polykernel version = f.polykernel, features = f.polykernel, gpu = f.polykernel;
        version.version = 0;
        features.features = "none_such";
        gpu.device = DISTILE_CUDA;
        Descriptor groups(f.polykernel);
        groups.conv.groups = 5;
        distile_kernel *made = nullptr;
        all.of("distile_kernel_create", distile_kernel_create, context, &f.polykernel, &made)
            .then([&] {
                distile_kernel_destroy(made);
                made = nullptr;
            })
            .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_VERSION, {&version})
            .wrong<1>(DISTILE_ERROR_UNSUPPORTED_DEVICE, {&features})
            .wrong<1>(DISTILE_ERROR_OTHER_DEVICE, {&gpu})
            .wrong<1>(DISTILE_ERROR_BAD_CHANNELS, {&groups.polykernel})
            .wrong_number<1>(DISTILE_ERROR_VERSION, &distile_polykernel::kind, {0, -1, 5, INT_MAX})
            .wrong_number<1>(DISTILE_ERROR_OTHER_DEVICE, &distile_polykernel::device, {0, -1, 3, INT_MAX})
            .wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr});
        all.note("distile_kernel_destroy");
        distile_kernel_destroy(nullptr);
        distile_kernel_info info{};
        all.of("distile_kernel_get_info", distile_kernel_get_info, kernel, &info)
            .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr});
        distile_variant_info variant{};
        all.of("distile_kernel_get_variant", distile_kernel_get_variant, kernel, 0, &variant)
            .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_BAD_VALUE, {-1, f.polykernel.num_variants, INT_MIN, INT_MAX})
            .wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr});
        int32_t height = 0, width = 0;
        all.of("distile_kernel_output_shape", distile_kernel_output_shape, kernel, rows, columns, &height, &width)
            .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
            .wrong<2>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
            .wrong<3>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<4>(DISTILE_ERROR_NULL_POINTER, {nullptr});
        all.note("distile_kernel_border");
        CHECK(distile_kernel_border(nullptr).top == 0);
        all.note("distile_kernel_num_variants");
        CHECK(distile_kernel_num_variants(nullptr) == 0);
        all.note("distile_kernel_variant_name");
        CHECK(distile_kernel_variant_name(nullptr, 0) == nullptr);
        for (int32_t index : {-1, f.polykernel.num_variants, INT_MIN, INT_MAX}) {
            CHECK(distile_kernel_variant_name(kernel, index) == nullptr);
        }

        const std::string first = f.polykernel.variants[0].name;
        const std::string row = R"({"variant": ")" + first + R"(", "threads": 1, "tiles": 4, "us": 3})";
        const std::string good = f.folder.write("good", time_table(f.polykernel, row));
        distile_polykernel another_name = f.polykernel, another_plan = f.polykernel;
        another_name.name = "another";
        another_plan.plan_hash ^= 1;
        const std::string others = f.folder.write("others", time_table(another_name, row));
        const std::string stale = f.folder.write("stale", time_table(another_plan, row));
        const std::string none = f.folder.path() + "/none", broken = f.folder.write("broken", R"({"distile_times": 2)");
        const std::string newer = f.folder.write("newer", R"({"distile_times": 3})");
        all.of("distile_kernel_load_times", distile_kernel_load_times, kernel, good.c_str())
            .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_BAD_FILE, {none.c_str(), broken.c_str(), "", f.folder.path().c_str()})
            .wrong<1>(DISTILE_ERROR_VERSION, {newer.c_str()})
            .wrong<1>(DISTILE_ERROR_OTHER_OPERATOR, {others.c_str(), stale.c_str()});
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
        refuse_weights(all, "distile_weights_pack", distile_weights_pack, distile_weights_destroy, kernel, f.source);
        all.note("distile_weights_destroy");
        distile_weights_destroy(nullptr);
        all.note("distile_weights_bytes");
        CHECK(distile_weights_bytes(nullptr) == 0);
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
            .wrong<1>(DISTILE_ERROR_BAD_VALUE, &distile_run_args::variant, {"none", ""})
            .reserved<1>(&distile_run_args::reserved);
        all.of("distile_run_variant", distile_run_variant, kernel, 0, &f.run)
            .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_BAD_VALUE, {-1, f.polykernel.num_variants, INT_MIN, INT_MAX})
            .wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<2>(DISTILE_ERROR_BAD_VALUE, &distile_run_args::variant, {f.polykernel.variants[0].name, "none"})
            .wrong<2>(DISTILE_ERROR_NULL_POINTER, &distile_run_args::mask, {nullptr})
            .reserved<2>(&distile_run_args::reserved);
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
        distile_tensor narrow = f.input.view;
        narrow.dtype = DISTILE_FLOAT16;
        run.wrong<1>(DISTILE_ERROR_BAD_TYPE, &distile_run_args::input, {&narrow});
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
                .template wrong<p>(DISTILE_ERROR_ALIASING, &distile_nchw::data, {f.input.view.data})
                .template wrong<p>(DISTILE_ERROR_BAD_ALIGNMENT, &distile_nchw::data,
                                   {reinterpret_cast<char *>(memory.data()) + 1})
                .template wrong_number<p>(DISTILE_ERROR_BAD_TYPE, &distile_nchw::dtype,
                                          {0, -1, DISTILE_FLOAT16, DISTILE_BFLOAT16, INT_MAX})
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
        const Mask small = make_mask(f.context);
        check(f.context, distile_mask_set_bytes(small.get(), &f.byte, 1, 1, 1, 1, 1));
        const MaskArguments<distile_mask> masks{result, mask, other, unset, foreign, small.get()};
        refuse_windows(all, "distile_mask_needed_input", distile_mask_needed_input, masks, window, rows, columns);
        refuse_windows(all, "distile_mask_affected_output", distile_mask_affected_output, masks, window, rows, columns);
        refuse_numbers(all, "distile_mask_dilate", distile_mask_dilate, masks, {-1, 32768, INT_MIN, INT_MAX});
        refuse_numbers(all, "distile_mask_pool", distile_mask_pool, masks, {0, -1, beyond, INT_MIN, INT_MAX});
        refuse_pairs(all, "distile_mask_unite", distile_mask_unite, masks);
        refuse_pairs(all, "distile_mask_intersect", distile_mask_intersect, masks);
        refuse_pairs(all, "distile_mask_subtract", distile_mask_subtract, masks);
        auto invert = all.of("distile_mask_invert", distile_mask_invert, result, mask);
        refuse_masks(invert, masks);
        auto difference = all.of("distile_mask_set_difference", distile_mask_set_difference, result, &f.output.view,
                                 &f.residual.view, 0.25f);
        refuse_difference(difference, f.output.view);
    }

    // planner.h
    {
        f.set(f.mask);
        refuse_planner_options(all, "distile_planner_create", distile_planner_create, distile_planner_destroy, context);
        all.note("distile_planner_destroy");
        distile_planner_destroy(nullptr);
        all.note("distile_planner_bytes");
        CHECK(distile_planner_bytes(nullptr) == 0);
        const Planner planner = make_planner(f.context);
        const MaskArguments<distile_mask> masks{result, mask, other, unset, foreign, nullptr};
        refuse_outputs(all, "distile_planner_next", distile_planner_next, planner.get(), masks,
                       {images, rows, columns, 4, 1, 1, 1, 1, DISTILE_FLOAT32});
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
            .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &distile_upsample_args::inactive, {-1, 2, INT_MAX})
            .reserved<1>(&distile_upsample_args::reserved);
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
