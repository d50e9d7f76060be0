#include "runtime/cuda/peer_link.h"
#include "runtime/base/types.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/kernels/copy_spans.h"
#include "runtime/mask/mask.h"
#include <algorithm>
#include <array>
#include <cstring>

namespace distile {

namespace {

static_assert(sizeof(Span) == sizeof(DeviceSpan));
constexpr size_t words_of_span = sizeof(Span) / sizeof(uint64_t);

/** Spans in GPU memory. */
struct PreparedSpans {
    std::shared_ptr<const void> memory;  ///< Lists of one plan share it.
    const DeviceSpan *spans;
    uint32_t count;
    int32_t longest;  ///< Pixels.
};

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
            std::array<uint64_t, words_of_span> words{};
            std::memcpy(words.data(), &span, sizeof(span));
            host.insert(host.end(), words.begin(), words.end());
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
        int32_t longest = 0;
        for (const Span &span : *list) {
            longest = std::max(longest, span.last - span.first);
        }
        list->prepared = std::make_shared<const PreparedSpans>(PreparedSpans{memory, spans, count, longest});
        spans += count;
    }
}

CUstream PeerLink::copy_stream() const {
    return beside_ ? copies_.stream() : device_.caller_stream;
}

void PeerLink::publish(int32_t stage) {
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
    device_.check(device_.driver.cuEventRecord(event, device_.caller_stream), "cuEventRecord");
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
    std::vector<Transfer> some;
    int64_t unit = 1;
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
    const auto flush = [&] {
        if (!some.empty()) {
            launch(some.data(), some.size(), unit);
            some.clear();
        }
    };
    for (const Transfer &transfer : transfers) {
        if (transfer.spans->size() == 0) {
            continue;
        }
        const int64_t own = std::min(unit_of(transfer.from->tensor), unit_of(transfer.to->tensor));
        if (own != unit || some.size() == most_transfers) {
            flush();
        }
        unit = own;
        some.push_back(transfer);
    }
    flush();
}

void PeerLink::launch(const Transfer *transfers, size_t count, int64_t unit) {
    SpanCopies copies{};
    constexpr uint32_t warp_threads = 32, most_chunks = 64;
    constexpr uint64_t chunk = uint64_t{warp_threads} * units_at_once;
    uint32_t most_spans = 0;
    uint64_t longest = 0;
    for (size_t i = 0; i < count; i++) {
        const PlacedTensor &from = *transfers[i].from, &to = *transfers[i].to;
        in_use_.push_back(transfers[i].spans->prepared);
        const auto &list = *static_cast<const PreparedSpans *>(transfers[i].spans->prepared.get());
        const auto units = static_cast<uint32_t>(from.tensor.channels * element_bytes(from.tensor.dtype) / unit);
        SpanCopy &copy = copies.copies[i];
        copy.from = in_units(from, unit);
        copy.to = in_units(to, unit);
        copy.spans = list.spans;
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
