#include "runtime/dispatch/kernel.h"
#include "runtime/group/group.h"
#include <algorithm>
#include <map>

namespace distile {

namespace {

/** The masks of a run as bits. Equal masks, whichever objects they are, are one image. */
BitImages read_masks(const distile_chain &chain, distile_mask *const *masks) {
    const Exchange &exchange = chain.group.exchange(0, 0);
    std::map<const distile_mask *, std::shared_ptr<BitImage>> read;
    BitImages bits;
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

bool same_bits(const BitImages &one, const BitImages &other) {
    for (size_t i = 0; i < one.size(); i++) {
        // Layers that share a mask share its image, which is compared once.
        const bool compared = i > 0 && i < other.size() && one[i] == one[i - 1] && other[i] == other[i - 1];
        if (i >= other.size() ||
            (!compared && (!(one[i]->shape == other[i]->shape) || one[i]->words != other[i]->words))) {
            return false;
        }
    }
    return one.size() == other.size();
}

/** The device with the most pixels of a layer; -1 if none has any. */
int32_t largest_part(const ChainPlan &plan, size_t layer) {
    int32_t largest = -1;
    int64_t most = 0;
    for (size_t i = 0; i < plan.parts.size(); i++) {
        const Part &part = plan.parts[i];
        if (!part.is_empty && part.layers[layer].pixels > most) {
            largest = static_cast<int32_t>(i);
            most = part.layers[layer].pixels;
        }
    }
    return largest;
}

/** The variant that the first context chooses for some pixels. */
std::string choose(const distile_chain &chain, distile_kernel &kernel, const BitImage &pixels) {
    distile_context &first = *chain.group.contexts[0];
    try {
        distile_choice choice{};
        require(distile_kernel_choose(&kernel, mask_of_bits(chain, pixels), &choice));
        return choice.variant;
    } catch (const Failure &failure) {
        fail_group(failure.status, "device 0: %s", distile_context_message(&first));
    } catch (const std::bad_alloc &) {
        fail_group(DISTILE_ERROR_OUT_OF_MEMORY, "device 0: an allocation failed");
    }
}

}  // namespace

distile_mask *mask_of_bits(const distile_chain &chain, const BitImage &pixels) {
    chain.group.exchange(0, 0).prepare(*chain.group.contexts[0], {{chain.of_bits.get(), &pixels}}, {});
    return chain.of_bits.get();
}

/** For the whole mask, whose bits one device has, or in any order for the largest part. */
void choose_variants(distile_chain &chain, distile_mask *const *masks) {
    struct Chosen {
        const distile_polykernel *code;
        const BitImage *pixels;
        std::string variant;
    };
    std::vector<Chosen> chosen;
    for (size_t i = 0; i < chain.layers.size(); i++) {
        const ChainLayer &layer = chain.layers[i];
        const int32_t number = largest_part(chain.plan, i);
        chain.variants[i] = layer.variant;
        if (!layer.variant.empty() || number < 0) {
            continue;
        }
        distile_kernel &kernel = *layer.kernels[0];
        if (!chain.group.any_order) {
            distile_choice choice{};
            require_of(chain.group.contexts[0], distile_kernel_choose(&kernel, masks[i], &choice));
            chain.variants[i] = choice.variant;
            continue;
        }
        const BitImage &own = chain.plan.parts[static_cast<size_t>(number)].layers[i].own;
        const auto same = std::find_if(chosen.begin(), chosen.end(), [&](const Chosen &one) {
            return one.code == &kernel.polykernel && one.pixels->shape == own.shape && one.pixels->words == own.words;
        });
        if (same != chosen.end()) {
            chain.variants[i] = same->variant;
        } else {
            chain.variants[i] = choose(chain, kernel, own);
            chosen.push_back({&kernel.polykernel, &own, chain.variants[i]});
        }
    }
}

void plan_run(distile_chain &chain, const distile_chain_args &args) {
    const int64_t before = chain.plans;
    plan_masks(chain, read_masks(chain, args.masks), input_shape(chain, args));
    if (chain.plans != before && !chain.group.ranks) {
        chain.input = {0, 0, 0};
        choose_variants(chain, args.masks);
        chain.input = input_shape(chain, args);
    }
}

void plan_masks(distile_chain &chain, BitImages &&bits, const MaskShape &input) {
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
