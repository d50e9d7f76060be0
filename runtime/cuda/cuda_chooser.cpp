#include "runtime/cuda/cuda_chooser.h"
#include "kernels/call.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/dispatch/device_choice.h"
#include <algorithm>
#include <array>

namespace distile {

CudaChooser::CudaChooser(CudaDevice &device, int32_t num_variants)
    : device_(device), num_variants_(num_variants), result_(device) {
    const uint64_t bytes = (first_count_word + static_cast<uint64_t>(num_variants)) * sizeof(uint32_t);
    result_.reserve(bytes);
    // No variant has the index that these words are.
    device.check(device.driver.cuMemsetD8Async(result_.address(), 0xff, bytes, device.caller_stream),
                 "cuMemsetD8Async");
}

const distile_gpu_choice &CudaChooser::describe(const ChoiceTable &table) {
    choice_.variants = static_cast<const ChoiceVariant *>(table.memory.get());
    choice_.table_bytes = table.bytes;
    choice_.num_variants = static_cast<int32_t>(table.variants.size());
    choice_.result = result_.as<uint32_t>();
    choice_.num_ranges = 0;
    if (table.ranges.size() <= most_ranges) {
        choice_.num_ranges = static_cast<int32_t>(table.ranges.size());
        std::copy(table.ranges.begin(), table.ranges.end(), choice_.ranges);
    }
    // A mask counts at no more granularities.
    choice_.num_counts = static_cast<int32_t>(std::min<size_t>(table.counts.size(), most_counts));
    std::copy_n(table.counts.begin(), choice_.num_counts, choice_.counts);
    return choice_;
}

void CudaChooser::choose(const ChoiceTable &table) {
    constexpr uint32_t warp = 32;
    LaunchGrid grid{1, 1, warp};
    grid.early = device_.kernels->masks_wait;
    device_.launch(device_.kernels->choose, device_.caller_stream, grid, describe(table));
}

const uint32_t *CudaChooser::tile_count(int32_t variant) const {
    return result_.as<const uint32_t>() + first_count_word + variant;
}

CudaChooser::Chosen CudaChooser::last() const {
    std::array<uint32_t, first_count_word> words{};
    device_.check(
        device_.driver.cuMemcpyDtoHAsync(words.data(), result_.address(), sizeof(words), device_.caller_stream),
        "cuMemcpyDtoHAsync");
    device_.check(device_.driver.cuStreamSynchronize(device_.caller_stream), "cuStreamSynchronize");
    const bool any = words[chosen_word] < static_cast<uint32_t>(num_variants_);
    return {any ? static_cast<int32_t>(words[chosen_word]) : -1, words[tiles_word]};
}

}  // namespace distile
