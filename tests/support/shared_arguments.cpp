#include "facts/activations.h"
#include "tests/support/descriptors.h"
#include "tests/support/shared_fixture.h"
#include <climits>
#include <cmath>
#include <distile/layers.h>
#include <distile/layout.h>
#include <distile/mask_algebra.h>
#include <distile/planner.h>
#include <distile/polykernel.h>
#include <distile/pruned.h>
#include <distile/tokens.h>
#include <distile/upsample.h>
#include <limits>

namespace distile {

namespace {

int run_nothing(void *, void *, const distile_run_args *) {
    return 0;
}

/** What needs no context. */
void check_plain_functions(WrongArguments &all) {
    distile_context *made = nullptr;
    const distile_context_options options{};
    auto create = all.of("distile_context_create", distile_context_create, &options, &made);
    create
        .then([&] {
            distile_context_destroy(made);
            made = nullptr;
        })
        .without_message()
        .wrong<0>(DISTILE_ERROR_BAD_VALUE, &distile_context_options::cpu_features, {"avx3", "avx2,fma"})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr});
    refuse_context_options(create);
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
    for (int32_t dtype : {-1, 0, 6, INT_MIN, INT_MAX}) {
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
    // These only fill in a struct.
    all.note("distile_tensor_make");
    CHECK(distile_tensor_make(nullptr, -1, INT_MAX, INT_MAX, INT_MIN).data == nullptr);
    all.note("distile_tokens_make");
    CHECK(distile_tokens_make(nullptr, -1, INT_MAX, INT_MIN).height == 1);
    all.note("distile_nchw_make");
    CHECK(distile_nchw_make(nullptr, INT_MAX, INT_MIN, INT_MAX).data == nullptr);
}

void check_mask_sources(Fixture &f, WrongArguments &all) {
    distile_mask *made = nullptr;
    all.of("distile_mask_create", distile_mask_create, f.context.get(), &made)
        .then([&] {
            distile_mask_destroy(made);
            made = nullptr;
        })
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr});
    all.note("distile_mask_destroy");
    distile_mask_destroy(nullptr);

    distile_mask *const mask = f.result.get();
    const uint8_t byte_on_host = 1;
    auto set_bytes = all.of("distile_mask_set_bytes", distile_mask_set_bytes, mask, f.bytes.data(), images, rows,
                            columns, rows * columns, columns);
    set_bytes.wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<2>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
        .wrong<3>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
        .wrong<4>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
        .wrong<5>(DISTILE_ERROR_BAD_STRIDE, {-1, -42, 41, least64})
        .wrong<6>(DISTILE_ERROR_BAD_STRIDE, {0, -7, 6, 8, int64_t{1} << 62, least64, most64});

    const Fixture::Array<uint32_t> words(f, std::vector<uint32_t>(size_t{images} * rows, 0x55));
    const uint32_t word_on_host = 1;
    auto set_bits =
        all.of("distile_mask_set_bits", distile_mask_set_bits, mask, words.data(), images, rows, columns, 1);
    set_bits.wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<2>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
        .wrong<3>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
        .wrong<4>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
        .wrong<5>(DISTILE_ERROR_BAD_STRIDE, {0, -1, least64, most64})
        .wrong<1>(DISTILE_ERROR_BAD_ALIGNMENT, {misaligned(words.data())});

    const std::vector<int32_t> right = {0, 41, 7, 7, 12, 3}, outside = {0, 42, 7, 7, 12, 3},
                               negative = {0, 41, 7, 7, -1, 3}, right_counts = {3, 2}, many = {3, 4}, few = {-1, 2};
    const Fixture::Array<int32_t> indices(f, right), counts(f, right_counts);
    auto set_indices = all.of("distile_mask_set_indices", distile_mask_set_indices, mask, indices.data(), counts.data(),
                              images, rows, columns, 3);
    set_indices.wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .any<2>({nullptr})
        .wrong<3>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
        .wrong<4>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
        .wrong<5>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
        .wrong<6>(DISTILE_ERROR_BAD_STRIDE, {-1, least64, most64})
        .wrong<1>(DISTILE_ERROR_BAD_ALIGNMENT, {misaligned(indices.data())})
        .wrong<2>(DISTILE_ERROR_BAD_ALIGNMENT, {misaligned(counts.data())});
    if (f.device.host_memory) {
        set_indices.wrong<1>(DISTILE_ERROR_BAD_VALUE, {outside.data(), negative.data()})
            .wrong<2>(DISTILE_ERROR_BAD_VALUE, {many.data(), few.data()});
    } else {
        set_bytes.wrong<1>(DISTILE_ERROR_NOT_DEVICE_MEMORY, {&byte_on_host});
        set_bits.wrong<1>(DISTILE_ERROR_NOT_DEVICE_MEMORY, {&word_on_host});
        set_indices.wrong<1>(DISTILE_ERROR_NOT_DEVICE_MEMORY, {right.data()})
            .wrong<2>(DISTILE_ERROR_NOT_DEVICE_MEMORY, {right_counts.data()});
    }
}

void check_mask_contents(Fixture &f, WrongArguments &all) {
    distile_mask *const mask = f.mask.get(), *const unset = f.unset.get();
    const uint32_t *words = nullptr;
    int32_t words_per_row = 0;
    all.of("distile_mask_bits", distile_mask_bits, mask, &words, &words_per_row)
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<0>(DISTILE_ERROR_BAD_MASK, {unset})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr});
    const Fixture::Array<uint8_t> written(f, std::vector<uint8_t>(size_t{images} * rows * columns));
    uint8_t byte_on_host = 0;
    auto get_bytes =
        all.of("distile_mask_get_bytes", distile_mask_get_bytes, mask, written.data(), rows * columns, columns);
    get_bytes.wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<0>(DISTILE_ERROR_BAD_MASK, {unset})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<2>(DISTILE_ERROR_BAD_STRIDE, {0, -42, 41, least64})
        .wrong<3>(DISTILE_ERROR_BAD_STRIDE, {0, -7, 6, 8, int64_t{1} << 62, least64, most64});
    if (!f.device.host_memory) {
        get_bytes.wrong<1>(DISTILE_ERROR_NOT_DEVICE_MEMORY, {&byte_on_host});
    }
    all.of("distile_mask_mirror", distile_mask_mirror, f.result.get(), written.data(), rows * columns, columns)
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .any<1>({nullptr})
        .any<2>({0, least64})
        .any<3>({0, least64});
    distile_mask_mirror(f.result.get(), nullptr, 0, 0);
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

void check_kernels(Fixture &f, WrongArguments &all) {
    distile_kernel *const kernel = f.kernel.get();
    distile_polykernel version = f.polykernel, lacking = f.polykernel, another = f.polykernel;
    version.version = 0;
    another.device = f.device.another;
    Descriptor groups(f.polykernel);
    groups.conv.groups = 5;
    distile_kernel *made = nullptr;
    auto create = all.of("distile_kernel_create", distile_kernel_create, f.context.get(), &f.polykernel, &made);
    create
        .then([&] {
            distile_kernel_destroy(made);
            made = nullptr;
        })
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_VERSION, {&version})
        .wrong<1>(DISTILE_ERROR_OTHER_DEVICE, {&another})
        .wrong<1>(DISTILE_ERROR_BAD_CHANNELS, {&groups.polykernel})
        .wrong_number<1>(DISTILE_ERROR_VERSION, &distile_polykernel::kind, {0, -1, 7, INT_MAX})
        .wrong_number<1>(DISTILE_ERROR_OTHER_DEVICE, &distile_polykernel::device, {0, -1, 4, INT_MAX})
        .wrong_number<1>(DISTILE_ERROR_VERSION, &distile_polykernel::math, {-1, 3, INT_MIN, INT_MAX})
        .wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr});
    for (const char *features : f.device.lacking) {
        lacking.features = features;
        create.wrong<1>(DISTILE_ERROR_UNSUPPORTED_DEVICE, {&lacking});
    }
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
    distile_choice choice{};
    all.of("distile_kernel_choose", distile_kernel_choose, kernel, f.mask.get(), &choice)
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_BAD_MASK, {f.unset.get(), f.foreign_mask.get()})
        .wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr});
}

void check_times_and_candidates(Fixture &f, WrongArguments &all) {
    distile_kernel *const kernel = f.kernel.get();
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
    // Names are taken once, so that every call has its own.
    static int calls = 0;
    const auto add = [](distile_kernel *to, const distile_dense_candidate *given) {
        distile_dense_candidate fresh = given ? *given : distile_dense_candidate{};
        const std::string name = fresh.name ? fresh.name + std::to_string(calls++) : "";
        fresh.name = fresh.name && std::string(fresh.name) == "mine" ? name.c_str() : fresh.name;
        return distile_kernel_add_dense(to, given ? &fresh : nullptr);
    };
    all.of("distile_kernel_add_dense", +add, another.get(), &candidate)
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, &distile_dense_candidate::name, {nullptr})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &distile_dense_candidate::name, {first.c_str()})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, &distile_dense_candidate::run, {nullptr});
}

void check_weights(Fixture &f, WrongArguments &all) {
    const std::vector<float> vector(16, 0.5f), negative(16, -3.0f), nan(16, std::nanf(""));
    distile_weights_source source = f.source;
    source.bn_mean = source.bn_variance = vector.data();
    distile_weights *made = nullptr;
    all.of("distile_weights_pack", distile_weights_pack, f.kernel.get(), &source, &made)
        .then([&] {
            distile_weights_destroy(made);
            made = nullptr;
        })
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, &distile_weights_source::filter, {nullptr})
        .wrong_number<1>(DISTILE_ERROR_BAD_TYPE, &distile_weights_source::dtype, {-1, 4, INT_MIN, INT_MAX})
        .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &distile_weights_source::order, {0, -1, 5, INT_MAX})
        .reserved<1>(&distile_weights_source::reserved)
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &distile_weights_source::bn_mean, {nullptr})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &distile_weights_source::bn_variance, {nullptr, negative.data(), nan.data()})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &distile_weights_source::bn_epsilon, {-1.0f, std::nanf("")})
        .wrong<1>(DISTILE_ERROR_BAD_ALIGNMENT, &distile_weights_source::filter,
                  {misaligned(static_cast<const float *>(source.filter))})
        .wrong<1>(DISTILE_ERROR_BAD_ALIGNMENT, &distile_weights_source::bias, {misaligned(vector.data())})
        .wrong<1>(DISTILE_ERROR_BAD_ALIGNMENT, &distile_weights_source::bn_gamma, {misaligned(vector.data())})
        .wrong<1>(DISTILE_ERROR_BAD_ALIGNMENT, &distile_weights_source::bn_beta, {misaligned(vector.data())})
        .wrong<1>(DISTILE_ERROR_BAD_ALIGNMENT, &distile_weights_source::bn_mean, {misaligned(vector.data())})
        .wrong<1>(DISTILE_ERROR_BAD_ALIGNMENT, &distile_weights_source::bn_variance, {misaligned(vector.data())})
        .wrong<1>(DISTILE_ERROR_BAD_ALIGNMENT, &distile_weights_source::slope, {misaligned(vector.data())})
        .wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr});
    distile_weights_source plain{};
    plain.filter = vector.data();
    plain.order = DISTILE_OI;
    const distile_filter_extents extents{2, 8, 1, 1};
    const distile_quantization quantization{};
    int32_t keep = 0;
    using Extents = distile_filter_extents;
    auto pattern = all.of("distile_weights_keep_two_of_four", distile_weights_keep_two_of_four, f.context.get(), &plain,
                          &extents, DISTILE_FLOAT16, &keep);
    pattern.wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, &distile_weights_source::filter, {nullptr})
        .wrong_number<1>(DISTILE_ERROR_BAD_TYPE, &distile_weights_source::dtype, {-1, 4, INT_MIN, INT_MAX})
        .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &distile_weights_source::order, {0, -1, 5, INT_MAX})
        .reserved<1>(&distile_weights_source::reserved)
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &distile_weights_source::bn_mean, {vector.data()})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &distile_weights_source::quantization, {&quantization})
        .wrong<1>(DISTILE_ERROR_BAD_ALIGNMENT, &distile_weights_source::filter, {misaligned(vector.data())})
        .wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<2>(DISTILE_ERROR_BAD_SHAPE, &Extents::out_channels, {0, -1, INT_MIN, INT_MAX})
        .wrong<2>(DISTILE_ERROR_BAD_SHAPE, &Extents::in_channels, {0, -1, INT_MIN, INT_MAX})
        .wrong<2>(DISTILE_ERROR_BAD_SHAPE, &Extents::kernel_h, {0, -1, INT_MIN, INT_MAX})
        .wrong<2>(DISTILE_ERROR_BAD_SHAPE, &Extents::kernel_w, {0, -1, INT_MIN, INT_MAX})
        .wrong<3>(DISTILE_ERROR_BAD_TYPE, {DISTILE_FLOAT32, DISTILE_INT8})
        .wrong<4>(DISTILE_ERROR_NULL_POINTER, {nullptr});
    all.note("distile_weights_destroy");
    distile_weights_destroy(nullptr);
    all.note("distile_weights_bytes");
    CHECK(distile_weights_bytes(nullptr) == 0);
}

void check_run(Fixture &f, WrongArguments &all) {
    using Args = distile_run_args;
    using Tensor = const distile_tensor *;
    auto run = all.of("distile_run", distile_run, f.kernel.get(), &f.run);
    run.wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, &Args::weights, {nullptr})
        .wrong<1>(DISTILE_ERROR_BAD_WEIGHTS, &Args::weights, {f.other_weights.get()})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &Args::key, {&f.input.view})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &Args::value, {&f.input.view})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &Args::key_mask, {f.unset.get()})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, &Args::mask, {nullptr})
        .wrong<1>(DISTILE_ERROR_BAD_MASK, &Args::mask, {f.unset.get(), f.foreign_mask.get()})
        .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &Args::inactive, {-1, 2, INT_MAX})
        .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &Args::store, {-1, 2, INT_MAX})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &Args::fixed_order, {-1, 2, INT_MAX})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &Args::variant, {"none", ""})
        .reserved<1>(&Args::reserved);
    all.of("distile_run_variant", distile_run_variant, f.kernel.get(), 0, &f.run)
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, {-1, f.polykernel.num_variants, INT_MIN, INT_MAX})
        .wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<2>(DISTILE_ERROR_BAD_VALUE, &Args::variant, {f.polykernel.variants[0].name, "none"})
        .wrong<2>(DISTILE_ERROR_NULL_POINTER, &Args::mask, {nullptr})
        .reserved<2>(&Args::reserved);
    // Every member of the three tensors, too.
    for (Tensor Args::*tensor : {&Args::input, &Args::residual, &Args::output}) {
        const distile_tensor &right = *(f.run.*tensor);
        spoil_tensor(f, right, [&](distile_status status, Tensor spoilt) { run.wrong<1>(status, tensor, {spoilt}); });
        for (int32_t bad : {15, beyond, INT_MAX}) {
            distile_tensor spoilt = right;
            spoilt.channels = bad;
            run.wrong<1>(DISTILE_ERROR_BAD_CHANNELS, tensor, {&spoilt});
        }
        if (!f.device.host_memory) {
            // A GPU reads whole vectors.
            distile_tensor spoilt = right;
            spoilt.data = static_cast<float *>(right.data) + 1;
            run.wrong<1>(DISTILE_ERROR_BAD_ALIGNMENT, tensor, {&spoilt});
        }
    }
    for (int32_t distile_tensor::*border : {&distile_tensor::border_top, &distile_tensor::border_bottom,
                                            &distile_tensor::border_left, &distile_tensor::border_right}) {
        for (int32_t bad : {-1, beyond, INT_MIN, INT_MAX}) {
            distile_tensor spoilt = f.input.view;
            spoilt.*border = bad;
            run.wrong<1>(DISTILE_ERROR_BAD_VALUE, &Args::input, {&spoilt});
        }
    }
    distile_tensor narrow = f.input.view;
    narrow.dtype = DISTILE_FLOAT16;
    run.wrong<1>(DISTILE_ERROR_BAD_TYPE, &Args::input, {&narrow});
    const distile_tensor over = distile_tensor_make(f.input.view.data, images, rows, columns, 16);
    run.wrong<1>(DISTILE_ERROR_ALIASING, &Args::output, {&over});
}

void check_layouts(Fixture &f, WrongArguments &all) {
    const Fixture::Activation memory(f, 1, 48);
    const distile_nchw planes = distile_nchw_make(memory.memory.data(), 48, rows, columns);
    const auto spoil = [&](auto &function, auto planes_at, auto tensor_at) {
        constexpr size_t p = decltype(planes_at)::value, t = decltype(tensor_at)::value;
        function.template wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .template wrong<p>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .template wrong<p>(DISTILE_ERROR_NULL_POINTER, &distile_nchw::data, {nullptr})
            .template wrong<p>(DISTILE_ERROR_ALIASING, &distile_nchw::data, {f.input.view.data})
            .template wrong<p>(DISTILE_ERROR_BAD_ALIGNMENT, &distile_nchw::data, {static_cast<char *>(planes.data) + 1})
            .template wrong_number<p>(DISTILE_ERROR_BAD_TYPE, &distile_nchw::dtype,
                                      {0, -1, DISTILE_FLOAT16, DISTILE_BFLOAT16, INT_MAX})
            .template wrong<p>(DISTILE_ERROR_BAD_STRIDE, &distile_nchw::stride_n, {int64_t{0}, int64_t{-1}, least64})
            .template wrong<p>(DISTILE_ERROR_BAD_STRIDE, &distile_nchw::stride_c,
                               {int64_t{0}, int64_t{-1}, most64, least64})
            .template wrong<p>(DISTILE_ERROR_BAD_STRIDE, &distile_nchw::stride_h,
                               {int64_t{0}, int64_t{-1}, most64, least64});
        if (!f.device.host_memory) {
            function.template wrong<p>(DISTILE_ERROR_NOT_DEVICE_MEMORY, &distile_nchw::data, {&f.on_host});
        }
        spoil_tensor(f, f.input.view, [&](distile_status status, const distile_tensor *spoilt) {
            function.template wrong<t>(status, {spoilt});
        });
    };
    using First = std::integral_constant<size_t, 1>;
    using Second = std::integral_constant<size_t, 2>;
    auto from = all.of("distile_from_nchw", distile_from_nchw, f.context.get(), &planes, &f.input.view);
    spoil(from, First(), Second());
    auto to = all.of("distile_to_nchw", distile_to_nchw, f.context.get(), &f.input.view, &planes);
    spoil(to, Second(), First());
}

/** Arguments 0 and 1 of a function: the mask that it sets, and the one that it reads. */
template<typename Function> void refuse_masks(Fixture &f, Function &function) {
    function.template wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .template wrong<0>(DISTILE_ERROR_BAD_MASK, {f.foreign_mask.get()})
        .template wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .template wrong<1>(DISTILE_ERROR_BAD_MASK, {f.unset.get(), f.foreign_mask.get()});
}

/** A function of a mask, a window and the size of the result. */
template<typename Called> void refuse_windows(Fixture &f, WrongArguments &all, const char *name, Called *called) {
    const distile_window window = distile_kernel_window(f.kernel.get());
    auto function = all.of(name, called, f.result.get(), f.mask.get(), &window, rows, columns);
    refuse_masks(f, function);
    function.template wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .template wrong<3>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
        .template wrong<4>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX});
    for (int32_t distile_window::*extent :
         {&distile_window::kernel_h, &distile_window::kernel_w, &distile_window::stride_h, &distile_window::stride_w,
          &distile_window::dilation_h, &distile_window::dilation_w}) {
        function.template wrong<2>(DISTILE_ERROR_BAD_VALUE, extent, {0, -1, beyond, INT_MIN, INT_MAX});
    }
    function.template wrong_number<2>(DISTILE_ERROR_BAD_VALUE, &distile_window::kind, {-1, 3, INT_MIN, INT_MAX});
    for (int32_t distile_window::*pad : {&distile_window::pad_top, &distile_window::pad_left}) {
        function.template wrong<2>(DISTILE_ERROR_BAD_VALUE, pad, {-1, beyond, INT_MIN, INT_MAX});
    }
}

/** A function of a mask and two numbers. */
template<typename Called> void refuse_numbers(Fixture &f, WrongArguments &all, const char *name, Called *called,
                                              std::initializer_list<int32_t> bad) {
    auto function = all.of(name, called, f.result.get(), f.mask.get(), 1, 2);
    refuse_masks(f, function);
    function.template wrong<2>(DISTILE_ERROR_BAD_VALUE, bad).template wrong<3>(DISTILE_ERROR_BAD_VALUE, bad);
}

/** A function of two masks. */
template<typename Called> void refuse_pairs(Fixture &f, WrongArguments &all, const char *name, Called *called) {
    auto function = all.of(name, called, f.result.get(), f.mask.get(), f.other_mask.get());
    refuse_masks(f, function);
    function.template wrong<1>(DISTILE_ERROR_BAD_SHAPE, {f.small_mask.get()})
        .template wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .template wrong<2>(DISTILE_ERROR_BAD_MASK, {f.unset.get(), f.foreign_mask.get()})
        .template wrong<2>(DISTILE_ERROR_BAD_SHAPE, {f.small_mask.get()});
}

/** The function of a mask that sets it to the difference of two tensors. */
void refuse_differences(Fixture &f, WrongArguments &all) {
    auto difference = all.of("distile_mask_set_difference", distile_mask_set_difference, f.result.get(), &f.output.view,
                             &f.residual.view, 0.25f);
    const auto spoil = [&](auto place) {
        constexpr size_t t = decltype(place)::value;
        spoil_tensor(f, f.output.view, [&](distile_status status, const distile_tensor *spoilt) {
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

void check_algebra(Fixture &f, WrongArguments &all) {
    all.note("distile_kernel_window");
    CHECK(distile_kernel_window(nullptr).kernel_h == 0);
    refuse_windows(f, all, "distile_mask_needed_input", distile_mask_needed_input);
    refuse_windows(f, all, "distile_mask_affected_output", distile_mask_affected_output);
    refuse_numbers(f, all, "distile_mask_dilate", distile_mask_dilate, {-1, 32768, INT_MIN, INT_MAX});
    refuse_numbers(f, all, "distile_mask_pool", distile_mask_pool, {0, -1, beyond, INT_MIN, INT_MAX});
    refuse_pairs(f, all, "distile_mask_unite", distile_mask_unite);
    refuse_pairs(f, all, "distile_mask_intersect", distile_mask_intersect);
    refuse_pairs(f, all, "distile_mask_subtract", distile_mask_subtract);
    auto invert = all.of("distile_mask_invert", distile_mask_invert, f.result.get(), f.mask.get());
    refuse_masks(f, invert);
    refuse_differences(f, all);
}

void check_planners(Fixture &f, WrongArguments &all) {
    const distile_planner_options options{};
    distile_planner *made = nullptr;
    all.of("distile_planner_create", distile_planner_create, f.context.get(), &options, &made)
        .then([&] {
            distile_planner_destroy(made);
            made = nullptr;
        })
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .any<1>({nullptr})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &distile_planner_options::buffers, {1, -1, 65, INT_MIN, INT_MAX})
        .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &distile_planner_options::clearing, {-1, 3, INT_MIN, INT_MAX})
        .reserved<1>(&distile_planner_options::reserved)
        .wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr});
    all.note("distile_planner_destroy");
    distile_planner_destroy(nullptr);
    all.note("distile_planner_bytes");
    CHECK(distile_planner_bytes(nullptr) == 0);

    const Planner planner = make_planner(f.context);
    const distile_output_spec spec = {images, rows, columns, 4, 1, 1, 1, 1, DISTILE_FLOAT32};
    distile_tensor tensor{};
    distile_store no_store{}, neither{};
    const int32_t below = -1, above = 2;
    std::memcpy(&no_store, &below, sizeof(below));
    std::memcpy(&neither, &above, sizeof(above));
    auto next = all.of("distile_planner_next", distile_planner_next, planner.get(), &spec, f.mask.get(),
                       DISTILE_STORE_EXACT, &tensor);
    next.wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_BAD_MASK, &distile_output_spec::batch, {0, 1, -1, beyond, INT_MIN, INT_MAX})
        .wrong<1>(DISTILE_ERROR_BAD_MASK, &distile_output_spec::height, {0, 1, -1, beyond, INT_MIN, INT_MAX})
        .wrong<1>(DISTILE_ERROR_BAD_MASK, &distile_output_spec::width, {0, 1, -1, beyond, INT_MIN, INT_MAX})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &distile_output_spec::channels, {0, -1, INT_MIN})
        .wrong<1>(DISTILE_ERROR_BAD_STRIDE, &distile_output_spec::channels, {INT_MAX})
        .wrong_number<1>(DISTILE_ERROR_BAD_TYPE, &distile_output_spec::dtype, {-1, 4, INT_MIN, INT_MAX})
        .wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<2>(DISTILE_ERROR_BAD_MASK, {f.unset.get(), f.foreign_mask.get()})
        .wrong<3>(DISTILE_ERROR_BAD_VALUE, {no_store, neither})
        .wrong<4>(DISTILE_ERROR_NULL_POINTER, {nullptr});
    for (int32_t distile_output_spec::*border :
         {&distile_output_spec::border_top, &distile_output_spec::border_bottom, &distile_output_spec::border_left,
          &distile_output_spec::border_right}) {
        next.wrong<1>(DISTILE_ERROR_BAD_VALUE, border, {-1, beyond, INT_MIN, INT_MAX});
    }
}

}  // namespace

void refuse_wrong_arguments(const TestedDevice &device, const std::string &include_folder) {
    Fixture f(device);
    WrongArguments all = f.functions();
    check_plain_functions(all);
    check_mask_sources(f, all);
    check_mask_contents(f, all);
    check_kernels(f, all);
    check_times_and_candidates(f, all);
    check_weights(f, all);
    check_run(f, all);
    check_layouts(f, all);
    check_algebra(f, all);
    check_planners(f, all);
    check_upsampling(f, all);
    check_normalization(f, all);
    check_packing(f, all);
    check_pooling(f, all);
    check_global_pooling(f, all);
    check_combination(f, all);
    check_group_statistics(f, all);
    check_group_norm(f, all);
    check_scores(f, all);
    const auto headers = {"distile.h", "layers.h", "layout.h", "mask_algebra.h",
                          "planner.h", "pruned.h", "tokens.h", "upsample.h"};
    CHECK(all.tested() == declared_functions(include_folder, headers));
    CHECK(all.undocumented(include_folder, headers) == "");
}

}  // namespace distile
