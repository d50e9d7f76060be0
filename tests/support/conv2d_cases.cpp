#include "tests/support/conv2d_cases.h"
#include "masks/mask_families.h"
#include <algorithm>
#include <utility>

namespace distile {

namespace {

/** Rounds the gaps up to whole vectors where the channels are whole vectors. */
std::vector<NamedLayout> align(std::vector<NamedLayout> layouts, int32_t channels, int32_t lanes) {
    if (channels % lanes == 0) {
        for (NamedLayout &named : layouts) {
            for (int32_t *gap : {&named.layout.pixel_gap, &named.layout.row_gap, &named.layout.image_gap}) {
                *gap = (*gap + lanes - 1) / lanes * lanes;
            }
        }
    }
    return layouts;
}

}  // namespace

std::vector<uint8_t> make_mask(const std::string &name, int32_t batch, int32_t height, int32_t width,
                               std::mt19937 &random) {
    std::vector<uint8_t> bytes(static_cast<size_t>(batch) * height * width);
    const auto at = [&](int32_t n, int32_t y, int32_t x) -> uint8_t & {
        return bytes[(static_cast<size_t>(n) * height + y) * width + x];
    };
    if (name == "full") {
        std::fill(bytes.begin(), bytes.end(), uint8_t{1});
    } else if (name == "last pixel") {
        bytes.back() = 1;
    } else if (name == "checkerboard") {
        bytes = checkerboard_mask(batch, height, width).bytes;
    }
    for (int32_t n = 0; n < batch; n++) {
        if (name == "corners") {
            // All of them in the first image, and then the last and the first one alone.
            const std::pair<int32_t, int32_t> corners[] = {
                {height - 1, width - 1}, {0, 0}, {0, width - 1}, {height - 1, 0}};
            for (int32_t corner = 0; corner < 4; corner++) {
                if (n == 0 || corner == n - 1) {
                    at(n, corners[corner].first, corners[corner].second) = 1;
                }
            }
        } else if (name == "one row") {
            std::fill_n(&at(n, (height / 2 + 7 * n) % height, 0), width, uint8_t{255});
        } else if (name == "one column") {
            for (int32_t y = 0; y < height; y++) {
                at(n, y, (width / 2 + 7 * n) % width) = 2;
            }
        } else if (name == "one image") {
            // The last one, at random: the lists begin in the middle of the tensor.
            if (n == batch - 1) {
                std::generate_n(&at(n, 0, 0), height * width, [&] { return static_cast<uint8_t>(random() % 4 == 0); });
            }
        } else if (name == "random" || name == "blob" || name == "real") {
            const double densities[] = {0.3, 0.05, 0.9};
            ByteMask mask;
            if (name == "real") {
                static const std::vector<std::string> names = real_masks();
                mask = scale_mask(read_real_mask(names.at(random() % names.size())), height, width);
            } else {
                mask = draw_mask(name, 1, height, width, densities[n % 3], random());
            }
            std::copy_n(mask.bytes.begin(), height * width, &at(n, 0, 0));
        }
    }
    return bytes;
}

std::vector<NamedLayout> input_layouts(const distile_conv2d &conv, int32_t lanes) {
    const int32_t top = conv.pad_top, bottom = conv.pad_bottom, left = conv.pad_left, right = conv.pad_right;
    return align({{"plain", {}},
                  {"border as wide as the padding", {0, 0, 0, top, bottom, left, right}},
                  {"wider border", {0, 0, 0, top + 2, bottom + 1, left + 3, right + 2}},
                  {"narrow border above and left", {0, 0, 0, top / 2, bottom, std::max(left - 1, 0), right}},
                  {"border above and right only", {0, 0, 0, top + 1, 0, 0, right}},
                  {"border shared between rows and images", {0, 0, 0, top, bottom, left, right, true}},
                  {"slice of the channels", {7, 0, 0}},
                  {"padded rows and images", {0, 3, 11}},
                  {"crop of a slice with a border", {5, 17, 40, top, bottom, left, right}}},
                 conv.in_channels, lanes);
}

std::vector<NamedLayout> output_layouts(const distile_conv2d &conv, int32_t lanes) {
    return align({{"plain", {}},
                  {"slice of the channels", {5, 0, 0}},
                  {"padded rows and images", {0, 3, 9}},
                  {"crop of a slice", {3, 22, 35}}},
                 conv.out_channels, lanes);
}

std::vector<NamedLayout> residual_layouts(const distile_conv2d &conv, int32_t lanes) {
    return align({{"plain", {}}, {"crop of a slice", {2, 13, 1}}}, conv.out_channels, lanes);
}

void forget_inactive(ReferenceOutput &expected, const std::vector<uint8_t> &mask, const TestTensor &output) {
    const distile_tensor &view = output.view();
    for (size_t pixel = 0; pixel < mask.size(); pixel++) {
        if (!mask[pixel] && expected.states[pixel] == PixelState::Computed) {
            const auto row = static_cast<int32_t>(pixel / view.width), x = static_cast<int32_t>(pixel % view.width);
            for (int32_t c = 0; c < view.channels; c++) {
                const float got = output.get(row / view.height, row % view.height, x, c);
                expected.values[pixel * view.channels + c] = got;
                expected.exact[pixel * view.channels + c] = got;
            }
        }
    }
}

}  // namespace distile
