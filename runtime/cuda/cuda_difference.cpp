// Masks from tensors on a GPU: the pixels at which two tensors differ.
#include "runtime/base/types.h"
#include "runtime/cuda/cuda_mask.h"
#include "runtime/cuda/kernels/difference.h"

namespace distile {

namespace {

/** Whether rows can be read in vectors. A vector must not cross into the next pixel unless pixels are packed. */
bool has_vectors(const distile_tensor &tensor) {
    constexpr int32_t lanes = compared_lanes;
    const bool packed = tensor.stride_w == tensor.channels;
    return reinterpret_cast<uintptr_t>(tensor.data) % (lanes * element_bytes(tensor.dtype)) == 0 &&
           tensor.stride_h % lanes == 0 && (tensor.batch == 1 || tensor.stride_n % lanes == 0) &&
           (packed || (tensor.stride_w % lanes == 0 && tensor.channels % lanes == 0));
}

Elements elements_of(const distile_tensor &tensor) {
    return {tensor.data, tensor.stride_n, tensor.stride_h, tensor.stride_w};
}

}  // namespace

void CudaMask::set_difference(const distile_tensor &a, const distile_tensor &b, float threshold) {
    device_.check_pointer(a.data, element_bytes(a.dtype), "first tensor");
    device_.check_pointer(b.data, element_bytes(b.dtype), "second tensor");
    const int32_t words_per_row = (a.width + 31) / 32;
    const bool packed = a.stride_w == a.channels && b.stride_w == b.channels;
    const bool aligned = has_vectors(a) && has_vectors(b);
    const bool pixels = aligned && packed && a.channels <= most_channels && a.width % compared_lanes == 0;
    // With one or two channels a vector would span more than two pixels.
    const bool vectors = aligned && (packed ? a.channels > 2 : a.channels % compared_lanes == 0);
    // Enough threads that each has a few vectors.
    const int64_t loads = 32 * int64_t{a.channels} / (vectors ? compared_lanes : 1);
    uint32_t team = pixels ? 8 : 32;
    while (!pixels && team < block_threads && 16 * int64_t{team} <= loads) {
        team *= 2;
    }
    const Comparison comparison = {elements_of(a),
                                   elements_of(b),
                                   make_divisor(static_cast<uint32_t>(words_per_row)),
                                   make_divisor(static_cast<uint32_t>(a.height)),
                                   make_divisor(static_cast<uint32_t>(a.channels)),
                                   static_cast<uint32_t>(int64_t{a.batch} * a.height * words_per_row),
                                   team,
                                   a.width,
                                   threshold};
    const LibraryKernels::Compare &compare = device_.kernels->compare(a.dtype);
    CUfunction function = pixels    ? compare.pixels.at(static_cast<size_t>(a.channels) - 1)
                          : vectors ? compare.vectors
                                    : compare.elements;
    const LaunchGrid grid = grid_of(uint64_t{comparison.num_words} * team, pixels ? pixel_threads : block_threads);
    set_words({a.batch, a.height, a.width}, [&](uint32_t *words, Listing &) {
        device_.launch(function, device_.caller_stream, grid, comparison, words);
    });
}

}  // namespace distile
