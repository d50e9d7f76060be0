// Copies between NVIDIA GPUs of a process, by kernels that read and write another GPU's memory, and between a GPU and
// messages for other ranks.
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_mask.h"
#include "runtime/cuda/peer_link.h"

namespace distile {

namespace {

CudaDevice &device_of(distile_context &context) {
    return static_cast<CudaDevice &>(*context.device);
}

/** Calls a function of a context's link on its GPU. */
template<typename Use> void use_link(distile_context &context, const Use &use) {
    CudaDevice &device = device_of(context);
    const CurrentDevice current(device);
    use(*device.link);
}

bool serves(const Device &from, const Device &to) {
    if (from.kind() != DISTILE_CUDA || to.kind() != DISTILE_CUDA) {
        return false;
    }
    const auto &source = static_cast<const CudaDevice &>(from), &target = static_cast<const CudaDevice &>(to);
    if (source.handle() == target.handle()) {
        return true;
    }
    int can = 0;
    target.check(target.driver.cuDeviceCanAccessPeer(&can, target.number(), source.number()), "cuDeviceCanAccessPeer");
    return can != 0;
}

void connect(distile_context &from, distile_context &to, bool beside) {
    CudaDevice &device = device_of(to);
    const CurrentDevice current(device);
    if (!device.link) {
        device.link = std::make_unique<PeerLink>(device);
    }
    device.link->open(device_of(from), beside);
}

void read_bits(distile_mask &mask, BitImage &bits) {
    auto &given = static_cast<CudaMask &>(mask);
    CudaDevice &device = device_of(mask.context);
    const CurrentDevice current(device);
    bits = BitImage(mask.shape);
    const DeviceBits &words = given.device_bits();
    const auto row_words = static_cast<size_t>(words.words_per_row);
    std::vector<uint32_t> read(given.num_words());
    device.check(device.driver.cuMemcpyDtoHAsync(read.data(), reinterpret_cast<CUdeviceptr>(words.words),
                                                 read.size() * sizeof(uint32_t), device.caller_stream),
                 "cuMemcpyDtoHAsync");
    device.check(device.driver.cuStreamSynchronize(device.caller_stream), "cuStreamSynchronize");
    for (int32_t n = 0; n < mask.shape.batch; n++) {
        for (int32_t y = 0; y < mask.shape.height; y++) {
            const uint32_t *const from = &read[(static_cast<size_t>(n) * mask.shape.height + y) * row_words];
            uint64_t *const row = bits.row(n, y);
            for (size_t i = 0; i < row_words; i++) {
                row[i / 2] |= uint64_t{from[i]} << (i % 2 * 32);
            }
        }
    }
}

const Exchange peer_exchange = {
    // Kernels copy, and those that multiply fill a GPU.
    false,
    serves,
    connect,
    [](distile_context &of, const std::vector<MaskOfPlan> &masks, const std::vector<const SpanList *> &lists) {
        use_link(of, [&](PeerLink &link) { link.prepare(masks, lists); });
    },
    [](distile_context &from, int32_t stage) { use_link(from, [&](PeerLink &link) { link.publish(stage); }); },
    [](distile_context &to, distile_context &from, int32_t stage) {
        use_link(to, [&](PeerLink &link) { link.follow(*device_of(from).link, stage); });
    },
    [](distile_context &by, const std::vector<Transfer> &transfers) {
        use_link(by, [&](PeerLink &link) { link.copy(transfers); });
    },
    [](distile_context &to) { use_link(to, [](PeerLink &link) { link.arrive(); }); },
    [](distile_context &context) { use_link(context, [](PeerLink &link) { link.finish(); }); },
    read_bits,
    [](distile_context &of, size_t bytes) {
        CudaDevice &device = device_of(of);
        const CurrentDevice current(device);
        return device.allocate(bytes);
    },
    [](distile_context &of, const std::vector<const SpanList *> &lists) {
        use_link(of, [&](PeerLink &link) { link.prepare_packed(lists); });
    },
    [](distile_context &by, const std::vector<PackedPixels> &pixels) {
        use_link(by, [&](PeerLink &link) { link.pack(pixels); });
    },
    [](distile_context &by, const std::vector<PackedPixels> &pixels) {
        use_link(by, [&](PeerLink &link) { link.unpack(pixels); });
    },
    [](distile_context &of) -> void * { return device_of(of).link->copy_stream(); },
    [](distile_context &from, int32_t stage) { use_link(from, [&](PeerLink &link) { link.publish_messages(stage); }); },
};

}  // namespace

const Exchange *CudaDevice::exchange() const {
    return &peer_exchange;
}

}  // namespace distile
