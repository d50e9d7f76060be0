// The functions of the C API on a GPU with every argument wrong in turn, on a driver of our own.
#include "tests/cuda/cuda_setup.h"
#include "tests/cuda/tensor_core_operator.h"
#include "tests/support/shared_arguments.h"
#include <cmath>
#include <distile/planner.h>
#include <test_conv3_48_16_residual_cuda.h>
#include <test_point_17_48_cuda.h>
#include <vector>

using namespace distile;

TEST_CASE("Every function of cuda.h refuses every argument that is wrong", "[.fake_driver]") {
    {
        // Its GPU chooses between two variants.
        distile_cuda_options choosing{};
        choosing.choose_on_device = 1;
        choosing.launch_us = -1;
        const TensorCoreOperator op(DISTILE_FLOAT16);
        const Setup setup(op.polykernel, 1, 8, 8, choosing);
        const Context &context = setup.context;
        check(context, distile_kernel_add_time(setup.kernel.get(), "fine", 1, 1));
        check(context, distile_kernel_add_time(setup.kernel.get(), "dense", 64, 10));
        const Context cpu = make_context();
        WrongArguments all([&] { return std::string(distile_context_message(context.get())); },
                           [&] {
                               const Mask mask = make_mask(context);
                               (void)distile_mask_set_bytes(mask.get(), nullptr, 1, 1, 1, 1, 1);
                           });
        const distile_context_options options{};
        const distile_cuda_options cuda{};
        distile_context *made = nullptr;
        auto create = all.of("distile_cuda_context_create", distile_cuda_context_create, &options, &cuda, &made);
        create.without_message()
            .then([&] {
                distile_context_destroy(made);
                made = nullptr;
            })
            .any<1>({nullptr})
            .wrong<1>(DISTILE_ERROR_NO_GPU, &distile_cuda_options::device, {-1, 1, INT_MIN, INT_MAX})
            .wrong<1>(DISTILE_ERROR_BAD_VALUE, &distile_cuda_options::choose_on_device, {-1, 2, INT_MIN, INT_MAX})
            .wrong<1>(DISTILE_ERROR_BAD_VALUE, &distile_cuda_options::launch_us, {HUGE_VAL, -HUGE_VAL, NAN})
            .reserved<1>(&distile_cuda_options::reserved)
            .wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr});
        refuse_context_options(create);
        distile_cuda_options later{};
        later.reserved[2] = 1;
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
        const Kernel never = make_kernel(context, op.polykernel);
        const Kernel kernel_of_cpu = make_kernel(cpu, *gpu_cpu_polykernels[0]);
        setup.set_mask();
        setup.run();
        distile_choice choice{};
        all.of("distile_cuda_last_choice", distile_cuda_last_choice, setup.kernel.get(), &choice)
            .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<0>(DISTILE_ERROR_OTHER_DEVICE, {kernel_of_cpu.get()})
            .wrong<0>(DISTILE_ERROR_BAD_VALUE, {never.get()})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr});
        void *graphs[DISTILE_MOST_WAYS + 1];
        std::fill(std::begin(graphs), std::end(graphs), &graphs);
        void *const no_graphs[2] = {&graphs, nullptr};
        const DeviceArray<uint8_t> bytes(64);
        const uint8_t on_host[1] = {};
        const void *masks[DISTILE_MOST_SWITCH_MASKS + 1], *no_masks[] = {nullptr},
                                                          *host_masks[DISTILE_MOST_SWITCH_MASKS];
        int64_t counts[DISTILE_MOST_SWITCH_MASKS + 1];
        const int64_t no_counts[] = {0}, negative[] = {-1}, too_many[] = {(int64_t{1} << 40) + 1};
        std::fill(std::begin(masks), std::end(masks), bytes.data());
        std::fill(std::begin(host_masks), std::end(host_masks), on_host);
        std::fill(std::begin(counts), std::end(counts), 64);
        distile_cuda_switch_args args{};
        args.graphs = graphs;
        args.num_graphs = DISTILE_MOST_WAYS;
        args.masks = masks;
        args.mask_bytes = counts;
        args.num_masks = DISTILE_MOST_SWITCH_MASKS;
        args.budget = 1;
        distile_cuda_switch *made_switch = nullptr;
        using Args = distile_cuda_switch_args;
        all.of<distile_context *, const Args *, distile_cuda_switch **>(
               "distile_cuda_switch_create", distile_cuda_switch_create, context.get(), &args, &made_switch)
            .then([&] {
                distile_cuda_switch_destroy(made_switch);
                made_switch = nullptr;
            })
            .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<0>(DISTILE_ERROR_OTHER_DEVICE, {cpu.get()})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_BAD_VALUE, &Args::num_graphs, {-1, 0, 1, DISTILE_MOST_WAYS + 1, INT_MAX})
            .wrong<1>(DISTILE_ERROR_BAD_VALUE, &Args::num_masks, {-1, DISTILE_MOST_SWITCH_MASKS + 1, INT_MAX})
            .wrong<1>(DISTILE_ERROR_BAD_VALUE, &Args::budget, {-.1, 1.1, HUGE_VAL, NAN})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, &Args::graphs, {nullptr, no_graphs})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, &Args::masks, {nullptr, no_masks})
            .wrong<1>(DISTILE_ERROR_NOT_DEVICE_MEMORY, &Args::masks, {host_masks})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, &Args::mask_bytes, {nullptr})
            .wrong<1>(DISTILE_ERROR_BAD_VALUE, &Args::mask_bytes, {no_counts, negative, too_many})
            .reserved<1>(&Args::reserved)
            .wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr});
        check(context, distile_cuda_switch_create(context.get(), &args, &made_switch));
        const CudaSwitch chosen(made_switch);
        all.note("distile_cuda_switch_destroy");
        distile_cuda_switch_destroy(nullptr);
        all.of("distile_cuda_switch_launch", distile_cuda_switch_launch, chosen.get())
            .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr});
        all.of("distile_cuda_switch_set", distile_cuda_switch_set, chosen.get(), int32_t{DISTILE_WAY_SETTLED})
            .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .any<1>({DISTILE_WAY_LEARNED, 0, DISTILE_MOST_WAYS - 1})
            .wrong<1>(DISTILE_ERROR_BAD_VALUE, {-3, DISTILE_MOST_WAYS, INT_MIN, INT_MAX});
        distile_cuda_switch_info info{};
        all.of("distile_cuda_switch_get_info", distile_cuda_switch_get_info, chosen.get(), &info)
            .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr});
        CHECK(all.tested() == declared_functions(DISTILE_INCLUDE_FOLDER, {"cuda.h"}));
        CHECK(all.undocumented(DISTILE_INCLUDE_FOLDER, {"cuda.h"}) == "");
    }
    CHECK(count_fake("alive") == 0);
}

TEST_CASE("On a GPU, functions refuse every argument that is wrong", "[.fake_driver]") {
    const auto copy = [](const void *bytes, size_t count) {
        const auto *first = static_cast<const uint8_t *>(bytes);
        const auto array = std::make_shared<DeviceArray<uint8_t>>(std::vector<uint8_t>(first, first + count));
        return std::shared_ptr<void>(array, array->data());
    };
    refuse_wrong_arguments({[] { return make_cuda_context(); },
                            copy,
                            false,
                            test_conv3_48_16_residual_cuda,
                            test_point_17_48_cuda,
                            {"none_such", "sm_990", "avx2"},
                            DISTILE_CPU},
                           DISTILE_INCLUDE_FOLDER);
    CHECK(count_fake("alive") == 0);
}
