#include "pictures.h"
#include <algorithm>
#include <array>
#include <memory>
#include <stb/stb_easy_font.h>
#include <stb/stb_image.h>
#include <stb/stb_image_write.h>
#include <stdexcept>

namespace distile {

namespace {

using Color = std::array<uint8_t, 3>;

constexpr Color paper{255, 255, 255}, ink{30, 34, 40}, frame{150, 156, 165};
constexpr Color skipped{236, 239, 243}, asked_for{38, 110, 190}, wasted{247, 168, 74};

Color darker(Color color) {
    for (uint8_t &channel : color) {
        channel = static_cast<uint8_t>(channel * 7 / 10);
    }
    return color;
}

class Canvas {
public:
    Canvas(int width, int height)
        : width_(width), height_(height), rgb_(static_cast<size_t>(width) * height * paper.size()) {
        fill(0, 0, width, height, paper);
    }

    void set(int x, int y, Color color) {
        if (x >= 0 && y >= 0 && x < width_ && y < height_) {
            std::copy(color.begin(), color.end(), &rgb_[(static_cast<size_t>(y) * width_ + x) * color.size()]);
        }
    }

    void fill(int left, int top, int width, int height, Color color) {
        for (int y = top; y < top + height; y++) {
            for (int x = left; x < left + width; x++) {
                set(x, y, color);
            }
        }
    }

    /** A frame drawn inside the rectangle. */
    void outline(int left, int top, int width, int height, int line, Color color) {
        fill(left, top, width, line, color);
        fill(left, top + height - line, width, line, color);
        fill(left, top, line, height, color);
        fill(left + width - line, top, line, height, color);
    }

    /** Text in a 7 x 8 font with 12 units per line; a unit is `scale` pixels. */
    void text(int left, int top, int scale, const std::string &string, Color color) {
        struct Vertex {
            float x, y, z;
            unsigned char color[4];
        };
        std::vector<Vertex> vertices(string.size() * 80 + 4);
        std::string copy = string;  // The font library takes a non-const pointer.
        const int quads = stb_easy_font_print(0, 0, copy.data(), nullptr, vertices.data(),
                                              static_cast<int>(vertices.size() * sizeof(Vertex)));
        for (size_t vertex = 0; vertex < size_t{4} * quads; vertex += 4) {
            // A quad is a rectangle, clockwise from the upper left corner.
            const Vertex &first = vertices[vertex], &third = vertices[vertex + 2];
            const auto x = static_cast<int>(first.x), y = static_cast<int>(first.y);
            fill(left + x * scale, top + y * scale, (static_cast<int>(third.x) - x) * scale,
                 (static_cast<int>(third.y) - y) * scale, color);
        }
    }

    static int text_width(const std::string &string, int scale) {
        std::string copy = string;
        return stb_easy_font_width(copy.data()) * scale;
    }

    void write(const std::string &path) const {
        if (stbi_write_png(path.c_str(), width_, height_, 3, rgb_.data(), 0) == 0) {
            throw std::runtime_error("the picture '" + path +
                                     "' cannot be written; free some disk space or name another folder with --out");
        }
    }

private:
    int width_, height_;
    std::vector<uint8_t> rgb_;
};

void draw_panel(Canvas &canvas, int left, int top, int scale, const ByteMask &mask, const TilePanel &panel) {
    canvas.fill(left, top, mask.width * scale, mask.height * scale, skipped);
    for (uint32_t tile : panel.tiles) {
        const auto tile_x = static_cast<int32_t>(tile & 0xffff), tile_y = static_cast<int32_t>(tile >> 16);
        const int32_t end_x = std::min(tile_x + panel.tile_w, mask.width);
        const int32_t end_y = std::min(tile_y + panel.tile_h, mask.height);
        for (int32_t y = tile_y; y < end_y; y++) {
            for (int32_t x = tile_x; x < end_x; x++) {
                const bool active = mask.bytes[static_cast<size_t>(y) * mask.width + x] != 0;
                const Color color = active ? asked_for : wasted;
                // A grid between the pixels, in a darker tone of their own color so it does not hide them.
                canvas.fill(left + x * scale, top + y * scale, scale, scale, darker(color));
                canvas.fill(left + x * scale, top + y * scale, scale - 1, scale - 1, color);
            }
        }
        if (panel.tile_h > 1 || panel.tile_w > 1) {
            canvas.outline(left + tile_x * scale - 1, top + tile_y * scale - 1, (end_x - tile_x) * scale + 1,
                           (end_y - tile_y) * scale + 1, scale >= 8 ? 2 : 1, ink);
        }
    }
    canvas.outline(left - 1, top - 1, mask.width * scale + 2, mask.height * scale + 2, 1, frame);
}

/** Draws a photo into a rectangle with nearest-neighbour scaling. */
void draw_photo(Canvas &canvas, int left, int top, int width, int height, const std::string &path) {
    int photo_width = 0, photo_height = 0;
    const std::unique_ptr<stbi_uc, void (*)(void *)> rgb(
        stbi_load(path.c_str(), &photo_width, &photo_height, nullptr, 3), stbi_image_free);
    if (!rgb) {
        throw std::runtime_error("the photo '" + path + "' cannot be read (" + stbi_failure_reason() +
                                 "); restore the file from the repository");
    }
    for (int y = 0; y < height; y++) {
        for (int x = 0; x < width; x++) {
            const int source_y = (2 * y + 1) * photo_height / (2 * height);
            const int source_x = (2 * x + 1) * photo_width / (2 * width);
            const stbi_uc *pixel = rgb.get() + 3 * (static_cast<ptrdiff_t>(source_y) * photo_width + source_x);
            canvas.set(left + x, top + y, {pixel[0], pixel[1], pixel[2]});
        }
    }
    canvas.outline(left - 1, top - 1, width + 2, height + 2, 1, frame);
}

}  // namespace

void write_sheet(const std::string &path, const std::string &title, const ByteMask &mask,
                 const std::vector<TilePanel> &panels, const std::string &photo, const std::string &photo_caption) {
    constexpr int margin = 24, title_scale = 3, text_scale = 2, line = 12;
    // Panels are about 500 pixels wide, and each mask pixel covers a whole number of pixels.
    const int scale = std::max(3, 512 / std::max(mask.height, mask.width));
    const int panel_width = mask.width * scale, panel_height = mask.height * scale;
    const auto columns = static_cast<int>(panels.size()) + (photo.empty() ? 0 : 1);
    const int captions_top = margin + line * title_scale + 6;
    const int panels_top = captions_top + 2 * line * text_scale + 4;
    const int legend_top = panels_top + panel_height + 16;
    Canvas canvas(margin + columns * (panel_width + margin), legend_top + line * text_scale + margin / 2);
    canvas.text(margin, margin, title_scale, title, ink);

    int left = margin;
    if (!photo.empty()) {
        canvas.text(left, captions_top, text_scale, photo_caption, ink);
        draw_photo(canvas, left, panels_top, panel_width, panel_height, photo);
        left += panel_width + margin;
    }
    for (const TilePanel &panel : panels) {
        canvas.text(left, captions_top, text_scale, panel.caption, ink);
        draw_panel(canvas, left, panels_top, scale, mask, panel);
        left += panel_width + margin;
    }

    struct Entry {
        Color color;
        const char *text;
    };
    left = margin;
    for (const Entry &entry : {Entry{asked_for, "computed, active in the mask"}, Entry{wasted, "computed for nothing"},
                               Entry{skipped, "not computed"}}) {
        canvas.fill(left, legend_top, 16, 16, entry.color);
        canvas.outline(left, legend_top, 16, 16, 1, frame);
        canvas.text(left + 24, legend_top, text_scale, entry.text, ink);
        left += 24 + Canvas::text_width(entry.text, text_scale) + 2 * margin;
    }
    canvas.write(path);
}

}  // namespace distile
