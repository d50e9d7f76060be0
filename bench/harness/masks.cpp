#include "masks.h"
#include <algorithm>

namespace distile::bench {

namespace {

/** Repeats a mask of one image for a batch. */
ByteMask repeat(const ByteMask &mask, int32_t batch) {
    ByteMask repeated = mask;
    repeated.batch = batch;
    for (int32_t n = 1; n < batch; n++) {
        repeated.bytes.insert(repeated.bytes.end(), mask.bytes.begin(), mask.bytes.end());
    }
    return repeated;
}

}  // namespace

ByteMask make_byte_mask(const MaskSpec &spec, int32_t batch, int32_t height, int32_t width, const std::string &folder) {
    if (spec.name == "dense") {
        ByteMask full;
        full.batch = batch;
        full.height = height;
        full.width = width;
        full.bytes.assign(static_cast<size_t>(batch) * height * width, 1);
        return full;
    }
    const std::vector<std::string> real = real_masks();
    if (std::find(real.begin(), real.end(), spec.name) != real.end()) {
        return repeat(scale_mask(read_real_mask(spec.name, folder), height, width), batch);
    }
    return draw_mask(spec.name, batch, height, width, spec.density, spec.seed);
}

std::vector<ByteMask> make_byte_masks(const MaskSpec &spec, int32_t batch, int32_t height, int32_t width) {
    constexpr uint64_t num_masks = 8;
    std::vector<ByteMask> masks;
    masks.reserve(num_masks);
    for (uint64_t i = 0; i < num_masks; i++) {
        MaskSpec seeded = spec;
        seeded.seed += i;
        masks.push_back(make_byte_mask(seeded, batch, height, width));
    }
    return masks;
}

}  // namespace distile::bench
