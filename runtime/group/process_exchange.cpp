#include "runtime/cpu/cpu_mask.h"
#include "runtime/group/exchange.h"
#include <cstring>

namespace distile {

namespace {

void copy_spans(const Transfer &transfer) {
    const PlacedTensor &from = *transfer.from, &to = *transfer.to;
    const auto pixel_bytes = static_cast<size_t>(from.tensor.channels) * distile_dtype_size(from.tensor.dtype);
    const bool contiguous = from.tensor.stride_w == from.tensor.channels && to.tensor.stride_w == to.tensor.channels;
    for (const Span &span : *transfer.spans) {
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

void copy_in_process(distile_context &, const std::vector<Transfer> &transfers) {
    for (const Transfer &transfer : transfers) {
        copy_spans(transfer);
    }
}

/** Calls use(pixel of the tensor, place in the message, bytes) for what lies together in both. */
template<typename Use> void for_each_piece(const PackedPixels &pixels, const Use &use) {
    const PlacedTensor &tensor = *pixels.tensor;
    const auto pixel_bytes = static_cast<size_t>(tensor.tensor.channels) * distile_dtype_size(tensor.tensor.dtype);
    const bool contiguous = tensor.tensor.stride_w == tensor.tensor.channels;
    auto *message = static_cast<char *>(pixels.message);
    for (const Span &span : *pixels.spans) {
        const int32_t step = contiguous ? span.last - span.first : 1;
        for (int32_t x = span.first; x < span.last; x += step) {
            const size_t bytes = static_cast<size_t>(step) * pixel_bytes;
            use(tensor.pixel(span.image, span.y, x), message, bytes);
            message += bytes;
        }
    }
}

void pack_in_process(distile_context &, const std::vector<PackedPixels> &pixels) {
    for (const PackedPixels &some : pixels) {
        for_each_piece(some,
                       [](const char *pixel, char *message, size_t bytes) { std::memcpy(message, pixel, bytes); });
    }
}

void unpack_in_process(distile_context &, const std::vector<PackedPixels> &pixels) {
    for (const PackedPixels &some : pixels) {
        for_each_piece(some,
                       [](char *pixel, const char *message, size_t bytes) { std::memcpy(pixel, message, bytes); });
    }
}

std::shared_ptr<void> host_message_memory(distile_context &, size_t bytes) {
    const auto memory = std::make_shared<std::vector<char>>(bytes);
    return {memory, memory->data()};
}

void set_cpu_masks(distile_context &, const std::vector<MaskOfPlan> &masks, const std::vector<const SpanList *> &) {
    for (const MaskOfPlan &one : masks) {
        one.mask->set_bits(one.bits->shape, reinterpret_cast<const uint32_t *>(one.bits->words.data()),
                           2 * int64_t{one.bits->words_per_row()});
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
    false,
    [](const Device &from, const Device &to) { return from.kind() == DISTILE_CPU && to.kind() == DISTILE_CPU; },
    [](distile_context &, distile_context &, bool) {},
    set_cpu_masks,
    [](distile_context &, int32_t) {},
    [](distile_context &, distile_context &, int32_t) {},
    copy_in_process,
    [](distile_context &) {},
    [](distile_context &) {},
    read_cpu_bits,
    host_message_memory,
    [](distile_context &, const std::vector<const SpanList *> &) {},
    pack_in_process,
    unpack_in_process,
    [](distile_context &) -> void * { return nullptr; },
    [](distile_context &, int32_t) {},
};

}  // namespace distile
