#include "operator.h"
#include "operator_schema.h"
#include "strict_json.h"
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <sstream>

namespace distile {

namespace {

using nlohmann::json;

const char *const epilogues[] = {"none", "relu", "relu6", "silu"};

[[noreturn]] void refuse(const std::string &where, const std::string &what) {
    throw FileError(where + ": " + what);
}

const json &member(const json &object, const char *name, const std::string &where) {
    if (!object.is_object() || !object.contains(name)) {
        refuse(where, std::string("the member \"") + name + "\" is missing");
    }
    return object.at(name);
}

/** True for a name that can be part of a file name and a C identifier. */
bool is_name(const std::string &text) {
    const bool letters =
        text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == std::string::npos;
    return !text.empty() && text.size() <= 128 && letters && (text[0] < '0' || text[0] > '9');
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

void append_formatted(std::string &text, const json &value, int indent) {
    constexpr size_t line = 110;
    std::string flat = value.dump();
    if (!value.is_structured() || flat.size() + indent <= line) {
        text += flat;
        return;
    }
    const std::string margin(indent + 1, ' ');
    text += value.is_object() ? "{" : "[";
    bool first = true;
    for (const auto &item : value.items()) {
        text.append(first ? "\n" : ",\n").append(margin);
        if (value.is_object()) {
            text.append(json(item.key()).dump()).append(": ");
        }
        append_formatted(text, item.value(), indent + 1);
        first = false;
    }
    text.append("\n").append(indent, ' ').append(value.is_object() ? "}" : "]");
}

/** The schema of an operator that was read, or made by hand, and so may be unknown. Throws FileError. */
const OperatorSchema &schema_of(const std::string &generator) {
    const OperatorSchema *schema = find_schema(generator);
    if (!schema) {
        throw FileError("there is no generator \"" + generator + "\"");
    }
    return *schema;
}

/** Refuses an operator whose weights, or whose tensors of the typical size, 32-bit indices do not reach: what the
 * runtime would refuse too, after all memory was asked for. */
void check_sizes(const Operator &op, const std::string &where) {
    constexpr double most = 2147483647;
    const distile_conv2d conv = op.conv2d();
    const double taps =
        static_cast<double>(conv.kernel_h) * conv.kernel_w * conv.in_channels / std::max(conv.groups, 1);
    if (taps * (conv.out_channels + DISTILE_CUDA_CHANNEL_BLOCK) > most) {
        refuse(where, "its weights have more than 2^31 elements");
    }
    const double rows = op.typical_height + conv.pad_top + conv.pad_bottom;
    const double columns = op.typical_width + conv.pad_left + conv.pad_right;
    const double outputs = static_cast<double>(op.typical_output_height()) * op.typical_output_width();
    if (op.typical_batch * std::max(rows * columns * conv.in_channels, outputs * conv.out_channels) > most) {
        refuse(where, "its input or output of the typical size has more than 2^31 elements");
    }
}

}  // namespace

distile_conv2d Operator::conv2d() const {
    distile_conv2d conv = schema_of(generator).conv2d([&](const char *name) { return std::stoi(params.at(name)); });
    const auto *epilogue = std::find(std::begin(epilogues), std::end(epilogues), params.at("epilogue"));
    conv.epilogue = static_cast<distile_epilogue>(epilogue - std::begin(epilogues));
    conv.residual = params.at("residual") == "true" ? 1 : 0;
    return conv;
}

distile_operator_kind Operator::kind() const {
    return schema_of(generator).kind;
}

bool Operator::is_depthwise() const {
    return schema_of(generator).depthwise;
}

int Operator::output_height(int rows) const {
    const distile_conv2d conv = conv2d();
    return schema_of(generator).output_extent(rows, conv.pad_top + conv.pad_bottom, conv.kernel_h, conv.stride_h,
                                              conv.dilation_h);
}

int Operator::output_width(int columns) const {
    const distile_conv2d conv = conv2d();
    return schema_of(generator).output_extent(columns, conv.pad_left + conv.pad_right, conv.kernel_w, conv.stride_w,
                                              conv.dilation_w);
}

int Operator::typical_output_height() const {
    return output_height(typical_height);
}

int Operator::typical_output_width() const {
    return output_width(typical_width);
}

std::string Operator::summary() const {
    const distile_conv2d conv = conv2d();
    std::ostringstream text;
    text << conv.kernel_h << "x" << conv.kernel_w << " " << schema_of(generator).noun << ", " << conv.in_channels
         << " -> " << conv.out_channels << " channels";
    if (conv.groups != 1 && !is_depthwise()) {
        text << " in " << conv.groups << " groups";
    }
    if (conv.stride_h != 1 || conv.stride_w != 1) {
        text << (kind() == DISTILE_MASKED_UPSAMPLE_CONV2D ? ", scale " : ", stride ") << conv.stride_h << "x"
             << conv.stride_w;
    }
    if (conv.dilation_h != 1 || conv.dilation_w != 1) {
        text << ", dilation " << conv.dilation_h << "x" << conv.dilation_w;
    }
    text << ", padding " << conv.pad_top << "/" << conv.pad_bottom << "/" << conv.pad_left << "/" << conv.pad_right
         << " (top/bottom/left/right)";
    if (conv.residual != 0) {
        text << ", residual";
    }
    text << ", epilogue " << epilogues[conv.epilogue];
    return text.str();
}

Operator parse_operator(const json &json, const std::string &where) {
    const auto &version = member(json, "distile_operator", where);
    if (version != 1) {
        refuse(where, "the version \"distile_operator\" is " + version.dump() + "; this program reads version 1");
    }
    Operator op;
    const auto &name = member(json, "name", where), &generator = member(json, "generator", where);
    if (!name.is_string() || !is_name(name)) {
        refuse(where, "\"name\" is " + name.dump() + ", not letters, digits and underscores after a letter");
    }
    op.name = name;
    const OperatorSchema *schema = generator.is_string() ? find_schema(generator.get<std::string>()) : nullptr;
    if (!schema) {
        refuse(where, "\"generator\" is " + generator.dump() + "; this version has " + known_generators());
    }
    op.generator = generator;
    const auto &params = member(json, "params", where);
    if (!params.is_object()) {
        refuse(where, "\"params\" is not an object");
    }
    for (const auto &[key, value] : params.items()) {
        const std::string what = "the parameter \"" + key + "\" is " + value.dump();
        if (key == "dtype") {
            if (value != "float32") {
                refuse(where, what + "; this version computes in \"float32\"");
            }
        } else if (key == "epilogue") {
            bool known = false;
            for (const char *epilogue : epilogues) {
                known = known || value == epilogue;
            }
            if (!known) {
                refuse(where, what + ", not \"none\", \"relu\", \"relu6\" or \"silu\"");
            }
        } else if (key == "residual") {
            if (!value.is_boolean()) {
                refuse(where, what + ", not true or false");
            }
        } else {
            const IntegerParam *known = nullptr;
            for (const IntegerParam &param : schema->params) {
                known = key == param.name ? &param : known;
            }
            if (!known) {
                refuse(where, op.generator + " has no parameter \"" + key + "\"");
            }
            if (!value.is_number_integer() || value < known->least || value > known->most) {
                refuse(where, what + ", not an integer from " + std::to_string(known->least) + " to " +
                                  std::to_string(known->most));
            }
        }
        op.params[key] = value.is_string() ? value.get<std::string>() : value.dump();
    }
    // An operator is the same whether its file names a default or leaves it out.
    op.params.insert({{"dtype", "float32"}, {"epilogue", epilogues[0]}, {"residual", "false"}});
    for (const IntegerParam &param : schema->params) {
        op.params.emplace(param.name, std::to_string(param.fallback));
    }
    const std::string illegal = schema->why_illegal(op.conv2d());
    if (!illegal.empty()) {
        refuse(where, illegal);
    }
    if (json.contains("typical")) {
        const auto &typical = json.at("typical");
        if (!typical.is_object()) {
            refuse(where, "\"typical\" is not an object");
        }
        op.typical_batch = typical_extent(typical, "batch", 1, where);
        op.typical_height = typical_extent(typical, "height", 40, where);
        op.typical_width = typical_extent(typical, "width", 40, where);
    }
    if (op.typical_output_height() < 1 || op.typical_output_width() < 1) {
        refuse(where, "the typical input is smaller than the kernel");
    }
    check_sizes(op, where);
    return op;
}

json to_json(const Operator &op) {
    json params = json::object();
    for (const auto &[key, value] : op.params) {
        const bool text = key == "dtype" || key == "epilogue";
        params[key] = text ? json(value) : json::parse(value);
    }
    return {{"distile_operator", 1},
            {"name", op.name},
            {"generator", op.generator},
            {"params", params},
            {"typical", {{"batch", op.typical_batch}, {"height", op.typical_height}, {"width", op.typical_width}}}};
}

Operator read_operator(const std::string &path) {
    return parse_operator(read_json(path), "the operator file '" + path + "'");
}

json read_json(const std::string &path) {
    std::ifstream stream(path);
    // A folder can be opened, and fails when it is read.
    if (!stream || (stream.peek(), stream.bad())) {
        throw FileError("the file '" + path + "' cannot be opened");
    }
    return parse_json(std::string(std::istreambuf_iterator<char>(stream), {}), "the file '" + path + "'");
}

json parse_json(const std::string &text, const std::string &where) {
    std::string fault;
    json json = parse_strictly(text, true, fault);
    if (json.is_discarded()) {
        throw FileError(where + " " + fault);
    }
    return json;
}

std::string format_json(const json &json) {
    std::string text;
    append_formatted(text, json, 0);
    return text + "\n";
}

void write_file(const std::string &path, const std::string &text) {
    const std::string temporary = path + ".new";
    {
        std::ofstream stream(temporary, std::ios::trunc | std::ios::binary);
        stream << text;
        stream.flush();
        if (!stream) {
            std::remove(temporary.c_str());
            throw FileError("the file '" + temporary +
                            "' cannot be written (is the disk full, or the folder missing?)");
        }
    }
    if (std::rename(temporary.c_str(), path.c_str()) != 0) {
        std::remove(temporary.c_str());
        throw FileError("the file '" + path + "' cannot be replaced");
    }
}

}  // namespace distile
