/** \file
 * Files of JSON, as everything here reads and writes them.
 */
#ifndef DISTILE_JSON_FILE_H
#define DISTILE_JSON_FILE_H

#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>

namespace distile {

/** What is wrong with a file, where, and what to do about it. */
class FileError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/** Reads a JSON file whose comments are allowed. Throws FileError. */
nlohmann::json read_json(const std::string &path);
/** The same of a text, which messages call `where`. */
nlohmann::json parse_json(const std::string &text, const std::string &where);
/** JSON for people: what fits a line stands on one. */
std::string format_json(const nlohmann::json &json);
/** Writes a file through a temporary one beside it, so that a kill leaves the old or the new one whole. */
void write_file(const std::string &path, const std::string &text);

/** What messages show of a text: quoted, and with nothing that steers a terminal. */
std::string quote(const std::string &text);
/** Letters, digits and underscores: what may stand in C identifiers, file names and build rules. */
bool is_name(const std::string &text);

}  // namespace distile

#endif
