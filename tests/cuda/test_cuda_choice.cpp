// The choice of a variant on the device: what it asks of a driver, and on a GPU that it is the host's.
#include "kernels/call.h"
#include "masks/mask_families.h"
#include "runtime/mask/tiles.h"
#include "tests/cuda/cuda_setup.h"
#include "tests/cuda/tensor_core_operator.h"
#include "tests/gpu/every_polykernel.h"
#include "tests/support/allocations.h"
#include "tests/support/plain_attention.h"
#include <array>
#include <cmath>
#include <memory>
#include <set>

using namespace distile;

namespace {

distile_cuda_options choosing() {
    distile_cuda_options options{};
    options.choose_on_device = 1;
    options.launch_us = -1;
    return options;
}

void add_time(const Setup &setup, const char *variant, int64_t tiles, double microseconds) {
    check(setup.context, distile_kernel_add_time(setup.kernel.get(), variant, tiles, microseconds));
}

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
    distile_variant variant = {"own", 1, 1, 0, nullptr, [](const distile_kernel_call *) { return 0; }, {}, 0, 0};
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

namespace {

/** Whether a test of choices takes a PolyKernel: some of Halide's and all for tensor cores that tests have. */
bool is_chosen_from(const distile_polykernel &polykernel) {
    const std::string name = polykernel.name;
    const auto starts_with = [&](const char *prefix) { return name.rfind(prefix, 0) == 0; };
    return starts_with("test_tc_") || name == "test_odd_cuda" || name == "test_halo_cuda" ||
           name == "test_linear_24_40_gelu_cuda" || name == "test_conv3_16_48_f16_cuda";
}

/** The values of a tensor in its type, at the start of an array of floats. */
void fill(const DeviceArray<float> &memory, const std::vector<float> &values, distile_dtype dtype) {
    const size_t bytes = distile_dtype_size(dtype);
    std::vector<unsigned char> stored(values.size() * bytes);
    for (size_t i = 0; i < values.size(); i++) {
        store_as(dtype, values[i], &stored[i * bytes]);
    }
    CU(cuMemcpyHtoD, reinterpret_cast<CUdeviceptr>(memory.data()), static_cast<const void *>(stored.data()),
       stored.size());
}

/** A time table by which every variant is fastest at some density, if its tiles are no more than the pixels': tangents
 * to a curve that flattens, and above them a dense variant. */
void add_tangents(const Setup &setup) {
    const distile_polykernel &polykernel = *setup.polykernel;
    int32_t sparse = 0;
    for (int32_t i = 0; i < polykernel.num_variants; i++) {
        sparse += polykernel.variants[i].dense == 0 ? 1 : 0;
    }
    int32_t place = 0;
    for (int32_t i = 0; i < polykernel.num_variants; i++) {
        const distile_variant &variant = polykernel.variants[i];
        const int64_t tiles =
            num_tiles({setup.output.batch, setup.out_height, setup.out_width}, {variant.tile_h, variant.tile_w});
        if (variant.dense != 0) {
            add_time(setup, variant.name, tiles, 100 * std::sqrt(0.93));
            continue;
        }
        const double touch = std::sqrt((place++ + 0.5) / sparse), slope = 0.5 / touch;
        const auto time_at = [&](double density) { return 100 * (touch + slope * (density - touch * touch)); };
        for (const int64_t count : {int64_t{1}, tiles}) {
            add_time(setup, variant.name, count, time_at(static_cast<double>(count) / static_cast<double>(tiles)));
        }
    }
}

Granularity dense_granularity(const Setup &setup) {
    const distile_variant *variant = setup.polykernel->variants;
    while (variant->dense == 0) {
        variant++;
    }
    return {variant->tile_h, variant->tile_w};
}

/** Masks of every density, and of every kind of structure. */
std::vector<ByteMask> masks_to_choose(int32_t batch, int32_t height, int32_t width) {
    std::vector<ByteMask> masks;
    uint64_t seed = 0;
    for (const double density : {0.0, 0.001, 0.02, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0}) {
        masks.push_back(random_mask(batch, height, width, density, ++seed));
        masks.push_back(blob_mask(batch, height, width, density, ++seed));
    }
    masks.push_back(checkerboard_mask(batch, height, width));
    // Blocks of 8 x 8, single images, and rows.
    ByteMask blocks = random_mask(batch, height, width, 0, 1), image = blocks, rows = blocks;
    for (size_t i = 0; i < blocks.bytes.size(); i++) {
        const size_t x = i % width, y = i / width % height;
        blocks.bytes[i] = (x / 8 + y / 8) % 3 == 0 ? 1 : 0;
        image.bytes[i] = i < static_cast<size_t>(height) * width ? 1 : 0;
        rows.bytes[i] = y % 16 < 5 ? 1 : 0;
    }
    masks.insert(masks.end(), {blocks, image, rows});
    return masks;
}

/** A call on a stream that a graph can capture, with what its output was before. */
class ChoiceTest {
public:
    ChoiceTest(const distile_polykernel &polykernel, int32_t height, int32_t width)
        : setup_(polykernel, 2, height, width, choosing()), fresh_(make_mask(setup_.context)),
          before_(setup_.residual_values.size() * sizeof(float)) {
        CU(cuStreamCreate, &stream_, static_cast<unsigned int>(CU_STREAM_NON_BLOCKING));
        check(setup_.context, distile_cuda_set_stream(setup_.context.get(), stream_));
        const distile_dtype dtype = setup_.input.dtype;
        fill(*setup_.input_memory, setup_.input_values, dtype);
        fill(*setup_.residual_memory, setup_.residual_values, dtype);
        for (size_t i = 0; i < before_.size(); i++) {
            before_[i] = static_cast<unsigned char>(i * 37 + 11);
        }
    }
    ~ChoiceTest() {
        (void)distile_cuda_set_stream(setup_.context.get(), nullptr);
        try {
            CU(cuStreamDestroy, stream_);
        } catch (const std::exception &) {
            // The test has failed before.
        }
    }
    ChoiceTest(const ChoiceTest &) = delete;
    ChoiceTest &operator=(const ChoiceTest &) = delete;

    Setup &setup() {
        return setup_;
    }
    CUstream stream() const {
        return stream_;
    }

    /** Replays one graph with every mask. Adds the variants that were chosen. */
    void replay(distile_inactive inactive, distile_store store, std::set<int32_t> &chosen) {
        setup_.args.inactive = inactive;
        setup_.args.store = store;
        const std::vector<ByteMask> masks = masks_to_choose(setup_.output.batch, setup_.out_height, setup_.out_width);
        setup_.mask_memory->set(masks.back().bytes);
        setup_.set_mask();
        setup_.run();
        const Graph graph(stream_, [&] {
            setup_.set_mask();
            setup_.run();
        });
        const bool by_device = setup_.traced.variant_index < 0;
        const int32_t only = setup_.traced.variant_index;
        for (const ByteMask &mask : masks) {
            CAPTURE(setup_.polykernel->name, inactive, store, mask.active_pixels());
            setup_.mask_memory->set(mask.bytes);
            const std::vector<unsigned char> result = output_of([&] { graph.launch(); });
            distile_choice due{}, did{};
            set(fresh_.get());
            check(setup_.context, distile_kernel_choose(setup_.kernel.get(), fresh_.get(), &due));
            if (by_device) {
                check(setup_.context, distile_cuda_last_choice(setup_.kernel.get(), &did));
                REQUIRE(did.variant == std::string(due.variant));
                REQUIRE(did.variant_index == due.variant_index);
                REQUIRE(did.tiles == due.tiles);
                REQUIRE(did.predicted_us == due.predicted_us);
                REQUIRE(did.dense == due.dense);
            } else {
                REQUIRE(only == due.variant_index);
            }
            chosen.insert(due.variant_index);
            distile_run_args named = setup_.args;
            named.mask = fresh_.get();
            named.variant = due.variant;
            const bool same =
                result == output_of([&] { check(setup_.context, distile_run(setup_.kernel.get(), &named)); });
            REQUIRE(same);
        }
    }

    /** The number of different results of calls with the same mask. */
    size_t num_results(const char *variant, double density, int calls) {
        setup_.mask_memory->set(
            random_mask(setup_.output.batch, setup_.out_height, setup_.out_width, density, 7).bytes);
        setup_.set_mask();
        setup_.args.variant = variant;
        std::set<std::vector<unsigned char>> results;
        for (int i = 0; i < calls; i++) {
            results.insert(output_of([&] { setup_.run(); }));
        }
        return results.size();
    }

private:
    void set(distile_mask *mask) const {
        check(setup_.context, distile_mask_set_bytes(mask, setup_.mask_memory->data(), setup_.output.batch,
                                                     setup_.out_height, setup_.out_width,
                                                     int64_t{setup_.out_height} * setup_.out_width, setup_.out_width));
    }
    template<typename Run> std::vector<unsigned char> output_of(const Run &run) const {
        const auto address = reinterpret_cast<CUdeviceptr>(setup_.output_memory->data());
        std::vector<unsigned char> bytes(before_.size());
        CU(cuMemcpyHtoD, address, static_cast<const void *>(before_.data()), before_.size());
        CU(cuCtxSynchronize);
        run();
        CU(cuStreamSynchronize, stream_);
        CU(cuMemcpyDtoH, static_cast<void *>(bytes.data()), address, bytes.size());
        return bytes;
    }

    Setup setup_;
    Mask fresh_;
    std::vector<unsigned char> before_;
    CUstream stream_ = nullptr;
};

}  // namespace

TEST_CASE("In a graph a GPU chooses for every mask what the host would, and computes the same", "[gpu][choice]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    int tested = 0;
    for (const TestedPolykernel &each : every_polykernel()) {
        if (!is_chosen_from(*each.polykernel) || !can_run(gpu, *each.polykernel)) {
            continue;
        }
        tested++;
        distile_polykernel polykernel = *each.polykernel;
        polykernel.num_times = 0;
        polykernel.fallback = nullptr;
        const bool is_linear = polykernel.kind == DISTILE_MASKED_LINEAR;
        // A mask that code for tensor cores could read without a list, and one that is too large.
        for (const int32_t width : {33, 90}) {
            for (const bool timed : {false, true}) {
                ChoiceTest test(polykernel, is_linear ? 1 : 60, is_linear ? 60 * width : width);
                if (timed) {
                    add_tangents(test.setup());
                }
                CAPTURE(polykernel.name, width, timed);
                std::set<int32_t> chosen;
                for (const distile_inactive inactive : {DISTILE_KEEP, DISTILE_ZERO}) {
                    for (const distile_store store : {DISTILE_STORE_EXACT, DISTILE_STORE_TILES}) {
                        test.replay(inactive, store, chosen);
                    }
                }
                const auto most = static_cast<size_t>(polykernel.num_variants);
                CHECK((!timed || chosen.size() >= std::min<size_t>(most, 3)));
            }
        }
    }
    CHECK(tested > 1);
}

TEST_CASE("Graphs choose each by the times of its own capture, in any order", "[gpu][choice]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    distile_polykernel polykernel = test_odd_cuda;
    polykernel.num_times = 0;
    ChoiceTest test(polykernel, 60, 33);
    Setup &setup = test.setup();
    const auto record = [&] {
        setup.set_mask();
        setup.run();
        return std::make_unique<Graph>(test.stream(), [&] {
            setup.set_mask();
            setup.run();
        });
    };
    add_tangents(setup);
    const std::unique_ptr<Graph> first = record();
    // Then the dense variant wins at half of the pixels, too.
    add_time(setup, "dense", num_tiles({2, setup.out_height, setup.out_width}, dense_granularity(setup)), 50);
    const std::unique_ptr<Graph> second = record();
    setup.mask_memory->set(random_mask(2, setup.out_height, setup.out_width, 0.5, 1).bytes);
    for (const bool dense : {false, true, true, false, true}) {
        (dense ? second : first)->launch();
        distile_choice did{};
        check(setup.context, distile_cuda_last_choice(setup.kernel.get(), &did));
        CHECK(did.dense == (dense ? 1 : 0));
    }
}

TEST_CASE("Every variant computes the same bits each time on a GPU", "[gpu][repeats]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    for (const TestedPolykernel &each : every_polykernel()) {
        if (!is_chosen_from(*each.polykernel) || !can_run(gpu, *each.polykernel)) {
            continue;
        }
        const bool is_linear = each.polykernel->kind == DISTILE_MASKED_LINEAR;
        ChoiceTest test(*each.polykernel, is_linear ? 1 : 90, is_linear ? 90 * 90 : 90);
        for (int32_t variant = 0; variant < each.polykernel->num_variants; variant++) {
            CAPTURE(each.polykernel->name, each.polykernel->variants[variant].name);
            CHECK(test.num_results(each.polykernel->variants[variant].name, 0.3, 20) == 1);
        }
    }
}
