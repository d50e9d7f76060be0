#include "bench/harness/masks.h"
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

/** A real mask in the middle of an image `times` as wide and high. */
ByteMask zoom_out(const ByteMask &mask, int32_t times, int32_t height, int32_t width) {
    const ByteMask part = scale_mask(mask, std::max(height / times, 1), std::max(width / times, 1));
    ByteMask whole;
    whole.height = height;
    whole.width = width;
    whole.bytes.assign(static_cast<size_t>(height) * width, 0);
    const int32_t top = (height - part.height) / 2, left = (width - part.width) / 2;
    for (int32_t y = 0; y < part.height; y++) {
        const auto row = part.bytes.begin() + static_cast<ptrdiff_t>(y) * part.width;
        std::copy_n(row, part.width, whole.bytes.begin() + (static_cast<ptrdiff_t>(top) + y) * width + left);
    }
    return whole;
}

/** A mask of whole blocks at multiples of their size: blobs of blocks. */
ByteMask block_mask(const MaskSpec &spec, int32_t batch, int32_t height, int32_t width) {
    constexpr int32_t block = 8;
    const ByteMask blocks =
        draw_mask("blob", batch, (height + block - 1) / block, (width + block - 1) / block, spec.density, spec.seed);
    ByteMask mask;
    mask.batch = batch;
    mask.height = height;
    mask.width = width;
    mask.bytes.reserve(static_cast<size_t>(batch) * height * width);
    for (int32_t n = 0; n < batch; n++) {
        for (int32_t y = 0; y < height; y++) {
            for (int32_t x = 0; x < width; x++) {
                const size_t row = static_cast<size_t>(n) * blocks.height + y / block;
                mask.bytes.push_back(blocks.bytes[row * blocks.width + x / block]);
            }
        }
    }
    return mask;
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
    if (spec.name == "blocks8x8") {
        return block_mask(spec, batch, height, width);
    }
    const std::vector<std::string> real = real_masks();
    if (std::find(real.begin(), real.end(), spec.name) != real.end()) {
        return repeat(zoom_out(read_real_mask(spec.name, folder), spec.zoom_out, height, width), batch);
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
