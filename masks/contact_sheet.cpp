#include "masks/contact_sheet.h"
#include "masks/mask_files.h"
#include <algorithm>
#include <cstdint>

namespace distile {

namespace contact_sheet {
namespace {

constexpr int32_t cell = 64, gutter = 4, columns = 20;
constexpr uint8_t gray = 96;

/** Draws a mask into the cell whose upper left corner is at a row and a column of a picture. */
void draw_into(GrayImage &picture, const ByteMask &mask, int32_t row, int32_t column) {
    const int32_t longer = std::max(mask.height, mask.width);
    // Small masks grow by whole pixels.
    const auto scaled = [&](int32_t extent) {
        return longer <= cell ? extent * (cell / longer)
                              : std::max(1, static_cast<int32_t>(int64_t{extent} * cell / longer));
    };
    const ByteMask shown = scale_mask(mask, scaled(mask.height), scaled(mask.width));
    const int32_t top = row + (cell - shown.height) / 2, left = column + (cell - shown.width) / 2;
    for (int32_t y = 0; y < shown.height; y++) {
        for (int32_t x = 0; x < shown.width; x++) {
            picture.pixels[static_cast<size_t>(top + y) * picture.width + left + x] =
                shown.bytes[static_cast<size_t>(y) * shown.width + x] != 0 ? 255 : 0;
        }
    }
}

}  // namespace
}  // namespace contact_sheet

using namespace contact_sheet;

std::string contact_sheet_png(const std::vector<std::vector<ByteMask>> &groups) {
    int32_t lines = 0, widest = 0;
    for (const std::vector<ByteMask> &group : groups) {
        const auto masks = static_cast<int32_t>(group.size());
        lines += (masks + columns - 1) / columns;
        widest = std::max(widest, std::min(masks, columns));
    }
    GrayImage picture;
    picture.height = lines * (cell + gutter) + gutter;
    picture.width = widest * (cell + gutter) + gutter;
    picture.pixels.assign(static_cast<size_t>(picture.height) * picture.width, gray);
    int32_t row = gutter;
    for (const std::vector<ByteMask> &group : groups) {
        for (size_t i = 0; i < group.size(); i++) {
            const auto column = static_cast<int32_t>(i % columns);
            if (i > 0 && column == 0) {
                row += cell + gutter;
            }
            draw_into(picture, group[i], row, gutter + column * (cell + gutter));
        }
        row += cell + gutter;
    }
    return png_of(picture);
}

}  // namespace distile
