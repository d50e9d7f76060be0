/** \file
 * What the runtime and the tools know about each kind of operator: its geometry and its weight packing. To add a kind,
 * add a row in facts/kinds.h and a file that defines its OperatorKind. Nothing here knows contexts or devices.
 */
#ifndef DISTILE_OPERATOR_KIND_H
#define DISTILE_OPERATOR_KIND_H

#include "facts/kinds.h"
#include "runtime/kinds/weight_layout.h"
#include <distile/mask_algebra.h>
#include <distile/polykernel.h>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace distile {

struct ImageSize {
    int64_t height, width;
};

/** Pixels [first, last). */
struct PixelRange {
    int64_t first, last;
};

struct PixelRect {
    PixelRange rows, columns;
};

/** An allocator whose vectors leave new elements as they are, so that whoever writes them is the first to touch their
 * memory. */
template<typename T> struct UnsetAllocator : std::allocator<T> {
    template<typename Other> struct rebind { using other = UnsetAllocator<Other>; };
    template<typename Other> void construct(Other *element) {
        ::new (static_cast<void *>(element)) Other;
    }
    template<typename Other, typename... Args> void construct(Other *element, Args &&...args) {
        ::new (static_cast<void *>(element)) Other(std::forward<Args>(args)...);
    }
};

/** Values that resize() leaves unset. */
using PackedValues = std::vector<float, UnsetAllocator<float>>;

/** An array of packed weights, innermost dimension first. */
struct PackedArray {
    distile_role role;
    std::vector<int32_t> extents;
    PackedValues values; /**< To be stored in stored_type(). */
};

/** Runs task(i) for every i in [0, count) on several threads, in any order. Tasks throw nothing. Empty: there are no
 * threads but the caller's. */
using TaskLoop = std::function<void(int32_t count, const std::function<void(int32_t)> &task)>;

inline void run_tasks(const TaskLoop &loop, int32_t count, const std::function<void(int32_t)> &task) {
    if (loop && count > 1) {
        loop(count, task);
    } else {
        for (int32_t i = 0; i < count; i++) {
            task(i);
        }
    }
}

/** What the packing of weights depends on in a quantized operator. */
struct QuantizedOperator {
    distile_dtype input, output;
    /** Sums become results in units of the output's scale, because its epilogue is the same in all units. */
    bool in_output_units;
};

/** A source of weights with its filter in float32. */
struct FilterSource {
    const distile_weights_source &source;
    const float *filter;                          /**< Null: packed arrays get extents but no values. */
    const QuantizedOperator *quantized = nullptr; /**< Null: the operator is none. */
    distile_dtype input = DISTILE_FLOAT32;        /**< The type of the operator's input. */
    TaskLoop loop = nullptr;                      /**< The threads that pack. */
};

/** An invalid source of weights. */
class SourceError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/** The weights of a kind of operator. */
struct WeightPacking {
    /** Describes the weights; operators with equal descriptions can share weights. */
    std::string (*shape)(const void *op);
    /** Whether the weights can be packed in an order. */
    bool (*packs)(const void *op, WeightOrder order);
    /** Packs a source in a layout of such an order. Throws SourceError. */
    std::vector<PackedArray> (*pack)(const void *op, const FilterSource &source, const WeightLayout &layout);
    /** The number of elements in a source's filter. */
    int64_t (*filter_elements)(const void *op);
    distile_activation (*epilogue)(const void *op);
};

/** A kind of operator that reads a key, a value or both. Its mask has one row of tokens. */
struct TokenRows {
    /** The heights of the input and the output: 1 for tokens, the number of heads for scores. */
    int32_t (*input)(const void *op);
    int32_t (*output)(const void *op);
    /** The factor of the scores unless a call gives one; 0 without scores. */
    float (*scale)(const void *op);
};

/** `op` always points to the kind's struct. */
struct OperatorKind {
    distile_operator_kind kind;
    /** What is wrong with an operator; "" if nothing. */
    std::string (*why_illegal)(const void *op);
    /** The output's size for an input size; 0 if the output is empty. */
    ImageSize (*output_size)(const void *op, const ImageSize &input);
    /** The zero border that lets kernels read the whole input in place. */
    distile_border (*border)(const void *op);
    /** How output pixels relate to input pixels. */
    distile_window (*window)(const void *op);
    /** The output pixels that read only the input pixels `readable`, whose coordinates are negative in a border. May be
     * empty or reach beyond the output. */
    PixelRect (*interior)(const void *op, const PixelRect &readable);
    const WeightPacking *weights; /**< Null: its operators have none. */
    const TokenRows *tokens;      /**< Null: its operators read neither key nor value. */
    /** What DISTILE_MATH_DEFAULT means: DISTILE_MATH_FLOAT32 or DISTILE_MATH_TF32. */
    distile_math default_math;
};

/** Null for an unknown kind. */
const OperatorKind *find_operator_kind(int32_t kind);

#define DISTILE_ROW(number, NAME, name, parameters) extern const OperatorKind name##_kind;
DISTILE_OPERATOR_KINDS(DISTILE_ROW)
#undef DISTILE_ROW

/** The operand with this role; null if there is none. */
const distile_operand *find_operand(const distile_polykernel &polykernel, distile_role role);

}  // namespace distile

#endif
