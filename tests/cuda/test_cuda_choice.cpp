// The choice of a variant on the device: what it asks of a driver.
#include "kernels/call.h"
#include "tests/cuda/choice_setup.h"
#include "tests/cuda/tensor_core_operator.h"
#include "tests/support/allocations.h"
#include "tests/support/plain_attention.h"

#include <array>
#include <memory>

using namespace distile;

namespace {

/** Times with which each of the three variants of a TensorCoreOperator is fastest for some masks. */
void add_times(const Setup &setup) {
    const auto pixels = static_cast<int64_t>(setup.num_pixels);
    add_time(setup, "fine", 1, 1);
    add_time(setup, "fine", pixels, 30);
    add_time(setup, "coarse", 1, 3);
    add_time(setup, "coarse", pixels / 4, 12);
    add_time(setup, "dense", pixels, 10);
}

/** What the GPU, which is the fake one, is said to have chosen: variant `number`, with as many tiles. */
distile_status last_choice(const Setup &setup, int32_t number, distile_choice &choice) {
    const FakeSetting count("count", number, 0);
    return distile_cuda_last_choice(setup.kernel.get(), &choice);
}

/** Attention of 4 heads of 4 channels over 6 tokens, whose code does nothing. */
struct Attention {
    Attention()
        : context(make_cuda_context({}, tracing(traced))), kernel(make_kernel(context, describe())),
          rows(make_mask(context)), keys(make_mask(context)), memory(size_t{4} * 6 * 16), bytes(6) {
        for (size_t i = 0; i < tensors.size(); i++) {
            tensors[i] = distile_tokens_make(memory.data() + i * 6 * 16, 1, 6, 16);
        }
        args.input = &tensors[0];
        args.key = &tensors[1];
        args.value = &tensors[2];
        args.output = &tensors[3];
        args.mask = rows.get();
        args.key_mask = keys.get();
        set(rows);
        set(keys);
        const distile_dense_candidate dense{"mine", write_nothing, &written};
        check(context, distile_kernel_add_dense(kernel.get(), &dense));
        check(context, distile_kernel_add_time(kernel.get(), "own", 1, 5));
        check(context, distile_kernel_add_time(kernel.get(), "mine", 6, 3));
    }
    const distile_polykernel &describe() {
        polykernel.device = DISTILE_CUDA;
        polykernel.features = "sm_80";
        polykernel.variants = &variant;
        return polykernel;
    }
    void set(const Mask &mask) const {
        check(context, distile_mask_set_bytes(mask.get(), bytes.data(), 1, 1, 6, 6, 6));
    }
    /** Makes the call and returns how often it waits. */
    int64_t run() {
        const int64_t waits = count_fake("cuStreamSynchronize");
        written = nullptr;
        check(context, distile_run(kernel.get(), &args));
        CHECK((written != nullptr) == (traced.variant == std::string("mine")));
        return count_fake("cuStreamSynchronize") - waits;
    }

    const PlainAttention plain{4, 4};
    distile_variant variant = {"own", 1, 1, 0, nullptr, [](const distile_kernel_call *) { return 0; }, {}, 0, 0, 0};
    distile_polykernel polykernel = plain.polykernel();
    distile_choice traced{};
    Context context;
    Kernel kernel;
    Mask rows, keys;
    DeviceArray<float> memory;
    DeviceArray<uint8_t> bytes;
    std::array<distile_tensor, 4> tensors{};
    distile_run_args args{};
    const void *written = nullptr;
};

}  // namespace

TEST_CASE("A GPU that chooses needs no wait, and a graph takes it", "[.fake_driver]") {
    TensorCoreOperator op(DISTILE_FLOAT16);
    // Code that chooses is one launch for each kernel; other code is one for the choice and one for each variant.
    const bool code_chooses = GENERATE(true, false);
    if (!code_chooses) {
        op.polykernel.run_chosen = nullptr;
    }
    {
        Setup setup(op.polykernel, 2, 11, 9, choosing());
        add_times(setup);
        const int64_t waits = count_fake("cuStreamSynchronize");
        setup.set_mask();
        setup.run();
        CHECK(count_fake("cuStreamSynchronize") == waits);
        CHECK(setup.traced.variant_index == -1);
        CHECK(setup.traced.variant == std::string("chosen on the device"));
        CHECK(setup.traced.tiles == -1);
        CHECK(setup.traced.active_pixels == -1);
        CHECK(setup.traced.predicted_us == 0);
        for (bool captured : {false, true}) {
            const FakeSetting capturing("capturing", captured ? 1 : 0, 0);
            for (distile_inactive inactive : {DISTILE_KEEP, DISTILE_ZERO}) {
                for (distile_store store : {DISTILE_STORE_EXACT, DISTILE_STORE_TILES}) {
                    CAPTURE(captured, inactive, store);
                    setup.args.inactive = inactive;
                    setup.args.store = store;
                    setup.set_mask();
                    const int64_t launches = count_fake("cuLaunchKernel"), early = count_fake("cuLaunchKernelEx");
                    setup.run();
                    // The coarse variant, and zeros once; the others start early.
                    CHECK(count_fake("cuLaunchKernel") == launches + (inactive == DISTILE_ZERO ? 2 : 1));
                    CHECK(count_fake("cuLaunchKernelEx") == early + (code_chooses ? 1 : 3));
                    CHECK(count_fake("beside") == 0);
                }
            }
        }
        CHECK(count_fake("forbidden") == 0);
        // A named variant is launched alone.
        setup.args.variant = "coarse";
        const int64_t early = count_fake("cuLaunchKernelEx");
        setup.run();
        CHECK(count_fake("cuLaunchKernelEx") == early);
        CHECK(setup.traced.variant_index == 1);
        setup.args.variant = nullptr;
        // What the choosing context may still ask of the host.
        distile_choice choice{};
        const FakeSetting count("count", 7, 0);
        setup.set_mask();
        check(setup.context, distile_kernel_choose(setup.kernel.get(), setup.mask.get(), &choice));
        CHECK(choice.tiles == 7);
        setup.run();
        CHECK(setup.traced.variant_index == -1);
    }
    CHECK(count_fake("alive") == 0);
}

TEST_CASE("A GPU takes code for nonzero weights by how many there are", "[.fake_driver]") {
    TensorCoreOperator op(DISTILE_FLOAT32);
    op.variants[0].layout = op.variants[1].layout = "cuda-nonzeros";
    op.polykernel.run_chosen = nullptr;
    const auto all = static_cast<int64_t>(filter_size(op.conv));
    op.polykernel.nonzeros = all / 10;
    Setup setup(op.polykernel, 2, 11, 9, choosing());
    const auto pixels = static_cast<int64_t>(setup.num_pixels);
    add_time(setup, "fine", 1, 1);
    add_time(setup, "fine", pixels, 4);
    add_time(setup, "coarse", 1, 100);
    add_time(setup, "dense", pixels, 5);
    const auto chosen_with = [&](int64_t nonzeros) {
        for (int64_t i = 0; i < all; i++) {
            setup.reference.filter[static_cast<size_t>(i)] = i < nonzeros ? 1.0F : 0.0F;
        }
        setup.weights = pack_weights(setup.context, setup.kernel, setup.source);
        setup.args.weights = setup.weights.get();
        setup.set_mask();
        setup.run();
        return std::string(setup.traced.variant);
    };
    // With as many nonzeros as the times are of, or fewer, the code for them is always faster.
    CHECK(chosen_with(all / 10) == "fine");
    CHECK(chosen_with(1) == "fine");
    CHECK(chosen_with(all / 10 + all / 100) == "fine");
    CHECK(chosen_with(all) == "dense");
    // Between, it is for some masks.
    CHECK(chosen_with(all / 5) == "chosen on the device");
    const FakeSetting capturing("capturing", 1, 0);
    setup.set_mask();
    setup.run();
    CHECK(setup.traced.variant == std::string("chosen on the device"));
    CHECK(count_fake("forbidden") == 0);
}

TEST_CASE("What a GPU chose last can be asked for", "[.fake_driver]") {
    const TensorCoreOperator op(DISTILE_FLOAT16);
    Setup setup(op.polykernel, 2, 11, 9, choosing());
    add_times(setup);
    distile_choice choice{};
    setup.refuse(last_choice(setup, 1, choice), DISTILE_ERROR_BAD_VALUE, {"never chose", "tensor_core_operator"});
    setup.set_mask();
    setup.run();
    // Until the choice ran, its result has the index of no variant.
    setup.refuse(last_choice(setup, -1, choice), DISTILE_ERROR_BAD_VALUE, {"never chose"});
    setup.refuse(last_choice(setup, 3, choice), DISTILE_ERROR_BAD_VALUE, {"never chose"});
    check(setup.context, last_choice(setup, 1, choice));
    CHECK(choice.variant == std::string("coarse"));
    CHECK(choice.variant_index == 1);
    CHECK(choice.tiles == 1);
    CHECK(choice.tile_h == 2);
    CHECK(choice.active_pixels == -1);
    CHECK(choice.predicted_us == 3);
    const FakeSetting capturing("capturing", 1, 0);
    setup.refuse(last_choice(setup, 1, choice), DISTILE_ERROR_CAPTURING, {"distile_cuda_last_choice"});
    CHECK(count_fake("forbidden") == 0);
}

TEST_CASE("Without the option, a GPU chooses only for masks that a graph sets", "[.fake_driver]") {
    const TensorCoreOperator op(DISTILE_FLOAT16);
    distile_cuda_options options{};
    options.launch_us = -1;
    Setup setup(op.polykernel, 2, 11, 9, options);
    add_times(setup);
    setup.set_mask();
    setup.run();
    CHECK(setup.traced.variant_index >= 0);
    {
        const FakeSetting capturing("capturing", 1, 0);
        // The host knows the counts of a mask from before the capture.
        setup.run();
        CHECK(setup.traced.variant_index >= 0);
        setup.set_mask();
        setup.refuse_run(DISTILE_ERROR_CAPTURING, {"choose_on_device", "name a variant", "tensor_core_operator"});
        CHECK(count_fake("forbidden") == 0);
    }
    // The graph's mask, outside of a capture: then the next capture has what it needs.
    const int64_t waits = count_fake("cuStreamSynchronize");
    setup.run();
    CHECK(setup.traced.variant_index == -1);
    CHECK(count_fake("cuStreamSynchronize") == waits);
    const FakeSetting capturing("capturing", 1, 0);
    setup.set_mask();
    setup.run();
    CHECK(setup.traced.variant_index == -1);
    CHECK(count_fake("forbidden") == 0);
}

TEST_CASE("A mask set before a capture must have been listed for every variant that a GPU may choose",
          "[.fake_driver]") {
    const TensorCoreOperator op(DISTILE_FLOAT16);
    Setup setup(op.polykernel, 2, 11, 9, choosing());
    add_times(setup);
    setup.set_mask();
    setup.run();
    const Mask other = make_mask(setup.context);
    check(setup.context,
          distile_mask_set_bytes(other.get(), setup.mask_memory->data(), 2, setup.out_height, setup.out_width,
                                 int64_t{setup.out_height} * setup.out_width, setup.out_width));
    const FakeSetting capturing("capturing", 1, 0);
    setup.run();
    setup.args.mask = other.get();
    setup.refuse_run(DISTILE_ERROR_CAPTURING, {"during graph capture"});
    CHECK(count_fake("forbidden") == 0);
}

TEST_CASE("Where one variant is possible, a GPU chooses nothing", "[.fake_driver]") {
    const TensorCoreOperator op(DISTILE_FLOAT16);
    Setup setup(op.polykernel, 2, 11, 9, choosing());
    add_time(setup, "fine", 1, 1);
    add_time(setup, "coarse", 1, 10000);
    add_time(setup, "dense", 1, 10000);
    for (bool captured : {false, true}) {
        const FakeSetting capturing("capturing", captured ? 1 : 0, 0);
        setup.set_mask();
        const int64_t launches = count_fake("cuLaunchKernel"), early = count_fake("cuLaunchKernelEx");
        setup.run();
        CHECK(count_fake("cuLaunchKernel") == launches);
        CHECK(count_fake("cuLaunchKernelEx") == early + 1);
        CHECK(setup.traced.variant == std::string("fine"));
        CHECK(setup.traced.variant_index == 0);
        CHECK(setup.traced.tiles == -1);
    }
    CHECK(count_fake("forbidden") == 0);
    distile_choice choice{};
    setup.refuse(last_choice(setup, 0, choice), DISTILE_ERROR_BAD_VALUE, {"never chose"});
}

TEST_CASE("Where no other variant is worth its launch, a GPU chooses nothing", "[.fake_driver]") {
    // Launches of their own, and one that all share.
    for (const bool shared : {false, true}) {
        TensorCoreOperator op(DISTILE_FLOAT16);
        for (distile_variant &variant : op.variants) {
            variant.launch = shared ? 1 : 0;
        }
        distile_cuda_options options = choosing();
        options.launch_us = 1000;
        Setup setup(op.polykernel, 2, 11, 9, options);
        add_times(setup);
        setup.set_mask();
        setup.run();
        CAPTURE(shared);
        CHECK((setup.traced.variant_index == -1) == shared);
    }
}

TEST_CASE("A GPU chooses among the PolyKernel's own variants", "[.fake_driver]") {
    const TensorCoreOperator op(DISTILE_FLOAT16);
    Setup setup(op.polykernel, 2, 11, 9, choosing());
    add_times(setup);
    const void *written = nullptr;
    const distile_dense_candidate dense{"mine", write_nothing, &written};
    check(setup.context, distile_kernel_add_dense(setup.kernel.get(), &dense));
    add_time(setup, "mine", 1, 1e-6);
    setup.set_mask();
    setup.run();
    CHECK(setup.traced.variant_index == -1);
    CHECK(written == nullptr);
    // The host takes it.
    distile_choice choice{};
    check(setup.context, distile_kernel_choose(setup.kernel.get(), setup.mask.get(), &choice));
    CHECK(choice.variant == std::string("mine"));
    fail_fake("cuLaunchKernel", CUDA_ERROR_NOT_PERMITTED);
    setup.refuse_run(DISTILE_ERROR_KERNEL, {"chosen on the device", "cuLaunchKernel"});
    fail_fake("cuLaunchKernel", 0);
    setup.run();
}

TEST_CASE("A GPU's dense candidate of attention runs only where the host knows that every key is active",
          "[.fake_driver]") {
    Attention call;
    {
        const FakeSetting count("count", 6, 0);
        // Once for each mask.
        CHECK(call.run() == 2);
        CHECK(call.traced.variant == std::string("mine"));
        CHECK(call.run() == 0);
        CHECK(call.traced.variant == std::string("mine"));
        // Calls that name the candidate never wait, so they have no key mask.
        call.args.variant = "mine";
        const int64_t waits = count_fake("cuStreamSynchronize");
        call.written = nullptr;
        CHECK(distile_run(call.kernel.get(), &call.args) == DISTILE_ERROR_BAD_VALUE);
        CHECK(contains(distile_context_message(call.context.get()), "give no key mask"));
        CHECK(call.written == nullptr);
        CHECK(count_fake("cuStreamSynchronize") == waits);
        call.args.variant = "own";
        CHECK(call.run() == 0);
        call.args.variant = "mine";
        call.args.key_mask = nullptr;
        CHECK(call.run() == 0);
        call.args.variant = nullptr;
        call.args.key_mask = call.keys.get();
        // A graph would keep it, whatever the key mask becomes.
        const FakeSetting capturing("capturing", 1, 0);
        CHECK(call.run() == 0);
        CHECK(call.traced.variant == std::string("own"));
        call.args.key_mask = nullptr;
        CHECK(call.run() == 0);
        CHECK(call.traced.variant == std::string("mine"));
        call.args.variant = "mine";
        CHECK(call.run() == 0);
    }
    call.args.variant = nullptr;
    call.args.key_mask = call.keys.get();
    call.set(call.rows);
    call.set(call.keys);
    {
        // It would be the fastest, but reads every key.
        const FakeSetting count("count", 5, 0);
        CHECK(call.run() == 2);
        CHECK(call.traced.variant == std::string("own"));
    }
    // One that is slow need not know.
    check(call.context, distile_kernel_add_time(call.kernel.get(), "mine", 6, 1e6));
    call.set(call.rows);
    call.set(call.keys);
    const FakeSetting count("count", 6, 0);
    CHECK(call.run() == 1);
    CHECK(call.traced.variant == std::string("own"));
    // Nobody knows the keys of a graph.
    check(call.context, distile_kernel_add_time(call.kernel.get(), "mine", 6, 3));
    {
        const FakeSetting capturing("capturing", 1, 0);
        call.set(call.keys);
    }
    CHECK(call.run() == 0);
    CHECK(call.traced.variant == std::string("own"));
}

TEST_CASE("Where code does not choose, a variant that fails is named", "[.fake_driver]") {
    TensorCoreOperator op(DISTILE_FLOAT16);
    op.polykernel.run_chosen = nullptr;
    Setup setup(op.polykernel, 2, 11, 9, choosing());
    add_times(setup);
    setup.set_mask();
    setup.run();
    fail_fake("cuLaunchKernel", CUDA_ERROR_NOT_PERMITTED);
    setup.refuse_run(DISTILE_ERROR_KERNEL, {"coarse", "cuLaunchKernel"});
    fail_fake("cuLaunchKernel", 0);
    setup.run();
}

TEST_CASE("A graph keeps the times of its capture, and others are not kept", "[.fake_driver]") {
    const TensorCoreOperator op(DISTILE_FLOAT16);
    {
        Setup setup(op.polykernel, 2, 11, 9, choosing());
        add_times(setup);
        setup.set_mask();
        setup.run();
        const int64_t alive = count_fake("alive");
        for (int i = 0; i < 20; i++) {
            add_time(setup, "dense", 2, 10 + i);
            setup.run();
            CHECK(count_fake("alive") == alive);
        }
        for (int i = 0; i < 3; i++) {
            CHECK(count_fake("alive") == alive + i);
            {
                const FakeSetting capturing("capturing", 1, 0);
                setup.set_mask();
                setup.run();
            }
            add_time(setup, "dense", 2, 50 + i);
            {
                const FakeSetting capturing("capturing", 1, 0);
                setup.set_mask();
                setup.refuse_run(DISTILE_ERROR_CAPTURING, {"name a variant"});
            }
            setup.run();
        }
        CHECK(count_fake("forbidden") == 0);
        // A kernel keeps some of the shapes that are in no graph.
        const auto run = [&](int32_t height) {
            setup.input.height = setup.output.height = setup.residual.height = height;
            for (distile_tensor *tensor : {&setup.input, &setup.output, &setup.residual}) {
                tensor->stride_n = tensor->stride_h * height;
            }
            check(setup.context,
                  distile_mask_set_bytes(setup.mask.get(), setup.mask_memory->data(), 2, height, setup.out_width,
                                         int64_t{height} * setup.out_width, setup.out_width));
            setup.run();
            CHECK(setup.traced.variant_index == -1);
        };
        for (int32_t height = 60; height > 40; height--) {
            run(height);
        }
        const int64_t kept = count_fake("alive");
        for (int32_t height = 40; height > 20; height--) {
            run(height);
        }
        CHECK(count_fake("alive") == kept);
    }
    CHECK(count_fake("alive") == 0);
}

TEST_CASE("A choice on a GPU allocates nothing for a shape that it met before", "[.fake_driver]") {
    const TensorCoreOperator op(DISTILE_FLOAT16);
    Setup setup(op.polykernel, 2, 11, 9, choosing());
    add_times(setup);
    const auto use = [&] {
        setup.set_mask();
        setup.run();
    };
    use();
    use();
    const int64_t alive = count_fake("alive");
    allocations.count = 0;
    {
        const Watch watch;
        use();
        use();
    }
    CHECK(allocations.count == 0);
    CHECK(count_fake("alive") == alive);
}

TEST_CASE("Any one call of the driver may fail while a GPU chooses, and the next try succeeds", "[.fake_driver]") {
    TensorCoreOperator op(DISTILE_FLOAT16);
    if (!GENERATE(true, false)) {
        op.polykernel.run_chosen = nullptr;
    }
    int64_t failures = 0;
    for (int64_t call = 0;; call++) {
        CAPTURE(call);
        const int64_t failed = count_fake("failed");
        {
            Setup setup(op.polykernel, 2, 11, 9, choosing());
            add_times(setup);
            setup.args.inactive = DISTILE_ZERO;
            setup.set_mask();
            fail_fake_once(call, CUDA_ERROR_NOT_PERMITTED);
            const distile_status status = distile_run(setup.kernel.get(), &setup.args);
            fail_fake_once(-1, 0);
            CHECK(count_fake("beside") == 0);
            failures += status != DISTILE_OK ? 1 : 0;
            setup.set_mask();
            setup.run();
            distile_choice choice{};
            check(setup.context, last_choice(setup, 2, choice));
            CHECK(choice.dense == 1);
        }
        REQUIRE(count_fake("alive") == 0);
        if (count_fake("failed") == failed) {
            break;
        }
    }
    CHECK(failures > 20);
}
