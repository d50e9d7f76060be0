// Masks, masks of masks and the planner, by a program of calls that the input spells: every call succeeds or leaves its
// result as it was, and what a mask says of itself fits together.
#include "tests/fuzz/fuzz.h"
#include <algorithm>
#include <cstdlib>
#include <distile/distile.hpp>
#include <distile/mask_algebra.h>
#include <distile/planner.h>
#include <memory>
#include <optional>
#include <vector>

using namespace distile;

namespace {

constexpr int64_t most_words = 1 << 14;
constexpr size_t most_bytes = 4 << 20;

template<typename Object, void (*destroy)(Object *)> struct Destroyer {
    void operator()(Object *object) const {
        destroy(object);
    }
};

/** The words of a mask whose extents are legal; otherwise 0, which a call refuses. */
__int128 words_of(int32_t batch, int32_t height, int32_t width) {
    const auto legal = [](int32_t extent) { return extent >= 1 && extent <= 65535; };
    return legal(batch) && legal(height) && legal(width) ? __int128{batch} * height * ((width + 63) / 64) : 0;
}

/** What a mask says of itself. */
struct Contents {
    std::vector<uint32_t> words;
    int32_t words_per_row = 0;
    int64_t active = 0;

    bool operator==(const Contents &other) const {
        return words == other.words && words_per_row == other.words_per_row && active == other.active;
    }
};

/** A mask and the shape that it should have. */
struct Object {
    Mask mask;
    int32_t batch = 0, height = 0, width = 0;

    bool is_set() const {
        return batch > 0;
    }
    Contents contents() const {
        Contents contents;
        const uint32_t *words = nullptr;
        const distile_status status = distile_mask_bits(mask.get(), &words, &contents.words_per_row);
        require((status == DISTILE_OK) == is_set(), "a mask has bits exactly when it was set");
        if (is_set()) {
            require(distile_mask_active_pixels(mask.get(), &contents.active) == DISTILE_OK, "a mask has no pixels");
            require(contents.words_per_row == (width + 63) / 64 * 2, "a mask has another width");
            contents.words.assign(words, words + int64_t{batch} * height * contents.words_per_row);
        }
        return contents;
    }
    /** No bits beyond the width, and as many active pixels as it says. */
    void check() const {
        const Contents now = contents();
        int64_t active = 0;
        for (size_t i = 0; i < now.words.size(); i++) {
            const auto column = static_cast<int32_t>(i % now.words_per_row);
            const int32_t pixels = std::clamp(width - 32 * column, 0, 32);
            require(pixels == 32 || now.words[i] >> pixels == 0, "a mask has bits beyond its width");
            active += __builtin_popcount(now.words[i]);
        }
        require(active == now.active, "a mask has another number of active pixels than it says");
    }
    void check_tiles(int32_t tile_h, int32_t tile_w) const {
        int64_t count = -1;
        distile_tile_list list{-1, nullptr, nullptr, nullptr};
        const distile_status counted = distile_mask_count_tiles(mask.get(), tile_h, tile_w, &count);
        const distile_status listed = distile_mask_tiles(mask.get(), tile_h, tile_w, &list);
        require(counted == listed, "tiles can be counted exactly when they can be listed");
        if (counted != DISTILE_OK) {
            require(count == -1 && list.count == -1, "a call that failed wrote its result");
            return;
        }
        require(list.count == count, "as many tiles are listed as are counted");
        int64_t before = -1;
        for (int64_t i = 0; i < count; i++) {
            const int64_t x = list.xy[i] & 0xffff, y = list.xy[i] >> 16, n = list.image[i];
            require(x < width && y < height && n < batch, "a tile lies outside of the images");
            require(x % tile_w == 0 && y % tile_h == 0, "a tile lies off the grid");
            const int64_t place = (n * height + y) * width + x;
            require(place > before, "tiles are out of order");
            before = place;
        }
    }
};

void *allocate(void *, size_t bytes, size_t alignment) {
    return bytes > most_bytes ? nullptr
                              : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

void deallocate(void *, void *memory) {
    std::free(memory);
}

class Program {
public:
    explicit Program(Bytes bytes) : bytes_(bytes), context_(make_limited_context()) {
        for (Object &object : objects_) {
            object.mask = make_mask(context_);
        }
    }

    void run() {
        constexpr int32_t most_calls = 24;
        for (int32_t call = 0; call < most_calls && !bytes_.empty(); call++) {
            Object &result = object();
            const Contents before = result.contents();
            result_ = &result;
            const Status status = step();
            if (status == DISTILE_OK) {
                result.check();
            } else if (status) {
                require(result.contents() == before, "a call that failed changed its result");
                require(distile_context_message(context_.get())[0] != 0, "a call failed without a message");
            }
        }
    }

private:
    /** No status for a call that would be legal but take much memory or time, and for one that sets no mask. */
    using Status = std::optional<distile_status>;

    static Context make_limited_context() {
        distile_context_options options{};
        options.threads = 1;
        options.allocate = allocate;
        options.deallocate = deallocate;
        return make_context(options);
    }

    Object &object() {
        return objects_[bytes_.choice(2)];
    }

    Status shaped(distile_status status, int32_t batch, int32_t height, int32_t width) {
        if (status == DISTILE_OK) {
            result_->batch = batch;
            result_->height = height;
            result_->width = width;
        }
        return status;
    }

    Status step() {
        // The highest numbers are for what came later, so that older inputs do what they did.
        constexpr uint8_t later = 240;
        const auto call = bytes_.take<uint8_t>();
        if (call >= later) {
            return call % 2 == 0 ? set_bits() : set_indices();
        }
        switch (call % 10) {
        case 0:
        case 1:
            return set_bytes();
        case 2:
            return transfer(distile_mask_needed_input);
        case 3:
            return transfer(distile_mask_affected_output);
        case 4:
            return dilate();
        case 5:
            return pool();
        case 6:
            return combine();
        case 7:
            return set_difference();
        case 8:
            result_->check_tiles(bytes_.extent(20), bytes_.extent(20));
            return std::nullopt;
        default:
            return plan_output();
        }
    }

    Status set_bytes() {
        const int32_t batch = bytes_.extent(3), height = bytes_.extent(40), width = bytes_.extent(200);
        constexpr int64_t range = int64_t{1} << 31;
        const int64_t stride_h = bytes_.stride(width), stride_n = bytes_.stride(stride_h % range * height);
        const __int128 words = words_of(batch, height, width);
        // What the documentation lets the call read.
        __int128 span = 0;
        if (words > 0 && stride_h >= width && (batch == 1 || stride_n >= 0)) {
            span = __int128{height - 1} * stride_h + width + (batch > 1 ? __int128{batch - 1} * stride_n : 0);
        }
        if (words > most_words || span > static_cast<__int128>(most_bytes)) {
            return std::nullopt;
        }
        std::vector<uint8_t> pixels(static_cast<size_t>(span));
        for (size_t i = 0; i < pixels.size() && !bytes_.empty(); i++) {
            pixels[i] = bytes_.take<uint8_t>() & 1;
        }
        pixels.shrink_to_fit();
        static const uint8_t nothing = 0;
        return shaped(distile_mask_set_bytes(result_->mask.get(), pixels.empty() ? &nothing : pixels.data(), batch,
                                             height, width, stride_n, stride_h),
                      batch, height, width);
    }

    Status set_bits() {
        const int32_t batch = bytes_.extent(3), height = bytes_.extent(40), width = bytes_.extent(200);
        const int64_t words_per_row = bytes_.stride((int64_t{width} + 31) / 32);
        const __int128 words = words_of(batch, height, width);
        __int128 span = 0;
        if (words > 0 && words_per_row >= (width + 31) / 32) {
            span = __int128{int64_t{batch} * height - 1} * words_per_row + (width + 31) / 32;
        }
        if (words > most_words || span * sizeof(uint32_t) > most_bytes) {
            return std::nullopt;
        }
        std::vector<uint32_t> rows(std::max<size_t>(1, static_cast<size_t>(span)));
        for (size_t i = 0; i < rows.size() && !bytes_.empty(); i++) {
            rows[i] = bytes_.take<uint32_t>();
        }
        rows.shrink_to_fit();
        return shaped(distile_mask_set_bits(result_->mask.get(), rows.data(), batch, height, width, words_per_row),
                      batch, height, width);
    }

    Status set_indices() {
        const int32_t batch = bytes_.extent(3), height = bytes_.extent(40), width = bytes_.extent(200);
        const int64_t stride_n = bytes_.choice(1) != 0 ? bytes_.choice(20) : bytes_.stride(20);
        const __int128 words = words_of(batch, height, width);
        if (words > most_words || (words > 0 && stride_n > 0 && __int128{batch} * stride_n > 1 << 16)) {
            return std::nullopt;
        }
        const auto images = static_cast<size_t>(words > 0 ? batch : 1);
        std::vector<int32_t> indices(std::max<size_t>(1, words > 0 && stride_n > 0 ? images * stride_n : 1));
        for (size_t i = 0; i < indices.size() && !bytes_.empty(); i++) {
            indices[i] = bytes_.flag() ? bytes_.choice(255) : bytes_.extent(40);
        }
        std::vector<int32_t> counts(images);
        for (int32_t &count : counts) {
            count = bytes_.choice(20);
        }
        indices.shrink_to_fit();
        return shaped(distile_mask_set_indices(result_->mask.get(), indices.data(),
                                               bytes_.flag() ? counts.data() : nullptr, batch, height, width, stride_n),
                      batch, height, width);
    }

    distile_window window() {
        distile_window made{bytes_.extent(5), bytes_.extent(5), bytes_.extent(3), bytes_.extent(3),   bytes_.extent(3),
                            bytes_.extent(3), bytes_.extent(4), bytes_.extent(4), DISTILE_WINDOW_CONV};
        const int32_t kind = bytes_.choice(3);
        std::memcpy(&made.kind, &kind, sizeof(kind));
        return made;
    }

    template<typename Transfer> Status transfer(Transfer function) {
        Object &from = object();
        const distile_window window = this->window();
        const int32_t height = bytes_.extent(40), width = bytes_.extent(200), batch = from.batch;
        const int32_t outputs = std::max(height, from.height);
        const __int128 words = words_of(batch, height, width);
        if (words > most_words || __int128{outputs} * window.kernel_h * ((int64_t{width} + 63) / 64) > 1 << 20) {
            return std::nullopt;
        }
        return shaped(function(result_->mask.get(), from.mask.get(), &window, height, width), batch, height, width);
    }

    Status dilate() {
        Object &from = object();
        const int32_t radius_h = bytes_.extent(9), radius_w = bytes_.extent(70);
        if (radius_h > 1000 && from.height > 1000) {
            return std::nullopt;
        }
        return shaped(distile_mask_dilate(result_->mask.get(), from.mask.get(), radius_h, radius_w), from.batch,
                      from.height, from.width);
    }

    Status pool() {
        Object &from = object();
        const int32_t batch = from.batch, factor_h = bytes_.extent(9), factor_w = bytes_.extent(70);
        const auto pooled = [](int32_t extent, int32_t factor) { return factor < 1 ? 0 : (extent - 1) / factor + 1; };
        const int32_t height = pooled(from.height, factor_h), width = pooled(from.width, factor_w);
        return shaped(distile_mask_pool(result_->mask.get(), from.mask.get(), factor_h, factor_w), batch, height,
                      width);
    }

    Status combine() {
        Object &a = object(), &b = object();
        const int32_t batch = a.batch, height = a.height, width = a.width;
        distile_mask *result = result_->mask.get(), *first = a.mask.get(), *second = b.mask.get();
        switch (bytes_.choice(3)) {
        case 0:
            return shaped(distile_mask_unite(result, first, second), batch, height, width);
        case 1:
            return shaped(distile_mask_intersect(result, first, second), batch, height, width);
        case 2:
            return shaped(distile_mask_subtract(result, first, second), batch, height, width);
        default:
            return shaped(distile_mask_invert(result, first), batch, height, width);
        }
    }

    /** Two tensors, of memory that ends with them where they may be legal. */
    Status set_difference() {
        std::vector<float> values[2];
        distile_tensor tensors[2];
        for (int i = 0; i < 2; i++) {
            distile_tensor &tensor = tensors[i];
            tensor = i == 1 && bytes_.flag() ? tensors[0]
                                             : distile_tensor_make(nullptr, bytes_.extent(3), bytes_.extent(9),
                                                                   bytes_.extent(70), bytes_.extent(5));
            tensor.stride_w = bytes_.stride(tensor.channels);
            tensor.stride_h = bytes_.stride(int64_t{tensor.width} * tensor.channels % INT32_MAX);
            tensor.stride_n = bytes_.stride(int64_t{tensor.height} * tensor.width % INT32_MAX * tensor.channels);
            const __int128 words = words_of(tensor.batch, tensor.height, tensor.width);
            __int128 span = 0;
            if (words > 0 && tensor.channels > 0 && tensor.stride_w > 0 && tensor.stride_h > 0 &&
                (tensor.batch == 1 || tensor.stride_n > 0)) {
                span = __int128{tensor.height - 1} * tensor.stride_h + __int128{tensor.width - 1} * tensor.stride_w +
                       tensor.channels + (tensor.batch > 1 ? __int128{tensor.batch - 1} * tensor.stride_n : 0);
            }
            if (words > most_words || span * sizeof(float) > most_bytes) {
                return std::nullopt;
            }
            values[i].resize(std::max<size_t>(1, static_cast<size_t>(span)));
            values[i].shrink_to_fit();
            for (size_t j = 0; j < values[i].size() && !bytes_.empty(); j++) {
                values[i][j] = static_cast<float>(bytes_.take<int8_t>());
            }
            tensor.data = values[i].data();
        }
        return shaped(distile_mask_set_difference(result_->mask.get(), &tensors[0], &tensors[1], bytes_.take<float>()),
                      tensors[0].batch, tensors[0].height, tensors[0].width);
    }

    Status plan_output() {
        if (!planner_) {
            distile_planner_options options{};
            options.buffers = bytes_.choice(6);
            const int32_t clearing = bytes_.choice(3);
            std::memcpy(&options.clearing, &clearing, sizeof(clearing));
            distile_planner *planner = nullptr;
            const distile_status status = distile_planner_create(context_.get(), &options, &planner);
            planner_.reset(planner);
            if (status != DISTILE_OK) {
                return status;
            }
        }
        const Object &mask = object();
        distile_output_spec spec{mask.batch, mask.height, mask.width, bytes_.extent(4), 0, 0, 0, 0, DISTILE_FLOAT32};
        if (bytes_.flag()) {
            spec.batch = bytes_.extent(3);
            spec.height = bytes_.extent(9);
        }
        for (int32_t *border : {&spec.border_top, &spec.border_bottom, &spec.border_left, &spec.border_right}) {
            *border = bytes_.extent(4) % 4;
        }
        const auto store = static_cast<distile_store>(bytes_.choice(1));
        distile_tensor output{};
        const distile_status status = distile_planner_next(planner_.get(), &spec, mask.mask.get(), store, &output);
        if (status != DISTILE_OK) {
            require(!output.data, "a planner that failed gave a tensor");
            return status;
        }
        write_output(mask, output, store);
        return std::nullopt;
    }

    /** All is zero, the border too, except what will surely be written; then every pixel is written that may be. */
    static void write_output(const Object &mask, const distile_tensor &output, distile_store store) {
        const Contents contents = mask.contents();
        for (int32_t n = 0; n < output.batch; n++) {
            for (int32_t y = -output.border_top; y < output.height + output.border_bottom; y++) {
                for (int32_t x = -output.border_left; x < output.width + output.border_right; x++) {
                    float *pixel = static_cast<float *>(output.data) + n * output.stride_n + y * output.stride_h +
                                   x * output.stride_w;
                    const bool inside = y >= 0 && y < output.height && x >= 0 && x < output.width;
                    const bool active =
                        inside &&
                        ((contents.words[(int64_t{n} * output.height + y) * contents.words_per_row + x / 32] >>
                          (x % 32)) &
                         1) != 0;
                    for (int32_t c = 0; c < output.channels && !(active && store == DISTILE_STORE_EXACT); c++) {
                        require(pixel[c] == 0, "a planner's tensor is not zero");
                    }
                    if (inside && (store == DISTILE_STORE_TILES || active)) {
                        std::fill_n(pixel, output.channels, 1.0f);
                    }
                }
            }
        }
    }

    Bytes bytes_;
    Context context_;
    Object objects_[3];
    std::unique_ptr<distile_planner, Destroyer<distile_planner, distile_planner_destroy>> planner_;
    Object *result_ = nullptr;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Program(Bytes(data, size)).run();
    return 0;
}
