// Which views share memory: all small views of one tensor against the sets of their addresses, and what the API makes
// of it.
#include "runtime/tensor/tensor.h"
#include "tests/support/catch.h"
#include "tests/support/plain_linear.h"
#include "tests/support/reference.h"
#include "tests/support/test_tensor.h"
#include <algorithm>
#include <cstdint>
#include <distile/distile.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

using namespace distile;

namespace {

/** The bytes of a view, its border included. */
std::set<int64_t> bytes_of(const distile_tensor &view, const char *base) {
    const auto size = static_cast<int64_t>(distile_dtype_size(view.dtype));
    std::set<int64_t> bytes;
    for (int64_t n = 0; n < view.batch; n++) {
        for (int64_t y = -view.border_top; y < view.height + view.border_bottom; y++) {
            for (int64_t x = -view.border_left; x < view.width + view.border_right; x++) {
                for (int64_t c = 0; c < view.channels; c++) {
                    const int64_t element = n * view.stride_n + y * view.stride_h + x * view.stride_w + c;
                    for (int64_t byte = 0; byte < size; byte++) {
                        bytes.insert(static_cast<const char *>(view.data) - base + element * size + byte);
                    }
                }
            }
        }
    }
    return bytes;
}

bool meet(const std::set<int64_t> &a, const std::set<int64_t> &b) {
    return std::any_of(a.begin(), a.end(), [&](int64_t byte) { return b.count(byte) != 0; });
}

/** A box of a tensor of 2 x 3 x 4 x 3 elements: images, rows, columns and channels [begin, end). */
struct Part {
    int32_t begin[4], end[4];
};

constexpr int32_t extents[4] = {2, 3, 4, 3};

distile_tensor view_of(const distile_tensor &whole, const Part &part) {
    distile_tensor view = whole;
    view.batch = part.end[0] - part.begin[0];
    view.height = part.end[1] - part.begin[1];
    view.width = part.end[2] - part.begin[2];
    view.channels = part.end[3] - part.begin[3];
    const int64_t element = part.begin[0] * whole.stride_n + part.begin[1] * whole.stride_h +
                            part.begin[2] * whole.stride_w + part.begin[3];
    view.data = static_cast<char *>(whole.data) + element * static_cast<int64_t>(distile_dtype_size(whole.dtype));
    return view;
}

/** All boxes. */
std::vector<Part> all_parts() {
    std::vector<Part> parts(1);
    for (int dimension = 0; dimension < 4; dimension++) {
        std::vector<Part> more;
        for (const Part &part : parts) {
            for (int32_t begin = 0; begin < extents[dimension]; begin++) {
                for (int32_t end = begin + 1; end <= extents[dimension]; end++) {
                    more.push_back(part);
                    more.back().begin[dimension] = begin;
                    more.back().end[dimension] = end;
                }
            }
        }
        parts.swap(more);
    }
    return parts;
}

}  // namespace

TEST_CASE("Two views of one tensor overlap exactly where they share a byte", "[overlap]") {
    std::vector<float> memory(200);
    auto *base = reinterpret_cast<char *>(memory.data());
    for (distile_dtype dtype : {DISTILE_FLOAT32, DISTILE_BFLOAT16, DISTILE_FLOAT8_E5M2}) {
        for (int64_t gap : {0, 1}) {
            distile_tensor whole = distile_tensor_make(memory.data(), extents[0], extents[1], extents[2], extents[3]);
            whole.dtype = dtype;
            whole.stride_w += gap;
            whole.stride_h = whole.stride_w * extents[2] + gap;
            whole.stride_n = whole.stride_h * extents[1] + gap;
            const std::vector<Part> parts = all_parts();
            REQUIRE(parts.size() == 3 * 6 * 10 * 6);
            // Boxes meet where their ranges do along every axis: cheaper than sets, which prove it for some.
            const auto boxes_meet = [](const Part &a, const Part &b) {
                for (int i = 0; i < 4; i++) {
                    if (a.end[i] <= b.begin[i] || b.end[i] <= a.begin[i]) {
                        return false;
                    }
                }
                return true;
            };
            int64_t wrong = 0, proved = 0, disjoint = 0;
            for (size_t i = 0; i < parts.size(); i++) {
                const distile_tensor a = view_of(whole, parts[i]);
                for (size_t j = 0; j < parts.size(); j++) {
                    const distile_tensor b = view_of(whole, parts[j]);
                    const bool due = boxes_meet(parts[i], parts[j]);
                    if ((i * parts.size() + j) % 997 == 0) {
                        proved += meet(bytes_of(a, base), bytes_of(b, base)) == due ? 1 : -1000000;
                    }
                    wrong += overlap(a, b) == due ? 0 : 1;
                    disjoint += due ? 0 : 1;
                }
            }
            CAPTURE(dtype, gap);
            CHECK(wrong == 0);
            CHECK(proved > 1000);
            CHECK(disjoint > 100000);
        }
    }
}

TEST_CASE("Views of equal strides at any distance overlap exactly where they share a byte", "[overlap]") {
    // Not parts of one tensor: rows that run into the next ones, borders that are shared, images between images.
    std::vector<float> memory(4000);
    auto *base = reinterpret_cast<char *>(memory.data());
    std::mt19937 random(41);
    int64_t wrong = 0, disjoint = 0, shared = 0;
    for (int round = 0; round < 60000; round++) {
        const auto below = [&](uint32_t count) { return static_cast<int32_t>(random() % count); };
        distile_tensor views[2];
        const int64_t stride_w = 1 + below(4);
        int64_t widest = 1, highest = 1;
        for (distile_tensor &view : views) {
            view = {};
            view.dtype = DISTILE_FLOAT32;
            view.batch = 1 + below(2);
            view.height = 1 + below(3);
            view.width = 1 + below(4);
            view.channels = static_cast<int32_t>(1 + random() % stride_w);
            for (int32_t *border : {&view.border_top, &view.border_bottom, &view.border_left, &view.border_right}) {
                *border = below(3) == 0 ? below(3) : 0;
            }
            // As check_tensor() has it: the border of a row may be that of the next.
            widest = std::max<int64_t>(widest, view.width + std::max(view.border_left, view.border_right));
            highest = std::max<int64_t>(highest, view.height + std::max(view.border_top, view.border_bottom));
        }
        const int64_t stride_h = stride_w * widest + below(3), stride_n = stride_h * highest + below(5);
        for (distile_tensor &view : views) {
            view.stride_w = stride_w;
            view.stride_h = stride_h;
            view.stride_n = stride_n;
            view.data = memory.data() + 1000 + below(150);
        }
        const bool due = meet(bytes_of(views[0], base), bytes_of(views[1], base));
        wrong += overlap(views[0], views[1]) == due ? 0 : 1;
        wrong += overlap(views[1], views[0]) == due ? 0 : 1;
        (due ? shared : disjoint)++;
    }
    CHECK(wrong == 0);
    CHECK(disjoint > 1000);
    CHECK(shared > 1000);
}

TEST_CASE("Views of other strides or types overlap where their addresses meet", "[overlap]") {
    std::vector<float> memory(1000);
    const distile_tensor a = distile_tensor_make(memory.data(), 1, 4, 5, 3);
    for (int64_t distance : {int64_t{0}, int64_t{1}, int64_t{59}, int64_t{60}}) {
        distile_tensor wide = a, narrow = a;
        wide.data = narrow.data = memory.data() + distance;
        wide.stride_h++;
        narrow.dtype = DISTILE_FLOAT16;
        for (const distile_tensor &b : {wide, narrow}) {
            CAPTURE(distance, b.dtype);
            CHECK(overlap(a, b) == (distance < 60));
            CHECK(overlap(b, a) == (distance < 60));
        }
    }
    // For tensors of two types the bytes count: 60 elements of 2 bytes end before element 30 of 4 bytes.
    distile_tensor half = a, behind = a;
    half.dtype = DISTILE_FLOAT16;
    behind.data = memory.data() + 30;
    CHECK_FALSE(overlap(half, behind));
    behind.data = memory.data() + 29;
    CHECK(overlap(half, behind));
}

TEST_CASE("A run takes disjoint crops of one tensor, and refuses those that share a pixel", "[overlap]") {
    const PlainLinear linear(DISTILE_FLOAT32, 4, 4);
    const Context context = make_context();
    const Kernel kernel = make_kernel(context, linear.polykernel());
    std::mt19937 random(42);
    const std::vector<float> filter = draw(Values::Integers, 16, random);
    distile_weights_source source{};
    source.filter = filter.data();
    source.order = DISTILE_HWIO;
    const Weights weights = pack_weights(context, kernel, source);
    const Mask mask = make_mask(context);
    constexpr int32_t height = 3, width = 4, rows = 9, columns = 11;
    const std::vector<uint8_t> bytes(size_t{height} * width, 1);
    check(context, distile_mask_set_bytes(mask.get(), bytes.data(), 1, height, width, height * width, width));
    TestTensor all(1, rows, columns, 4);
    const auto crop = [&](int32_t y, int32_t x) {
        distile_tensor view = all.view();
        view.data = &all.at(0, y, x, 0);
        view.height = height;
        view.width = width;
        return view;
    };
    const distile_tensor output = crop(3, 4);
    for (int32_t y = 0; y <= rows - height; y++) {
        for (int32_t x = 0; x <= columns - width; x++) {
            CAPTURE(y, x);
            all.draw(Values::Integers, random);
            const distile_tensor input = crop(y, x);
            distile_run_args args{};
            args.input = &input;
            args.output = &output;
            args.weights = weights.get();
            args.mask = mask.get();
            ReferenceArgs reference;
            set_operator(reference, linear.polykernel());
            reference.input = input;
            reference.filter = filter;
            reference.mask = bytes;
            const ReferenceOutput expected = reference_masked_conv2d(reference);
            const auto before = all.snapshot();
            const bool disjoint = std::abs(y - 3) >= height || std::abs(x - 4) >= width;
            const distile_status status = distile_run(kernel.get(), &args);
            CHECK(status == (disjoint ? DISTILE_OK : DISTILE_ERROR_ALIASING));
            if (!disjoint) {
                CHECK(all.snapshot() == before);
                continue;
            }
            int64_t wrong = 0;
            for (int32_t v = 0; v < height; v++) {
                for (int32_t u = 0; u < width; u++) {
                    for (int32_t c = 0; c < 4; c++) {
                        const float due = expected.values[(v * width + u) * 4 + c];
                        wrong += all.at(0, 3 + v, 4 + u, c) == due ? 0 : 1;
                    }
                }
            }
            CHECK(wrong == 0);
            // Nothing else changed.
            for (int32_t v = 0; v < height; v++) {
                for (int32_t u = 0; u < width; u++) {
                    const int64_t element = ((3 + v) * columns + 4 + u) * 4;
                    // The tensor ends with its memory.
                    const auto own = before.end() - static_cast<std::ptrdiff_t>(all.num_own_words());
                    std::copy_n(own + element, 4, all.own_words() + element);
                }
            }
            CHECK(all.snapshot() == before);
        }
    }
}
