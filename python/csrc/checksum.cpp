#include "python/csrc/checksum.h"
#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

namespace distile::python {

namespace {

constexpr size_t words_per_block = 128, block_bytes = words_per_block * sizeof(uint64_t);
/** A task's bytes: enough to be worth waking a thread, and a whole number of blocks. */
constexpr size_t task_bytes = 256 * block_bytes;

uint64_t scrambled(uint64_t number) {
    number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9U;
    number = (number ^ (number >> 27)) * 0x94d049bb133111ebU;
    return number ^ (number >> 31);
}

std::array<uint64_t, words_per_block> make_keys() {
    std::array<uint64_t, words_per_block> keys{};
    for (size_t i = 0; i < keys.size(); i++) {
        keys[i] = scrambled((i + 1) * 0x9e3779b97f4a7c15U);
    }
    return keys;
}

#if defined(__x86_64__)
#define DISTILE_FOR_WIDE_VECTORS __attribute__((target_clones("default", "avx2")))
#else
#define DISTILE_FOR_WIDE_VECTORS
#endif

/** The products of the halves of each word and its key, as in XXH3, and the words, so that none is lost where the other
 * half is 0. Compilers make vectors of this loop. */
DISTILE_FOR_WIDE_VECTORS
uint64_t hash_block(const std::byte *bytes, const uint64_t *keys) {
    uint64_t sum = 0;
    for (size_t i = 0; i < words_per_block; i++) {
        uint64_t word = 0;
        std::memcpy(&word, bytes + i * sizeof(word), sizeof(word));
        const uint64_t mixed = word ^ keys[i];
        sum += (mixed & UINT32_MAX) * (mixed >> 32) + word;
    }
    return sum;
}

uint64_t hash_bytes(const std::byte *bytes, size_t count) {
    static const std::array<uint64_t, words_per_block> keys = make_keys();
    uint64_t hash = count;
    for (; count >= block_bytes; bytes += block_bytes, count -= block_bytes) {
        hash = scrambled(hash ^ hash_block(bytes, keys.data()));
    }
    if (count > 0) {
        std::array<std::byte, block_bytes> rest{};
        std::memcpy(rest.data(), bytes, count);
        hash = scrambled(hash ^ hash_block(rest.data(), keys.data()));
    }
    return hash;
}

/** The bytes of a tensor whose elements fill its memory in some order; null for others. */
const std::byte *whole_memory(const Tensor &tensor) {
    const auto sizes = tensor.sizes(), strides = tensor.strides();
    std::vector<size_t> order(sizes.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return strides[a] < strides[b]; });
    int64_t expected = 1;
    for (const size_t dimension : order) {
        if (sizes[dimension] != 1 && strides[dimension] != expected) {
            return nullptr;
        }
        expected *= sizes[dimension];
    }
    return static_cast<const std::byte *>(tensor.const_data_ptr());
}

}  // namespace

uint64_t checksum(const Tensor &tensor) {
    const std::byte *bytes = whole_memory(tensor);
    const Tensor copy = bytes ? tensor : torch::stable::contiguous(tensor);
    bytes = bytes ? bytes : static_cast<const std::byte *>(copy.const_data_ptr());
    const size_t count = static_cast<size_t>(copy.numel()) * copy.element_size();
    if (count <= task_bytes) {
        return hash_bytes(bytes, count);
    }
    std::vector<uint64_t> hashes((count + task_bytes - 1) / task_bytes);
    torch::stable::parallel_for(0, static_cast<int64_t>(hashes.size()), 1, [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; task++) {
            const size_t first = static_cast<size_t>(task) * task_bytes;
            hashes[static_cast<size_t>(task)] = hash_bytes(bytes + first, std::min(task_bytes, count - first));
        }
    });
    return hash_bytes(reinterpret_cast<const std::byte *>(hashes.data()), hashes.size() * sizeof(uint64_t));
}

}  // namespace distile::python
