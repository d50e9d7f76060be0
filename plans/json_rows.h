/** \file
 * Results as text: JSON with a line for each member, and for each object of an array, as bench/python/json_rows.py
 * writes it. Every reader of JSON reads them, and a change shows as the rows that changed.
 */
#ifndef DISTILE_JSON_ROWS_H
#define DISTILE_JSON_ROWS_H

#include <algorithm>
#include <string>

namespace distile {

/** An array of objects with a line for each; what else there is in one line. */
template<typename Json> std::string rows_of(const Json &json, const std::string &margin) {
    const auto is_object = [](const Json &item) { return item.is_object(); };
    if (!json.is_array() || json.empty() || !std::all_of(json.begin(), json.end(), is_object)) {
        return json.dump();
    }
    std::string text = "[";
    for (const Json &row : json) {
        text.append(text.size() == 1 ? "\n" : ",\n").append(margin).append(" ").append(row.dump());
    }
    return text.append("\n").append(margin).append("]");
}

/** The text of an object or an array; `Json` is a basic_json of nlohmann's. */
template<typename Json> std::string format_rows(const Json &json) {
    if (!json.is_object() || json.empty()) {
        return rows_of(json, "") + "\n";
    }
    std::string text = "{";
    for (const auto &[name, value] : json.items()) {
        text.append(text.size() == 1 ? "\n " : ",\n ")
            .append(Json(name).dump())
            .append(": ")
            .append(rows_of(value, " "));
    }
    return text + "\n}\n";
}

}  // namespace distile

#endif
