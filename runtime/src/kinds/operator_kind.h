/** \file
 * What the runtime and the tools know about each kind of operator: its geometry and its weight packing. To add a kind,
 * add a file that defines its OperatorKind and a row in operator_kind.cpp. Nothing here knows contexts or devices.
 */
#ifndef DISTILE_OPERATOR_KIND_H
#define DISTILE_OPERATOR_KIND_H

#include <distile/mask_algebra.h>
#include <distile/polykernel.h>
#include <stdexcept>
#include <string>
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

/** An array of packed weights, innermost dimension first. */
struct PackedArray {
    distile_role role;
    std::vector<int32_t> extents;
    std::vector<float> values; /**< To be stored in the operand's type. */
};

/** A source of weights with its filter in float32. */
struct FilterSource {
    const distile_weights_source &source;
    const float *filter; /**< Null: packed arrays get extents but no values. */
};

/** An invalid source of weights. */
class SourceError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/** `op` always points to the kind's struct. */
struct OperatorKind {
    distile_operator_kind kind;
    const char *name;
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
    /** Describes the weights; operators with equal descriptions can share weights. */
    std::string (*weights_shape)(const void *op);
    /** Packs a source in blocks of output channels. Throws SourceError. */
    std::vector<PackedArray> (*pack)(const void *op, const FilterSource &source, int32_t block);
    /** The number of elements in a source's filter. */
    int64_t (*filter_elements)(const void *op);
};

/** Null for an unknown kind. */
const OperatorKind *find_operator_kind(int32_t kind);

extern const OperatorKind conv2d_kind, conv_transpose2d_kind, upsample_conv2d_kind, linear_kind;

/** Output channels per block of a weight layout, for instance 16 for "cpu-o16"; 0 for an unknown layout. */
int32_t channel_block_of(const char *layout);

/** The operand with this role; null if there is none. */
const distile_operand *find_operand(const distile_polykernel &polykernel, distile_role role);

}  // namespace distile

#endif
