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

/** Whether a layer has the code and, in a part, the pixels of another, so that the same variant is chosen. */
bool is_like(const distile_chain &chain, size_t layer, size_t other, int32_t number) {
    const Part &part = chain.plan.parts[static_cast<size_t>(number)];
    const PartOutput &one = part.layers[layer], &two = part.layers[other];
    return &chain.layers[layer].kernels[0]->polykernel == &chain.layers[other].kernels[0]->polykernel &&
           one.own.shape == two.own.shape && one.own.words == two.own.words;
}

/** The variant that the first context chooses for some pixels. */
std::string choose(const distile_chain &chain, distile_kernel &kernel, const BitImage &pixels) {
    distile_context &first = *chain.group.contexts[0];
    try {
        chain.group.exchange(0, 0).prepare(first, {{chain.largest.get(), &pixels}}, {});
        distile_choice choice{};
        require(distile_kernel_choose(&kernel, chain.largest.get(), &choice));
        return choice.variant;
    } catch (const Failure &failure) {
        fail_group(failure.status, "device 0: %s", distile_context_message(&first));
    } catch (const std::bad_alloc &) {
        fail_group(DISTILE_ERROR_OUT_OF_MEMORY, "device 0: an allocation failed");
    }
}

/** Chooses the variants that callers leave open, by the first context, for the largest part of each layer. */
void choose_variants(distile_chain &chain) {
    for (size_t i = 0; i < chain.layers.size(); i++) {
        const ChainLayer &layer = chain.layers[i];
        const int32_t number = largest_part(chain.plan, i);
        chain.variants[i] = layer.variant;
        if (!layer.variant.empty() || number < 0) {
            continue;
        }
        const BitImage &own = chain.plan.parts[static_cast<size_t>(number)].layers[i].own;
        if (i > 0 && chain.layers[i - 1].variant.empty() && is_like(chain, i, i - 1, number)) {
            chain.variants[i] = chain.variants[i - 1];
            continue;
        }
        chain.variants[i] = choose(chain, *layer.kernels[0], own);
    }
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
    choose_variants(chain);
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
