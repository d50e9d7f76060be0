/** \file
 * Operator files: what an operator computes, as JSON.
 *
 *     {"distile_operator": 1, "name": "conv3x3_256", "generator": "masked_conv2d",
 *      "params": {"dtype": "float32", "in_channels": 256, "out_channels": 256, "kernel_h": 3, ...},
 *      "typical": {"batch": 1, "height": 40, "width": 40}}
 *
 * `params` are the generator's own parameters, under their own names; what is left out has the generator's
 * default. `typical` is the size of the input for which time tables are measured. What differs between the kinds of
 * operators stands in operator_schema.h.
 */
#ifndef DISTILE_OPERATOR_H
#define DISTILE_OPERATOR_H

#include "plans/data_type.h"
#include "plans/json_file.h"
#include <cstdint>
#include <distile/polykernel.h>
#include <map>
#include <string>
#include <vector>

namespace distile {

struct OperatorSchema;

/** Which weights of an operator may differ from 0, whatever they are. */
enum class WeightPattern {
    None,   /**< All. */
    TwoFour /**< At most two of four consecutive input channels, of each output channel and kernel position. */
};

/** Rows and columns of an image. Tokens are the columns of one row. */
struct Extents {
    int height, width;
};

/** An operand as a descriptor has it. */
struct Operand {
    const char *role; /**< In C, a distile_role. */
    const DataType *type;
    int channels; /**< 0: as many as there are keys. */
};

struct Operator {
    std::string name, generator;
    std::map<std::string, std::string> params; /**< All of the generator's, as its command line takes them. */
    int typical_batch = 1, typical_height = 40, typical_width = 40;
    double typical_zeros = 0; /**< The share of its weights that are 0, or of the quads of a quantized one. */
    /** Code for it refuses other weights. It leaves at least half of them 0. */
    WeightPattern typical_pattern = WeightPattern::None;
    int typical_keys = 0; /**< Tokens of a key or a value; 0 for operators that read neither. */

    bool operator==(const Operator &other) const {
        return name == other.name && generator == other.generator && params == other.params;
    }
    /** Its kind. Throws FileError where the generator is not known. */
    const OperatorSchema &schema() const;
    /** The value of an integer parameter of the kind. */
    int param(const char *param_name) const;
    /** The type of the activations. */
    const DataType &dtype() const;
    /** The type of the output and the residual; that of the input unless the operator is quantized. */
    const DataType &output_dtype() const;
    /** The type of packed weights, unless the code that reads them wants another. */
    const DataType &weights_dtype() const;
    bool is_quantized() const {
        return dtype().is_quantized();
    }
    bool has_residual() const;
    /** Whether a parameter that is true or false is true. */
    bool is_set(const char *flag) const;
    /** Whether it reads a key or a value. */
    bool reads_keys() const;
    /** Whether it has an operand of this role, in C. */
    bool reads(const std::string &role) const;
    /** The channels of a key or a value. */
    int token_channels() const;
    /** The factor of the scores unless a call gives one; 0 without scores. */
    float usual_scale() const;
    /** In C, a distile_activation. */
    const char *epilogue() const;
    distile_activation epilogue_value() const;
    /** With as many keys as typical. */
    int in_channels() const;
    int out_channels() const;
    /** The input first and the output last. */
    std::vector<Operand> operands() const;
    /** The size of the output for an input; 0 rows or columns if there are none. */
    Extents output_of(const Extents &input) const;
    Extents typical_output() const {
        return output_of({typical_height, typical_width});
    }
    /** The zero border with which all of the input is read in place. */
    distile_border border() const;
    /** The number of elements of its filter; 0 without one. */
    int64_t filter_elements() const;
    /** One line in words, for instance "3x3 convolution, 256 -> 256 channels, ..., epilogue relu". */
    std::string summary() const;
    /** The rows and columns of masks for an output. */
    Extents mask_of(const Extents &output) const;
    Extents typical_mask() const {
        return mask_of(typical_output());
    }
    /** The typical input in words, for instance "1 x 40 x 40". */
    std::string typical_input() const;
};

/** `where` names the place in messages, for instance the file. Throws FileError. */
Operator parse_operator(const nlohmann::json &json, const std::string &where);
nlohmann::json to_json(const Operator &op);
Operator read_operator(const std::string &path);

}  // namespace distile

#endif
