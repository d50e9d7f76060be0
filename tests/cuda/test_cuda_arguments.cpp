// The functions of the C API on a GPU with every argument wrong in turn, on a driver of our own.
#include "fake_session.h"
#include "gpu_session.h"
#include "shared_arguments.h"
#include <distile/layout.h>
#include <distile/mask_algebra.h>
#include <distile/planner.h>
#include <distile/upsample.h>
#include <test_conv3_48_16_residual_cuda.h>
#include <test_point_17_48_cuda.h>
#include <vector>

using namespace distile;

namespace {

constexpr int32_t images = 2, rows = 6, columns = 7;

/** A tensor on the device with memory of its own. */
struct Activation {
    explicit Activation(int32_t channels)
        : memory(static_cast<size_t>(images) * rows * columns * channels),
          view(distile_tensor_make(memory.data(), images, rows, columns, channels)) {
    }
    DeviceArray<float> memory;
    distile_tensor view;
};

int run_nothing(void *, void *, const distile_tensor *, const distile_tensor *, const distile_tensor *) {
    return 0;
}

/** What the functions are called with. */
struct Fixture {
    Fixture() {
        set(context, mask);
        set(context, other_mask);
        set(elsewhere, foreign_mask);
        source.filter = filter.data();
        source.order = DISTILE_OIHW;
        weights = pack_weights(context, kernel, source);
        const Kernel other = make_kernel(context, test_point_17_48_cuda);
        other_weights = pack_weights(context, other, source);
        run.input = &input.view;
        run.residual = &residual.view;
        run.output = &output.view;
        run.weights = weights.get();
        run.mask = mask.get();
    }

    void set(const Context &of, const Mask &which) const {
        check(of, distile_mask_set_bytes(which.get(), bytes.data(), images, rows, columns, rows * columns, columns));
    }
    std::string message() const {
        return distile_context_message(context.get());
    }
    WrongArguments functions() const {
        return {[this] { return message(); },
                [this] { distile_mask_set_bytes(mask.get(), bytes.data(), 1, 1, -77, 1, 1); }};
    }

    MaskArguments<distile_mask> masks(distile_mask *small) const {
        return {result.get(), mask.get(), other_mask.get(), unset.get(), foreign_mask.get(), small};
    }

    Context context = make_cuda_context(), elsewhere = make_cuda_context();
    // 48 -> 16 channels, 3 x 3, padding 1, with a residual.
    const distile_polykernel &polykernel = test_conv3_48_16_residual_cuda;
    Kernel kernel = make_kernel(context, polykernel);
    Mask mask = make_mask(context), other_mask = make_mask(context), result = make_mask(context),
         unset = make_mask(context), foreign_mask = make_mask(elsewhere);
    std::vector<float> filter = std::vector<float>(size_t{9} * 48 * 48, 0.25f);
    distile_weights_source source{};
    Weights weights, other_weights;
    DeviceArray<uint8_t> bytes = DeviceArray<uint8_t>(size_t{images} * rows * columns);
    Activation input{48}, residual{16}, output{16};
    distile_run_args run{};
};

void check_masks(Fixture &f, WrongArguments &all) {
    distile_mask *const mask = f.mask.get(), *const unset = f.unset.get();
    const uint8_t byte_on_host = 1;
    const uint32_t word_on_host = 1;
    const int32_t index_on_host = 1;
    const DeviceArray<uint32_t> words(size_t{images} * rows);
    const DeviceArray<int32_t> indices(size_t{images} * 5);
    const auto misaligned = [](const auto *pointer) {
        return reinterpret_cast<decltype(pointer)>(reinterpret_cast<uintptr_t>(pointer) + 1);
    };
    distile_mask *made = nullptr;
    all.of("distile_mask_create", distile_mask_create, f.context.get(), &made)
        .then([&] {
            distile_mask_destroy(made);
            made = nullptr;
        })
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr});
    all.of("distile_mask_set_bytes", distile_mask_set_bytes, mask, f.bytes.data(), images, rows, columns,
           rows * columns, columns)
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NOT_DEVICE_MEMORY, {&byte_on_host})
        .wrong<2>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
        .wrong<3>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
        .wrong<4>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
        .wrong<5>(DISTILE_ERROR_BAD_STRIDE, {0, -42, 41, least64})
        .wrong<6>(DISTILE_ERROR_BAD_STRIDE, {0, -7, 6, 8, int64_t{1} << 62, least64, most64});
    all.of("distile_mask_set_bits", distile_mask_set_bits, mask, words.data(), images, rows, columns, 1)
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NOT_DEVICE_MEMORY, {&word_on_host})
        .wrong<1>(DISTILE_ERROR_BAD_ALIGNMENT, {misaligned(static_cast<const uint32_t *>(words.data()))})
        .wrong<2>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
        .wrong<3>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
        .wrong<4>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
        .wrong<5>(DISTILE_ERROR_BAD_STRIDE, {0, -1, least64});
    all.of("distile_mask_set_indices", distile_mask_set_indices, mask, indices.data(), nullptr, images, rows, columns,
           5)
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NOT_DEVICE_MEMORY, {&index_on_host})
        .wrong<1>(DISTILE_ERROR_BAD_ALIGNMENT, {misaligned(static_cast<const int32_t *>(indices.data()))})
        .wrong<2>(DISTILE_ERROR_NOT_DEVICE_MEMORY, {&index_on_host})
        .wrong<2>(DISTILE_ERROR_BAD_ALIGNMENT, {misaligned(static_cast<const int32_t *>(indices.data()))})
        .wrong<3>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
        .wrong<4>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
        .wrong<5>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
        .wrong<6>(DISTILE_ERROR_BAD_STRIDE, {-1, least64});

    const uint32_t *bits = nullptr;
    int32_t words_per_row = 0;
    all.of("distile_mask_bits", distile_mask_bits, mask, &bits, &words_per_row)
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<0>(DISTILE_ERROR_BAD_MASK, {unset})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr});
    int64_t count = 0;
    all.of("distile_mask_active_pixels", distile_mask_active_pixels, mask, &count)
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<0>(DISTILE_ERROR_BAD_MASK, {unset})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr});
    all.of("distile_mask_count_tiles", distile_mask_count_tiles, mask, 2, 3, &count)
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
    distile_kernel *made = nullptr;
    distile_polykernel version = f.polykernel, cpu = f.polykernel, newer = f.polykernel, unknown = f.polykernel;
    version.version = 0;
    cpu.device = DISTILE_CPU;
    newer.features = "sm_990";
    unknown.features = "avx2";
    all.of("distile_kernel_create", distile_kernel_create, f.context.get(), &f.polykernel, &made)
        .then([&] {
            distile_kernel_destroy(made);
            made = nullptr;
        })
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_VERSION, {&version})
        .wrong<1>(DISTILE_ERROR_OTHER_DEVICE, {&cpu})
        .wrong<1>(DISTILE_ERROR_UNSUPPORTED_DEVICE, {&newer, &unknown})
        .wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr});

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
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &distile_dense_candidate::name, {f.polykernel.variants[0].name})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, &distile_dense_candidate::run, {nullptr});

    refuse_weights(all, "distile_weights_pack", distile_weights_pack, distile_weights_destroy, f.kernel.get(),
                   f.source);
}

void check_run(Fixture &f, WrongArguments &all) {
    using Args = distile_run_args;
    auto run = all.of("distile_run", distile_run, f.kernel.get(), &f.run);
    run.wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, &Args::weights, {nullptr})
        .wrong<1>(DISTILE_ERROR_BAD_WEIGHTS, &Args::weights, {f.other_weights.get()})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, &Args::mask, {nullptr})
        .wrong<1>(DISTILE_ERROR_BAD_MASK, &Args::mask, {f.unset.get(), f.foreign_mask.get()})
        .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &Args::inactive, {-1, 2, INT_MAX})
        .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &Args::store, {-1, 2, INT_MAX})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &Args::variant, {"none", ""});
    // And every member of the three tensors.
    float on_host = 0;
    for (const distile_tensor *Args::*tensor : {&Args::input, &Args::residual, &Args::output}) {
        const auto spoil = [&](distile_status status, const auto &change) {
            distile_tensor spoilt = *(f.run.*tensor);
            change(spoilt);
            run.wrong<1>(status, tensor, {&spoilt});
        };
        spoil_tensor(*(f.run.*tensor), [&](distile_status status, const distile_tensor *spoilt) {
            run.wrong<1>(status, tensor, {spoilt});
        });
        spoil(DISTILE_ERROR_NOT_DEVICE_MEMORY, [&](distile_tensor &view) { view.data = &on_host; });
        spoil(DISTILE_ERROR_BAD_ALIGNMENT,
              [](distile_tensor &view) { view.data = static_cast<float *>(view.data) + 1; });
        for (int32_t bad : {beyond, INT_MAX}) {
            spoil(DISTILE_ERROR_BAD_CHANNELS, [&](distile_tensor &view) { view.channels = bad; });
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
    const distile_tensor over = distile_tensor_make(f.input.view.data, images, rows, columns, 16);
    run.wrong<1>(DISTILE_ERROR_ALIASING, &Args::output, {&over});
}

void check_algebra(Fixture &f, WrongArguments &all) {
    const distile_window window = distile_kernel_window(f.kernel.get());
    const Mask small = make_mask(f.context);
    check(f.context, distile_mask_set_bytes(small.get(), f.bytes.data(), 1, 1, 1, 1, 1));
    const MaskArguments<distile_mask> masks = f.masks(small.get());
    refuse_windows(all, "distile_mask_needed_input", distile_mask_needed_input, masks, window, rows, columns);
    refuse_windows(all, "distile_mask_affected_output", distile_mask_affected_output, masks, window, rows, columns);
    refuse_numbers(all, "distile_mask_dilate", distile_mask_dilate, masks, {-1, 32768, INT_MIN, INT_MAX});
    refuse_numbers(all, "distile_mask_pool", distile_mask_pool, masks, {0, -1, beyond, INT_MIN, INT_MAX});
    refuse_pairs(all, "distile_mask_unite", distile_mask_unite, masks);
    refuse_pairs(all, "distile_mask_intersect", distile_mask_intersect, masks);
    refuse_pairs(all, "distile_mask_subtract", distile_mask_subtract, masks);
    auto invert = all.of("distile_mask_invert", distile_mask_invert, masks.result, masks.mask);
    refuse_masks(invert, masks);
    auto difference = all.of("distile_mask_set_difference", distile_mask_set_difference, masks.result, &f.output.view,
                             &f.residual.view, 0.25f);
    refuse_difference(difference, f.output.view);
    float on_host = 0;
    difference.wrong<1>(DISTILE_ERROR_NOT_DEVICE_MEMORY, &distile_tensor::data, {&on_host})
        .wrong<2>(DISTILE_ERROR_NOT_DEVICE_MEMORY, &distile_tensor::data, {&on_host});
}

void check_tensors(Fixture &f, WrongArguments &all) {
    const float on_host = 0;
    const DeviceArray<float> memory(size_t{4} * images * rows * columns * 16);
    const distile_tensor large = distile_tensor_make(memory.data(), images, 2 * rows, 2 * columns, 16);
    const Mask mask = make_mask(f.context);
    const DeviceArray<uint8_t> bytes(size_t{4} * images * rows * columns);
    check(f.context, distile_mask_set_bytes(mask.get(), bytes.data(), images, 2 * rows, 2 * columns, 4 * rows * columns,
                                            2 * columns));
    distile_upsample_args args{};
    args.input = &f.output.view;
    args.output = &large;
    args.mask = mask.get();
    args.scale_h = args.scale_w = 2;
    auto upsample = all.of("distile_upsample_nearest", distile_upsample_nearest, f.context.get(), &args);
    upsample.wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, &distile_upsample_args::input, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, &distile_upsample_args::mask, {nullptr})
        .wrong<1>(DISTILE_ERROR_BAD_MASK, &distile_upsample_args::mask, {f.unset.get(), f.foreign_mask.get()})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &distile_upsample_args::scale_h, {0, -1, INT_MIN})
        .wrong<1>(DISTILE_ERROR_BAD_SHAPE, &distile_upsample_args::scale_w, {1, 3, INT_MAX});
    distile_tensor host_input = f.output.view, host_output = large;
    host_input.data = host_output.data = const_cast<float *>(&on_host);
    upsample.wrong<1>(DISTILE_ERROR_NOT_DEVICE_MEMORY, &distile_upsample_args::input, {&host_input})
        .wrong<1>(DISTILE_ERROR_NOT_DEVICE_MEMORY, &distile_upsample_args::output, {&host_output});

    const distile_nchw planes = distile_nchw_make(memory.data(), 16, rows, columns);
    all.of("distile_from_nchw", distile_from_nchw, f.context.get(), &planes, &f.output.view)
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NOT_DEVICE_MEMORY, &distile_nchw::data, {host_input.data})
        .wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<2>(DISTILE_ERROR_NOT_DEVICE_MEMORY, &distile_tensor::data, {host_input.data});
    all.of("distile_to_nchw", distile_to_nchw, f.context.get(), &f.output.view, &planes)
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NOT_DEVICE_MEMORY, &distile_tensor::data, {host_input.data})
        .wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<2>(DISTILE_ERROR_NOT_DEVICE_MEMORY, &distile_nchw::data, {host_input.data});
}

}  // namespace

TEST_CASE("Every function of cuda.h refuses every argument that is wrong", "[.fake_driver]") {
    {
        const Context context = make_cuda_context(), cpu = make_context();
        WrongArguments all([&] { return std::string(distile_context_message(context.get())); },
                           [&] {
                               const Mask mask = make_mask(context);
                               (void)distile_mask_set_bytes(mask.get(), nullptr, 1, 1, 1, 1, 1);
                           });
        const distile_context_options options{};
        const distile_cuda_options cuda{};
        distile_context *made = nullptr;
        all.of("distile_cuda_context_create", distile_cuda_context_create, &options, &cuda, &made)
            .without_message()
            .then([&] {
                distile_context_destroy(made);
                made = nullptr;
            })
            .any<0>({nullptr})
            .wrong<0>(DISTILE_ERROR_BAD_VALUE, &distile_context_options::threads, {-1, 4097, INT_MIN, INT_MAX})
            .any<1>({nullptr})
            .wrong<1>(DISTILE_ERROR_NO_GPU, &distile_cuda_options::device, {-1, 1, INT_MIN, INT_MAX})
            .wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr});
        distile_cuda_options later{};
        later.reserved[3] = 1;
        CHECK(distile_cuda_context_create(nullptr, &later, &made) == DISTILE_ERROR_BAD_VALUE);
        CHECK(contains(distile_context_message(nullptr), "distile_cuda_context_create"));
        all.of("distile_cuda_set_stream", distile_cuda_set_stream, context.get(), nullptr)
            .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<0>(DISTILE_ERROR_OTHER_DEVICE, {cpu.get()})
            .any<1>({nullptr});
        const Planner planner = make_planner(context), of_cpu = make_planner(cpu);
        all.of("distile_cuda_planner_join", distile_cuda_planner_join, planner.get())
            .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<0>(DISTILE_ERROR_OTHER_DEVICE, {of_cpu.get()});
        CHECK(all.tested() == declared_functions(DISTILE_INCLUDE_FOLDER, {"cuda.h"}));
        CHECK(all.undocumented(DISTILE_INCLUDE_FOLDER, {"cuda.h"}) == "");
    }
    CHECK(count_fake("alive") == 0);
}

TEST_CASE("On a GPU, functions refuse every argument that is wrong", "[.fake_driver]") {
    {
        Fixture f;
        WrongArguments all = f.functions();
        SECTION("masks") {
            check_masks(f, all);
        }
        SECTION("kernels") {
            check_kernels(f, all);
        }
        SECTION("running") {
            check_run(f, all);
        }
        SECTION("masks from masks") {
            check_algebra(f, all);
        }
        SECTION("tensors") {
            check_tensors(f, all);
        }
        SECTION("planners") {
            refuse_planner_options(all, "distile_planner_create", distile_planner_create, distile_planner_destroy,
                                   f.context.get());
            const Planner planner = make_planner(f.context);
            refuse_outputs(all, "distile_planner_next", distile_planner_next, planner.get(), f.masks(nullptr),
                           {images, rows, columns, 4, 1, 1, 1, 1, DISTILE_FLOAT32});
        }
        CHECK(all.undocumented(DISTILE_INCLUDE_FOLDER,
                               {"distile.h", "mask_algebra.h", "planner.h", "layout.h", "upsample.h", "cuda.h"}) == "");
    }
    CHECK(count_fake("alive") == 0);
}
