// The choice of a variant on a GPU: in graphs it is the host's, and every variant computes the same bits each time.
#include "masks/mask_families.h"
#include "runtime/mask/tiles.h"
#include "tests/cuda/choice_setup.h"
#include "tests/cuda/tensor_core_operator.h"
#include "tests/gpu/every_polykernel.h"

#include <cmath>
#include <memory>
#include <set>

using namespace distile;

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
    CU(cuCtxSynchronize);
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
