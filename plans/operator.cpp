#include "plans/operator.h"
#include "facts/activation_names.h"
#include "plans/operator_schema.h"
#include "plans/refuse.h"
#include "runtime/base/known_names.h"
#include "runtime/kinds/operator_kind.h"
#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace distile {

namespace {

using nlohmann::json;

/** What C calls the activations, by their numbers. */
constexpr const char *activation_enumerators[] = {
#define ROW(number, name, NAME, value, gradient) "DISTILE_ACTIVATION_" #NAME,
    DISTILE_ACTIVATIONS(ROW)
#undef ROW
};

const json &member(const json &object, const char *name, const std::string &where) {
    if (!object.is_object() || !object.contains(name)) {
        refuse(where, std::string("the member \"") + name + "\" is missing");
    }
    return object.at(name);
}

const OperatorKind &kind_of(const Operator &op) {
    return *find_operator_kind(op.schema().kind);
}

int typical_extent(const json &typical, const char *name, int fallback, const std::string &where) {
    if (!typical.contains(name)) {
        return fallback;
    }
    const json &value = typical.at(name);
    if (!value.is_number_integer() || value < 1 || value > 65535) {
        refuse(where,
               std::string("\"typical\": \"") + name + "\" is " + value.dump() + ", not an integer from 1 to 65535");
    }
    return value.get<int>();
}

/** What files call the pattern 2:4, and the share of weights that it leaves 0. */
constexpr const char *two_four_pattern = "2:4";
constexpr double two_four_zeros = .5;

void parse_pattern(Operator &op, const json &pattern, bool has_zeros, const std::string &where) {
    if (pattern != two_four_pattern) {
        refuse(where, "\"typical\": \"weight_pattern\" is " + pattern.dump() + ", not \"" + two_four_pattern + "\"");
    }
    if (has_zeros && op.typical_zeros < two_four_zeros) {
        refuse(where, "\"typical\": at least half of weights of the pattern 2:4 are 0, but \"weight_zeros\" is less");
    }
    op.typical_pattern = WeightPattern::TwoFour;
    op.typical_zeros = has_zeros ? op.typical_zeros : two_four_zeros;
}

void parse_typical(Operator &op, const json &json, const std::string &where) {
    const std::vector<const char *> &extents = op.schema().extents;
    const bool one_row = extents.size() == 1;
    const TokenRows *tokens = kind_of(op).tokens;
    op.typical_height = tokens ? tokens->input(op.schema().op(op).get()) : one_row ? 1 : op.typical_height;
    op.typical_keys = tokens ? op.typical_width : 0;
    if (!json.contains("typical")) {
        return;
    }
    const auto &typical = json.at("typical");
    if (!typical.is_object()) {
        refuse(where, "\"typical\" is not an object");
    }
    std::vector<std::string> known = {"batch"};
    known.insert(known.end(), extents.begin(), extents.end());
    if (tokens) {
        known.emplace_back("key_tokens");
    } else {
        known.insert(known.end(), {"weight_zeros", "weight_pattern"});
    }
    check_members(typical, known, where + ", \"typical\" of " + op.generator);
    op.typical_batch = typical_extent(typical, "batch", op.typical_batch, where);
    if (!one_row) {
        op.typical_height = typical_extent(typical, extents.front(), op.typical_height, where);
    }
    op.typical_width = typical_extent(typical, extents.back(), op.typical_width, where);
    if (typical.contains("weight_zeros")) {
        const nlohmann::json &zeros = typical.at("weight_zeros");
        if (!zeros.is_number() || zeros < 0 || zeros >= 1) {
            refuse(where, "\"typical\": \"weight_zeros\" is " + zeros.dump() + ", not a number from 0 to below 1");
        }
        op.typical_zeros = zeros;
    }
    if (typical.contains("weight_pattern")) {
        parse_pattern(op, typical.at("weight_pattern"), typical.contains("weight_zeros"), where);
    }
    if (tokens) {
        op.typical_keys = typical_extent(typical, "key_tokens", op.typical_width, where);
    }
}

/** Refuses an operator if its weights or its typical tensors have too many elements for 32-bit indices. The runtime
 * refuses them too, but after the caller has allocated them. */
void check_sizes(const Operator &op, const std::string &where) {
    constexpr double most = 2147483647;
    constexpr int largest_block = 32;
    if (static_cast<double>(op.filter_elements()) / op.out_channels() * (op.out_channels() + largest_block) > most) {
        refuse(where, "its weights have more than 2^31 elements");
    }
    const distile_border border = op.border();
    const double rows = static_cast<double>(op.typical_height) + border.top + border.bottom;
    const double columns = static_cast<double>(op.typical_width) + border.left + border.right;
    const Extents output = op.typical_output();
    const double outputs = static_cast<double>(output.height) * output.width;
    const double key_elements = static_cast<double>(op.typical_keys) * std::max(op.in_channels(), op.out_channels());
    if (op.typical_batch * std::max({rows * columns * op.in_channels(), outputs * op.out_channels(), key_elements}) >
        most) {
        refuse(where, "its input or output of the typical size has more than 2^31 elements");
    }
}

bool has_flag(const Operator &op, const std::string &key) {
    const std::vector<const char *> &flags = op.schema().flags;
    return std::find(flags.begin(), flags.end(), key) != flags.end();
}

/** The names of what operator files may have in "params". */
std::vector<std::string> params_of(const OperatorSchema &schema) {
    std::vector<std::string> names = {"dtype", "output_dtype"};
    if (schema.operands_with_keys == nullptr) {
        names.insert(names.end(), {"weights_dtype", "epilogue", "residual"});
    }
    names.insert(names.end(), schema.flags.begin(), schema.flags.end());
    for (const IntegerParam &param : schema.params) {
        names.emplace_back(param.name);
    }
    return names;
}

/** The value of a parameter as generators take it, if it is one of the kind's. */
std::string parse_param(const Operator &op, const std::string &key, const json &value, const std::string &where) {
    const std::string what = "the parameter \"" + key + "\" is " + value.dump();
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    if (key == "dtype") {
        const DataType *type = value.is_string() ? find_type(text) : nullptr;
        if (!type) {
            refuse(where, what + "; this version has " + known_types());
        }
    } else if (key == "output_dtype") {
        const DataType *type = value.is_string() ? find_type(text) : nullptr;
        if (!type || !(type->is_quantized() || type->dtype == DISTILE_FLOAT32)) {
            refuse(where, what + ", not \"uint8\", \"int8\" or \"float32\"");
        }
    } else if (key == "weights_dtype" && !op.reads_keys()) {
        const DataType *type = value.is_string() ? find_type(text) : nullptr;
        if (!type || type->bytes == 1) {
            refuse(where, what + ", not \"float32\", \"float16\" or \"bfloat16\"");
        }
    } else if (key == "epilogue" && !op.reads_keys()) {
        std::string names;
        bool known = false;
        for (const char *const name : activation_names) {
            known = known || value == name;
            names.append(names.empty() ? "\"" : ", \"").append(name).append("\"");
        }
        if (!known) {
            refuse(where, what + ", not one of " + names);
        }
    } else if ((key == "residual" && !op.reads_keys()) || has_flag(op, key)) {
        if (!value.is_boolean()) {
            refuse(where, what + ", not true or false");
        }
    } else {
        const std::vector<IntegerParam> &params = op.schema().params;
        const auto known =
            std::find_if(params.begin(), params.end(), [&](const IntegerParam &param) { return key == param.name; });
        if (known == params.end()) {
            refuse(where,
                   op.generator + " has no parameter " + quote(key) + "; " + suggestion(key, params_of(op.schema())));
        }
        if (!value.is_number_integer() || value < known->least || value > known->most) {
            refuse(where, what + ", not an integer from " + std::to_string(known->least) + " to " +
                              std::to_string(known->most));
        }
    }
    return text;
}

}  // namespace

const OperatorSchema &Operator::schema() const {
    const OperatorSchema *schema = find_schema(generator);
    if (!schema) {
        throw FileError("there is no generator \"" + generator + "\"");
    }
    return *schema;
}

int Operator::param(const char *param_name) const {
    return std::stoi(params.at(param_name));
}

const DataType &Operator::dtype() const {
    return *find_type(params.at("dtype"));
}

const DataType &Operator::output_dtype() const {
    const auto found = params.find("output_dtype");
    return found == params.end() ? dtype() : *find_type(found->second);
}

const DataType &Operator::weights_dtype() const {
    const auto found = params.find("weights_dtype");
    return *find_type(found != params.end() ? found->second : is_quantized() ? "int8" : "float32");
}

bool Operator::has_residual() const {
    return is_set("residual");
}

bool Operator::is_set(const char *flag) const {
    const auto found = params.find(flag);
    return found != params.end() && found->second == "true";
}

bool Operator::reads_keys() const {
    return schema().operands_with_keys != nullptr;
}

bool Operator::reads(const std::string &role) const {
    const std::vector<Operand> all = operands();
    return std::any_of(all.begin(), all.end(), [&](const Operand &operand) { return operand.role == role; });
}

int Operator::token_channels() const {
    return param("heads") * param("head_dim");
}

float Operator::usual_scale() const {
    return reads_keys() ? kind_of(*this).tokens->scale(schema().op(*this).get()) : 0;
}

Extents Operator::mask_of(const Extents &output) const {
    return reads_keys() ? Extents{1, output.width} : output;
}

const char *Operator::epilogue() const {
    return activation_enumerators[epilogue_value()];
}

distile_activation Operator::epilogue_value() const {
    const auto *found = std::find(std::begin(activation_names), std::end(activation_names), params.at("epilogue"));
    if (found == std::end(activation_names)) {
        throw std::logic_error("operators are checked when they are read");
    }
    return static_cast<distile_activation>(found - std::begin(activation_names));
}

int Operator::in_channels() const {
    return schema().channels(*this).in;
}

int Operator::out_channels() const {
    return schema().channels(*this).out;
}

std::vector<Operand> Operator::operands() const {
    if (reads_keys()) {
        return schema().operands_with_keys(*this);
    }
    const Channels channels = schema().channels(*this);
    std::vector<Operand> operands = {{"DISTILE_ROLE_INPUT", &dtype(), channels.in},
                                     {"DISTILE_ROLE_WEIGHTS", &weights_dtype(), channels.out},
                                     {"DISTILE_ROLE_BIAS", find_type("float32"), channels.out}};
    if (is_quantized()) {
        operands.push_back({"DISTILE_ROLE_REQUANTIZATION", find_type("float32"), channels.out});
    }
    if (has_residual()) {
        operands.push_back({"DISTILE_ROLE_RESIDUAL", &output_dtype(), channels.out});
    }
    operands.push_back({"DISTILE_ROLE_OUTPUT", &output_dtype(), channels.out});
    return operands;
}

Extents Operator::output_of(const Extents &input) const {
    const ImageSize size = kind_of(*this).output_size(schema().op(*this).get(), {input.height, input.width});
    return {static_cast<int>(size.height), static_cast<int>(size.width)};
}

distile_border Operator::border() const {
    return kind_of(*this).border(schema().op(*this).get());
}

int64_t Operator::filter_elements() const {
    const WeightPacking *weights = kind_of(*this).weights;
    return weights ? weights->filter_elements(schema().op(*this).get()) : 0;
}

std::string Operator::summary() const {
    std::string text = schema().describe(*this);
    if (dtype().name != std::string("float32")) {
        text.append(", ").append(dtype().name);
    }
    if (&output_dtype() != &dtype()) {
        text.append(" to ").append(output_dtype().name);
    }
    if (params.count("weights_dtype") != 0) {
        text.append(", weights in ").append(weights_dtype().name);
    }
    if (has_residual()) {
        text += ", residual";
    }
    return reads_keys() ? text : text + ", epilogue " + params.at("epilogue");
}

std::string Operator::typical_input() const {
    std::string text = std::to_string(typical_batch);
    if (schema().extents.size() > 1) {
        text += " x " + std::to_string(typical_height);
    }
    text += " x " + std::to_string(typical_width);
    return reads_keys() ? text + ", " + std::to_string(typical_keys) + " keys" : text;
}

Operator parse_operator(const json &json, const std::string &where) {
    const auto &version = member(json, "distile_operator", where);
    if (version != 1) {
        refuse(where, "the version \"distile_operator\" is " + version.dump() + "; this program reads version 1");
    }
    check_members(json, {"distile_operator", "name", "generator", "params", "typical"}, where);
    Operator op;
    const auto &name = member(json, "name", where), &generator = member(json, "generator", where);
    if (!name.is_string() || !is_name(name) || std::isdigit(static_cast<unsigned char>(name.get<std::string>()[0]))) {
        refuse(where, "\"name\" is " + name.dump() + ", not letters, digits and underscores after a letter");
    }
    op.name = name;
    if (!generator.is_string() || !find_schema(generator.get<std::string>())) {
        refuse(where, "\"generator\" is " + generator.dump() + "; this version has " + known_generators());
    }
    op.generator = generator;
    const auto &params = member(json, "params", where);
    if (!params.is_object()) {
        refuse(where, "\"params\" is not an object");
    }
    for (const auto &[key, value] : params.items()) {
        op.params[key] = parse_param(op, key, value, where);
    }
    // An operator is the same whether its file names a default or leaves it out.
    op.params.emplace("dtype", "float32");
    if (!op.reads_keys()) {
        op.params.insert({{"epilogue", activation_names[DISTILE_ACTIVATION_NONE]}, {"residual", "false"}});
    }
    for (const char *flag : op.schema().flags) {
        op.params.emplace(flag, "false");
    }
    for (const IntegerParam &param : op.schema().params) {
        op.params.emplace(param.name, std::to_string(param.fallback));
    }
    if (op.is_quantized() && op.reads_keys()) {
        refuse(where, op.generator + " has no quantized code");
    }
    if (op.is_quantized()) {
        op.params.emplace("output_dtype", op.dtype().name);
    } else if (op.params.count("output_dtype") != 0) {
        refuse(where, "it has \"output_dtype\", but its type is not \"uint8\" or \"int8\"");
    }
    if (op.is_quantized() && op.params.count("weights_dtype") != 0) {
        refuse(where, "it has \"weights_dtype\", but quantized operators have weights of int8 or int4");
    }
    if (&op.weights_dtype() == find_type("float32")) {
        op.params.erase("weights_dtype");
    }
    const std::string illegal = op.schema().why_illegal(op);
    if (!illegal.empty()) {
        refuse(where, illegal);
    }
    parse_typical(op, json, where);
    if (op.typical_output().height < 1 || op.typical_output().width < 1) {
        refuse(where, "the typical input is smaller than the kernel");
    }
    check_sizes(op, where);
    return op;
}

json to_json(const Operator &op) {
    json params = json::object();
    for (const auto &[key, value] : op.params) {
        const bool text = key == "dtype" || key == "output_dtype" || key == "weights_dtype" || key == "epilogue";
        params[key] = text ? json(value) : json::parse(value);
    }
    const std::vector<const char *> &extents = op.schema().extents;
    json typical = {{"batch", op.typical_batch}, {extents.back(), op.typical_width}};
    if (extents.size() > 1) {
        typical[extents.front()] = op.typical_height;
    }
    if (op.reads_keys()) {
        typical["key_tokens"] = op.typical_keys;
    }
    const bool has_pattern = op.typical_pattern == WeightPattern::TwoFour;
    if (has_pattern) {
        typical["weight_pattern"] = two_four_pattern;
    }
    if (op.typical_zeros > (has_pattern ? two_four_zeros : 0)) {
        typical["weight_zeros"] = op.typical_zeros;
    }
    return {{"distile_operator", 1},
            {"name", op.name},
            {"generator", op.generator},
            {"params", params},
            {"typical", typical}};
}

Operator read_operator(const std::string &path) {
    return parse_operator(read_json(path), "the operator file '" + path + "'");
}

}  // namespace distile
