/** \file
 * JSON files, as all tools read and write them.
 */
#ifndef DISTILE_JSON_FILE_H
#define DISTILE_JSON_FILE_H

#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace distile {

/** What is wrong with a file, where, and what to do about it. */
class FileError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/** Reads a JSON file, which may have comments. Throws FileError. */
nlohmann::json read_json(const std::string &path);
/** Parses a text in the same way. Messages call it `where`. */
nlohmann::json parse_json(const std::string &text, const std::string &where);
/** Throws FileError if an object has a member that is not among the known ones, which is named with the nearest of
 * them; anything but an object passes. Messages call it `where`. */
void check_members(const nlohmann::json &object, const std::vector<std::string> &known, const std::string &where);
/** Formats JSON for people: what fits into a line stands in one. */
std::string format_json(const nlohmann::json &json);
/** Writes a file through a temporary one beside it, so that a kill leaves the old or the new one whole. */
void write_file(const std::string &path, const std::string &text);

/** Quotes a text for a message, without characters that steer a terminal. */
std::string quote(const std::string &text);
/** Whether a text has only letters, digits and underscores, which C identifiers, file names and build rules allow. */
bool is_name(const std::string &text);

}  // namespace distile

#endif
