/** \file
 * Operator files: what an operator computes, as JSON.
 *
 *     {"distile_operator": 1, "name": "conv3x3_256", "generator": "masked_conv2d",
 *      "params": {"dtype": "float32", "in_channels": 256, "out_channels": 256, "kernel_h": 3, ...},
 *      "typical": {"batch": 1, "height": 40, "width": 40}}
 *
 * `params` are the generator's own parameters, under their own names; what is left out has the generator's
 * default. `typical` is the size of the input for which time tables are measured.
 */
#ifndef DISTILE_OPERATOR_H
#define DISTILE_OPERATOR_H

#include <distile/polykernel.h>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>

namespace distile {

/** What is wrong with a file, where, and what to do about it. */
class FileError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

struct Operator {
    std::string name, generator;
    std::map<std::string, std::string> params; /**< All that the generator has, as its command line takes them. */
    int typical_batch = 1, typical_height = 40, typical_width = 40;

    bool operator==(const Operator &other) const {
        return name == other.name && generator == other.generator && params == other.params;
    }
    distile_operator_kind kind() const;
    bool is_depthwise() const;
    /** The compile-time part as the runtime sees it. */
    distile_conv2d conv2d() const;
    /** Rows and columns of the output for those of an input; 0 if there are none. */
    int output_height(int rows) const;
    int output_width(int columns) const;
    /** The same for an input of the typical size. */
    int typical_output_height() const;
    int typical_output_width() const;
    /** One line in words, for instance "3x3 convolution, 256 -> 256 channels, relu". */
    std::string summary() const;
};

/** `where` names the place in messages, for instance the file. Throws FileError. */
Operator parse_operator(const nlohmann::json &json, const std::string &where);
nlohmann::json to_json(const Operator &op);
Operator read_operator(const std::string &path);

/** Reads a JSON file whose comments are allowed. Throws FileError. */
nlohmann::json read_json(const std::string &path);
/** The same of a text, which messages call `where`. */
nlohmann::json parse_json(const std::string &text, const std::string &where);
/** JSON for people: what fits a line stands on one. */
std::string format_json(const nlohmann::json &json);
/** Writes a file through a temporary one beside it, so that a kill leaves the old or the new one whole. */
void write_file(const std::string &path, const std::string &text);

}  // namespace distile

#endif
