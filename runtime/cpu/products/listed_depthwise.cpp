#include "runtime/cpu/products/listed_depthwise.h"
#include <algorithm>

namespace distile {

namespace {

/** The places of a row that are computed together, and how far the next pixel of the list may be: code computes the
 * places between, too. Fewer pixels are rather computed with others of the list. */
constexpr int64_t most_row_places = 32;
constexpr int32_t most_distance = 2, least_row_pixels = 4;
/** The addresses of a part's inputs. */
constexpr int64_t most_inputs = 768;
/** Channels whose sums wait for the next part, or for their activation. */
constexpr int64_t most_sum_channels = 128;

}  // namespace

/** Pixels that are computed together: places of a row side by side, or listed pixels, each in a place of its own. */
struct ListedDepthwise::Group {
    bool in_row;
    int64_t first;  ///< The first pixel's index.
    int32_t count;  ///< The pixels of the list.
    int32_t places;
    int32_t place_of[most_row_places];
};

/** Some rows and columns of the kernel. */
struct ListedDepthwise::Part {
    int32_t first_row, rows, first_column, columns;
    int64_t row_inputs;
    bool is_first, is_last;
};

ListedDepthwise::ListedDepthwise(const PixelProducts &products, const ListedConvolution &convolution)
    : products_(products), given_(convolution), limits_(convolution.activation.function),
      row_inputs_((most_row_places - 1) * convolution.columns.stride +
                  int64_t{convolution.columns.kernel - 1} * convolution.columns.dilation + 1) {
    const int64_t taps = given_.diagonals > 0 ? int64_t{given_.rows.kernel} * given_.columns.kernel : 0;
    for (int32_t tap = 0; tap < std::min<int64_t>(taps, most_offsets); tap++) {
        offsets_[tap] = tap_offset(given_, tap);
    }
}

void ListedDepthwise::run(const ListRange &pixels, const ListRange &channels, const PassedPixels &passed,
                          const PassedPixels &taken) const {
    for (int64_t index = pixels.begin; index < pixels.end;) {
        const Group group = group_at(index, pixels.end);
        run(group, channels, passed, taken);
        index += group.count;
    }
}

ListedDepthwise::Group ListedDepthwise::group_at(int64_t index, int64_t end) const {
    Group group;
    group.in_row = true;
    group.first = index;
    group.count = group.places = 1;
    group.place_of[0] = 0;
    const uint32_t begin = given_.xy[index], image = given_.image[index];
    while (index + group.count < end) {
        const uint32_t next = given_.xy[index + group.count];
        const auto place = static_cast<int32_t>(next - begin);
        if (next >> 16 != begin >> 16 || given_.image[index + group.count] != image || place < group.places ||
            place >= std::min<int64_t>(group.places + most_distance, most_row_places)) {
            break;
        }
        group.place_of[group.count++] = place;
        group.places = place + 1;
    }
    if (group.count < least_row_pixels || row_inputs_ > most_inputs) {
        group.in_row = false;
        group.count = group.places = static_cast<int32_t>(std::min<int64_t>(products_.depthwise_pixels, end - index));
        for (int32_t i = 0; i < group.count; i++) {
            group.place_of[i] = i;
        }
    }
    return group;
}

/** Calls act(part) for parts of the kernel whose inputs have enough addresses. */
template<class Act> void ListedDepthwise::for_each_part(const Group &group, const Act &act) const {
    const ConvolutionAxis &rows = given_.rows, &columns = given_.columns;
    int32_t first_row = 0, end_row = rows.kernel;
    if (group.in_row) {
        // All windows have the same rows outside the input.
        const int32_t y = pixel_at(given_, group.first).y;
        while (first_row < end_row && !rows.holds(rows.at(y, first_row))) {
            first_row++;
        }
        while (first_row < end_row && !rows.holds(rows.at(y, end_row - 1))) {
            end_row--;
        }
    }
    const auto most_columns = static_cast<int32_t>(group.in_row ? columns.kernel : most_inputs / most_depthwise_pixels);
    for (int32_t column = 0; column < columns.kernel; column += most_columns) {
        Part part{};
        part.first_column = column;
        part.columns = std::min(columns.kernel - column, most_columns);
        part.row_inputs = group.in_row ? row_inputs_ : part.columns * most_depthwise_pixels;
        const auto most_rows = static_cast<int32_t>(most_inputs / part.row_inputs);
        int32_t row = first_row;
        do {
            part.first_row = row;
            part.rows = std::min(end_row - row, most_rows);
            row += part.rows;
            part.is_first = column == 0 && part.first_row == first_row;
            part.is_last = column + part.columns == columns.kernel && row == end_row;
            act(part);
        } while (row < end_row);
    }
}

void ListedDepthwise::run(const Group &group, const ListRange &channels, const PassedPixels &passed,
                          const PassedPixels &taken) const {
    const PanelWeights &weights = given_.weights;
    float *outputs[most_row_places];
    const float *residuals[most_row_places];
    alignas(64) float sums[most_row_places * most_sum_channels];
    const float *inputs[most_inputs];
    GroupResults results{};
    results.sums = sums;
    results.outputs = outputs;
    results.residuals = given_.residual.data ? residuals : nullptr;
    results.slope = given_.activation.slope;
    results.least = limits_.least;
    results.most = limits_.most;
    for (int32_t i = 0; i < group.count; i++) {
        const ListedPixel pixel = pixel_at(given_, group.first + i);
        const int32_t place = group.place_of[i];
        results.stored |= 1U << place;
        outputs[place] =
            (passed.numbers ? passed.at(group.first + i, weights.out_channels) : address(given_.output, pixel)) +
            channels.begin;
        if (results.residuals) {
            residuals[place] = address(given_.residual, pixel) + channels.begin;
        }
        if (given_.without_activation && is_active(*given_.without_activation, pixel)) {
            results.without_activation |= 1U << place;
        }
    }
    const bool at_once = limits_.are_all && results.without_activation == 0 && given_.diagonals == 1;
    int64_t parts = 0;
    for_each_part(group, [&](const Part &) { parts++; });
    const int64_t most = at_once && parts == 1 ? most_piece_channels : most_sum_channels;
    alignas(64) float of_diagonal[most_row_places * most_sum_channels];
    for (int64_t channel = channels.begin; channel < channels.end; channel += most) {
        const int64_t count = std::min(channels.end - channel, most);
        results.factors = weights.factors ? weights.factors + channel : nullptr;
        results.bias = given_.bias ? given_.bias + channel : nullptr;
        results.panels = static_cast<int32_t>(num_panels(count));
        results.channels = static_cast<int32_t>(count);
        for (int32_t diagonal = 0; diagonal < given_.diagonals; diagonal++) {
            float *const made = given_.diagonals > 1 ? of_diagonal : sums;
            for_each_part(group, [&](const Part &part) {
                if (diagonal == 0 || parts > 1) {
                    find_inputs(group, part, channel, taken, inputs);
                }
                multiply(group, part, channel, diagonal, inputs, made, results, at_once);
            });
            if (given_.diagonals > 1) {
                const int64_t numbers = int64_t{group.places} * results.panels * panel_channels;
                if (diagonal == 0) {
                    std::fill_n(sums, numbers, 0.0f);
                }
                products_.add_diagonal(made, numbers, given_.diagonals, diagonal, sums);
            }
        }
        if (!at_once) {
            products_.finish(results, given_.activation.function);
        }
        for (int32_t i = 0; i < group.count; i++) {
            outputs[group.place_of[i]] += count;
            if (results.residuals) {
                residuals[group.place_of[i]] += count;
            }
        }
    }
}

void ListedDepthwise::multiply(const Group &group, const Part &part, int64_t channel, int32_t diagonal,
                               const float *const *inputs, float *sums, const GroupResults &results,
                               bool at_once) const {
    const PanelWeights &weights = given_.weights;
    DepthwiseProduct product{};
    product.row_inputs = part.row_inputs;
    product.pixel_inputs = group.in_row ? given_.columns.stride : 1;
    product.column_inputs = group.in_row ? given_.columns.dilation : most_depthwise_pixels;
    product.rows = part.rows;
    product.columns = part.columns;
    product.channels = results.channels;
    product.tap_distance = given_.diagonals * panel_channels;
    product.row_distance = given_.columns.kernel * product.tap_distance;
    product.panel_distance = weights.reduction * panel_channels;
    const int64_t first = channel * weights.reduction + part.first_row * product.row_distance +
                          part.first_column * product.tap_distance + diagonal * panel_channels;
    product.weights = static_cast<const char *>(weights.numbers) + first * weights.bytes;
    product.adds = !part.is_first;
    GroupResults own = results;
    product.results = part.is_last && at_once ? &own : nullptr;
    for (int32_t place = 0; place < group.places; place += products_.depthwise_pixels) {
        product.inputs = inputs + place * product.pixel_inputs;
        product.pixels = std::min(group.places - place, products_.depthwise_pixels);
        product.sums = sums + int64_t{place} * results.panels * panel_channels;
        own.stored = results.stored >> place;
        own.outputs = results.outputs + place;
        own.residuals = results.residuals ? results.residuals + place : nullptr;
        products_.multiply_depthwise[weights.type](product);
    }
}

/** Where the pixels of a group read a channel. Code for more pixels than there are reads what is not stored. */
void ListedDepthwise::find_inputs(const Group &group, const Part &part, int64_t channel, const PassedPixels &taken,
                                  const float **inputs) const {
    if (group.in_row) {
        find_row(pixel_at(given_, group.first), part, channel, taken, inputs);
        return;
    }
    for (int32_t i = 0; i < group.count; i++) {
        find_window(pixel_at(given_, group.first + i), part, channel, taken, inputs + i);
    }
    for (int32_t tap = 0; tap < part.rows * part.columns; tap++, inputs += most_depthwise_pixels) {
        std::fill(inputs + group.count, inputs + products_.depthwise_pixels, outside_input);
    }
}

/** Where a pixel's window reads a channel. */
void ListedDepthwise::find_window(const ListedPixel &pixel, const Part &part, int64_t channel,
                                  const PassedPixels &taken, const float **inputs) const {
    const ConvolutionAxis &rows = given_.rows, &columns = given_.columns;
    const int32_t top = rows.at(pixel.y, part.first_row), left = columns.at(pixel.x, part.first_column);
    const bool inside = rows.holds(top) && rows.holds(top + (part.rows - 1) * rows.dilation) && columns.holds(left) &&
                        columns.holds(left + (part.columns - 1) * columns.dilation);
    if (inside && !taken.numbers && part.columns == columns.kernel && part.rows * part.columns <= most_offsets) {
        const float *const first = given_.input.at(pixel.image, top, left) + channel;
        for (int32_t tap = 0; tap < part.rows * part.columns; tap++) {
            inputs[tap * most_depthwise_pixels] = first + offsets_[tap];
        }
        return;
    }
    for (int32_t row = 0; row < part.rows; row++) {
        const int32_t y = rows.at(pixel.y, part.first_row + row);
        for (int32_t column = 0; column < part.columns; column++, inputs += most_depthwise_pixels) {
            const int32_t x = left + column * columns.dilation;
            if (!rows.holds(y) || !columns.holds(x)) {
                *inputs = outside_input;
            } else if (taken.numbers) {
                const ListIndex &index = *given_.taken;
                const int64_t place = (int64_t{pixel.image} * index.height + y) * index.width + x;
                *inputs = taken.at(index.pixels[place], given_.in_channels) + channel;
            } else {
                *inputs = given_.input.at(pixel.image, y, x) + channel;
            }
        }
    }
}

/** Where places side by side, from the first pixel's on, read a channel: the columns of a row from its first on. */
void ListedDepthwise::find_row(const ListedPixel &first, const Part &part, int64_t channel, const PassedPixels &taken,
                               const float **inputs) const {
    const ConvolutionAxis &rows = given_.rows, &columns = given_.columns;
    const int32_t x = columns.at(first.x, part.first_column);
    const int64_t end = part.row_inputs;
    const int64_t inside = std::clamp<int64_t>(columns.begin - x, 0, end);
    const int64_t behind = std::clamp<int64_t>(columns.end - x, inside, end);
    for (int32_t row = 0; row < part.rows; row++, inputs += part.row_inputs) {
        const int32_t y = rows.at(first.y, part.first_row + row);
        if (!rows.holds(y)) {
            std::fill_n(inputs, end, outside_input);
            continue;
        }
        std::fill_n(inputs, inside, outside_input);
        if (taken.numbers) {
            const ListIndex &index = *given_.taken;
            const int32_t *const places = index.pixels + (int64_t{first.image} * index.height + y) * index.width + x;
            for (int64_t i = inside; i < behind; i++) {
                inputs[i] = taken.at(places[i], given_.in_channels) + channel;
            }
        } else {
            const float *const begin = given_.input.at(first.image, y, 0) + x * given_.input.stride_w + channel;
            for (int64_t i = inside; i < behind; i++) {
                inputs[i] = begin + i * given_.input.stride_w;
            }
        }
        std::fill_n(inputs + behind, end - behind, outside_input);
    }
}

}  // namespace distile
