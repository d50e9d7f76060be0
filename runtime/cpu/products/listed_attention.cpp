#include "runtime/cpu/products/listed_attention.h"
#include "runtime/base/device.h"
#include "runtime/cpu/products/listed_pixels.h"
#include <algorithm>
#include <vector>

namespace distile {

namespace {

/** The keys whose scores of a group are there at once: whole sets of panels. */
constexpr int64_t block_keys = 256;
/** The groups of rows that read a block of keys one after the other, while the second-level cache keeps it. */
constexpr int64_t block_groups = 8;
constexpr int64_t most_sets = block_keys / panel_channels;

/** Attention whose keys and values are first packed as weights are: keys as output channels of a head's channels, and
 * values as input channels of them. Then the products of convolutions make scores and sums of values. */
class SharedAttention {
public:
    SharedAttention(distile_context &context, const PixelProducts &products, const ListedAttention &given)
        : products_(products), given_(given), group_rows_(products.group_pixels[products.set_panels]),
          set_channels_(products.set_panels * panel_channels), value_sets_(divide_up(given.channels, set_channels_)) {
        for (int32_t panels = 1; panels <= products.set_panels; panels++) {
            group_sums_ = std::max(group_sums_, int64_t{products.group_pixels[panels]} * panels * panel_channels);
        }
        find_blocks();
        const int64_t packed = head_numbers_ * given.heads, sums = items() * item_sums();
        memory_ = context.device->take_scratch(static_cast<size_t>(packed + sums) * sizeof(float));
        packed_ = static_cast<float *>(memory_.get());
        sums_ = packed_ + packed;
    }

    int64_t items_to_pack() const {
        return static_cast<int64_t>(key_blocks_.size()) * given_.heads;
    }
    int64_t items() const {
        return static_cast<int64_t>(row_blocks_.size()) * given_.heads;
    }

    void pack(int64_t item) const {
        const KeyBlock &block = key_blocks_[static_cast<size_t>(item / given_.heads)];
        const int64_t head = item % given_.heads, first_channel = head * given_.channels;
        float *keys = keys_of(block, head), *const values = values_of(block, head);
        const int64_t count = block.keys.end - block.keys.begin, channels = given_.channels;
        for (int64_t first = 0; first < count; first += panel_channels) {
            const int64_t own = std::min(panel_channels, count - first);
            std::fill_n(keys, own < panel_channels ? channels * panel_channels : 0, 0.0f);
            for (int64_t i = 0; i < own; i++) {
                const float *const from =
                    address(given_.key, pixel_at(given_.keys, block.keys.begin + first + i)) + first_channel;
                for (int64_t channel = 0; channel < channels; channel++) {
                    keys[channel * panel_channels + i] = from[channel];
                }
            }
            keys += channels * panel_channels;
        }
        for (int64_t i = 0; i < count; i++) {
            const float *const from =
                address(given_.value, pixel_at(given_.keys, block.keys.begin + i)) + first_channel;
            for (int64_t channel = 0; channel < channels; channel += panel_channels) {
                float *const to = values + channel * count + i * panel_channels;
                const int64_t own = std::min(panel_channels, channels - channel);
                std::copy_n(from + channel, own, to);
                std::fill_n(to + own, panel_channels - own, 0.0f);
            }
        }
    }

    void compute(int64_t item) const {
        const RowBlock &block = row_blocks_[static_cast<size_t>(item / given_.heads)];
        const int64_t head = item % given_.heads;
        float *const sums = sums_ + item * item_sums();
        SoftmaxRow softmax[block_groups * most_group_pixels];
        for (int64_t key_block = block.key_blocks.begin; key_block < block.key_blocks.end; key_block++) {
            const KeyBlock &keys = key_blocks_[static_cast<size_t>(key_block)];
            const bool is_first = key_block == block.key_blocks.begin;
            for_each_group(block, [&](int64_t group, const ListRange &rows) {
                float *const own = sums + group * value_sets_ * group_sums_;
                add_keys(head, rows, keys, is_first, softmax + group * most_group_pixels, own);
            });
        }
        for_each_group(block, [&](int64_t group, const ListRange &rows) {
            store(head, rows, softmax + group * most_group_pixels, sums + group * value_sets_ * group_sums_);
        });
    }

private:
    /** Keys of an image, and where they begin in the numbers that a head's keys and values are packed to. */
    struct KeyBlock {
        ListRange keys;
        int64_t at;
    };
    /** Rows of an image, and the blocks of its keys. */
    struct RowBlock {
        ListRange rows, key_blocks;
    };

    void find_blocks() {
        const int64_t block_rows = block_groups * group_rows_;
        const int64_t value_panels = divide_up(given_.channels, panel_channels);
        const uint32_t *const images = given_.rows.image;
        for (int64_t row = 0; row < given_.rows.count;) {
            const uint32_t image = images[row];
            const int64_t end = std::upper_bound(images + row, images + given_.rows.count, image) - images;
            const uint32_t *const key_images = given_.keys.image;
            const auto [first, last] = std::equal_range(key_images, key_images + given_.keys.count, image);
            const ListRange keys{first - key_images, last - key_images};
            ListRange blocks{static_cast<int64_t>(key_blocks_.size()), 0};
            for (int64_t key = keys.begin; key < keys.end; key += block_keys) {
                const int64_t count = std::min(block_keys, keys.end - key);
                key_blocks_.push_back({{key, key + count}, head_numbers_});
                head_numbers_ += divide_up(count, panel_channels) * panel_channels * given_.channels +
                                 value_panels * panel_channels * count;
            }
            blocks.end = static_cast<int64_t>(key_blocks_.size());
            for (; row < end; row += block_rows) {
                row_blocks_.push_back({{row, std::min(row + block_rows, end)}, blocks});
            }
            row = end;
        }
    }

    int64_t item_sums() const {
        return block_groups * value_sets_ * group_sums_;
    }
    float *keys_of(const KeyBlock &block, int64_t head) const {
        return packed_ + head * head_numbers_ + block.at;
    }
    float *values_of(const KeyBlock &block, int64_t head) const {
        const int64_t count = block.keys.end - block.keys.begin;
        return keys_of(block, head) + divide_up(count, panel_channels) * panel_channels * given_.channels;
    }

    template<class Act> void for_each_group(const RowBlock &block, const Act &act) const {
        int64_t group = 0;
        for (int64_t row = block.rows.begin; row < block.rows.end; row += group_rows_, group++) {
            act(group, ListRange{row, std::min(row + group_rows_, block.rows.end)});
        }
    }

    /** The panels of a set, of `channels` channels or keys in all. */
    int32_t panels_of(int64_t set, int64_t channels) const {
        const int64_t left = divide_up(channels - set * set_channels_, panel_channels);
        return static_cast<int32_t>(std::min<int64_t>(left, products_.set_panels));
    }
    int64_t set_distance(int64_t set, int64_t channels) const {
        return panels_of(set, channels) * panel_channels;
    }

    /** Adds a block of keys to what a group of rows has. */
    void add_keys(int64_t head, const ListRange &rows, const KeyBlock &block, bool is_first, SoftmaxRow *softmax,
                  float *sums) const {
        alignas(64) float scores[block_keys * most_group_pixels];
        const float *inputs[most_sets * most_group_pixels];
        int32_t lengths[most_sets];
        const auto count = static_cast<int32_t>(rows.end - rows.begin);
        const int64_t keys = block.keys.end - block.keys.begin, sets = divide_up(keys, set_channels_);
        GroupProduct product{};
        product.inputs = inputs;
        product.lengths = lengths;
        product.pixels = count;

        // Code for more rows than there are computes the last one again.
        for (int32_t i = 0; i < most_group_pixels; i++) {
            const int64_t row = rows.begin + std::min(i, count - 1);
            inputs[i] = address(given_.query, pixel_at(given_.rows, row)) + head * given_.channels;
        }
        lengths[0] = given_.channels;
        product.num_pieces = 1;
        product.panel_distance = given_.channels * panel_channels;
        const float *const packed_keys = keys_of(block, head);
        for (int64_t set = 0; set < sets; set++) {
            product.panels = panels_of(set, keys);
            product.weights = packed_keys + set * set_channels_ * given_.channels;
            product.sums = scores + set * group_sums_;
            products_.multiply[float32_weights](product);
        }

        for (int32_t i = 0; i < count; i++) {
            soften(scores, i, keys, is_first, softmax[i]);
        }
        if (!is_first) {
            weaken(softmax, count, sums);
        }

        product.num_pieces = static_cast<int32_t>(sets);
        for (int64_t set = 0; set < sets; set++) {
            lengths[set] = static_cast<int32_t>(std::min(set_channels_, keys - set * set_channels_));
            for (int32_t i = 0; i < most_group_pixels; i++) {
                inputs[set * most_group_pixels + i] =
                    scores + set * group_sums_ + std::min(i, count - 1) * set_distance(set, keys);
            }
        }
        product.panel_distance = keys * panel_channels;
        product.adds = !is_first;
        const float *const packed_values = values_of(block, head);
        for (int64_t set = 0; set < value_sets_; set++) {
            product.panels = panels_of(set, given_.channels);
            product.weights = packed_values + set * set_channels_ * keys;
            product.sums = sums + set * group_sums_;
            products_.multiply[float32_weights](product);
        }
    }

    /** Makes factors of values of a row's scores. */
    void soften(float *scores, int32_t row, int64_t keys, bool is_first, SoftmaxRow &softmax) const {
        if (is_first) {
            softmax = {};
        }
        softmax.scale = given_.scale;
        float *stretches[most_sets];
        const int64_t sets = divide_up(keys, set_channels_);
        for (int64_t set = 0; set < sets; set++) {
            stretches[set] = scores + set * group_sums_ + row * set_distance(set, keys);
        }
        softmax.stretches = stretches;
        softmax.stretch_keys = static_cast<int32_t>(set_channels_);
        softmax.keys = static_cast<int32_t>(keys);
        products_.soften(softmax);
    }
    /** Multiplies what rows have of the keys before by what is left of it. */
    void weaken(const SoftmaxRow *softmax, int32_t count, float *sums) const {
        for (int64_t set = 0; set < value_sets_; set++) {
            const int64_t distance = set_distance(set, given_.channels);
            for (int32_t i = 0; i < count; i++) {
                float *const own = sums + set * group_sums_ + i * distance;
                for (int64_t channel = 0; channel < distance; channel++) {
                    own[channel] *= softmax[i].left;
                }
            }
        }
    }
    void store(int64_t head, const ListRange &rows, const SoftmaxRow *softmax, const float *sums) const {
        for (int64_t row = rows.begin; row < rows.end; row++) {
            const int64_t i = row - rows.begin;
            float *to = address(given_.output, pixel_at(given_.rows, row)) + head * given_.channels;
            for (int64_t set = 0; set < value_sets_; set++) {
                const float *const from = sums + set * group_sums_ + i * set_distance(set, given_.channels);
                const int64_t own = std::min(set_channels_, given_.channels - set * set_channels_);
                for (int64_t channel = 0; channel < own; channel++) {
                    to[channel] = from[channel] / softmax[i].sum;
                }
                to += own;
            }
        }
    }

    const PixelProducts &products_;
    const ListedAttention &given_;
    const int64_t group_rows_;    ///< The rows that are multiplied together.
    const int64_t set_channels_;  ///< Output channels or keys, too.
    const int64_t value_sets_;
    std::vector<KeyBlock> key_blocks_;
    std::vector<RowBlock> row_blocks_;
    int64_t group_sums_ = 0;    ///< The most sums of a group and a set.
    int64_t head_numbers_ = 0;  ///< A head's keys and values are packed to them.
    ScratchMemory memory_;
    float *packed_ = nullptr;  ///< [head][block]: keys and values.
    float *sums_ = nullptr;    ///< [item][group][set]
};

}  // namespace

void run_attention(distile_context &context, const PixelProducts &products, const ListedAttention &attention) {
    if (attention.rows.count == 0) {
        return;
    }
    SharedAttention shared(context, products, attention);
    context.run_parallel([](void *all, int32_t item) { static_cast<const SharedAttention *>(all)->pack(item); },
                         &shared, static_cast<int32_t>(shared.items_to_pack()));
    context.run_parallel([](void *all, int32_t item) { static_cast<const SharedAttention *>(all)->compute(item); },
                         &shared, static_cast<int32_t>(shared.items()));
}

}  // namespace distile
