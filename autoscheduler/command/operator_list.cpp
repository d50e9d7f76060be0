#include "autoscheduler/command/operator_list.h"
#include "autoscheduler/compile/compile.h"
#include "masks/mask_files.h"
#include "plans/architecture.h"
#include "plans/operator_table.h"
#include <algorithm>
#include <filesystem>
#include <fmt/core.h>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <tuple>

namespace distile {

namespace operator_list {
namespace {

using nlohmann::json;

/** Texts of a member, at least one if it is there. */
std::vector<std::string> texts(const json &part, const char *member, const std::vector<std::string> &usual,
                               const std::string &where) {
    if (!part.contains(member)) {
        return usual;
    }
    const json &found = part.at(member);
    const bool good = found.is_array() && !found.empty() &&
                      std::all_of(found.begin(), found.end(), [](const json &text) { return text.is_string(); });
    if (!good) {
        throw FileError(fmt::format("{}: \"{}\" is {}, not an array of texts", where, member, found.dump()));
    }
    return found.get<std::vector<std::string>>();
}

/** The numbers of a text as "1-26, 40". */
std::set<int> parse_rows(const json &text, const std::string &where) {
    const auto refuse = [&] {
        throw FileError(fmt::format("{}: \"rows\" is {}, not as \"1-26, 40\"", where, text.dump()));
    };
    if (!text.is_string()) {
        refuse();
    }
    std::set<int> rows;
    std::istringstream stream(text.get<std::string>());
    for (std::string range; std::getline(stream, range, ',');) {
        int first = 0, last = 0, end = 0;
        if (std::sscanf(range.c_str(), " %6d - %6d %n", &first, &last, &end) != 2) {
            end = 0;
            if (std::sscanf(range.c_str(), " %6d %n", &first, &end) != 1) {
                refuse();
            }
            last = first;
        }
        if (range.size() != static_cast<size_t>(end) || first < 1 || last < first || last - first > 9999) {
            refuse();
        }
        for (int row = first; row <= last; row++) {
            rows.insert(row);
        }
    }
    return rows;
}

class Reader {
public:
    Reader(std::string path, std::string backend) : path_(std::move(path)), backend_(std::move(backend)) {
    }

    std::vector<ListedOperator> read() {
        if (ends_with(path_, ".csv")) {
            read_part({{"table", std::filesystem::path(path_).filename().string()}}, "the list '" + path_ + "'");
        } else {
            read_parts();
        }
        if (found_.empty()) {
            throw FileError(fmt::format("the list '{}' has no operator for the backend \"{}\": name another with "
                                        "--backend, or add a part with \"backend\": \"{}\"",
                                        path_, backend_, backend_));
        }
        return std::move(found_);
    }

private:
    void read_parts() {
        const json list = read_json(path_);
        const std::string where = "the list '" + path_ + "'";
        if (!list.is_object() || list.value("distile_operator_list", json()) != 1) {
            throw FileError(where + " has no \"distile_operator_list\": 1: it is no list of operators of this version");
        }
        check_members(list, {"distile_operator_list", "about", "parts"}, where);
        const json parts = list.value("parts", json());
        if (!parts.is_array() || parts.empty()) {
            throw FileError(where + ": \"parts\" is " + parts.dump() + ", not an array of parts");
        }
        for (size_t i = 0; i < parts.size(); i++) {
            read_part(parts[i], fmt::format("{}, part {}", where, i + 1));
        }
    }

    void read_part(const json &part, const std::string &where) {
        if (!part.is_object()) {
            throw FileError(where + " is " + part.dump() + ", not an object");
        }
        check_members(part, {"table", "rows", "operators", "types", "backend", "math", "also"}, where);
        if (part.contains("table") == part.contains("operators") ||
            (part.contains("rows") && !part.contains("table"))) {
            throw FileError(where + " needs either a \"table\", maybe with \"rows\" of it, or \"operators\"");
        }
        const json backend = part.value("backend", json(cpu_backend().name));
        if (!backend.is_string()) {
            throw FileError(where + ": \"backend\" is " + backend.dump() + ", not a text");
        }
        get_backend(backend.get<std::string>());
        const std::vector<std::string> types = texts(part, "types", {}, where),
                                       maths = texts(part, "math", {"float32"}, where),
                                       also = texts(part, "also", {}, where);
        for (const std::string &math : maths) {
            if (math != "float32" && math != "tf32") {
                throw FileError(
                    fmt::format("{}: \"math\" has {}; it may have \"float32\" and \"tf32\"", where, quote(math)));
            }
        }
        for (const auto &[file, rows] : files_of(part, where)) {
            const Operator op = read_operator(file);
            for (const std::string &type : types.empty() ? std::vector<std::string>{op.dtype().name} : types) {
                ListedOperator listed{
                    file, type == op.dtype().name ? op : in_type(op, type), Math::Float32, {""}, rows};
                listed.levels.insert(listed.levels.end(), also.begin(), also.end());
                add(listed, maths, backend.get<std::string>());
            }
        }
    }

    /** The operator files of a part, each once, in its order, and how often each is named. */
    std::vector<std::pair<std::string, int>> files_of(const json &part, const std::string &where) const {
        const std::filesystem::path folder = std::filesystem::path(path_).parent_path();
        std::vector<std::pair<std::string, int>> files;
        const auto add_file = [&](const std::string &file) {
            const auto known =
                std::find_if(files.begin(), files.end(), [&](const auto &each) { return each.first == file; });
            if (known == files.end()) {
                files.emplace_back(file, 1);
            } else {
                known->second++;
            }
        };
        if (part.contains("operators")) {
            for (const std::string &file : texts(part, "operators", {}, where)) {
                add_file((folder / file).string());
            }
            return files;
        }
        if (!part.at("table").is_string()) {
            throw FileError(where + ": \"table\" is " + part.at("table").dump() + ", not a text");
        }
        const std::string table = (folder / part.at("table").get<std::string>()).string();
        std::set<int> wanted = part.contains("rows") ? parse_rows(part.at("rows"), where) : std::set<int>{};
        for (const OperatorRow &row : read_operator_table(table)) {
            if (!part.contains("rows") || wanted.erase(row.id) > 0) {
                add_file(operator_file(table, row));
            }
        }
        if (!wanted.empty()) {
            throw FileError(fmt::format("{}: the table '{}' has no row {}", where, table, *wanted.begin()));
        }
        return files;
    }

    void add(ListedOperator listed, const std::vector<std::string> &maths, const std::string &backend) {
        if (backend != backend_) {
            return;
        }
        for (const std::string &math : maths) {
            const bool tf32 = math == "tf32";
            if (tf32 && listed.op.dtype().dtype != DISTILE_FLOAT32) {
                continue;
            }
            if (known_.insert({listed.op.name, tf32}).second) {
                listed.math = tf32 ? Math::TF32 : Math::Float32;
                found_.push_back(listed);
            }
        }
    }

    std::string path_, backend_;
    std::vector<ListedOperator> found_;
    std::set<std::pair<std::string, bool>> known_; /**< By name, and whether in TF32. */
};

}  // namespace
}  // namespace operator_list

std::vector<ListedOperator> read_operator_list(const std::string &path, const std::string &backend) {
    return operator_list::Reader(path, backend).read();
}

}  // namespace distile
