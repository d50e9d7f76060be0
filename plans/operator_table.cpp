#include "plans/operator_table.h"
#include "plans/json_file.h"
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

namespace distile {

namespace {

std::vector<std::string> comma_separated(const std::string &line) {
    std::vector<std::string> fields;
    std::istringstream stream(line);
    for (std::string field; std::getline(stream, field, ',');) {
        fields.push_back(field);
    }
    return fields;
}

/** A line with its fields by the names of their columns. */
class TableLine {
public:
    TableLine(std::string where, const std::vector<std::string> &columns, const std::vector<std::string> &fields)
        : where_(std::move(where)) {
        for (size_t i = 0; i < columns.size(); i++) {
            fields_[columns[i]] = i < fields.size() ? fields[i] : "";
        }
    }

    const std::string &text(const std::string &column) const {
        const auto found = fields_.find(column);
        if (found == fields_.end()) {
            throw FileError(where_ + ": the table has no column '" + column + "'");
        }
        return found->second;
    }

    /** 0 where the field is empty. */
    int number(const std::string &column) const {
        const std::string &field = text(column);
        const bool digits = field.find_first_not_of("0123456789") == std::string::npos && field.size() <= 7;
        if (!digits) {
            throw FileError(where_ + ": the column '" + column + "' has " + quote(field) + ", not a number");
        }
        return field.empty() ? 0 : std::stoi(field);
    }

private:
    std::string where_;
    std::map<std::string, std::string> fields_;
};

}  // namespace

std::vector<OperatorRow> read_operator_table(const std::string &path) {
    std::ifstream stream(path);
    if (!stream) {
        throw FileError("the table of operators '" + path + "' cannot be opened");
    }
    std::vector<OperatorRow> rows;
    std::vector<std::string> columns;
    int line_number = 0;
    for (std::string text; std::getline(stream, text);) {
        line_number++;
        if (text.empty() || text[0] == '#') {
            continue;
        }
        if (columns.empty()) {
            columns = comma_separated(text);
            continue;
        }
        const std::string where = "the table of operators '" + path + "', line " + std::to_string(line_number);
        const TableLine line(where, columns, comma_separated(text));
        OperatorRow row;
        row.id = line.number("id");
        row.category = line.text("category");
        row.height = line.number("height");
        row.width = line.number("width");
        row.in_channels = line.number("in_channels");
        row.out_channels = line.number("out_channels");
        row.kernel = line.number("kernel");
        row.stride = line.number("stride");
        row.heads = line.number("heads");
        row.operator_name = line.text("operator");
        if (row.id < 1 || !is_name(row.operator_name)) {
            throw FileError(where + ": a row needs a number and the name of its operator file, but it has " +
                            quote(line.text("id")) + " and " + quote(row.operator_name));
        }
        const bool is_known =
            std::any_of(rows.begin(), rows.end(), [&](const OperatorRow &other) { return other.id == row.id; });
        if (is_known) {
            throw FileError(where + ": the row " + std::to_string(row.id) + " comes twice");
        }
        rows.push_back(std::move(row));
    }
    return rows;
}

std::string operator_file(const std::string &table, const OperatorRow &row) {
    return (std::filesystem::path(table).parent_path() / "operators" / (row.operator_name + ".json")).string();
}

}  // namespace distile
