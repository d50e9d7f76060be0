// Memory: whichever allocation of a session fails, the call says so and all its objects stay usable; and calls of
// shapes that were met before allocate nothing. A program of its own, because it replaces the allocation functions.
#include "allocations.h"
#include "catch.h"
#include "temporary_folder.h"
#include <cstdlib>
#include <distile/distile.hpp>
#include <distile/layout.h>
#include <distile/mask_algebra.h>
#include <distile/planner.h>
#include <distile/polykernel.h>
#include <functional>
#include <random>
#include <string>
#include <test_conv3_16_48_avx2.h>
#include <vector>

// NOLINTBEGIN(readability-identifier-naming,bugprone-reserved-identifier)
extern "C" void *__real_aligned_alloc(size_t alignment, size_t bytes);
extern "C" void *__wrap_aligned_alloc(size_t alignment, size_t bytes) {
    return allocations.fails() ? nullptr : __real_aligned_alloc(alignment, bytes);
}
// NOLINTEND(readability-identifier-naming,bugprone-reserved-identifier)

using namespace distile;

namespace {

constexpr int32_t height = 20, width = 24, in_channels = 16, out_channels = 48;

/** The threads of a context as one: what is split for them is split, and allocated in a fixed order. */
void run_one_by_one(void *, distile_task task, void *closure, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        task(closure, i);
    }
}

/** Counts the blocks that it has handed out. */
struct CountingAllocator {
    int64_t blocks = 0;

    static void *allocate(void *user, size_t bytes, size_t alignment) {
        if (allocations.fails()) {
            return nullptr;
        }
        static_cast<CountingAllocator *>(user)->blocks++;
        return __real_aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    }
    static void deallocate(void *user, void *memory) {
        static_cast<CountingAllocator *>(user)->blocks--;
        std::free(memory);
    }
};

int fill_ones(void *, const distile_tensor *, const distile_tensor *, const distile_tensor *output) {
    std::fill_n(static_cast<float *>(output->data), int64_t{output->height} * output->stride_h, 1.0f);
    return 0;
}

/** A use of the whole library. Each step can be repeated when it failed. */
class Session {
public:
    Session(int32_t threads, bool own_allocator, std::string times) : times_(std::move(times)) {
        options_.threads = threads;
        options_.parallel_for = run_one_by_one;
        if (own_allocator) {
            options_.allocate = CountingAllocator::allocate;
            options_.deallocate = CountingAllocator::deallocate;
            options_.allocator_user = &allocator_;
        }
        std::mt19937 random(1);
        const auto draw = [&](std::vector<float> &values) {
            for (float &value : values) {
                value = static_cast<float>(random() % 9) - 4;
            }
        };
        draw(input_);
        draw(filter_);
        for (uint8_t &byte : bytes_) {
            byte = random() % 3 == 0 ? 1 : 0;
        }
    }
    Session(const Session &) = delete;
    Session &operator=(const Session &) = delete;
    ~Session() {
        planner_.reset();
        weights_.reset();
        kernel_.reset();
        for (Mask &mask : masks_) {
            mask.reset();
        }
        context_.reset();
        CHECK(allocator_.blocks == 0);
    }

    /** Makes all objects. */
    void create() {
        made("context", context_, [&](distile_context **out) { return distile_context_create(&options_, out); });
        for (Mask &mask : masks_) {
            made("mask", mask, [&](distile_mask **out) { return distile_mask_create(context_.get(), out); });
        }
        made("kernel", kernel_,
             [&](distile_kernel **out) { return distile_kernel_create(context_.get(), &test_conv3_16_48_avx2, out); });
        made("weights", weights_, [&](distile_weights **out) {
            distile_weights_source source{};
            source.filter = filter_.data();
            source.order = DISTILE_OHWI;
            return distile_weights_pack(kernel_.get(), &source, out);
        });
        made("planner", planner_,
             [&](distile_planner **out) { return distile_planner_create(context_.get(), nullptr, out); });
        const distile_dense_candidate candidate{"mine", fill_ones, nullptr};
        step("add_dense", [&] { return distile_kernel_add_dense(kernel_.get(), &candidate); });
        step("add_time", [&] { return distile_kernel_add_time(kernel_.get(), "mine", 100, 50); });
        step("load_times", [&] { return distile_kernel_load_times(kernel_.get(), times_.c_str()); });
        step("load_no_times", [&] {
            const distile_status status = distile_kernel_load_times(kernel_.get(), "/none");
            return status == DISTILE_ERROR_BAD_FILE ? DISTILE_OK : status;
        });
    }

    /** One input after the other. `seed` chooses the mask, which has the same shape for all seeds. */
    void use(uint32_t seed) {
        distile_mask *mask = masks_[0].get(), *other = masks_[1].get(), *result = masks_[2].get();
        std::mt19937 random(seed);
        const uint32_t density = 1 + seed % 7;
        for (uint8_t &byte : bytes_) {
            byte = random() % 8 < density ? 1 : 0;
        }
        step("set_bytes",
             [&] { return distile_mask_set_bytes(mask, bytes_.data(), 1, height, width, height * width, width); });
        use_algebra(mask, other, result);
        use_kernel(mask);
        use_planner(mask);
        const distile_nchw planes = distile_nchw_make(planes_.data(), in_channels, height, width);
        const distile_tensor input = input_view();
        step("to_nchw", [&] { return distile_to_nchw(context_.get(), &input, &planes); });
        step("from_nchw", [&] { return distile_from_nchw(context_.get(), &planes, &input); });
    }

    /** Everything that was computed. */
    const std::vector<float> &results() const {
        return results_;
    }

private:
    distile_tensor input_view() {
        return distile_tensor_make(input_.data(), 1, height, width, in_channels);
    }

    /** A step fails with OUT_OF_MEMORY exactly where an allocation failed, or goes on without; then it succeeds. */
    template<typename Call> void step(const char *name, const Call &call) {
        const int64_t failures = allocations.failures;
        const distile_status status = [&] {
            const Watch watch;
            return call();
        }();
        if (status == DISTILE_OK) {
            return;
        }
        INFO(name << ": " << (context_ ? distile_context_message(context_.get()) : ""));
        REQUIRE(std::string(distile_status_name(status)) == "DISTILE_ERROR_OUT_OF_MEMORY");
        REQUIRE(allocations.failures > failures);
        REQUIRE(std::string(distile_status_name(call())) == "DISTILE_OK");
    }

    template<typename Owner, typename Make> void made(const char *name, Owner &owner, const Make &make) {
        auto *object = owner.get();
        step(name, [&] {
            const distile_status status = make(&object);
            if (status != DISTILE_OK && object) {
                return DISTILE_ERROR_KERNEL;  // It wrote its result.
            }
            return status;
        });
        owner.reset(object);
    }

    /** Calls that set a mask leave it as it was where they fail. */
    template<typename Call> void set_mask(const char *name, distile_mask *mask, const Call &call) {
        const std::vector<uint64_t> before = words_of(mask);
        step(name, [&] {
            const distile_status status = call();
            if (status != DISTILE_OK) {
                allocations.watched = false;
                REQUIRE(words_of(mask) == before);
            }
            return status;
        });
        keep_mask(mask);
    }

    static std::vector<uint64_t> words_of(distile_mask *mask) {
        const uint64_t *words = nullptr;
        int32_t words_per_row = 0;
        int64_t rows = height;
        return distile_mask_bits(mask, &words, &words_per_row) == DISTILE_OK
                   ? std::vector<uint64_t>(words, words + rows * words_per_row)
                   : std::vector<uint64_t>();
    }

    void keep_mask(distile_mask *mask) {
        int64_t pixels = 0;
        REQUIRE(distile_mask_active_pixels(mask, &pixels) == DISTILE_OK);
        results_.push_back(static_cast<float>(pixels));
    }

    void use_algebra(distile_mask *mask, distile_mask *other, distile_mask *result) {
        const distile_window window{3, 3, 1, 1, 2, 1, 1, 1, DISTILE_WINDOW_CONV};
        set_mask("dilate", other, [&] { return distile_mask_dilate(other, mask, 1, 2); });
        set_mask("needed_input", other, [&] { return distile_mask_needed_input(other, mask, &window, height, width); });
        set_mask("affected_output", other,
                 [&] { return distile_mask_affected_output(other, mask, &window, height, width); });
        set_mask("unite", result, [&] { return distile_mask_unite(result, mask, other); });
        set_mask("intersect", result, [&] { return distile_mask_intersect(result, mask, other); });
        set_mask("subtract", result, [&] { return distile_mask_subtract(result, other, mask); });
        set_mask("invert", result, [&] { return distile_mask_invert(result, mask); });
        const distile_tensor a = input_view();
        distile_tensor b = a;
        b.data = planes_.data();
        set_mask("set_difference", result, [&] { return distile_mask_set_difference(result, &a, &b, 1); });
        set_mask("pool", result, [&] { return distile_mask_pool(result, mask, 1, 1); });
        int64_t count = 0;
        step("count_tiles", [&] { return distile_mask_count_tiles(result, 3, 4, &count); });
        distile_tile_list list{};
        step("tiles", [&] { return distile_mask_tiles(result, 3, 4, &list); });
        results_.push_back(static_cast<float>(count + list.count));
    }

    void use_kernel(distile_mask *mask) {
        distile_choice choice{};
        step("choose", [&] { return distile_kernel_choose(kernel_.get(), mask, &choice); });
        const distile_tensor input = input_view();
        const distile_tensor output = distile_tensor_make(output_.data(), 1, height, width, out_channels);
        for (int32_t i = -1; i < distile_kernel_num_variants(kernel_.get()); i++) {
            for (int modes = 0; modes < 4; modes++) {
                distile_run_args args{};
                args.input = &input;
                args.output = &output;
                args.weights = weights_.get();
                args.mask = mask;
                args.inactive = modes % 2 == 0 ? DISTILE_KEEP : DISTILE_ZERO;
                args.store = modes / 2 == 0 ? DISTILE_STORE_EXACT : DISTILE_STORE_TILES;
                args.variant = distile_kernel_variant_name(kernel_.get(), i);
                std::fill(output_.begin(), output_.end(), 7.0f);
                step("run", [&] { return distile_run(kernel_.get(), &args); });
                if (i >= 0) {
                    keep_sum(output_);
                }
            }
        }
    }

    void use_planner(distile_mask *mask) {
        const distile_output_spec spec{1, height, width, 8, 1, 1, 1, 1};
        for (int i = 0; i < 4; i++) {
            distile_tensor tensor{};
            step("planner_next",
                 [&] { return distile_planner_next(planner_.get(), &spec, mask, DISTILE_STORE_EXACT, &tensor); });
            float *values = static_cast<float *>(tensor.data) - tensor.stride_h - tensor.stride_w;
            results_.push_back(*std::max_element(values, values + tensor.stride_n));
            for (size_t pixel = 0; pixel < bytes_.size(); pixel++) {
                if (bytes_[pixel] != 0) {
                    std::fill_n(static_cast<float *>(tensor.data) +
                                    static_cast<int64_t>(pixel / width) * tensor.stride_h +
                                    static_cast<int64_t>(pixel % width) * tensor.stride_w,
                                spec.channels, 1.0f);
                }
            }
        }
    }

    /** All values with weights, so that it tells where they are. */
    void keep_sum(const std::vector<float> &values) {
        double sum = 0;
        for (size_t i = 0; i < values.size(); i++) {
            sum += static_cast<double>(values[i]) * static_cast<double>(i % 1009);
        }
        results_.push_back(static_cast<float>(sum));
    }

    distile_context_options options_{};
    CountingAllocator allocator_;
    std::string times_;
    Context context_;
    Mask masks_[3];
    Kernel kernel_;
    Weights weights_;
    Planner planner_;
    std::vector<float> input_ = std::vector<float>(size_t{height} * width * in_channels);
    std::vector<float> filter_ = std::vector<float>(size_t{9} * in_channels * out_channels);
    std::vector<float> output_ = std::vector<float>(size_t{height} * width * out_channels);
    std::vector<float> planes_ = std::vector<float>(size_t{height} * width * in_channels);
    std::vector<uint8_t> bytes_ = std::vector<uint8_t>(size_t{height} * width);
    std::vector<float> results_;
};

std::string time_table(const TemporaryFolder &folder) {
    return folder.write("times.json",
                        std::string(R"({"distile_times": 1, "kernel": ")") + test_conv3_16_48_avx2.name +
                            R"(", "times": [{"variant": "dense", "threads": 1, "tiles": 30, "us": 90}]})");
}

/** What a session computes whose allocations from `first` to `last` fail. */
std::vector<float> run_session(int32_t threads, bool own_allocator, const std::string &times, int64_t first,
                               int64_t last) {
    allocations.count = 0;
    allocations.first = first;
    allocations.last = last;
    Session session(threads, own_allocator, times);
    session.create();
    session.use(1);
    session.use(5);
    allocations.last = -1;
    return session.results();
}

}  // namespace

TEST_CASE("Whichever allocation fails, the call says so and can be repeated", "[allocations]") {
    const TemporaryFolder folder;
    const std::string times = time_table(folder);
    for (const bool own_allocator : {false, true}) {
        const int32_t threads = own_allocator ? 1 : 3;
        const std::vector<float> expected = run_session(threads, own_allocator, times, 0, -1);
        const int64_t all = allocations.count;
        REQUIRE(all > 50);
        // One alone, and with the next ones: what is there for a failure may fail too.
        for (const int64_t more : {0, 3}) {
            allocations.failures = 0;
            for (int64_t first = 0; first < all; first++) {
                CAPTURE(own_allocator, first, more);
                REQUIRE(run_session(threads, own_allocator, times, first, first + more) == expected);
            }
            REQUIRE(allocations.failures >= all);
        }
    }
}

TEST_CASE("Calls of a shape that was met before allocate nothing", "[allocations]") {
    const TemporaryFolder folder;
    for (const int32_t threads : {1, 3}) {
        Session session(threads, false, time_table(folder));
        session.create();
        // The sparsest first: a later mask has more tiles.
        session.use(0);
        allocations.count = 0;
        for (uint32_t seed = 1; seed < 15; seed++) {
            session.use(seed);
            CAPTURE(threads, seed);
            REQUIRE(allocations.count == 0);
        }
    }
}
