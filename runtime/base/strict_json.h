/** \file
 * JSON from untrusted files.
 */
#ifndef DISTILE_STRICT_JSON_H
#define DISTILE_STRICT_JSON_H

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

namespace distile {

/** Rejects JSON that the parser accepts but nobody means. Deep nesting would exhaust the stack, because the JSON
 * library recurses per level. Duplicate members are ambiguous. */
class JsonCheck : public nlohmann::json::json_sax_t {
public:
    std::string fault; /**< The end of a sentence; "" if there is no fault. */

    bool null() override {
        return true;
    }
    bool boolean(bool) override {
        return true;
    }
    bool number_integer(number_integer_t) override {
        return true;
    }
    bool number_unsigned(number_unsigned_t) override {
        return true;
    }
    bool number_float(number_float_t, const string_t &) override {
        return true;
    }
    bool string(string_t &) override {
        return true;
    }
    bool binary(binary_t &) override {
        return true;
    }
    bool start_object(size_t) override {
        return open();
    }
    bool end_object() override {
        members_.pop_back();
        return true;
    }
    bool start_array(size_t) override {
        return open();
    }
    bool end_array() override {
        members_.pop_back();
        return true;
    }
    bool key(string_t &name) override {
        if (!members_.back().insert(name).second) {
            fault = "has the member " + nlohmann::json(name).dump() + " twice in one object";
        }
        return fault.empty();
    }
    bool parse_error(size_t, const std::string &, const nlohmann::detail::exception &error) override {
        fault = std::string("is not JSON: ") + error.what();
        return false;
    }

protected:
    /** The number of open objects and arrays. */
    size_t depth() const {
        return members_.size();
    }

private:
    bool open() {
        constexpr size_t deepest = 32;
        if (members_.size() == deepest) {
            fault = "is nested deeper than " + std::to_string(deepest) + " levels";
        }
        members_.emplace_back();
        return fault.empty();
    }

    std::vector<std::set<std::string>> members_;  // One per open object or array.
};

/** Parses a text. If it is rejected, returns a discarded value and stores the reason in `fault`. */
inline nlohmann::json parse_strictly(const std::string &text, bool with_comments, std::string &fault) {
    JsonCheck check;
    if (!nlohmann::json::sax_parse(text, &check, nlohmann::json::input_format_t::json, true, with_comments)) {
        fault = check.fault;
        return nlohmann::json::value_t::discarded;
    }
    return nlohmann::json::parse(text, nullptr, false, with_comments);
}

}  // namespace distile

#endif
