#include "cuda_chooser.h"
#include "cuda_device.h"
#include "device_choice.h"
#include "kernels/choose.h"
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

void CudaChooser::choose(const ChoiceTable &table, const std::vector<const uint32_t *> &counts) {
    Choice choice{};
    choice.variants = static_cast<const ChoiceVariant *>(table.memory.get());
    choice.num_variants = static_cast<int32_t>(table.variants.size());
    choice.result = result_.as<uint32_t>();
    // A mask counts at no more granularities.
    std::copy_n(counts.begin(), std::min<size_t>(counts.size(), most_counts), choice.counts);
    constexpr uint32_t warp = 32;
    LaunchGrid grid{1, 1, warp};
    grid.early = device_.kernels->masks_wait;
    device_.launch(device_.kernels->choose, device_.caller_stream, grid, choice);
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
