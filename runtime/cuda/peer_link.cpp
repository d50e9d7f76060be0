#include "runtime/cuda/peer_link.h"
#include "runtime/base/types.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/kernels/copy_spans.h"
#include "runtime/mask/mask.h"
#include <algorithm>
#include <array>
#include <cstring>

namespace distile {

/** Spans in GPU memory. */
struct PreparedSpans {
    std::shared_ptr<const void> memory;  ///< Lists of one plan share it.
    const DeviceSpan *spans;
    const DeviceSpan *places;  ///< In a message; null for spans that are in none.
    uint32_t count;
    int32_t longest;  ///< Pixels.
};

namespace {

static_assert(sizeof(Span) == sizeof(DeviceSpan));
constexpr size_t words_of_span = sizeof(Span) / sizeof(uint64_t);

int32_t longest_of(const SpanList &list) {
    int32_t longest = 0;
    for (const Span &span : list) {
        longest = std::max(longest, span.last - span.first);
    }
    return longest;
}

void append_span(std::vector<uint64_t> &host, const Span &span) {
    std::array<uint64_t, words_of_span> words{};
    std::memcpy(words.data(), &span, sizeof(span));
    host.insert(host.end(), words.begin(), words.end());
}

/** The bytes of a tensor's element, strides and address have this in common. */
int64_t unit_of(const distile_tensor &tensor) {
    const int64_t element = element_bytes(tensor.dtype);
    int64_t bits = tensor.channels * element | reinterpret_cast<int64_t>(tensor.data);
    for (const int64_t stride : {tensor.stride_n, tensor.stride_h, tensor.stride_w}) {
        bits |= stride * element;
    }
    constexpr int64_t most = 16;
    const int64_t unit = std::min(most, bits & -bits);
    return unit == 8 ? 4 : unit;
}

PlacedPixels in_units(const PlacedTensor &placed, int64_t unit) {
    const distile_tensor &tensor = placed.tensor;
    const int64_t element = element_bytes(tensor.dtype);
    return {tensor.data,
            tensor.stride_n * element / unit,
            tensor.stride_h * element / unit,
            tensor.stride_w * element / unit,
            placed.image,
            placed.y,
            placed.x};
}

}  // namespace

PeerLink::PeerLink(CudaDevice &device) : device_(device), copies_(device) {
}

PeerLink::~PeerLink() {
    for (CUevent event : events_) {
        if (event) {
            device_.driver.cuEventDestroy(event);
        }
    }
}

void PeerLink::open(const CudaDevice &other, bool beside) {
    beside_ = beside;
    if (other.handle() == device_.handle()) {
        return;
    }
    const CUresult result = device_.driver.cuCtxEnablePeerAccess(other.handle(), 0);
    if (result != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) {
        device_.check(result, "cuCtxEnablePeerAccess");
    }
}

void PeerLink::prepare(const std::vector<MaskOfPlan> &masks, const std::vector<const SpanList *> &lists) {
    size_t num_words = 0, num_spans = 0;
    for (const MaskOfPlan &one : masks) {
        num_words += one.bits->words.size();
    }
    for (const SpanList *list : lists) {
        num_spans += list->size();
    }
    // One copy brings all: spans behind the words of the masks.
    std::vector<uint64_t> host;
    host.reserve(num_words + num_spans * words_of_span);
    for (const MaskOfPlan &one : masks) {
        host.insert(host.end(), one.bits->words.begin(), one.bits->words.end());
    }
    for (const SpanList *list : lists) {
        for (const Span &span : *list) {
            append_span(host, span);
        }
    }
    if (host.empty()) {
        return;
    }
    const std::shared_ptr<const void> memory = device_.upload(host.data(), host.size() * sizeof(uint64_t));
    in_use_.push_back(memory);
    const auto *words = static_cast<const uint64_t *>(memory.get());
    for (const MaskOfPlan &one : masks) {
        one.mask->set_bits(one.bits->shape, reinterpret_cast<const uint32_t *>(words),
                           2 * int64_t{one.bits->words_per_row()});
        words += one.bits->words.size();
    }
    const auto *spans = reinterpret_cast<const DeviceSpan *>(words);
    for (const SpanList *list : lists) {
        const auto count = static_cast<uint32_t>(list->size());
        list->prepared =
            std::make_shared<const PreparedSpans>(PreparedSpans{memory, spans, nullptr, count, longest_of(*list)});
        spans += count;
    }
}

CUstream PeerLink::copy_stream() const {
    return beside_ ? copies_.stream() : device_.caller_stream;
}

void PeerLink::publish(int32_t stage) {
    record(stage, device_.caller_stream);
}

void PeerLink::publish_messages(int32_t stage) {
    record(stage, copy_stream());
}

void PeerLink::record(int32_t stage, CUstream stream) {
    const auto place = static_cast<size_t>(stage);
    CUevent event = nullptr;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (events_.size() <= place) {
            events_.resize(place + 1);
        }
        if (!events_[place]) {
            device_.check(device_.driver.cuEventCreate(&events_[place], CU_EVENT_DISABLE_TIMING), "cuEventCreate");
        }
        event = events_[place];
    }
    device_.check(device_.driver.cuEventRecord(event, stream), "cuEventRecord");
}

CUevent PeerLink::published(int32_t stage) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto place = static_cast<size_t>(stage);
    return place < events_.size() ? events_[place] : nullptr;
}

void PeerLink::follow(const PeerLink &other, int32_t stage) const {
    if (CUevent event = other.published(stage)) {
        device_.check(device_.driver.cuStreamWaitEvent(copy_stream(), event, 0), "cuStreamWaitEvent");
    }
}

void PeerLink::copy(const std::vector<Transfer> &transfers) {
    std::vector<const SpanList *> lists;
    for (const Transfer &transfer : transfers) {
        if (transfer.spans->size() > 0 && !transfer.spans->prepared) {
            lists.push_back(transfer.spans);
        }
    }
    if (!lists.empty()) {
        prepare({}, lists);
    }
    if (beside_) {
        copies_.fork();
        copies_.begin();
    }
    std::vector<PreparedCopy> copies;
    for (const Transfer &transfer : transfers) {
        if (transfer.spans->size() > 0) {
            copies.push_back({*transfer.from, *transfer.to, transfer.spans->prepared, false, false});
        }
    }
    copy_prepared(copies);
}

void PeerLink::copy_prepared(const std::vector<PreparedCopy> &copies) {
    size_t first = 0;
    const auto unit_of_copy = [&](size_t i) {
        return std::min(unit_of(copies[i].from.tensor), unit_of(copies[i].to.tensor));
    };
    for (size_t i = 0; i < copies.size(); i++) {
        const bool ends =
            i + 1 == copies.size() || i + 1 - first == most_transfers || unit_of_copy(i + 1) != unit_of_copy(first);
        if (ends) {
            launch(&copies[first], i + 1 - first, unit_of_copy(first));
            first = i + 1;
        }
    }
}

void PeerLink::launch(const PreparedCopy *given, size_t count, int64_t unit) {
    SpanCopies copies{};
    constexpr uint32_t warp_threads = 32, most_chunks = 64;
    constexpr uint64_t chunk = uint64_t{warp_threads} * units_at_once;
    uint32_t most_spans = 0;
    uint64_t longest = 0;
    for (size_t i = 0; i < count; i++) {
        const PlacedTensor &from = given[i].from, &to = given[i].to;
        in_use_.push_back(given[i].memory);
        const auto &list = *static_cast<const PreparedSpans *>(given[i].memory.get());
        const auto units = static_cast<uint32_t>(from.tensor.channels * element_bytes(from.tensor.dtype) / unit);
        SpanCopy &copy = copies.copies[i];
        copy.from = in_units(from, unit);
        copy.to = in_units(to, unit);
        copy.from_spans = given[i].unpacks ? list.places : list.spans;
        copy.to_spans = given[i].packs ? list.places : list.spans;
        copy.count = list.count;
        copy.units = make_divisor(units);
        copy.contiguous = copy.from.stride_w == units && copy.to.stride_w == units ? 1 : 0;
        most_spans = std::max(most_spans, list.count);
        longest = std::max(longest, static_cast<uint64_t>(list.longest) * units);
    }
    LaunchGrid grid = grid_of(uint64_t{most_spans} * warp_threads);
    grid.y = static_cast<uint32_t>(std::min<uint64_t>(most_chunks, (longest + chunk - 1) / chunk));
    grid.z = static_cast<uint32_t>(count);
    device_.launch(device_.kernels->copy_spans(static_cast<int32_t>(unit)), copy_stream(), grid, copies);
}

void PeerLink::prepare_packed(const std::vector<const SpanList *> &lists) {
    std::vector<uint64_t> host;
    for (const SpanList *list : lists) {
        for (const Span &span : *list) {
            append_span(host, span);
        }
        // Places count as the pixels of a row, which have fewer than 2^31.
        int64_t place = 0;
        for (const Span &span : *list) {
            const int64_t end = place + span.last - span.first;
            if (end > INT32_MAX) {
                throw Failure{fail(&device_.context, DISTILE_ERROR_BAD_SHAPE, "a message has too many pixels")};
            }
            append_span(host, {0, 0, static_cast<int32_t>(place), static_cast<int32_t>(end)});
            place = end;
        }
    }
    if (host.empty()) {
        return;
    }
    const std::shared_ptr<const void> memory = device_.upload(host.data(), host.size() * sizeof(uint64_t));
    in_use_.push_back(memory);
    const auto *spans = static_cast<const DeviceSpan *>(memory.get());
    for (const SpanList *list : lists) {
        const auto count = static_cast<uint32_t>(list->size());
        list->prepared_packed = std::make_shared<const PreparedSpans>(
            PreparedSpans{memory, spans, spans + count, count, longest_of(*list)});
        spans += 2 * static_cast<size_t>(count);
    }
}

PeerLink::PreparedCopy PeerLink::packed(const PackedPixels &pixels, bool packs) {
    // A message is a row of pixels.
    const distile_tensor &tensor = pixels.tensor->tensor;
    PlacedTensor message{pixels.tensor->context, {}};
    message.tensor.data = pixels.message;
    message.tensor.dtype = tensor.dtype;
    message.tensor.batch = message.tensor.height = 1;
    message.tensor.channels = tensor.channels;
    message.tensor.stride_w = tensor.channels;
    return {packs ? *pixels.tensor : message, packs ? message : *pixels.tensor, pixels.spans->prepared_packed, packs,
            !packs};
}

void PeerLink::pack(const std::vector<PackedPixels> &pixels) {
    if (beside_) {
        // Messages come after this too, and what is unpacked from them.
        copies_.fork();
        copies_.begin();
    }
    std::vector<PreparedCopy> copies;
    for (const PackedPixels &some : pixels) {
        copies.push_back(packed(some, true));
    }
    copy_prepared(copies);
}

void PeerLink::unpack(const std::vector<PackedPixels> &pixels) {
    std::vector<PreparedCopy> copies;
    for (const PackedPixels &some : pixels) {
        copies.push_back(packed(some, false));
    }
    copy_prepared(copies);
}

void PeerLink::arrive() const {
    if (beside_) {
        copies_.join();
    }
}

void PeerLink::finish() {
    arrive();
    device_.check(device_.driver.cuStreamSynchronize(device_.caller_stream), "cuStreamSynchronize");
    in_use_.clear();
}

}  // namespace distile
