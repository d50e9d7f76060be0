#include "runtime/cpu/cpu_mask.h"
#include "runtime/group/exchange.h"
#include <cstring>

namespace distile {

namespace {

void copy_in_process(const PlacedTensor &from, const PlacedTensor &to, const std::vector<Span> &spans) {
    const auto pixel_bytes = static_cast<size_t>(from.tensor.channels) * distile_dtype_size(from.tensor.dtype);
    const bool contiguous = from.tensor.stride_w == from.tensor.channels && to.tensor.stride_w == to.tensor.channels;
    for (const Span &span : spans) {
        if (contiguous) {
            std::memcpy(to.pixel(span.image, span.y, span.first), from.pixel(span.image, span.y, span.first),
                        static_cast<size_t>(span.last - span.first) * pixel_bytes);
            continue;
        }
        for (int32_t x = span.first; x < span.last; x++) {
            std::memcpy(to.pixel(span.image, span.y, x), from.pixel(span.image, span.y, x), pixel_bytes);
        }
    }
}

void read_cpu_bits(distile_mask &mask, BitImage &bits) {
    const uint64_t *const words = cpu_mask(mask).bitmask().words;
    bits = BitImage(mask.shape);
    std::memcpy(bits.words.data(), words, bits.words.size() * sizeof(uint64_t));
}

}  // namespace

// Calls on a CPU return when their work is done.
const Exchange process_exchange = {
    "process",
    false,
    [](const Device &from, const Device &to) { return from.kind() == DISTILE_CPU && to.kind() == DISTILE_CPU; },
    [](distile_context &) {},
    [](distile_context &, distile_context &) {},
    copy_in_process,
    [](distile_context &) {},
    [](distile_context &) {},
    read_cpu_bits,
};

}  // namespace distile
