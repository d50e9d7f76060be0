/** \file
 * What the runtime and the tools know of each kind of operator: its geometry, and how its weights are packed. A further
 * kind is one file that defines its OperatorKind, and one row in operator_kind.cpp. Nothing here knows contexts or
 * devices.
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
    std::vector<float> values; /**< Stored in the operand's type. */
};

/** A source of weights with a filter in float32. */
struct FilterSource {
    const distile_weights_source &source;
    const float *filter; /**< Null: packed arrays get their extents, but no values. */
};

/** What a source of weights has wrong. */
class SourceError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/** `op` is the kind's struct everywhere. */
struct OperatorKind {
    distile_operator_kind kind;
    const char *name;
    /** "", or what is wrong with an operator. */
    std::string (*why_illegal)(const void *op);
    /** The output's size for an input's; 0 where there is no pixel. */
    ImageSize (*output_size)(const void *op, const ImageSize &input);
    /** The zero border with which all of the input is read in place. */
    distile_border (*border)(const void *op);
    /** How output pixels relate to input pixels. */
    distile_window (*window)(const void *op);
    /** The output pixels whose reads all lie among the pixels `readable` of the input, which may be negative in a
     * border. May be empty, or reach beyond the output. */
    PixelRect (*interior)(const void *op, const PixelRect &readable);
    /** Says which weights fit: those of operators with the same text. */
    std::string (*weights_shape)(const void *op);
    /** Packs a source, with output channels in blocks. Throws SourceError. */
    std::vector<PackedArray> (*pack)(const void *op, const FilterSource &source, int32_t block);
    /** The elements of a source's filter. */
    int64_t (*filter_elements)(const void *op);
};

/** Null for a kind that is not known. */
const OperatorKind *find_operator_kind(int32_t kind);

extern const OperatorKind conv2d_kind, conv_transpose2d_kind, upsample_conv2d_kind, linear_kind;

/** The output channels in a block of a weight layout, for instance 16 of "cpu-o16"; 0 for a name that is none. */
int32_t channel_block_of(const char *layout);

/** The operand of a role; null if there is none. */
const distile_operand *find_operand(const distile_polykernel &polykernel, distile_role role);

}  // namespace distile

#endif
