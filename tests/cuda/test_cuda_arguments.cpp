// Every function of the C API for GPUs with every argument wrong in turn, on a driver of our own.
#include "fake_session.h"
#include "gpu.h"
#include "shared_arguments.h"
#include <distile/cuda_mask_algebra.h>
#include <distile/cuda_planner.h>
#include <distile/distile.hpp>
#include <distile/polykernel.h>
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
        const CudaKernel other = make_kernel(context, cuda, test_point_17_48_cuda);
        other_weights = pack_weights(context, other, source);
        run.input = &input.view;
        run.residual = &residual.view;
        run.output = &output.view;
        run.weights = weights.get();
        run.mask = mask.get();
    }

    void set(const Context &of, const CudaMask &which) const {
        check(of,
              distile_cuda_mask_set_bytes(which.get(), bytes.data(), images, rows, columns, rows * columns, columns));
    }
    std::string message() const {
        return distile_context_message(context.get());
    }
    WrongArguments functions() const {
        return {[this] { return message(); },
                [this] { distile_cuda_mask_set_bytes(mask.get(), bytes.data(), 1, 1, -77, 1, 1); }};
    }

    MaskArguments<distile_cuda_mask> masks(distile_cuda_mask *small) const {
        return {result.get(), mask.get(), other_mask.get(), unset.get(), foreign_mask.get(), small};
    }

    Context context = make_context(), elsewhere = make_context();
    Cuda cuda = make_cuda(context), other_cuda = make_cuda(elsewhere);
    // 48 -> 16 channels, 3 x 3, padding 1, with a residual.
    const distile_polykernel &polykernel = test_conv3_48_16_residual_cuda;
    CudaKernel kernel = make_kernel(context, cuda, polykernel);
    CudaMask mask = make_mask(context, cuda), other_mask = make_mask(context, cuda), result = make_mask(context, cuda),
             unset = make_mask(context, cuda), foreign_mask = make_mask(elsewhere, other_cuda);
    std::vector<float> filter = std::vector<float>(size_t{9} * 48 * 48, 0.25f);
    distile_weights_source source{};
    CudaWeights weights, other_weights;
    DeviceArray<uint8_t> bytes = DeviceArray<uint8_t>(size_t{images} * rows * columns);
    Activation input{48}, residual{16}, output{16};
    distile_cuda_run_args run{};
};

void check_masks(Fixture &f, WrongArguments &all) {
    distile_cuda *const cuda = f.cuda.get();
    distile_cuda_mask *const mask = f.mask.get(), *const unset = f.unset.get();
    distile_cuda_mask *made = nullptr;
    all.of("distile_cuda_mask_create", distile_cuda_mask_create, cuda, &made)
        .then([&] {
            distile_cuda_mask_destroy(made);
            made = nullptr;
        })
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr});
    all.note("distile_cuda_mask_destroy");
    distile_cuda_mask_destroy(nullptr);

    const uint8_t on_host = 1;
    all.of("distile_cuda_mask_set_bytes", distile_cuda_mask_set_bytes, mask, f.bytes.data(), images, rows, columns,
           rows * columns, columns)
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NOT_DEVICE_MEMORY, {&on_host})
        .wrong<2>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
        .wrong<3>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
        .wrong<4>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
        .wrong<5>(DISTILE_ERROR_BAD_STRIDE, {0, -42, 41, least64})
        .wrong<6>(DISTILE_ERROR_BAD_STRIDE, {0, -7, 6, 8, int64_t{1} << 62, least64, most64});

    const uint32_t *words = nullptr, *xy = nullptr, *image = nullptr, *count = nullptr;
    int32_t words_per_row = 0;
    all.of("distile_cuda_mask_bits", distile_cuda_mask_bits, mask, &words, &words_per_row)
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<0>(DISTILE_ERROR_BAD_MASK, {unset})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr});
    all.of("distile_cuda_mask_tiles", distile_cuda_mask_tiles, mask, 2, 3, &xy, &image, &count)
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<0>(DISTILE_ERROR_BAD_MASK, {unset})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, {0, -1, beyond, INT_MIN, INT_MAX})
        .wrong<2>(DISTILE_ERROR_BAD_VALUE, {0, -1, beyond, INT_MIN, INT_MAX})
        .wrong<3>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<4>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<5>(DISTILE_ERROR_NULL_POINTER, {nullptr});
}

void check_kernels(Fixture &f, WrongArguments &all) {
    distile_cuda_kernel *made = nullptr;
    distile_polykernel version = f.polykernel, cpu = f.polykernel, newer = f.polykernel;
    distile_polykernel transposed = f.polykernel, upsampled = f.polykernel, grouped = f.polykernel;
    version.version = 0;
    cpu.compute_capability = 0;
    newer.compute_capability = 990;
    transposed.kind = DISTILE_MASKED_CONV_TRANSPOSE2D;
    upsampled.kind = DISTILE_MASKED_UPSAMPLE_CONV2D;
    grouped.conv2d.groups = 16;
    all.of("distile_cuda_kernel_create", distile_cuda_kernel_create, f.cuda.get(), &f.polykernel, &made)
        .then([&] {
            distile_cuda_kernel_destroy(made);
            made = nullptr;
        })
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_VERSION, {&version})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, {&cpu, &transposed, &upsampled, &grouped})
        .wrong<1>(DISTILE_ERROR_UNSUPPORTED_GPU, {&newer})
        .wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr});
    all.note("distile_cuda_kernel_destroy");
    distile_cuda_kernel_destroy(nullptr);
    all.note("distile_cuda_kernel_variants");
    CHECK(distile_cuda_kernel_variants(nullptr) == nullptr);

    const distile_cuda_dense_candidate candidate{"mine", run_nothing, nullptr};
    const CudaKernel another = make_kernel(f.context, f.cuda, f.polykernel);
    // Names are taken once, so that every call has its own.
    static int calls = 0;
    const auto add = [](distile_cuda_kernel *to, const distile_cuda_dense_candidate *given) {
        distile_cuda_dense_candidate fresh = given ? *given : distile_cuda_dense_candidate{};
        const std::string name = fresh.name ? fresh.name + std::to_string(calls++) : "";
        fresh.name = fresh.name && std::string(fresh.name) == "mine" ? name.c_str() : fresh.name;
        return distile_cuda_kernel_add_dense(to, given ? &fresh : nullptr);
    };
    all.of("distile_cuda_kernel_add_dense", +add, another.get(), &candidate)
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, &distile_cuda_dense_candidate::name, {nullptr})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &distile_cuda_dense_candidate::name, {f.polykernel.variants[0].name})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, &distile_cuda_dense_candidate::run, {nullptr});

    refuse_weights(all, "distile_cuda_weights_pack", distile_cuda_weights_pack, distile_cuda_weights_destroy,
                   f.kernel.get(), f.source);
    all.note("distile_cuda_weights_destroy");
    distile_cuda_weights_destroy(nullptr);
}

void check_run(Fixture &f, WrongArguments &all) {
    using Args = distile_cuda_run_args;
    auto run = all.of("distile_cuda_run", distile_cuda_run, f.kernel.get(), &f.run);
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
        spoil(DISTILE_ERROR_BAD_STRIDE, [](distile_tensor &view) { view.data = static_cast<float *>(view.data) + 1; });
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
    const distile_window window = distile_kernel_window(distile_cuda_kernel_variants(f.kernel.get()));
    const CudaMask small = make_mask(f.context, f.cuda);
    check(f.context, distile_cuda_mask_set_bytes(small.get(), f.bytes.data(), 1, 1, 1, 1, 1));
    const MaskArguments<distile_cuda_mask> masks = f.masks(small.get());
    refuse_windows(all, "distile_cuda_mask_needed_input", distile_cuda_mask_needed_input, masks, window, rows, columns);
    refuse_windows(all, "distile_cuda_mask_affected_output", distile_cuda_mask_affected_output, masks, window, rows,
                   columns);
    refuse_numbers(all, "distile_cuda_mask_dilate", distile_cuda_mask_dilate, masks, {-1, 32768, INT_MIN, INT_MAX});
    refuse_numbers(all, "distile_cuda_mask_pool", distile_cuda_mask_pool, masks, {0, -1, beyond, INT_MIN, INT_MAX});
    refuse_pairs(all, "distile_cuda_mask_unite", distile_cuda_mask_unite, masks);
    refuse_pairs(all, "distile_cuda_mask_intersect", distile_cuda_mask_intersect, masks);
    refuse_pairs(all, "distile_cuda_mask_subtract", distile_cuda_mask_subtract, masks);
    auto invert = all.of("distile_cuda_mask_invert", distile_cuda_mask_invert, masks.result, masks.mask);
    refuse_masks(invert, masks);
    auto difference = all.of("distile_cuda_mask_set_difference", distile_cuda_mask_set_difference, masks.result,
                             &f.output.view, &f.residual.view, 0.25f);
    refuse_difference(difference, f.output.view);
    float on_host = 0;
    difference.wrong<1>(DISTILE_ERROR_NOT_DEVICE_MEMORY, &distile_tensor::data, {&on_host})
        .wrong<2>(DISTILE_ERROR_NOT_DEVICE_MEMORY, &distile_tensor::data, {&on_host});
}

}  // namespace

TEST_CASE("Every function of cuda.h refuses every argument that is wrong", "[.fake_driver]") {
    {
        Fixture f;
        WrongArguments all = f.functions();
        const distile_cuda_options options{};
        distile_cuda *made = nullptr;
        all.of("distile_cuda_create", distile_cuda_create, f.context.get(), &options, &made)
            .then([&] {
                distile_cuda_destroy(made);
                made = nullptr;
            })
            .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .any<1>({nullptr})
            .wrong<1>(DISTILE_ERROR_NO_GPU, &distile_cuda_options::device, {-1, 1, INT_MIN, INT_MAX})
            .wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr});
        all.note("distile_cuda_destroy");
        distile_cuda_destroy(nullptr);
        all.note("distile_cuda_multiprocessors");
        CHECK(distile_cuda_multiprocessors(nullptr) == 0);
        all.of("distile_cuda_set_stream", distile_cuda_set_stream, f.cuda.get(), nullptr)
            .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .any<1>({nullptr});
        check_masks(f, all);
        check_kernels(f, all);
        check_run(f, all);
        CHECK(all.tested() == declared_functions(DISTILE_INCLUDE_FOLDER, {"cuda.h"}));
        CHECK(all.undocumented(DISTILE_INCLUDE_FOLDER, {"cuda.h", "distile.h"}) == "");
    }
    CHECK(count_fake("alive") == 0);
}

TEST_CASE("Every function of cuda_mask_algebra.h refuses every argument that is wrong", "[.fake_driver]") {
    Fixture f;
    WrongArguments all = f.functions();
    check_algebra(f, all);
    CHECK(all.tested() == declared_functions(DISTILE_INCLUDE_FOLDER, {"cuda_mask_algebra.h"}));
    CHECK(all.undocumented(DISTILE_INCLUDE_FOLDER, {"cuda_mask_algebra.h", "mask_algebra.h", "cuda.h"}) == "");
}

TEST_CASE("Every function of cuda_planner.h refuses every argument that is wrong", "[.fake_driver]") {
    Fixture f;
    WrongArguments all = f.functions();
    refuse_planner_options(all, "distile_cuda_planner_create", distile_cuda_planner_create,
                           distile_cuda_planner_destroy, f.cuda.get());
    all.note("distile_cuda_planner_destroy");
    distile_cuda_planner_destroy(nullptr);
    all.note("distile_cuda_planner_bytes");
    CHECK(distile_cuda_planner_bytes(nullptr) == 0);

    const CudaPlanner planner = make_planner(f.context, f.cuda);
    all.of("distile_cuda_planner_join", distile_cuda_planner_join, planner.get())
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr});
    refuse_outputs(all, "distile_cuda_planner_next", distile_cuda_planner_next, planner.get(), f.masks(nullptr),
                   {images, rows, columns, 4, 1, 1, 1, 1});
    CHECK(all.tested() == declared_functions(DISTILE_INCLUDE_FOLDER, {"cuda_planner.h"}));
    CHECK(all.undocumented(DISTILE_INCLUDE_FOLDER, {"cuda_planner.h", "planner.h", "cuda.h"}) == "");
}
