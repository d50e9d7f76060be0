#include "runtime/cpu/products/listed_convolution.h"
#include "runtime/cpu/products/listed_depthwise.h"
#include <algorithm>
#include <limits>
#include <optional>

namespace distile {

alignas(64) const float outside_input[most_piece_channels]{};

namespace {

/** Weights of a set that the second-level cache keeps while groups pass. */
constexpr int64_t most_part_bytes = 192 << 10;
/** Weights of a convolution that the second-level cache keeps while chunks pass. */
constexpr int64_t most_kept_bytes = 256 << 10;
/** A chunk's groups, whose sums wait for the next part of the weights, and the sums of a group. */
constexpr int64_t most_chunk_groups = 24, most_group_sums = 384;
/** The groups for which it pays that a thread reads a set's weights. */
constexpr int64_t least_thread_groups = 4;
/** What a thread passes on at a time from a depthwise convolution: the second-level cache keeps it. */
constexpr int64_t most_passed_numbers = 64 << 10;
/** What a thread keeps of the convolution before that, at least and at most: the second-level cache has it, too. */
constexpr int64_t least_taken_numbers = 64 << 10, most_taken_numbers = 256 << 10;
constexpr int32_t most_pieces = 64;

/** A convolution of listed pixels. Threads share out its pixels, so that each finds most of what it wrote before in its
 * own caches; and the sets of panels where pixels are few. */
class SharedConvolution {
public:
    SharedConvolution(const PixelProducts &products, const ListedConvolution &given, int32_t threads)
        : products_(products), given_(given), weights_(given.weights), depthwise_(products, given),
          limits_(given.activation.function), sets_(divide_up(num_panels(weights_.out_channels), products.set_panels)),
          part_(std::max<int64_t>(most_part_bytes / (products.set_panels * panel_channels * weights_.bytes), 1)),
          keeps_weights_(num_panels(weights_.out_channels) * panel_channels * weights_.reduction * weights_.bytes <=
                         most_kept_bytes) {
        // Depthwise code has its own.
        const int64_t offsets = given.diagonals > 0 ? 0 : std::min<int64_t>(taps(), most_pieces);
        for (int32_t tap = 0; tap < offsets; tap++) {
            tap_offsets_[tap] = tap_offset(given, tap);
        }
        const int64_t groups = divide_up(given.count, group_pixels(0));
        pixel_shares_ = std::clamp<int64_t>(groups / least_thread_groups, 1, threads);
        set_shares_ = std::min(divide_up(threads, pixel_shares_), sets_);
    }

    int64_t items() const {
        return pixel_shares_ * set_shares_;
    }
    /** Whether each item has all output channels of its pixels, and so all input channels to pass on. */
    bool can_pass() const {
        return set_shares_ == 1;
    }
    /** The numbers that an item passes on at a time at most. */
    int64_t numbers_of_item() const {
        return std::max(most_passed_numbers, int64_t{given_.in_channels} * group_pixels(0));
    }
    /** The pixels that an item keeps of a convolution whose output this depthwise one reads: a power of two that is
     * enough for the rows of a window. 0 if they are too many. */
    int64_t taken_pixels() const {
        const int64_t rows = int64_t{given_.rows.kernel - 1} * given_.rows.dilation + 1;
        const int64_t least = rows * given_.taken->width;
        int64_t pixels = 1;
        while (pixels < least || pixels * given_.in_channels < least_taken_numbers) {
            pixels *= 2;
        }
        return pixels * given_.in_channels <= most_taken_numbers ? pixels : 0;
    }
    /** Computes pixels with the depthwise convolution before it, and the one before that. */
    void run_chain(int64_t item, const SharedConvolution &before, const SharedConvolution &source) const {
        const Range pixels = share(given_.count, item, pixel_shares_);
        const int64_t kept = before.taken_pixels(), most = numbers_of_item() / given_.in_channels;
        float *const memory = given_.passed + item * (numbers_of_item() + kept * before.given_.in_channels);
        const Passed taken{memory + numbers_of_item(), 0, kept - 1};
        Range made{0, 0};
        for (int64_t begin = pixels.begin; begin < pixels.end;) {
            int64_t end = std::min({begin + most, begin + most_chunk_groups * group_pixels(0), pixels.end});
            Range needed = before.taken_range(begin, end);
            while (needed.end - needed.begin > kept) {
                end = begin + (end - begin) / 2;
                needed = before.taken_range(begin, end);
            }
            const Range missing{std::max(needed.begin, made.end), needed.end};
            source.run_all(missing, taken);
            made = needed;
            const Passed passed{memory, begin};
            before.depthwise_.run({begin, end}, before.channels_of({0, before.sets_}), passed, taken);
            for (int64_t set = 0; set < sets_; set++) {
                run(set, {begin, end}, Weights{}, passed, {});
            }
            begin = end;
        }
    }
    /** `before` is that of the convolution before this one, if there is one. */
    void run(int64_t item, const SharedConvolution *before) const {
        const Range pixels = share(given_.count, item % pixel_shares_, pixel_shares_);
        const Range sets = share(sets_, item / pixel_shares_, set_shares_);
        int64_t most_pixels = most_chunk_groups * group_pixels(sets.begin);
        if (before) {
            most_pixels = std::min(most_pixels, numbers_of_item() / given_.in_channels);
        }
        const int64_t chunks = divide_up(pixels.end - pixels.begin, most_pixels);
        Passed passed{before ? given_.passed + item * numbers_of_item() : nullptr};
        const auto chunk_of = [&](int64_t chunk) {
            const Range part = share(pixels.end - pixels.begin, chunk, chunks);
            return Range{pixels.begin + part.begin, pixels.begin + part.end};
        };
        const auto run_chunk = [&](int64_t set, int64_t chunk, const Weights &next) {
            run(set, chunk_of(chunk), next, passed, {});
        };
        if (given_.diagonals > 0) {
            depthwise_.run(pixels, channels_of(sets), passed, {});
            return;
        }
        const Weights first_of_next = given_.next ? first_of(*given_.next) : Weights{};
        if (keeps_weights_ || before) {
            for (int64_t chunk = 0; chunk < chunks; chunk++) {
                if (before) {
                    passed.first = chunk_of(chunk).begin;
                    before->depthwise_.run(chunk_of(chunk), before->channels_of({0, before->sets_}), passed, {});
                }
                for (int64_t set = sets.begin; set < sets.end; set++) {
                    run_chunk(set, chunk, chunk == chunks - 1 ? first_of_next : Weights{});
                }
            }
            return;
        }
        for (int64_t set = sets.begin; set < sets.end; set++) {
            const Weights first_of_set = set + 1 < sets.end ? weights_at(set + 1, 0) : first_of_next;
            for (int64_t chunk = 0; chunk < chunks; chunk++) {
                run_chunk(set, chunk, chunk == chunks - 1 ? first_of_set : weights_at(set, 0));
            }
        }
    }

private:
    using Range = ListRange;
    using Passed = PassedPixels;
    using Pixel = ListedPixel;

    static Range share(int64_t count, int64_t index, int64_t shares) {
        return {count * index / shares, count * (index + 1) / shares};
    }

    /** The pixels of the convolution before that windows of pixels [begin, end) read, and others of their rows. If
     * these pixels are of several images, more than anybody can keep. */
    Range taken_range(int64_t begin, int64_t end) const {
        const ListIndex &index = *given_.taken;
        const Pixel first = pixel_at(begin), last = pixel_at(end - 1);
        if (first.image != last.image) {
            return {0, std::numeric_limits<int64_t>::max()};
        }
        const int32_t top = std::clamp(given_.rows.at(first.y, 0), 0, index.height);
        const int32_t bottom = std::clamp(given_.rows.at(last.y, given_.rows.kernel - 1) + 1, top, index.height);
        const int64_t row = int64_t{first.image} * index.height;
        return {index.rows[row + top], index.rows[row + bottom]};
    }
    /** Computes all channels of pixels. */
    void run_all(const Range &pixels, const Passed &to) const {
        const int64_t most = most_chunk_groups * group_pixels(0);
        for (int64_t begin = pixels.begin; begin < pixels.end; begin += most) {
            for (int64_t set = 0; set < sets_; set++) {
                run(set, {begin, std::min(begin + most, pixels.end)}, Weights{}, {}, to);
            }
        }
    }

    /** The channels of sets. */
    Range channels_of(const Range &sets) const {
        const int64_t of_set = products_.set_panels * panel_channels;
        return {sets.begin * of_set, std::min<int64_t>(sets.end * of_set, weights_.out_channels)};
    }
    int64_t panels_of(int64_t set) const {
        return std::min<int64_t>(products_.set_panels, num_panels(weights_.out_channels) - set * products_.set_panels);
    }
    int64_t group_pixels(int64_t set) const {
        return products_.group_pixels[panels_of(set)];
    }

    /** A part of a set's weights: some bytes of each panel, the panels a distance apart. */
    struct Weights {
        const char *first = nullptr;
        int64_t panels = 0, bytes = 0, distance = 0;
    };
    Weights weights_at(int64_t set, int64_t first) const {
        const int64_t number = panel_channels * weights_.bytes;
        return {static_cast<const char *>(weights_.numbers) +
                    (set * products_.set_panels * weights_.reduction + first) * number,
                panels_of(set), std::min(part_, weights_.reduction - first) * number, weights_.reduction * number};
    }
    Weights first_of(const PanelWeights &weights) const {
        const int64_t bytes = weights.reduction * panel_channels * weights.bytes;
        const int64_t panels = std::min<int64_t>(num_panels(weights.out_channels), products_.set_panels);
        return {static_cast<const char *>(weights.numbers), panels, std::min(bytes, most_part_bytes / panels), bytes};
    }

    /** Computes pixels of a set. Meanwhile, what comes next of the weights is fetched, and in the end the first of
     * `next`: the hardware follows a panel only after it has begun. */
    void run(int64_t set, const Range &pixels, const Weights &next, const Passed &from, const Passed &to) const {
        const int64_t panels = panels_of(set), group = group_pixels(set);
        const int64_t groups = divide_up(pixels.end - pixels.begin, group);
        alignas(64) float sums[most_chunk_groups * most_group_sums];
        for (int64_t first = 0; first < weights_.reduction; first += part_) {
            const int64_t last = std::min(first + part_, weights_.reduction);
            const Weights fetched = last < weights_.reduction ? weights_at(set, last) : next;
            float *of_group = sums;
            for (int64_t index = 0; index < groups; index++) {
                const int64_t pixel = pixels.begin + index * group;
                const auto count = static_cast<int32_t>(std::min(group, pixels.end - pixel));
                const bool finishes = last == weights_.reduction;
                Results results;
                if (finishes) {
                    describe(set, pixel, count, to, results);
                    fetch(results);
                }
                const Range of_fetched = share(fetched.panels * fetched.bytes, index, groups);
                GroupProduct product{};
                product.pixels = count;
                product.panels = static_cast<int32_t>(panels);
                product.panel_distance = weights_.reduction * panel_channels;
                product.adds = first > 0;
                product.sums = of_group;
                product.results = finishes && results.at_once ? &results.group : nullptr;
                if (fetched.panels > 0) {
                    product.fetched = fetched.first + of_fetched.begin / fetched.bytes * fetched.distance +
                                      of_fetched.begin % fetched.bytes;
                    product.fetched_bytes = of_fetched.end - of_fetched.begin;
                }
                multiply(set, pixel, first, last, product, from);
                if (finishes) {
                    finish(of_group, results);
                }
                of_group += weights_.reduction > part_ ? group * panels * panel_channels : 0;
            }
        }
    }

    Pixel pixel_at(int64_t index) const {
        return distile::pixel_at(given_, index);
    }
    /** A pixel's window. */
    struct Window {
        Pixel pixel;
        const float *inside;  ///< Its first tap, if all of it is inside the input and its taps have offsets; else null.
    };

    /** Completes a group's product, with [first, last) of the reduction, and computes it. */
    void multiply(int64_t set, int64_t pixel, int64_t first, int64_t last, GroupProduct product,
                  const Passed &passed) const {
        const float *inputs[most_pieces * most_group_pixels];
        int32_t lengths[most_pieces];
        Window group[most_group_pixels];
        // Code for more pixels than there are computes the last one again.
        const auto slots = static_cast<int32_t>(group_pixels(set));
        for (int32_t i = 0; i < slots; i++) {
            const int64_t index = pixel + std::min(i, product.pixels - 1);
            group[i] = passed.numbers ? Window{{}, passed.at(index, given_.in_channels)} : window_of(pixel_at(index));
        }
        const int32_t taps_of_piece = lie_in_rows(group, product.pixels) ? given_.columns.kernel : 1;
        const int64_t stretch = int64_t{taps_of_piece} * given_.in_channels;
        product.inputs = inputs;
        product.lengths = lengths;
        int64_t begin = first;
        const GroupResults *const results = product.results;
        const auto flush = [&](int64_t end) {
            product.results = end == last ? results : nullptr;
            product.weights = weights_at(set, begin).first;
            products_.multiply[weights_.type](product);
            product.num_pieces = 0;
            product.adds = true;
            product.fetched_bytes = 0;
            begin = end;
        };
        for (int64_t at = first; at < last;) {
            const auto tap = static_cast<int32_t>(at / stretch * taps_of_piece);
            const int64_t number = at % stretch;
            const auto length =
                static_cast<int32_t>(std::min({stretch - number, last - at, int64_t{most_piece_channels}}));
            lengths[product.num_pieces] = length;
            for (int32_t i = 0; i < slots; i++) {
                inputs[product.num_pieces * most_group_pixels + i] = input_at(group[i], tap, number);
            }
            product.num_pieces++;
            at += length;
            if (product.num_pieces == most_pieces) {
                flush(at);
            }
        }
        if (product.num_pieces > 0) {
            flush(last);
        }
    }

    /** Whether what each pixel reads of an input row lies in one piece, inside the input. */
    bool lie_in_rows(const Window *group, int32_t pixels) const {
        const ConvolutionAxis &columns = given_.columns;
        return columns.kernel > 1 && columns.dilation == 1 && given_.input.stride_w == given_.in_channels &&
               std::all_of(group, group + pixels, [&](const Window &window) {
                   return window.inside || (columns.holds(columns.at(window.pixel.x, 0)) &&
                                            columns.holds(columns.at(window.pixel.x, columns.kernel - 1)));
               });
    }

    int64_t taps() const {
        return int64_t{given_.rows.kernel} * given_.columns.kernel;
    }

    Window window_of(const Pixel &pixel) const {
        const ConvolutionAxis &rows = given_.rows, &columns = given_.columns;
        const int32_t y = rows.at(pixel.y, 0), x = columns.at(pixel.x, 0);
        const bool is_inside = rows.holds(y) && rows.holds(rows.at(pixel.y, rows.kernel - 1)) && columns.holds(x) &&
                               columns.holds(columns.at(pixel.x, columns.kernel - 1)) && taps() <= most_pieces;
        return {pixel, is_inside ? address(given_.input, {pixel.image, y, x}) : nullptr};
    }
    const float *input_at(const Window &window, int32_t tap, int64_t channel) const {
        return window.inside ? window.inside + tap_offsets_[tap] + channel : input_at(window.pixel, tap, channel);
    }
    const float *input_at(const Pixel &pixel, int32_t tap, int64_t channel) const {
        const int32_t y = given_.rows.at(pixel.y, tap / given_.columns.kernel);
        const int32_t x = given_.columns.at(pixel.x, tap % given_.columns.kernel);
        const bool is_inside = given_.rows.holds(y) && given_.columns.holds(x);
        return is_inside ? address(given_.input, {pixel.image, y, x}) + channel : outside_input;
    }

    /** Where a group's results go. */
    struct Results {
        GroupResults group;
        const float *residuals[most_group_pixels];
        float *outputs[most_group_pixels];
        bool at_once;  ///< Products make them without storing sums.
    };
    void describe(int64_t set, int64_t first, int32_t count, const Passed &passed, Results &results) const {
        const int64_t channel = set * products_.set_panels * panel_channels, panels = panels_of(set);
        uint32_t without_activation = 0;
        for (int32_t i = 0; i < count; i++) {
            const Pixel pixel = pixel_at(first + i);
            results.outputs[i] = passed.numbers ? passed.at(first + i, weights_.out_channels) + channel
                                                : address(given_.output, pixel) + channel;
            results.residuals[i] = given_.residual.data ? address(given_.residual, pixel) + channel : nullptr;
            without_activation |=
                static_cast<uint32_t>(given_.without_activation && is_active(*given_.without_activation, pixel)) << i;
        }
        const int64_t channels = std::min(panels * panel_channels, weights_.out_channels - channel);
        results.group = {nullptr,
                         (1U << count) - 1,
                         static_cast<int32_t>(panels),
                         static_cast<int32_t>(channels),
                         weights_.factors ? weights_.factors + channel : nullptr,
                         given_.bias ? given_.bias + channel : nullptr,
                         given_.residual.data ? results.residuals : nullptr,
                         results.outputs,
                         without_activation,
                         given_.activation.slope,
                         limits_.least,
                         limits_.most};
        results.at_once = limits_.are_all && without_activation == 0 && channels == panels * panel_channels;
    }
    void finish(const float *sums, Results &results) const {
        if (!results.at_once) {
            results.group.sums = sums;
            products_.finish(results.group, given_.activation.function);
        }
    }
    /** Begins to bring what a group reads and writes at its end: pixels lie too far apart for the CPU to guess it. */
    void fetch(const Results &results) const {
        constexpr int64_t line = 64 / sizeof(float);
        const GroupResults &group = results.group;
        for (int32_t i = 0; i < most_group_pixels && group.stored >> i != 0; i++) {
            for (int64_t at = 0; at < group.channels; at += line) {
                __builtin_prefetch(group.outputs[i] + at, 1);
                if (group.residuals && given_.residual.data != given_.output.data) {
                    __builtin_prefetch(group.residuals[i] + at, 0);
                }
            }
        }
    }

    const PixelProducts &products_;
    const ListedConvolution &given_;
    const PanelWeights &weights_;
    const ListedDepthwise depthwise_;
    const ActivationLimits limits_;
    const int64_t sets_, part_;
    const bool keeps_weights_;
    int64_t pixel_shares_, set_shares_;
    int64_t tap_offsets_[most_pieces];  ///< From the first tap of a window.
};

}  // namespace

ProductWeights product_weights(distile_dtype dtype) {
    return dtype == DISTILE_BFLOAT16 ? bfloat16_weights : dtype == DISTILE_INT8 ? int8_weights : float32_weights;
}

namespace {

/** A group of a convolution, as a convolution. */
ListedConvolution group_of(const ListedConvolution &convolution, int32_t group) {
    const ConvolutionGroups &groups = convolution.groups;
    const int64_t outputs = int64_t{group} * convolution.weights.out_channels;
    ListedConvolution own = convolution;
    own.input = own.input.from(int64_t{group} * own.in_channels);
    own.output = own.output.from(outputs);
    own.residual = own.residual.from(outputs);
    own.weights.numbers = static_cast<const char *>(own.weights.numbers) + group * groups.weight_bytes;
    if (own.weights.factors) {
        own.weights.factors += group * groups.weight_bytes / static_cast<int64_t>(sizeof(float));
    }
    own.bias = own.bias ? own.bias + group * groups.biases : nullptr;
    own.next = nullptr;
    own.groups = {};
    return own;
}

/** Threads share out the groups, or if there are few of them, their pixels too. */
void run_groups(distile_context &context, const PixelProducts &products, const ListedConvolution &convolution) {
    constexpr int32_t many_groups = 4;  // For each thread, so that all end at about the same time.
    struct Work {
        const PixelProducts &products;
        const ListedConvolution &convolution;
        int32_t threads, items_of_group;
    };
    const int32_t threads = context.options.threads, groups = convolution.groups.count;
    Work work{products, convolution, groups >= many_groups * threads ? 1 : threads, 1};
    const ListedConvolution first = group_of(convolution, 0);
    work.items_of_group = static_cast<int32_t>(SharedConvolution(products, first, work.threads).items());
    context.run_parallel(
        [](void *all, int32_t item) {
            const Work &shared = *static_cast<const Work *>(all);
            const ListedConvolution own = group_of(shared.convolution, item / shared.items_of_group);
            SharedConvolution(shared.products, own, shared.threads).run(item % shared.items_of_group, nullptr);
        },
        &work, groups * work.items_of_group);
}

}  // namespace

void run_convolution(distile_context &context, const PixelProducts &products, const ListedConvolution &convolution) {
    if (convolution.count == 0) {
        return;
    }
    if (convolution.groups.count > 1) {
        run_groups(context, products, convolution);
        return;
    }
    struct Work {
        SharedConvolution shared;
        std::optional<SharedConvolution> before, source;
    };
    const int32_t threads = context.options.threads;
    Work work{{products, convolution, threads}, std::nullopt, std::nullopt};
    if (convolution.before && work.shared.can_pass()) {
        work.before.emplace(products, *convolution.before, threads);
        if (convolution.before->before) {
            work.source.emplace(products, *convolution.before->before, threads);
        }
    } else if (convolution.before) {
        run_convolution(context, products, *convolution.before);
    }
    context.run_parallel(
        [](void *all, int32_t item) {
            const auto &[shared, before, source] = *static_cast<const Work *>(all);
            if (source) {
                shared.run_chain(item, *before, *source);
            } else {
                shared.run(item, before ? &*before : nullptr);
            }
        },
        &work, static_cast<int32_t>(work.shared.items()));
}

int64_t passed_numbers(const distile_context &context, const PixelProducts &products,
                       const ListedConvolution &convolution) {
    const SharedConvolution shared(products, convolution, context.options.threads);
    if (!shared.can_pass()) {
        return 0;
    }
    const ListedConvolution &before = *convolution.before;
    if (!before.before) {
        return shared.items() * shared.numbers_of_item();
    }
    const int64_t kept = SharedConvolution(products, before, context.options.threads).taken_pixels();
    return kept == 0 ? 0 : shared.items() * (shared.numbers_of_item() + kept * before.in_channels);
}

}  // namespace distile
