#include "runtime/dispatch/kernel.h"
#include "runtime/group/group.h"
#include <algorithm>
#include <map>

namespace distile {

namespace {

/** The masks of a run as bits. Equal masks, whichever objects they are, are one image. */
std::vector<std::shared_ptr<BitImage>> read_masks(const distile_chain &chain, distile_mask *const *masks) {
    const Exchange &exchange = chain.group.exchange(0, 0);
    std::map<const distile_mask *, std::shared_ptr<BitImage>> read;
    std::vector<std::shared_ptr<BitImage>> bits;
    for (size_t i = 0; i < chain.layers.size(); i++) {
        std::shared_ptr<BitImage> &image = read[masks[i]];
        if (!image) {
            image = std::make_shared<BitImage>();
            exchange.read_bits(*masks[i], *image);
            for (const std::shared_ptr<BitImage> &other : bits) {
                if (other->shape == image->shape && other->words == image->words) {
                    image = other;
                    break;
                }
            }
        }
        bits.push_back(image);
    }
    return bits;
}

bool same_bits(const std::vector<std::shared_ptr<BitImage>> &one, const std::vector<std::shared_ptr<BitImage>> &other) {
    return std::equal(one.begin(), one.end(), other.begin(), other.end(),
                      [](const auto &a, const auto &b) { return a->shape == b->shape && a->words == b->words; });
}

}  // namespace

void plan_run(distile_chain &chain, const distile_chain_args &args) {
    const MaskShape input = input_shape(chain, args);
    std::vector<std::shared_ptr<BitImage>> bits = read_masks(chain, args.masks);
    if (input == chain.input && same_bits(bits, chain.bits)) {
        return;
    }
    // What fails on the way leaves no plan.
    chain.input = {0, 0, 0};
    chain.bits = std::move(bits);
    const std::vector<const BitImage *> masks = chain.masks();
    const std::vector<DeviceTime> &times = chain.group.times;
    const Partition before = chain.partition;
    if (renew_partition(chain.partition, chain.planned, input, masks, times, chain.group.imbalance)) {
        chain.partitions++;
        chain.moved_pixels = fits(before, input) ? moved_pixels(before, chain.partition, input) : 0;
    }
    chain.plan = plan_chain(chain.planned, input, masks, chain.partition, static_cast<int32_t>(times.size()));
    for (size_t i = 0; i < chain.layers.size(); i++) {
        const ChainLayer &layer = chain.layers[i];
        distile_choice choice{};
        if (layer.variant.empty()) {
            require_of(chain.group.contexts[0], distile_kernel_choose(layer.kernels[0].get(), args.masks[i], &choice));
        }
        chain.variants[i] = choice.variant ? choice.variant : layer.variant;
    }
    chain.plans++;
    chain.input = input;
}

}  // namespace distile

std::vector<const distile::BitImage *> distile_chain::masks() const {
    std::vector<const distile::BitImage *> all;
    all.reserve(bits.size());
    for (const std::shared_ptr<distile::BitImage> &image : bits) {
        all.push_back(image.get());
    }
    return all;
}
