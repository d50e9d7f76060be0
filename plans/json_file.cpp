#include "plans/json_file.h"
#include "runtime/base/known_names.h"
#include "runtime/base/strict_json.h"
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <system_error>

namespace distile {

namespace {

using nlohmann::json;

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

}  // namespace

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

void check_members(const json &object, const std::vector<std::string> &known, const std::string &where) {
    if (!object.is_object()) {
        return;
    }
    for (const auto &[name, value] : object.items()) {
        if (std::find(known.begin(), known.end(), name) == known.end()) {
            throw FileError(where + ": " + unknown_member(name, known));
        }
    }
}

std::string quote(const std::string &text) {
    return json(text).dump(-1, ' ', true);
}

bool is_name(const std::string &text) {
    return !text.empty() && text.size() <= 128 && std::all_of(text.begin(), text.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    });
}

std::string format_json(const json &json) {
    std::string text;
    append_formatted(text, json, 0);
    return text + "\n";
}

void write_file(const std::string &path, const std::string &text) {
    const std::string temporary = path + ".new";
    {
        errno = 0;
        std::ofstream stream(temporary, std::ios::trunc | std::ios::binary);
        stream << text;
        stream.flush();
        if (!stream) {
            const std::string cause = errno == 0 ? "an error of the stream" : std::generic_category().message(errno);
            std::remove(temporary.c_str());
            throw FileError("the file '" + temporary + "' cannot be written: " + cause);
        }
    }
    if (std::rename(temporary.c_str(), path.c_str()) != 0) {
        std::remove(temporary.c_str());
        throw FileError("the file '" + path + "' cannot be replaced");
    }
}

}  // namespace distile
