/** \file
 * Names in files that nobody knows: mostly typing errors.
 */
#ifndef DISTILE_KNOWN_NAMES_H
#define DISTILE_KNOWN_NAMES_H

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

namespace distile {

/** How many letters must be changed, added or left out to make one text of another. */
inline size_t letters_apart(const std::string &a, const std::string &b) {
    std::vector<size_t> row(b.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 0; i < a.size(); i++) {
        size_t diagonal = i;
        row[0] = i + 1;
        for (size_t j = 0; j < b.size(); j++) {
            const size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
            diagonal = row[j + 1];
            row[j + 1] = std::min({changed, diagonal + 1, row[j] + 1});
        }
    }
    return row.back();
}

/** Whether a text may be another with a typing error, or with more behind it. */
inline bool is_near(const std::string &text, const std::string &other) {
    return letters_apart(text, other) <= other.size() / 2 || text.compare(0, other.size(), other) == 0;
}

/** What may have been meant by a wrong name, as the end of a sentence: the nearest of the known names, at least one, or
 * all of them if none is near. */
inline std::string suggestion(const std::string &wrong, const std::vector<std::string> &known) {
    const std::string given = wrong.substr(0, 128);
    const auto nearest = std::min_element(known.begin(), known.end(), [&](const auto &a, const auto &b) {
        return letters_apart(given, a) < letters_apart(given, b);
    });
    if (is_near(given, *nearest)) {
        return "the nearest known one is \"" + *nearest + "\"";
    }
    std::string names;
    for (const std::string &name : known) {
        names.append(names.empty() ? "\"" : ", \"").append(name).append("\"");
    }
    return "known are " + names;
}

/** What is wrong with a member that no reader knows: the end of a sentence. */
inline std::string unknown_member(const std::string &name, const std::vector<std::string> &known) {
    return "there is no member " + nlohmann::json(name).dump(-1, ' ', true) + "; " + suggestion(name, known);
}

}  // namespace distile

#endif
