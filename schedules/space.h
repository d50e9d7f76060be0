/** \file
 * A backend's schedule space, declared once: the knobs, their values, the constraints that make a combination legal,
 * and a description in words. A theta is one point in it.
 */
#ifndef DISTILE_SCHEDULES_SPACE_H
#define DISTILE_SCHEDULES_SPACE_H

#include "runtime/kinds/group_blocks.h"
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace distile {

inline int round_up(int value, int multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

/** One point in a space: the value of every knob by name. */
using Theta = std::map<std::string, int>;

/** What an operator computes of tokens and keys. */
enum class TokenProduct { None, Attention, Scores, Values };

/** The facts about an operator that schedules depend on. With phases, the extents are those of the phase with the most
 * taps. */
struct OperatorFacts {
    /** The input channels of one group, which one output channel reads, and the output channels of all groups. */
    int in_channels = 0, out_channels = 0;
    int groups = 1;
    bool depthwise = false; /**< Every output channel reads only the input channel with its own index. */
    TokenProduct product = TokenProduct::None;
    int heads = 0, head_dim = 0; /**< The heads of a product of tokens, and their channels. */
    int kernel_h = 1, kernel_w = 1;
    int stride_h = 1, stride_w = 1, dilation_h = 1, dilation_w = 1;
    int scale_h = 1, scale_w = 1; /**< Output pixels per virtual pixel, each in its own phase. */
    int channel_block = 1;        /**< Output channels per block of the canonical weight layout. */
    int bytes_per_element = 4;    /**< Activations; all sums are float32. */
    int bytes_per_input = 4;      /**< The input as the code reads it. */
    int bytes_per_weight = 4;     /**< Packed weights. */
    double nonzeros = 1;          /**< The share of the weights that are not 0. */

    int phases() const {
        return scale_h * scale_w;
    }
};

/** How a convolution's groups lie in the blocks of its weights. */
inline GroupBlocks group_blocks(const OperatorFacts &op, GroupReaders readers) {
    return {op.groups, op.in_channels, op.out_channels / op.groups, op.channel_block, readers};
}

inline bool pads_groups(const OperatorFacts &op, GroupReaders readers) {
    return !op.depthwise && group_blocks(op, readers).form() == GroupForm::Padded;
}

/** The tensor cores that there are templates for: those of compute capability 8.0, which later GPUs have too, and those
 * that only 9.0 has. */
enum class TensorCores { Sm80, Sm90 };

/** The instructions for which there is code of dot products: those of CPUs, and NVIDIA's dp4a. */
enum class DotProducts {
    Avx512Bf16,
    AmxBf16,
    AmxFp16,
    AmxSplitFp16, /**< float16 by AMX-BF16. */
    Avx512Vnni,
    AmxInt8,
    AvxVnni,
    Avx2Int8,
    PortableInt8,
    Dp4a
};

/** The facts that constraints need: the operator, and the limits of its target. */
struct Problem : OperatorFacts {
    int vector_lanes = 1;     /**< float32 lanes of a vector register or a vector load. */
    int vector_registers = 0; /**< A CPU's vector registers. */
    /** The tensor cores, or the instructions for dot products, that the code uses. Without both, Halide makes it,
     * unless it skips zeros. */
    std::optional<TensorCores> tensor_cores = std::nullopt;
    std::optional<DotProducts> dot_products = std::nullopt;
    bool skips_zeros = false;  /**< The code multiplies with the nonzero weights alone. */
    bool reads_bitmap = false; /**< The code reads a bitmap of the weights on a GPU. */
    /** The code multiplies weights of the pattern 2:4 by such tensor cores. */
    std::optional<TensorCores> sparse_cores = std::nullopt;
    int nonzero_channels = 1;                    /**< Input channels that one of these multiplies. */
    int nonzero_instructions = 1;                /**< Instructions by which it multiplies a vector of pixels. */
    int most_threads = 0, most_shared_bytes = 0; /**< The limits of a GPU's block. */
};

struct Knob {
    std::string name;
    std::string meaning;
    /** The values that a search tries. A plan may use any other positive value, and 0 if it is listed here. */
    std::vector<int> values;
};

struct Constraint {
    std::string meaning; /**< Completes the sentence "a schedule must have ...". */
    std::function<bool(const Theta &, const Problem &)> holds;
    std::vector<std::string> knobs; /**< The knobs that `holds` reads, so that a search varies no others; empty: all. */
};

struct Space {
    std::vector<Knob> knobs;
    std::vector<Constraint> constraints;
    /** A theta in words. Knobs that it lacks count as 0. */
    std::string (*describe)(const Theta &theta);
    /** Among thetas that give the same code, a search takes the one that satisfies these. A plan may have any. */
    std::vector<Constraint> distinct;

    /** "" if the theta has exactly the knobs of this space and satisfies every constraint; otherwise a sentence about
     * what is wrong. */
    std::string why_illegal(const Theta &theta, const Problem &problem) const;
    /** The names of all knobs, for messages. */
    std::string known_knobs() const;
};

/** For code that exists for the listed values of a knob only. */
Constraint one_of(const Knob &knob);

// For descriptions.

/** The value of a knob; 0 if the theta lacks it. */
int value_of(const Theta &theta, const char *knob);
/** The values of two knobs, for instance "2 x 3". */
std::string extents_of(const Theta &theta, const char *first, const char *second);
/** The value of a knob and what it counts, for instance "1 task" or "2 tasks". */
std::string count_of(const Theta &theta, const char *knob, const std::string &noun);

}  // namespace distile

#endif
