// Memory: whichever allocation of a session fails, the call says so and all its objects stay usable; and calls of
// shapes that were met before allocate nothing. Files that cannot be read to their end. A program of its own, because
// it replaces the functions that allocate and read.
#include "tests/support/allocations.h"
#include "tests/support/catch.h"
#include "tests/support/descriptors.h"
#include "tests/support/plain_attention.h"
#include "tests/support/short_tests.h"
#include "tests/support/temporary_folder.h"
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <distile/distile.hpp>
#include <distile/layers.h>
#include <distile/layout.h>
#include <distile/mask_algebra.h>
#include <distile/planner.h>
#include <distile/polykernel.h>
#include <distile/pruned.h>
#include <distile/tokens.h>
#include <distile/upsample.h>
#include <random>
#include <string>
#include <sys/syscall.h>
#include <test_conv3_16_48_avx2.h>
#include <test_conv3_48_16_residual_avx2.h>
#include <test_depthwise3_24_avx2.h>
#include <test_groups2_32_32_avx2.h>
#include <test_transpose2_s2_17_3_avx2.h>
#include <test_upsample3_s2_16_17_avx2.h>
#include <unistd.h>
#include <vector>

// NOLINTBEGIN(readability-identifier-naming,bugprone-reserved-identifier)
extern "C" void *__real_aligned_alloc(size_t alignment, size_t bytes);
extern "C" void *__wrap_aligned_alloc(size_t alignment, size_t bytes) {
    return allocations.fails() ? nullptr : __real_aligned_alloc(alignment, bytes);
}
// NOLINTEND(readability-identifier-naming,bugprone-reserved-identifier)

/** Reads of files before one that fails; -1: none does. */
static std::atomic<int> reads_before_failure{-1};

extern "C" __attribute__((visibility("default"))) ssize_t read(int fd, void *buf, size_t nbytes) {
    if (reads_before_failure >= 0 && reads_before_failure-- == 0) {
        errno = EIO;
        return -1;
    }
    return syscall(SYS_read, fd, buf, nbytes);
}

using namespace distile;

namespace {

/** The size of masks and outputs. Operators that enlarge have inputs of half that size. */
constexpr int32_t height = 16, width = 20;
/** No operator here has more. */
constexpr int32_t most_channels = 48;

/** What sessions use: one of each kind of operator, and everything without one. */
const distile_polykernel *const used[] = {nullptr,
                                          &test_conv3_16_48_avx2,
                                          &test_conv3_48_16_residual_avx2,
                                          &test_groups2_32_32_avx2,
                                          &test_depthwise3_24_avx2,
                                          &test_transpose2_s2_17_3_avx2,
                                          &test_upsample3_s2_16_17_avx2};

constexpr distile_clearing clearings[] = {DISTILE_CLEAR_WRITTEN, DISTILE_CLEAR_ALL, DISTILE_CLEAR_BACKGROUND};

/** Windows of every kind, with and without a stride. */
constexpr distile_window windows[] = {{3, 3, 1, 1, 2, 1, 1, 1, DISTILE_WINDOW_CONV},
                                      {3, 5, 2, 2, 1, 1, 1, 2, DISTILE_WINDOW_CONV},
                                      {4, 4, 2, 2, 1, 1, 1, 1, DISTILE_WINDOW_TRANSPOSED},
                                      {3, 3, 2, 2, 1, 1, 1, 1, DISTILE_WINDOW_UPSAMPLED}};

/** What a session runs on. */
struct Machine {
    int32_t threads;
    bool own_pool, own_allocator;
};

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

int fill_ones(void *, void *, const distile_run_args *args) {
    const distile_tensor &output = *args->output;
    std::fill_n(static_cast<float *>(output.data), int64_t{output.height} * output.stride_h, 1.0f);
    return 0;
}

/** A use of an operator, or of all the rest of the library. Each step can be repeated when it failed. */
class Session {
public:
    Session(const distile_polykernel *polykernel, const Machine &machine) : polykernel_(polykernel) {
        options_.threads = machine.threads;
        options_.parallel_for = machine.own_pool ? nullptr : run_one_by_one;
        if (machine.own_allocator) {
            options_.allocate = CountingAllocator::allocate;
            options_.deallocate = CountingAllocator::deallocate;
            options_.allocator_user = &allocator_;
        }
        if (polykernel) {
            filter_.resize(size_t{9} * most_channels * most_channels);
            times_ = folder_.write(
                "times.json", time_table(*polykernel, std::string(R"({"variant": ")") + polykernel->variants[0].name +
                                                          R"(", "threads": 1, "tiles": 30, "us": 90})"));
        }
        std::mt19937 random(1);
        for (std::vector<float> *values : {&input_, &filter_}) {
            for (float &value : *values) {
                value = static_cast<float>(random() % 9) - 4;
            }
        }
    }
    Session(const Session &) = delete;
    Session &operator=(const Session &) = delete;
    ~Session() {
        for (Planner &planner : planners_) {
            planner.reset();
        }
        weights_.reset();
        kernel_.reset();
        for (HeldMask &held : masks_) {
            held.mask.reset();
        }
        rows_.mask.reset();
        keys_.mask.reset();
        context_.reset();
        CHECK(allocator_.blocks == 0);
    }

    /** Makes all objects. */
    void create() {
        made("context", context_, [&](distile_context **out) { return distile_context_create(&options_, out); });
        for (HeldMask &held : masks_) {
            made("mask", held.mask, [&](distile_mask **out) { return distile_mask_create(context_.get(), out); });
        }
        if (polykernel_) {
            create_kernel();
            return;
        }
        create_scores();
        for (size_t i = 0; i < std::size(clearings); i++) {
            distile_planner_options options{};
            options.clearing = clearings[i];
            made("planner", planners_[i],
                 [&](distile_planner **out) { return distile_planner_create(context_.get(), &options, out); });
        }
    }

    /** One input after the other. `seed` chooses the mask, which has the same shape for all seeds. */
    void use(uint32_t seed) {
        std::mt19937 random(seed);
        const uint32_t density = 1 + seed % 7;
        for (uint8_t &byte : bytes_) {
            byte = random() % 8 < density ? 1 : 0;
        }
        set_mask("set_bytes", masks_[0], height, [&](distile_mask *mask) {
            return distile_mask_set_bytes(mask, bytes_.data(), 1, height, width, height * width, width);
        });
        if (polykernel_) {
            use_kernel();
            return;
        }
        use_sources();
        use_algebra();
        use_planners();
        use_copies();
        use_scores();
    }

    /** Everything that was computed. */
    const std::vector<float> &results() const {
        return results_;
    }

private:
    struct HeldMask {
        Mask mask;
        int32_t rows = 0;
    };

    void create_kernel() {
        made("kernel", kernel_,
             [&](distile_kernel **out) { return distile_kernel_create(context_.get(), polykernel_, out); });
        made("weights", weights_, [&](distile_weights **out) {
            distile_weights_source source{};
            source.filter = filter_.data();
            source.order = DISTILE_OHWI;
            return distile_weights_pack(kernel_.get(), &source, out);
        });
        step("keep_two_of_four", [&] {
            distile_weights_source source{};
            source.filter = filter_.data();  // Any bits are numbers of another type.
            source.dtype = DISTILE_FLOAT16;
            source.order = DISTILE_OI;
            const distile_filter_extents extents{8, 64, 1, 1};
            int32_t keep = 0;
            return distile_weights_keep_two_of_four(context_.get(), &source, &extents, DISTILE_BFLOAT16, &keep);
        });
        add_candidate();
        step("load_times", [&] { return distile_kernel_load_times(kernel_.get(), times_.c_str()); });
        step("load_no_times", [&] {
            const distile_status status = distile_kernel_load_times(kernel_.get(), "/none");
            return status == DISTILE_ERROR_BAD_FILE ? DISTILE_OK : status;
        });
    }

    /** Scores by a dense candidate, because the code of the tests allocates. */
    void create_scores() {
        made("kernel", kernel_,
             [&](distile_kernel **out) { return distile_kernel_create(context_.get(), &scores_.polykernel(), out); });
        add_candidate();
        for (HeldMask *held : {&rows_, &keys_}) {
            made("mask", held->mask, [&](distile_mask **out) { return distile_mask_create(context_.get(), out); });
        }
    }

    void add_candidate() {
        const distile_dense_candidate candidate{"mine", fill_ones, nullptr};
        step("add_dense", [&] { return distile_kernel_add_dense(kernel_.get(), &candidate); });
        step("add_time", [&] { return distile_kernel_add_time(kernel_.get(), "mine", 100, 50); });
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
        const std::string message = distile_context_message(context_.get());
        INFO(name << ": " << message);
        REQUIRE(message.rfind("distile_", 0) == 0);
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
    template<typename Call> void set_mask(const char *name, HeldMask &held, int32_t rows, const Call &call) {
        const std::vector<uint32_t> before = words_of(held);
        step(name, [&] {
            const distile_status status = call(held.mask.get());
            if (status != DISTILE_OK) {
                allocations.watched = false;
                REQUIRE(words_of(held) == before);
            }
            return status;
        });
        held.rows = rows;
        int64_t pixels = 0;
        REQUIRE(distile_mask_active_pixels(held.mask.get(), &pixels) == DISTILE_OK);
        results_.push_back(static_cast<float>(pixels));
    }

    static std::vector<uint32_t> words_of(const HeldMask &held) {
        const uint32_t *words = nullptr;
        int32_t words_per_row = 0;
        return distile_mask_bits(held.mask.get(), &words, &words_per_row) == DISTILE_OK
                   ? std::vector<uint32_t>(words, words + int64_t{held.rows} * words_per_row)
                   : std::vector<uint32_t>();
    }

    /** What sets masks of another shape, which they keep where it fails. */
    void use_sources() {
        const uint8_t one = 1;
        std::vector<uint32_t> words(height, 0x12345);
        std::vector<int32_t> indices = {7, 3, height * width - 1, 3, 0};
        for (HeldMask *held : {masks_ + 1, masks_ + 2}) {
            set_mask("set_bytes", *held, 1,
                     [&](distile_mask *mask) { return distile_mask_set_bytes(mask, &one, 1, 1, 1, 1, 1); });
        }
        set_mask("set_bits", masks_[1], height,
                 [&](distile_mask *mask) { return distile_mask_set_bits(mask, words.data(), 1, height, width, 1); });
        set_mask("set_indices", masks_[2], height, [&](distile_mask *mask) {
            return distile_mask_set_indices(mask, indices.data(), nullptr, 1, height, width,
                                            static_cast<int64_t>(indices.size()));
        });
    }

    /** Every call sets a mask of its own. */
    void use_algebra() {
        distile_mask *mask = masks_[0].mask.get();
        HeldMask *next = masks_ + 2;
        for (const distile_window &window : windows) {
            for (const bool to_input : {true, false}) {
                const bool enlarges = to_input == (window.kind == DISTILE_WINDOW_CONV);
                const int32_t rows = enlarges ? height * window.stride_h : height / window.stride_h;
                const int32_t columns = enlarges ? width * window.stride_w : width / window.stride_w;
                const auto transfer = to_input ? distile_mask_needed_input : distile_mask_affected_output;
                set_mask(to_input ? "needed_input" : "affected_output", *++next, rows,
                         [&](distile_mask *to) { return transfer(to, mask, &window, rows, columns); });
            }
        }
        set_mask("pool", *++next, height / 2, [&](distile_mask *to) { return distile_mask_pool(to, mask, 2, 3); });
        set_mask("dilate", *++next, height, [&](distile_mask *to) { return distile_mask_dilate(to, mask, 1, 2); });
        distile_mask *dilated = next->mask.get();
        for (const auto combine : {distile_mask_unite, distile_mask_intersect, distile_mask_subtract}) {
            set_mask("combination", *++next, height, [&](distile_mask *to) { return combine(to, dilated, mask); });
        }
        set_mask("dilate itself", *next, height, [](distile_mask *to) { return distile_mask_dilate(to, to, 2, 1); });
        set_mask("invert", *++next, height, [&](distile_mask *to) { return distile_mask_invert(to, mask); });
        // As many pixels as are shared out to two threads.
        constexpr int32_t extent = 256;
        static std::vector<float> zeros(extent * extent), twos(extent * extent, 2.0f);
        const distile_tensor a = distile_tensor_make(zeros.data(), 1, extent, extent, 1);
        distile_tensor b = a;
        b.data = twos.data();
        set_mask("set_difference", *++next, extent,
                 [&](distile_mask *to) { return distile_mask_set_difference(to, &a, &b, 1); });
        REQUIRE(++next == std::end(masks_));
        int64_t count = 0;
        step("count_tiles", [&] { return distile_mask_count_tiles(mask, 3, 4, &count); });
        distile_tile_list list{};
        step("tiles", [&] { return distile_mask_tiles(mask, 5, 2, &list); });
        results_.push_back(static_cast<float>(count + list.count));
    }

    void use_kernel() {
        distile_mask *mask = masks_[0].mask.get();
        const distile_conv2d conv = convolution_of(*polykernel_);
        const int32_t scale = distile_kernel_window(kernel_.get()).kind == DISTILE_WINDOW_CONV ? 1 : 2;
        const distile_tensor input =
            distile_tensor_make(input_.data(), 1, height / scale, width / scale, conv.in_channels);
        const distile_tensor output = distile_tensor_make(output_.data(), 1, height, width, conv.out_channels);
        distile_tensor residual = output;
        residual.data = planes_.data();
        distile_choice choice{};
        step("choose", [&] { return distile_kernel_choose(kernel_.get(), mask, &choice); });
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
                // In place once: what a dense candidate adds to must then be out of its way.
                args.residual = conv.residual == 0 ? nullptr : modes == 0 ? &output : &residual;
                step("run", [&] {
                    // Where a kernel fails, the output may be partly written.
                    std::fill(output_.begin(), output_.end(), 7.0f);
                    return distile_run(kernel_.get(), &args);
                });
                if (i >= 0) {
                    keep_sum(output_);
                }
            }
        }
    }

    void use_scores() {
        static const std::vector<uint8_t> every_key(height, 1);
        set_mask("set_bytes", rows_, 1, [&](distile_mask *mask) {
            return distile_mask_set_bytes(mask, bytes_.data(), 1, 1, width, width, width);
        });
        set_mask("set_bytes", keys_, 1, [&](distile_mask *mask) {
            return distile_mask_set_bytes(mask, every_key.data(), 1, 1, height, height, height);
        });
        const distile_tensor query = distile_tokens_make(input_.data(), 1, width, scores_channels);
        const distile_tensor key = distile_tokens_make(input_.data(), 1, height, scores_channels);
        const distile_tensor output = distile_tensor_make(output_.data(), 1, scores_heads, width, height);
        for (const char *variant : {static_cast<const char *>(nullptr), "mine"}) {
            for (const distile_inactive inactive : {DISTILE_KEEP, DISTILE_ZERO}) {
                distile_run_args args{};
                args.input = &query;
                args.key = &key;
                args.output = &output;
                args.mask = rows_.mask.get();
                args.key_mask = keys_.mask.get();
                args.inactive = inactive;
                args.variant = variant;
                std::fill(output_.begin(), output_.end(), 7.0f);
                step("run", [&] { return distile_run(kernel_.get(), &args); });
                keep_sum(output_);
            }
        }
    }

    void use_planners() {
        distile_mask *mask = masks_[0].mask.get();
        const distile_output_spec spec{1, height, width, 8, 1, 1, 1, 1, DISTILE_FLOAT32};
        for (const Planner &planner : planners_) {
            // As many as it has buffers for each way to store, so that every buffer meets its shape.
            for (int i = 0; i < 6; i++) {
                const distile_store store = i % 2 == 0 ? DISTILE_STORE_EXACT : DISTILE_STORE_TILES;
                distile_tensor tensor{};
                step("planner_next", [&] { return distile_planner_next(planner.get(), &spec, mask, store, &tensor); });
                auto *pixels = static_cast<float *>(tensor.data);
                int64_t stale = 0;
                for (int32_t y = -1; y <= height; y++) {
                    for (int32_t x = -1; x <= width; x++) {
                        const bool inside = y >= 0 && y < height && x >= 0 && x < width;
                        const bool active = inside && bytes_[y * width + x] != 0;
                        float *pixel = pixels + y * tensor.stride_h + x * tensor.stride_w;
                        if (store == DISTILE_STORE_TILES || !active) {
                            stale +=
                                std::count_if(pixel, pixel + spec.channels, [](float value) { return value != 0; });
                        }
                        if (active || (inside && store == DISTILE_STORE_TILES)) {
                            std::fill_n(pixel, spec.channels, 1.0f);
                        }
                    }
                }
                REQUIRE(stale == 0);
            }
        }
    }

    void use_copies() {
        constexpr int32_t channels = 16;
        const distile_tensor small = distile_tensor_make(input_.data(), 1, height / 2, width / 2, channels);
        const distile_tensor large = distile_tensor_make(planes_.data(), 1, height, width, channels);
        for (const distile_inactive inactive : {DISTILE_KEEP, DISTILE_ZERO}) {
            distile_upsample_args args{};
            args.input = &small;
            args.output = &large;
            args.mask = masks_[0].mask.get();
            args.scale_h = args.scale_w = 2;
            args.inactive = inactive;
            step("upsample_nearest", [&] { return distile_upsample_nearest(context_.get(), &args); });
            keep_sum(planes_);
        }
        const distile_tensor other = distile_tensor_make(output_.data(), 1, height, width, channels);
        for (const distile_dtype dtype : {DISTILE_FLOAT32, DISTILE_FLOAT16}) {
            distile_tensor from = large, to = other;
            from.dtype = to.dtype = dtype;
            distile_normalize_args args{};
            args.input = &from;
            args.output = &to;
            args.mask = masks_[0].mask.get();
            args.epsilon = 1e-3f;
            step("normalize", [&] { return distile_normalize(context_.get(), &args); });
            distile_tensor pixel = to;
            pixel.height = pixel.width = 1;
            distile_global_pool_args global{};
            global.input = &from;
            global.output = &pixel;
            global.mask = args.mask;
            global.pooling = DISTILE_AVERAGE_POOLING;
            step("global_pool", [&] { return distile_global_pool(context_.get(), &global); });
            distile_pool_args pool{};
            pool.input = &from;
            pool.output = &to;
            pool.mask = args.mask;
            pool.window = {3, 3, 1, 1, 1, 1, 1, 1, DISTILE_WINDOW_CONV};
            step("pool", [&] { return distile_pool(context_.get(), &pool); });
            distile_combine_args combine{};
            combine.input = &from;
            combine.other = combine.output = &to;
            combine.mask = args.mask;
            combine.combination = DISTILE_ADD;
            step("combine", [&] { return distile_combine(context_.get(), &combine); });
            distile_group_norm_args norm{};
            norm.input = &from;
            norm.output = &to;
            norm.mask = args.mask;
            norm.groups = 4;
            norm.epsilon = 1e-3f;
            step("group_norm", [&] { return distile_group_norm(context_.get(), &norm); });
        }
        step("pack", [&] { return distile_pack(context_.get(), &large, masks_[0].mask.get(), &other); });
        step("unpack",
             [&] { return distile_unpack(context_.get(), &other, masks_[0].mask.get(), &large, DISTILE_ZERO); });
        const int32_t *lengths = nullptr;
        step("cumulative_lengths", [&] { return distile_mask_cumulative_lengths(masks_[0].mask.get(), &lengths); });
        keep_sum({planes_.begin(), planes_.end()});
        results_.push_back(static_cast<float>(lengths[1]));
        const distile_nchw planes = distile_nchw_make(output_.data(), channels, height, width);
        step("to_nchw", [&] { return distile_to_nchw(context_.get(), &large, &planes); });
        keep_sum(output_);
        step("from_nchw", [&] { return distile_from_nchw(context_.get(), &planes, &large); });
        keep_sum(planes_);
    }

    /** All values with weights, so that it tells where they are. */
    void keep_sum(const std::vector<float> &values) {
        double sum = 0;
        for (size_t i = 0; i < values.size(); i++) {
            sum += static_cast<double>(values[i]) * static_cast<double>(i % 1009);
        }
        results_.push_back(static_cast<float>(sum));
    }

    const distile_polykernel *polykernel_;
    distile_context_options options_{};
    CountingAllocator allocator_;
    TemporaryFolder folder_;
    std::string times_;
    Context context_;
    HeldMask masks_[18], rows_, keys_;
    static constexpr int32_t scores_heads = 2, scores_channels = 8;
    const PlainAttention scores_{scores_heads, scores_channels / scores_heads, DISTILE_SCORES};
    Kernel kernel_;
    Weights weights_;
    Planner planners_[std::size(clearings)];
    std::vector<float> input_ = std::vector<float>(size_t{height} * width * most_channels);
    std::vector<float> output_ = input_;
    std::vector<float> planes_ = input_;
    std::vector<float> filter_;
    std::vector<uint8_t> bytes_ = std::vector<uint8_t>(size_t{height} * width);
    std::vector<float> results_;
};

/** What a session computes whose allocations from `first` to `last` fail. */
std::vector<float> run_session(const distile_polykernel *polykernel, const Machine &machine, int64_t first,
                               int64_t last) {
    allocations.count = 0;
    allocations.first = first;
    allocations.last = last;
    Session session(polykernel, machine);
    session.create();
    session.use(1);
    session.use(5);
    allocations.last = -1;
    return session.results();
}

std::string name_of(const distile_polykernel *polykernel) {
    return polykernel ? polykernel->name : "no operator";
}

}  // namespace

TEST_CASE("Whichever allocation fails, the call says so and can be repeated", "[allocations]") {
    struct Run {
        Machine machine;
        int64_t more;
    };
    // One alone, and with the next ones: what is there for a failure may fail too. Threads of the context's own
    // allocate in any order.
    for (const auto &[machine, more] :
         {Run{{3, false, false}, 0}, Run{{3, true, false}, 0}, Run{{1, false, true}, 0}, Run{{1, false, true}, 3}}) {
        for (const distile_polykernel *polykernel : used) {
            const std::vector<float> expected = run_session(polykernel, machine, 0, -1);
            const int64_t all = allocations.count;
            REQUIRE(all > 20);
            allocations.failures = 0;
            int64_t tried = 0;
            for (int64_t first = 0; first < all; first++) {
                if (left_out(static_cast<int>(first))) {
                    continue;
                }
                tried++;
                CAPTURE(name_of(polykernel), machine.own_pool, machine.own_allocator, first, more);
                REQUIRE(run_session(polykernel, machine, first, first + more) == expected);
            }
            REQUIRE(allocations.failures >= (machine.own_pool ? (short_tests() ? 3 : 20) : tried));
        }
    }
}

namespace {

/** Another rank, which tells what this one does. */
struct MirroredRank {
    distile_transport transport() {
        distile_transport made{};
        made.ranks = 2;
        made.user = this;
        made.exchange = [](void *user, const distile_messages *messages) {
            auto &self = *static_cast<MirroredRank *>(user);
            // Records come from each to each, and begin with a format, a meeting and a status.
            if (messages->num_sends == 1 && messages->num_receives == 1 &&
                messages->sends[0].bytes == messages->receives[0].bytes) {
                const void *const record = messages->sends[0].data;
                std::memcpy(messages->receives[0].data, record, static_cast<size_t>(messages->sends[0].bytes));
                std::memcpy(&self.told, static_cast<const char *>(record) + 12, sizeof(self.told));
            }
            return DISTILE_OK;
        };
        return made;
    }
    int32_t told = 0;  ///< The status in the last record.
};

}  // namespace

TEST_CASE("Whichever allocation of a group fails, the call says so and can be repeated", "[allocations]") {
    const bool has_ranks = GENERATE(false, true);
    CAPTURE(has_ranks);
    constexpr int32_t devices = 2, layers = 2, channels = 16;
    const std::vector<float> input(size_t{height} * width * channels, .5f), filter(size_t{9} * 48 * 48, .25f);
    distile_weights_source source{};
    source.filter = filter.data();
    source.order = DISTILE_OHWI;
    const distile_polykernel *const polykernels[][devices] = {
        {&test_conv3_16_48_avx2, &test_conv3_16_48_avx2},
        {&test_conv3_48_16_residual_avx2, &test_conv3_48_16_residual_avx2}};
    distile_chain_layer given[layers] = {};
    for (int32_t i = 0; i < layers; i++) {
        given[i].polykernels = polykernels[i];
        given[i].weights = &source;
    }
    // What the group computes if allocation `first` fails; the calls that fail are repeated.
    const auto run = [&](int64_t first) {
        allocations.count = 0;
        allocations.first = allocations.last = first;
        distile_context_options options{};
        options.threads = 1;
        const Context contexts[devices] = {make_context(options), make_context(options)};
        distile_context *pointers[devices] = {contexts[0].get(), contexts[1].get()};
        const Mask mask = make_mask(contexts[0]);
        const std::vector<uint8_t> bytes(size_t{height} * width, 1);
        check(contexts[0], distile_mask_set_bytes(mask.get(), bytes.data(), 1, height, width, height * width, width));
        MirroredRank other;
        const distile_transport transport = other.transport();
        distile_group_options group_options{};
        group_options.transport = has_ranks ? &transport : nullptr;
        const auto repeat = [&](const distile_group *group, const auto &call, bool together = true) {
            const int64_t failures = allocations.failures;
            const distile_status status = [&] {
                const Watch watch;
                return call();
            }();
            INFO(distile_group_message(group));
            if (status != DISTILE_OK) {
                REQUIRE(std::string(distile_status_name(status)) == "DISTILE_ERROR_OUT_OF_MEMORY");
                REQUIRE(allocations.failures > failures);
                // All ranks know, but of what a process lacks before it has any.
                REQUIRE((!has_ranks || !group || !together || other.told == status));
                REQUIRE(std::string(distile_status_name(call())) == "DISTILE_OK");
            }
        };
        distile_group *group = nullptr;
        repeat(nullptr,
               [&] { return distile_group_create(pointers, has_ranks ? 1 : devices, &group_options, &group); });
        const Group owned_group(group);
        distile_chain *chain = nullptr;
        repeat(group, [&] { return distile_chain_create(group, given, layers, &chain); });
        const Chain owned_chain(chain);
        std::vector<float> result(input.size());
        std::vector<float> copy = input;
        const distile_tensor from = distile_tensor_make(copy.data(), 1, height, width, channels),
                             to = distile_tensor_make(result.data(), 1, height, width, channels);
        distile_mask *const masks[layers] = {mask.get(), mask.get()};
        distile_chain_args args{};
        args.input = &from;
        args.output = &to;
        args.masks = masks;
        repeat(group, [&] { return distile_chain_run(chain, &args); });
        // Devices keep another result.
        distile_chain_args keeping = args;
        keeping.output = nullptr;
        std::vector<float> kept(input.size());
        distile_tensor collected = to;
        collected.data = kept.data();
        repeat(group, [&] { return distile_chain_run(chain, &keeping); });
        repeat(group, [&] { return distile_chain_collect(chain, &collected); });
        CHECK(kept == result);
        distile_chain_info info{};
        repeat(
            group, [&] { return distile_chain_get_info(chain, &info); }, false);
        CHECK(info.busy_devices == devices);
        return result;
    };
    const std::vector<float> expected = run(-1);
    const int64_t all = allocations.count;
    REQUIRE(all > 50);
    allocations.failures = 0;
    for (int64_t first = 0; first < all; first++) {
        if (!left_out(static_cast<int>(first))) {
            CAPTURE(first);
            REQUIRE(run(first) == expected);
        }
    }
    REQUIRE(allocations.failures > (short_tests() ? 5 : 50));
}

TEST_CASE("Calls of a shape that was met before allocate nothing", "[allocations]") {
    for (const Machine &machine : {Machine{1, false, false}, {3, false, false}, {3, true, false}}) {
        for (const distile_polykernel *polykernel : used) {
            if (polykernel && machine.own_pool) {
                // Scratch memory is as much as was ever needed at once, which depends on the threads.
                continue;
            }
            Session session(polykernel, machine);
            session.create();
            // The sparsest first: a later mask has more tiles.
            session.use(0);
            allocations.count = 0;
            for (uint32_t seed = 1; seed < 15; seed++) {
                session.use(seed);
                CAPTURE(name_of(polykernel), machine.threads, machine.own_pool, seed);
                REQUIRE(allocations.count == 0);
            }
        }
    }
}

TEST_CASE("What grows with masks and tensors is the caller's memory", "[allocations]") {
    CountingAllocator allocator;
    distile_context_options options{};
    options.threads = 1;
    options.allocate = CountingAllocator::allocate;
    options.deallocate = CountingAllocator::deallocate;
    options.allocator_user = &allocator;
    const Context context = make_context(options);
    const Mask mask = make_mask(context), other = make_mask(context);
    const Planner planner = make_planner(context);
    constexpr int32_t rows = 4, columns = 65535, channels = 300;
    const std::vector<uint8_t> bytes(size_t{rows} * columns, 1);
    const std::vector<int32_t> indices(size_t{rows} * columns, 7);
    const std::vector<uint32_t> words(size_t{rows} * 2048, 0x55555555);
    std::vector<float> zeros(size_t{1000} * channels), ones(zeros.size(), 1.0f);
    const distile_tensor a = distile_tensor_make(zeros.data(), 1, 1, 1000, channels);
    distile_tensor b = a;
    b.data = ones.data();
    allocations.last = -1;
    allocations.largest = 0;
    {
        const Watch watch;
        check(context, distile_mask_set_bytes(mask.get(), bytes.data(), 1, rows, columns, 0, columns));
        distile_tile_list list{};
        check(context, distile_mask_tiles(mask.get(), 1, 1, &list));
        distile_output_spec spec{};
        spec.batch = 1;
        spec.height = rows;
        spec.width = columns;
        spec.channels = 1;
        distile_tensor tensor{};
        check(context, distile_planner_next(planner.get(), &spec, mask.get(), DISTILE_STORE_TILES, &tensor));
        for (const distile_window &window : windows) {
            check(context, distile_mask_affected_output(other.get(), mask.get(), &window, rows, columns));
            check(context, distile_mask_needed_input(other.get(), mask.get(), &window, rows, columns / 3));
        }
        check(context, distile_mask_invert(other.get(), mask.get()));
        check(context, distile_mask_set_difference(other.get(), &a, &b, 0.5f));
        check(context, distile_mask_set_bits(mask.get(), words.data(), 1, rows, columns, 2048));
        check(context, distile_mask_set_indices(mask.get(), indices.data(), nullptr, 1, rows, columns, columns));
    }
    CHECK(allocations.largest > 0);
    CHECK(allocations.largest < 2048);
    CHECK(allocator.blocks > 10);
}

TEST_CASE("A time table that cannot be read to its end is a bad file", "[allocations]") {
    const TemporaryFolder folder;
    const std::string times =
        folder.write("times.json", time_table(test_conv3_16_48_avx2,
                                              std::string(1 << 16, ' ') +
                                                  R"({"variant": "dense", "threads": 1, "tiles": 30, "us": 90})"));
    const Context context = make_context();
    const Kernel kernel = make_kernel(context, test_conv3_16_48_avx2);
    REQUIRE(distile_kernel_load_times(kernel.get(), times.c_str()) == DISTILE_OK);
    for (const int reads : {0, 1, 2}) {
        reads_before_failure = reads;
        const distile_status status = distile_kernel_load_times(kernel.get(), times.c_str());
        CAPTURE(reads, distile_context_message(context.get()));
        CHECK(reads_before_failure == -1);
        CHECK(std::string(distile_status_name(status)) == "DISTILE_ERROR_BAD_FILE");
    }
}
