/** \file
 * The PolyKernels that operators can run: those linked into this library, and those of shared objects.
 */
#ifndef DISTILE_BINDINGS_REGISTRY_H
#define DISTILE_BINDINGS_REGISTRY_H

#include <array>
#include <distile/polykernel.h>
#include <functional>
#include <optional>
#include <string>

namespace distile::bindings {

/** The types of an operator: of its input and its output, which differ in quantized operators only, and of its packed
 * weights, which quantized operators leave at float32. */
struct OperatorTypes {
    OperatorTypes(distile_dtype both) : input(both), output(both) {  // NOLINT(google-explicit-constructor)
    }
    OperatorTypes(distile_dtype input, distile_dtype output) : input(input), output(output) {
    }
    distile_dtype input, output, weights = DISTILE_FLOAT32;
};

/** An operator with all that its PolyKernel fixes: device, kind, types, parameters. */
struct OperatorKey {
    OperatorKey(distile_device device, OperatorTypes types, distile_operator_kind kind, const distile_conv2d &conv);
    OperatorKey(distile_device device, OperatorTypes types, const distile_linear &linear);
    OperatorKey(distile_device device, OperatorTypes types, const distile_attention &attention);

    /** By parameters that are the kind's struct in memory; nothing for an unknown kind. */
    static std::optional<OperatorKey> of(distile_device device, OperatorTypes types, int32_t kind,
                                         const void *parameters);

    bool operator==(const OperatorKey &other) const {
        return numbers == other.numbers;
    }
    std::array<int32_t, 20> numbers{};

    /** The operator with weights of float32, which hold those of every other type. */
    OperatorKey with_wide_weights() const;

private:
    OperatorKey(distile_device device, OperatorTypes types, int32_t kind, const void *parameters, size_t bytes);
};

/** Whether a PolyKernel, or one behind it, has code that multiplies with the nonzero weights alone. */
bool skips_zeros(const distile_polykernel &polykernel);

/** The calls that a PolyKernel computes. */
enum class Serves : int32_t {
    all_calls,
    few_tokens, /**< It reads a bitmap of the weights (facts/zeros.h). */
    two_of_four /**< At most two of four consecutive input channels have weights that are not 0. */
};
Serves serves(const distile_polykernel &polykernel);

/** Whether a call has so few tokens, in all images, that a bitmap of the weights may be faster (facts/zeros.h). */
bool are_few(std::optional<int64_t> tokens);

/** Whether the weights of a call have at most two of four that are not 0. Asked only where that decides. */
using KeepsTwoOfFour = std::function<bool()>;

/** The PolyKernel of an operator, or of the one with weights of float32; null if there is neither. Calls of few tokens
 * take one for few tokens, if there is one, and those of more tokens take no such. Where nothing is known of the
 * tokens, any will do that takes all weights. Calls whose weights keep two of four take one for these. */
const distile_polykernel *find_polykernel(const OperatorKey &key, std::optional<int64_t> tokens = {},
                                          const KeepsTwoOfFour &keeps_two_of_four = nullptr);

/** The PolyKernel of an operator that the library has code for whatever its shape (distile/general.h), or of the one
 * with weights of float32; null if there is neither. */
const distile_polykernel *general_polykernel(const OperatorKey &key);

/** Adds a PolyKernel that the program links. It replaces one of the same operator, but none that skips
 * zeros by one that does not. Those that do not serve all calls stand beside others. */
void add_polykernel(const distile_polykernel &polykernel);

/** Loads a shared object that holds a PolyKernel by the name `distile_built`. It stays loaded as long as the process
 * runs. */
void load_polykernel(const std::string &path);

/** Where distile.build() of the Python package puts PolyKernels for this machine: $DISTILE_CACHE, or in the user's
 * cache. Code found there is run. Empty if there is no such folder. */
std::string cache_folder();

/** Loads the shared objects in that folder that were not loaded before. */
void load_cached_polykernels();

}  // namespace distile::bindings

#endif
