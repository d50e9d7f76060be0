#include "runtime/dispatch/time_table_file.h"
#include "runtime/base/known_names.h"
#include "runtime/base/read_file.h"
#include "runtime/base/strict_json.h"
#include "runtime/dispatch/kernel.h"
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace distile {

namespace {

/** A number, a string or anything else. */
struct Scalar {
    enum Kind { Missing, Unsigned, Integer, Real, Text, Other } kind = Missing;
    double number = 0;
    uint64_t whole = 0;
    std::string text = "null"; /**< The member's text in the file. */

    bool is_number() const {
        return kind == Unsigned || kind == Integer || kind == Real;
    }
    std::string shown() const {
        return kind == Text ? nlohmann::json(text).dump() : text;
    }
};

struct Row {
    Scalar variant, threads, tiles, microseconds;
    std::string other; /**< What the file has in place of a row. */

    bool is_good() const {
        return other.empty() && variant.kind == Scalar::Text && threads.kind == Scalar::Unsigned &&
               tiles.kind == Scalar::Unsigned && microseconds.is_number() && threads.whole >= 1 &&
               threads.whole <= 4096 && tiles.whole <= uint64_t{1} << 40 && microseconds.number > 0;
    }
    std::string shown() const {
        return !other.empty() ? other
                              : R"({"variant":)" + variant.shown() + R"(,"threads":)" + threads.shown() +
                                    R"(,"tiles":)" + tiles.shown() + R"(,"us":)" + microseconds.shown() + "}";
    }
};

constexpr std::array table_members = {"distile_times", "kernel", "plan_hash", "device", "doubt", "times"};
constexpr std::array row_members = {"variant", "threads", "tiles", "us"};

/** Collects a time table from the parser's events. The JSON library's values will not do: destroying one allocates, and
 * terminates the process if that fails. */
class TimesReader : public JsonCheck {
public:
    bool is_object = false, has_times = false;
    Scalar version, kernel, plan_hash;
    std::vector<Row> rows;
    std::string unknown; /**< About the first member that nobody knows; "" if all are known. */

    bool null() override {
        return take({Scalar::Other, 0, 0, "null"});
    }
    bool boolean(bool value) override {
        return take({Scalar::Other, 0, 0, value ? "true" : "false"});
    }
    bool number_integer(number_integer_t value) override {
        return take({Scalar::Integer, static_cast<double>(value), 0, std::to_string(value)});
    }
    bool number_unsigned(number_unsigned_t value) override {
        return take({Scalar::Unsigned, static_cast<double>(value), value, std::to_string(value)});
    }
    bool number_float(number_float_t value, const string_t &text) override {
        return take({Scalar::Real, value, 0, text});
    }
    bool string(string_t &value) override {
        return take({Scalar::Text, 0, 0, value});
    }
    bool start_object(size_t size) override {
        if (depth() == 0) {
            is_object = true;
        } else if (in_times_ && depth() == row_depth) {
            rows.emplace_back();
        } else {
            take({Scalar::Other, 0, 0, "{...}"});
        }
        return JsonCheck::start_object(size);
    }
    bool start_array(size_t size) override {
        if (depth() == 1 && member_ == "times") {
            in_times_ = has_times = true;
        } else {
            take({Scalar::Other, 0, 0, "[...]"});
        }
        return JsonCheck::start_array(size);
    }
    bool end_array() override {
        JsonCheck::end_array();
        in_times_ = in_times_ && depth() > 1;
        return true;
    }
    bool key(string_t &name) override {
        const bool in_table = depth() == 1 && is_object, in_row = in_times_ && depth() == row_depth + 1;
        if (in_table || in_row) {
            member_ = name;
        }
        if (in_table) {
            check_known(table_members);
        } else if (in_row) {
            check_known(row_members);
        }
        return JsonCheck::key(name);
    }

private:
    static constexpr size_t row_depth = 2;

    template<size_t N> void check_known(const std::array<const char *, N> &known) {
        if (unknown.empty() && std::find(known.begin(), known.end(), member_) == known.end()) {
            unknown = unknown_member(member_, {known.begin(), known.end()});
        }
    }

    bool take(const Scalar &value) {
        if (depth() == 1 && is_object) {
            (member_ == "distile_times" ? version
             : member_ == "kernel"      ? kernel
             : member_ == "plan_hash"   ? plan_hash
                                        : ignored_) = value;
        } else if (in_times_ && depth() == row_depth) {
            rows.emplace_back();
            rows.back().other = value.shown();
        } else if (in_times_ && depth() == row_depth + 1) {
            Row &row = rows.back();
            (member_ == "variant"   ? row.variant
             : member_ == "threads" ? row.threads
             : member_ == "tiles"   ? row.tiles
             : member_ == "us"      ? row.microseconds
                                    : ignored_) = value;
        }
        return true;
    }

    std::string member_;
    bool in_times_ = false;
    Scalar ignored_;
};

/** A plan's hash as in files: 16 hexadecimal digits. */
std::string hash_text(uint64_t hash) {
    char text[17] = "";
    std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(hash));
    return text;
}

}  // namespace

distile_status read_time_table(const char *path, const distile_kernel &kernel, std::vector<distile_time_point> &points,
                               std::string &message) {
    const std::string file = std::string("the time table '") + path + "'";
    const std::optional<std::string> text = read_file(path);
    if (!text) {
        message = file + " cannot be read";
        return DISTILE_ERROR_BAD_FILE;
    }
    TimesReader table;
    if (!nlohmann::json::sax_parse(*text, &table) || !table.is_object) {
        message = file + " " + (table.fault.empty() ? "is not a JSON object" : table.fault);
        return DISTILE_ERROR_BAD_FILE;
    }
    if (table.version.kind != Scalar::Unsigned && table.version.kind != Scalar::Integer) {
        message = file + " has no integer \"distile_times\": it is not a time table";
        return DISTILE_ERROR_BAD_FILE;
    }
    if (table.version.whole != time_table_version) {
        message = file + " has version " + table.version.shown() + ", but this library reads version " +
                  std::to_string(time_table_version);
        return DISTILE_ERROR_VERSION;
    }
    if (!table.unknown.empty()) {
        message = file + ": " + table.unknown;
        return DISTILE_ERROR_BAD_FILE;
    }
    if (table.kernel.kind != Scalar::Text || table.kernel.text != kernel.polykernel.name) {
        message = file + " is for the kernel " +
                  (table.kernel.kind == Scalar::Missing ? "(none)" : table.kernel.shown()) + ", not for \"" +
                  kernel.polykernel.name + "\"";
        return DISTILE_ERROR_OTHER_OPERATOR;
    }
    const std::string plan_hash = hash_text(kernel.polykernel.plan_hash);
    if (table.plan_hash.kind != Scalar::Text || table.plan_hash.text != plan_hash) {
        message = file + " was measured with the code of another plan: its \"plan_hash\" is " +
                  table.plan_hash.shown() + ", this kernel's is \"" + plan_hash + "\"; run distile profile again";
        return DISTILE_ERROR_OTHER_OPERATOR;
    }
    if (!table.has_times || table.rows.empty()) {
        message = file + " has no array \"times\"";
        return DISTILE_ERROR_BAD_FILE;
    }
    std::vector<distile_time_point> read;
    for (const Row &row : table.rows) {
        if (!row.is_good()) {
            message = file + ": the row " + row.shown() +
                      " is not {\"variant\": name, \"threads\": 1 or more, \"tiles\": 0 or more, \"us\": above 0}";
            return DISTILE_ERROR_BAD_FILE;
        }
        const int32_t index = kernel.find(row.variant.text.c_str());
        if (index >= 0) {
            read.push_back({index, static_cast<int32_t>(row.threads.whole), static_cast<int64_t>(row.tiles.whole),
                            row.microseconds.number});
        }
    }
    if (read.empty()) {
        message = file + " names no variant of this kernel";
        return DISTILE_ERROR_OTHER_OPERATOR;
    }
    points.swap(read);
    return DISTILE_OK;
}

}  // namespace distile
