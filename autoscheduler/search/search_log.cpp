#include "autoscheduler/search/search_log.h"
#include "autoscheduler/bound/code_choice.h"
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

namespace distile {

namespace {

using nlohmann::json;

constexpr int log_version = 1;
/** The "math" of a header, which others lack. */
constexpr const char *tf32 = "tf32";

std::string the_log(const std::string &path) {
    return "the log '" + path + "'";
}

[[noreturn]] void refuse_foreign(const std::string &path) {
    throw FileError(the_log(path) + " does not begin with a header: it is not the log of a search");
}

LogHeader parse_header(const json &json, const std::string &path) {
    const std::string where = the_log(path);
    if (!json.is_object() || !json.contains("distile_log")) {
        refuse_foreign(path);
    }
    if (json.at("distile_log") != log_version) {
        throw FileError(where + " has version " + json.at("distile_log").dump() + "; this program reads version " +
                        std::to_string(log_version));
    }
    check_members(json,
                  {"distile_log", "operator", "backend", "target", "math", "device", "threads", "knobs", "seed",
                   "masks", "weights"},
                  where);
    try {
        LogHeader header;
        header.op = parse_operator(json.at("operator"), where + ", \"operator\"");
        header.backend = json.at("backend").get<std::string>();
        header.target = json.at("target").get<std::string>();
        header.math = json.value("math", "") == tf32 ? Math::TF32 : Math::Float32;
        header.device = parse_device_profile(json.at("device"), where + ", \"device\"");
        if (header.backend != header.device.backend) {
            throw FileError(where + " has a broken header (its \"backend\" is not that of its \"device\")");
        }
        const auto &threads = json.at("threads"), &seed = json.at("seed");
        constexpr int most_threads = 1 << 16;
        if (!threads.is_number_integer() || threads < 1 || threads > most_threads || !seed.is_number_unsigned()) {
            throw FileError(where + " has a broken header (its \"threads\" must be an integer from 1 to " +
                            std::to_string(most_threads) + ", and its \"seed\" an integer)");
        }
        header.threads = threads.get<int>();
        // Refuses a target that means nothing.
        language_of(header.op, {header.target, header.math});
        header.knobs = json.at("knobs").get<std::string>();
        header.seed = seed.get<uint64_t>();
        header.masks = json.at("masks").get<std::vector<std::string>>();
        header.weights = json.value("weights", "");
        return header;
    } catch (const nlohmann::json::exception &error) {
        throw FileError(where + " has a broken header (" + error.what() + ")");
    }
}

/** Refuses a schedule that is not legal for a log's operator and device, which no search measures: whoever computes
 * with it relies on that. */
void check_legal(const Theta &theta, const LogHeader &header, const std::string &where) {
    const Problem problem = workload_of(header).problem;
    const std::string reason = space_of(header.backend, problem).why_illegal(theta, problem);
    if (!reason.empty()) {
        throw FileError(where + ": its schedule is not legal for the operator and the device: " + reason);
    }
}

/** What is read of a log, and the bytes of it that are whole lines. An empty log has no header. */
struct Parsed {
    LogContents contents;
    bool has_header = false;
    size_t good_bytes = 0;
};

/** Adds a measurement, in the place of a doubtful one of the same schedule. */
void add(std::vector<Measurement> &measured, const Measurement &measurement) {
    const auto former = std::find_if(measured.begin(), measured.end(), [&](const Measurement &other) {
        return !other.doubt.empty() && other.theta == measurement.theta && other.dense == measurement.dense;
    });
    if (former == measured.end()) {
        measured.push_back(measurement);
    } else {
        *former = measurement;
    }
}

Parsed parse(const std::string &text, const std::string &path) {
    Parsed parsed;
    size_t without_tools = 0;
    for (size_t number = 1, begin = 0; begin < text.size(); number++) {
        const size_t end = text.find('\n', begin);
        const bool last = end == std::string::npos || end + 1 == text.size();
        const std::string where = the_log(path) + ", line " + std::to_string(number);
        json line;
        std::string fault;
        try {
            line = parse_json(text.substr(begin, end - begin), where);
        } catch (const FileError &error) {
            fault = error.what();
        }
        if (!fault.empty() && !last) {
            if (number == 1) {
                refuse_foreign(path);
            }
            throw FileError(fault + "; remove that line to go on with the others");
        }
        if (!fault.empty() || end == std::string::npos) {
            parsed.contents.warning = where + " is broken, as after a kill while it was written; it is skipped";
            break;
        }
        if (number == 1) {
            parsed.contents.header = parse_header(line, path);
            parsed.has_header = true;
        } else {
            const Measurement measurement = parse_measurement(line, where);
            check_legal(measurement.theta, parsed.contents.header, where);
            if (measurement.outcome == Outcome::NotCompiled && blames_tools(measurement.message)) {
                without_tools++;
            } else {
                add(parsed.contents.measured, measurement);
            }
        }
        begin = end + 1;
        parsed.good_bytes = begin;
    }
    if (without_tools > 0) {
        parsed.contents.warning += (parsed.contents.warning.empty() ? "" : "; ") + the_log(path) + " has " +
                                   std::to_string(without_tools) +
                                   " trials that did not compile because a program or a library was missing, or the "
                                   "disk was full: they do not count, and will be tried again";
    }
    return parsed;
}

/** A line of a log. */
std::string text_of(const json &line) {
    return line.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

/** Throws FileError unless measurements of both belong together. */
void check_same(const LogHeader &found, const LogHeader &wanted, const std::string &path) {
    const auto refuse = [&](const std::string &is, const std::string &wants) {
        throw FileError(the_log(path) + " is of " + is + ", but this search is of " + wants +
                        ": name another log with --log");
    };
    if (to_json(found.op) != to_json(wanted.op)) {
        const auto words = [](const Operator &op) {
            const std::string zeros = op.typical_zeros > 0 ? ", " + nlohmann::json(op.typical_zeros).dump() : "";
            return "the operator '" + op.name + "' (" + op.summary() + ", " + op.typical_input() +
                   (zeros.empty() ? ")" : zeros + " of the weights are 0)");
        };
        refuse(words(found.op), words(wanted.op));
    }
    if (found.backend != wanted.backend || found.target != wanted.target || found.math != wanted.math) {
        const auto words = [](const LogHeader &header) {
            return "'" + header.target + "'" + (header.math == Math::TF32 ? " in TF32" : "");
        };
        refuse("the target " + words(found), words(wanted));
    }
    if (found.device.id() != wanted.device.id()) {
        refuse("the device '" + found.device.id() + "'", "'" + wanted.device.id() + "'");
    }
    if (found.threads != wanted.threads) {
        refuse(std::to_string(found.threads) + " threads", std::to_string(wanted.threads));
    }
    if (found.knobs != wanted.knobs) {
        refuse("a space with the knobs " + found.knobs, "one with the knobs " + wanted.knobs);
    }
    if (found.weights != wanted.weights) {
        const auto words = [](const std::string &weights) {
            return weights.empty() ? "random weights" : "the weights " + quote(weights);
        };
        refuse(words(found.weights), words(wanted.weights));
    }
}

}  // namespace

std::string knob_names(const Space &space) {
    std::string names;
    for (const Knob &knob : space.knobs) {
        names += (names.empty() ? "" : " ") + knob.name;
    }
    return names;
}

Workload workload_of(const LogHeader &header) {
    Workload workload = workload_of(header.op, header.device, {header.target, header.math});
    workload.threads = header.threads;
    return workload;
}

json to_json(const LogHeader &header) {
    json result = {{"distile_log", log_version},
                   {"operator", to_json(header.op)},
                   {"backend", header.backend},
                   {"target", header.target},
                   {"device", to_json(header.device)},
                   {"threads", header.threads},
                   {"knobs", header.knobs},
                   {"seed", header.seed},
                   {"masks", header.masks}};
    if (header.math == Math::TF32) {
        result["math"] = tf32;
    }
    if (!header.weights.empty()) {
        result["weights"] = header.weights;
    }
    return result;
}

LogContents read_search_log(const std::string &path) {
    std::ifstream stream(path, std::ios::binary);
    if (!stream || (stream.peek(), stream.bad())) {
        throw FileError(the_log(path) + " cannot be opened");
    }
    const std::string text(std::istreambuf_iterator<char>(stream), {});
    Parsed parsed = parse(text, path);
    if (!parsed.has_header) {
        if (!text.empty()) {
            refuse_foreign(path);
        }
        throw FileError(the_log(path) + " is empty");
    }
    parsed.contents.measured = without_drift(std::move(parsed.contents.measured));
    return std::move(parsed.contents);
}

SearchLog::SearchLog(const std::string &path, const LogHeader &header, bool again)
    : path_(path), file_(path, the_log(path),
                         " is in use by another search: wait until that has ended, or name another log with --log") {
    std::ifstream stream(path, std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(stream), {});
    Parsed parsed = parse(text, path);
    contents_ = std::move(parsed.contents);
    if (again) {
        std::vector<Measurement> &measured = contents_.measured;
        measured.erase(std::remove_if(measured.begin(), measured.end(),
                                      [](const Measurement &measurement) { return !measurement.doubt.empty(); }),
                       measured.end());
    }
    if (parsed.has_header) {
        check_same(contents_.header, header, path);
    } else if (text_of(to_json(header)).compare(0, text.size(), text) != 0) {
        // Only what a kill left of this very header may be cut off.
        refuse_foreign(path);
    }
    if (ftruncate(file_.descriptor(), static_cast<off_t>(parsed.good_bytes)) != 0) {
        throw FileError(the_log(path) + " has a broken last line, which cannot be cut off: " + std::strerror(errno));
    }
    if (!parsed.has_header) {
        contents_.header = header;
        append_line(to_json(header));
    }
}

void SearchLog::append(const Measurement &measurement) {
    check_legal(measurement.theta, contents_.header, "a measurement for " + the_log(path_));
    append_line(to_json(measurement));
    contents_.measured.push_back(measurement);
}

void SearchLog::append_line(const json &line) {
    const std::string text = text_of(line);
    struct stat before {};
    const bool known = fstat(file_.descriptor(), &before) == 0;
    errno = 0;
    const ssize_t written = write(file_.descriptor(), text.data(), text.size());
    if (written == static_cast<ssize_t>(text.size()) && (fsync(file_.descriptor()) == 0 || errno == EINVAL)) {
        return;
    }
    const std::string cause = errno != 0 ? std::strerror(errno) : "there is no room for all of it";
    // Should this fail too, the next run cuts the broken line off.
    const bool whole = known && ftruncate(file_.descriptor(), before.st_size) == 0;
    throw FileError(the_log(path_) + " cannot be written (" + cause + (whole ? ")" : "), and has a broken last line") +
                    ". The " + std::to_string(contents_.measured.size()) +
                    " measurements before are kept: free some space and run the same command again");
}

}  // namespace distile
