// Masks from masks and from tensors on a GPU: every function against the CPU's.
#include "runtime/base/types.h"
#include "tests/gpu/gpu_session.h"
#include "tests/support/catch.h"
#include <algorithm>
#include <distile/distile.hpp>
#include <distile/mask_algebra.h>
#include <limits>
#include <random>

using namespace distile;

namespace {

struct Size {
    int32_t batch, height, width;

    size_t pixels() const {
        return static_cast<size_t>(batch) * height * width;
    }
};

std::vector<uint8_t> random_bytes(const Size &size, double density, std::mt19937 &random) {
    std::vector<uint8_t> bytes(size.pixels());
    std::bernoulli_distribution active(density);
    std::generate(bytes.begin(), bytes.end(), [&] { return active(random); });
    return bytes;
}

/** A mask on the GPU, and the one on the CPU that it must equal. */
struct Twin {
    Twin(const Gpu &given, size_t most_pixels)
        : gpu(given), device(gpu.make_mask()), host(make_mask(gpu.host)), bytes(most_pixels) {
    }

    void set(const Size &size, const std::vector<uint8_t> &values) {
        bytes.set(values);
        set_device(size);
        set_host(size, values);
    }
    void set_device(const Size &size) const {
        gpu.check(distile_mask_set_bytes(device.get(), bytes.data(), size.batch, size.height, size.width,
                                         int64_t{size.height} * size.width, size.width));
    }
    void set_host(const Size &size, const std::vector<uint8_t> &values) const {
        gpu.check_host(distile_mask_set_bytes(host.get(), values.data(), size.batch, size.height, size.width,
                                              int64_t{size.height} * size.width, size.width));
    }

    /** "" if the bits are the same, and the list of tiles. */
    std::string difference(const Size &size, int32_t tile = 0) const {
        const uint32_t *words = nullptr, *host_words = nullptr;
        int32_t words_per_row = 0, host_words_per_row = 0;
        gpu.check(distile_mask_bits(device.get(), &words, &words_per_row));
        gpu.check_host(distile_mask_bits(host.get(), &host_words, &host_words_per_row));
        if (words_per_row != (size.width + 31) / 32 || host_words_per_row < words_per_row) {
            return "rows of another width";
        }
        const std::vector<uint32_t> found =
            read_device(words, static_cast<size_t>(size.batch) * size.height * words_per_row);
        for (int64_t row = 0; row < int64_t{size.batch} * size.height; row++) {
            for (int32_t i = 0; i < words_per_row; i++) {
                const uint32_t due = host_words[row * host_words_per_row + i];
                if (found[row * words_per_row + i] != due) {
                    return "word " + std::to_string(i) + " of row " + std::to_string(row) + " is " +
                           std::to_string(found[row * words_per_row + i]) + ", not " + std::to_string(due);
                }
            }
        }
        return tile == 0 ? "" : difference_of_tiles(tile);
    }

    const Gpu &gpu;
    Mask device, host;
    DeviceArray<uint8_t> bytes;

private:
    std::string difference_of_tiles(int32_t tile) const {
        distile_tile_list list{}, host_list{};
        gpu.check(distile_mask_tiles(device.get(), tile, tile, &list));
        gpu.check_host(distile_mask_tiles(host.get(), tile, tile, &host_list));
        return tiles_of(list) == tiles_of(host_list) ? "" : "other tiles";
    }
};

template<typename Number> Number pick(std::initializer_list<Number> numbers, std::mt19937 &random) {
    return numbers.begin()[random() % numbers.size()];
}

/** Mostly small, sometimes as large as can be. */
distile_window random_window(std::mt19937 &random) {
    const auto small = [&](std::initializer_list<int32_t> numbers) { return pick(numbers, random); };
    return {
        small({1, 2, 3, 3, 4, 7, 40, 65535}),
        small({1, 2, 3, 3, 5, 7, 70, 130, 65535}),
        small({1, 1, 2, 2, 3, 5, 70}),
        small({1, 1, 2, 2, 3, 7, 32, 64, 65}),
        small({1, 1, 1, 2, 3, 9, 65535}),
        small({1, 1, 1, 2, 3, 5, 31, 64, 65535}),
        small({0, 0, 1, 1, 2, 3, 40, 65535}),
        small({0, 0, 1, 1, 2, 3, 31, 69, 200, 65535}),
        pick({DISTILE_WINDOW_CONV, DISTILE_WINDOW_CONV, DISTILE_WINDOW_TRANSPOSED, DISTILE_WINDOW_UPSAMPLED}, random)};
}

Size random_size(std::mt19937 &random, int32_t batch) {
    return {batch, pick({1, 2, 5, 9, 17, 40, 131}, random), pick({1, 13, 31, 32, 33, 63, 64, 65, 130, 300}, random)};
}

}  // namespace

TEST_CASE("A mask on a GPU is written as the bytes that set it, and nothing between its rows", "[gpu_algebra]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    std::mt19937 random(4);
    Twin twin(gpu, 1 << 16);
    for (int32_t trial = 0; trial < 40; trial++) {
        const Size size = random_size(random, pick({1, 2, 5}, random));
        const std::vector<uint8_t> bytes = random_bytes(size, pick({0.0, 0.3, 1.0}, random), random);
        twin.set(size, bytes);
        const int64_t row = size.width + trial % 3, image = row * size.height + trial % 2;
        constexpr uint8_t untouched = 7;
        std::vector<uint8_t> due(static_cast<size_t>(image) * size.batch, untouched);
        DeviceArray<uint8_t> written(due.size());
        written.set(due);
        for (int64_t line = 0; line < int64_t{size.batch} * size.height; line++) {
            std::copy_n(bytes.begin() + line * size.width, size.width,
                        due.begin() + line / size.height * image + line % size.height * row);
        }
        CAPTURE(trial, size.batch, size.height, size.width);
        gpu.check(distile_mask_get_bytes(twin.device.get(), written.data(), image, row));
        REQUIRE(read_device(written.data(), due.size()) == due);
    }
}

TEST_CASE("Needed inputs and affected outputs on a GPU are those of the CPU", "[gpu_algebra]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    std::mt19937 random(1);
    Twin from(gpu, 1 << 20), to(gpu, 1);
    constexpr size_t most_mirrored = 1 << 17;
    const DeviceArray<uint8_t> mirror(8 * most_mirrored);
    const auto compare = [&](const Size &size, const distile_window &window, const Size &target, int32_t tile) {
        CAPTURE(size.batch, size.height, size.width, target.height, target.width, window.kind, window.kernel_h,
                window.kernel_w, window.stride_h, window.stride_w, window.dilation_h, window.dilation_w, window.pad_top,
                window.pad_left);
        for (const bool to_input : {true, false}) {
            const auto move = to_input ? distile_mask_needed_input : distile_mask_affected_output;
            // The bytes of small masks, too.
            const bool mirrored = target.pixels() <= most_mirrored && tile != 1;
            const int64_t row = target.width + tile, image = row * target.height;
            gpu.check(distile_mask_mirror(to.device.get(), mirrored ? mirror.data() : nullptr, image, row));
            const distile_status due = move(to.host.get(), from.host.get(), &window, target.height, target.width);
            REQUIRE(move(to.device.get(), from.device.get(), &window, target.height, target.width) == due);
            if (due == DISTILE_OK) {
                REQUIRE(to.difference(target, tile) == "");
            }
            if (due == DISTILE_OK && mirrored) {
                const std::vector<uint8_t> written =
                    read_device(mirror.data(), static_cast<size_t>(image) * target.batch);
                gpu.check(distile_mask_get_bytes(to.device.get(), mirror.data(), image, row));
                REQUIRE(read_device(mirror.data(), written.size()) == written);
            }
        }
        // The operand is as it was.
        REQUIRE(from.difference(size) == "");
    };
    for (int32_t trial = 0; trial < 1500; trial++) {
        const Size size = random_size(random, pick({1, 2, 5}, random));
        from.set(size, random_bytes(size, pick({0.0, 0.02, 0.3, 1.0}, random), random));
        const distile_window window = random_window(random);
        const int32_t half_h = (size.height + 1) / 2, half_w = (size.width + 1) / 2;
        const Size target = pick<Size>({size,
                                        {size.batch, half_h, half_w},
                                        {size.batch, 2 * size.height, 2 * size.width},
                                        random_size(random, size.batch)},
                                       random);
        compare(size, window, target, trial % 5);
    }
    // The longest rows there are, and images of some size.
    for (int32_t trial = 0; trial < 40; trial++) {
        const Size size =
            pick<Size>({{1, 1, 65535}, {1, 65535, 1}, {2, 1, 65535}, {3, 33, 5000}, {1, 1024, 1000}}, random);
        from.set(size, random_bytes(size, pick({0.0001, 0.01, 0.5}, random), random));
        distile_window window = random_window(random);
        if (size.height > 1000) {
            window.kernel_h = std::min(window.kernel_h, 130);
        }
        const auto larger = [](int32_t extent, int32_t scale) { return std::min(extent * scale, 65535); };
        compare(size, window,
                pick<Size>({size,
                            {size.batch, size.height, (size.width + 2) / 3},
                            {size.batch, larger(size.height, 2), larger(size.width, 2)}},
                           random),
                trial % 5);
    }
}

TEST_CASE("Dilation and pooling on a GPU are those of the CPU, in place too", "[gpu_algebra]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    std::mt19937 random(2);
    Twin mask(gpu, 1 << 20);
    for (int32_t trial = 0; trial < 400; trial++) {
        const Size size = trial < 380 ? random_size(random, pick({1, 3}, random)) : Size{1, 700, 1050};
        mask.set(size, random_bytes(size, pick({0.001, 0.05, 0.5}, random), random));
        Size expected = size;
        if (trial % 2 == 0) {
            const int32_t h = pick({0, 1, 3, 50, 32767}, random), w = pick({0, 1, 2, 31, 200, 32767}, random);
            CAPTURE(size.batch, size.height, size.width, h, w);
            gpu.check(distile_mask_dilate(mask.device.get(), mask.device.get(), h, w));
            gpu.check_host(distile_mask_dilate(mask.host.get(), mask.host.get(), h, w));
            REQUIRE(mask.difference(expected, trial % 3) == "");
        } else {
            const int32_t h = pick({1, 2, 3, 64, 65535}, random), w = pick({1, 2, 3, 5, 32, 64, 100}, random);
            CAPTURE(size.batch, size.height, size.width, h, w);
            gpu.check(distile_mask_pool(mask.device.get(), mask.device.get(), h, w));
            gpu.check_host(distile_mask_pool(mask.host.get(), mask.host.get(), h, w));
            expected = {size.batch, (size.height - 1) / h + 1, (size.width - 1) / w + 1};
            REQUIRE(mask.difference(expected, trial % 3) == "");
        }
    }
}

TEST_CASE("Masks of one shape combine on a GPU as on the CPU, into any of them", "[gpu_algebra]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    std::mt19937 random(3);
    Twin a(gpu, 1 << 20), b(gpu, 1 << 20), apart(gpu, 1);
    for (const Size &size :
         {Size{1, 1, 1}, {2, 5, 31}, {2, 5, 32}, {3, 7, 33}, {1, 40, 200}, {1, 1, 65535}, {2, 700, 600}}) {
        for (int32_t where = 0; where < 3; where++) {
            for (int32_t how = 0; how < 4; how++) {
                CAPTURE(size.batch, size.height, size.width, where, how);
                a.set(size, random_bytes(size, 0.4, random));
                b.set(size, random_bytes(size, 0.6, random));
                Twin &to = where == 0 ? apart : where == 1 ? a : b;
                distile_mask *const x = a.device.get(), *const y = b.device.get(), *const z = to.device.get();
                distile_mask *const u = a.host.get(), *const v = b.host.get(), *const w = to.host.get();
                switch (how) {
                case 0:
                    gpu.check(distile_mask_unite(z, x, y));
                    gpu.check_host(distile_mask_unite(w, u, v));
                    break;
                case 1:
                    gpu.check(distile_mask_intersect(z, x, y));
                    gpu.check_host(distile_mask_intersect(w, u, v));
                    break;
                case 2:
                    gpu.check(distile_mask_subtract(z, x, y));
                    gpu.check_host(distile_mask_subtract(w, u, v));
                    break;
                default:
                    gpu.check(distile_mask_invert(z, x));
                    gpu.check_host(distile_mask_invert(w, u));
                }
                REQUIRE(to.difference(size, 3) == "");
            }
        }
    }
}

namespace {

/** One tensor on the host and on the device, in the same layout. */
class Operand {
public:
    static constexpr int32_t layouts = 6;

    /** Packed, with gaps that vectors fit into or not, and away from a multiple of 16 bytes. Gaps hold `gaps`. */
    void set(const Size &size, int32_t channels, distile_dtype dtype, int32_t layout, const std::vector<float> &values,
             float gaps) {
        const int32_t gap = layout == 1 ? 4 : layout == 2 ? 5 : 0;
        const int32_t row_gap = layout == 3 ? 1 : layout == 4 ? 8 : gap;
        const size_t offset = layout == 5 ? 1 : 0, bytes = distile_dtype_size(dtype);
        on_host = distile_tensor_make(nullptr, size.batch, size.height, size.width, channels);
        on_host.dtype = dtype;
        on_host.stride_w = channels + gap;
        on_host.stride_h = on_host.stride_w * size.width + row_gap;
        on_host.stride_n = on_host.stride_h * size.height + row_gap;
        std::vector<float> elements(static_cast<size_t>(on_host.stride_n) * size.batch + offset, gaps);
        auto from = values.begin();
        for (int32_t n = 0; n < size.batch; n++) {
            for (int32_t y = 0; y < size.height; y++) {
                for (int32_t x = 0; x < size.width; x++, from += channels) {
                    const int64_t pixel = n * on_host.stride_n + y * on_host.stride_h + x * on_host.stride_w;
                    std::copy_n(from, channels, elements.begin() + static_cast<int64_t>(offset) + pixel);
                }
            }
        }
        memory_.resize(elements.size() * bytes);
        REQUIRE(memory_.size() <= room);
        find_type(dtype)->from_float(elements.data(), memory_.data(), elements.size());
        device_.set(memory_);
        on_device = on_host;
        on_host.data = memory_.data() + offset * bytes;
        on_device.data = device_.data() + offset * bytes;
    }

    distile_tensor on_host{}, on_device{};

private:
    static constexpr size_t room = 1 << 20;
    std::vector<unsigned char> memory_;
    DeviceArray<unsigned char> device_ = DeviceArray<unsigned char>(room);
};

}  // namespace

TEST_CASE("Tensors that differ make the same mask on a GPU as on the CPU", "[gpu_algebra]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    std::mt19937 random(4);
    std::uniform_real_distribution<float> number(-1, 1);
    const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
    Twin mask(gpu, 1);
    Operand a, b;
    for (distile_dtype dtype :
         {DISTILE_FLOAT32, DISTILE_FLOAT16, DISTILE_BFLOAT16, DISTILE_FLOAT8_E4M3FN, DISTILE_FLOAT8_E5M2}) {
        for (int32_t width : {1, 4, 7, 32, 33, 36, 44, 513}) {
            for (int32_t channels : {1, 2, 3, 4, 5, 8, 16, 64, 65}) {
                const Size size{2, 3, width};
                std::vector<float> values(size.pixels() * channels);
                std::generate(values.begin(), values.end(), [&] { return number(random); });
                std::vector<float> changed = values;
                for (float &value : changed) {
                    const uint32_t drawn = random() % (20 * channels);
                    value = drawn == 0   ? value + 0.5f
                            : drawn == 1 ? value - 0.5f
                            : drawn == 2 ? value + 0.01f
                            : drawn == 3 ? nan
                            : drawn == 4 ? infinity
                                         : value;
                }
                for (int32_t layout_a = 0; layout_a < Operand::layouts; layout_a++) {
                    for (int32_t layout_b = 0; layout_b < Operand::layouts; layout_b++) {
                        CAPTURE(dtype, width, channels, layout_a, layout_b);
                        // Elements of gaps differ, and must not be seen.
                        a.set(size, channels, dtype, layout_a, values, 0);
                        b.set(size, channels, dtype, layout_b, changed, 1);
                        for (float threshold : {0.0f, 0.1f}) {
                            gpu.check(
                                distile_mask_set_difference(mask.device.get(), &a.on_device, &b.on_device, threshold));
                            gpu.check_host(
                                distile_mask_set_difference(mask.host.get(), &a.on_host, &b.on_host, threshold));
                            REQUIRE(mask.difference(size, 2) == "");
                        }
                    }
                }
            }
        }
    }
}

TEST_CASE("A chain of masks runs in a graph, with other masks and tensors at every launch", "[gpu_algebra]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    const StreamInUse stream(gpu);
    std::mt19937 random(5);
    const Size size{2, 50, 77}, half{2, 25, 39};
    const distile_window down{3, 3, 2, 2, 1, 1, 1, 1, DISTILE_WINDOW_CONV};
    Twin edit(gpu, size.pixels()), mask(gpu, size.pixels()), small(gpu, 1);
    DeviceArray<float> device_a(3 * size.pixels()), device_b(3 * size.pixels());
    std::vector<float> a(3 * size.pixels()), b(3 * size.pixels());
    const auto tensor = [&](float *data) { return distile_tensor_make(data, size.batch, size.height, size.width, 3); };
    const distile_tensor on_a = tensor(device_a.data()), on_b = tensor(device_b.data());
    const auto on_device = [&] {
        mask.set_device(size);
        gpu.check(distile_mask_set_difference(edit.device.get(), &on_a, &on_b, 0.25f));
        gpu.check(distile_mask_dilate(edit.device.get(), edit.device.get(), 2, 1));
        gpu.check(distile_mask_intersect(edit.device.get(), edit.device.get(), mask.device.get()));
        gpu.check(distile_mask_affected_output(small.device.get(), edit.device.get(), &down, half.height, half.width));
        gpu.check(distile_mask_invert(small.device.get(), small.device.get()));
        gpu.check(distile_mask_needed_input(mask.device.get(), small.device.get(), &down, size.height, size.width));
        gpu.check(distile_mask_subtract(mask.device.get(), mask.device.get(), edit.device.get()));
        // Lists that are made in the graph.
        distile_tile_list list{};
        gpu.check(distile_mask_tiles(mask.device.get(), 4, 4, &list));
    };
    const auto draw = [&] {
        const std::vector<uint8_t> bytes = random_bytes(size, 0.7, random);
        for (size_t i = 0; i < a.size(); i++) {
            a[i] = static_cast<float>(random() % 8);
            b[i] = random() % 200 == 0 ? a[i] + 0.5f : a[i];
        }
        mask.bytes.set(bytes);
        mask.set_host(size, bytes);
        device_a.set(a);
        device_b.set(b);
        const distile_tensor from_a = tensor(a.data()), from_b = tensor(b.data());
        gpu.check_host(distile_mask_set_difference(edit.host.get(), &from_a, &from_b, 0.25f));
        gpu.check_host(distile_mask_dilate(edit.host.get(), edit.host.get(), 2, 1));
        gpu.check_host(distile_mask_intersect(edit.host.get(), edit.host.get(), mask.host.get()));
        gpu.check_host(distile_mask_affected_output(small.host.get(), edit.host.get(), &down, half.height, half.width));
        gpu.check_host(distile_mask_invert(small.host.get(), small.host.get()));
        gpu.check_host(distile_mask_needed_input(mask.host.get(), small.host.get(), &down, size.height, size.width));
        gpu.check_host(distile_mask_subtract(mask.host.get(), mask.host.get(), edit.host.get()));
    };
    const auto check_masks = [&] {
        CHECK(edit.difference(size) == "");
        CHECK(small.difference(half) == "");
        CHECK(mask.difference(size, 4) == "");
    };
    draw();
    on_device();
    check_masks();
    const Graph graph(stream.get(), on_device);
    for (int32_t round = 0; round < 20; round++) {
        CAPTURE(round);
        draw();
        graph.launch();
        check_masks();
    }
}
