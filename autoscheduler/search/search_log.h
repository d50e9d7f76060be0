/** \file
 * The log of a search. Every measurement is written at once, so that a search that was killed can continue. A file of
 * JSON lines: a header, then one line for each measurement.
 */
#ifndef DISTILE_SEARCH_LOG_H
#define DISTILE_SEARCH_LOG_H

#include "autoscheduler/bound/bound.h"
#include "autoscheduler/bound/device_profile.h"
#include "autoscheduler/search/locked_file.h"
#include "autoscheduler/search/measurement.h"
#include "plans/operator.h"
#include "plans/plan.h"
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace distile {

/** What all measurements of a log have in common. */
struct LogHeader {
    Operator op;
    std::string backend, target;
    Math math = Math::Float32; /**< How a float32 operator multiplies. */
    DeviceProfile device;      /**< Told from others by its id(). */
    int threads = 1;
    std::string knobs; /**< The knobs of the space, separated by blanks: its version. */
    uint64_t seed = 0;
    std::vector<std::string> masks; /**< The masks as the command line named them; a report's default. */
    std::string weights;            /**< The file of the weights as the command line named it; "": drawn ones. */
};

/** What the times of a log's schedules depend on. */
Workload workload_of(const LogHeader &header);

/** The names of a space's knobs as a header has them. */
std::string knob_names(const Space &space);

nlohmann::json to_json(const LogHeader &header);

/** A log that was read. */
struct LogContents {
    LogHeader header;
    std::vector<Measurement> measured;
    std::string warning; /**< About lines that were skipped; "" if none was. */
};

/** Reads a log, also one that a search is writing, without the drift of the device. Skips an incomplete last line, and
 * trials that did not compile for want of a tool. Throws FileError. */
LogContents read_search_log(const std::string &path);

/** A log that one search writes. */
class SearchLog {
public:
    /** Opens a log, or begins one. Throws FileError if another search uses it, if it is of another operator, device,
     * number of threads or space, or if it cannot be read or written. An incomplete last line, as after a kill, is cut
     * off. With `again`, doubtful measurements do not count: whoever measures them again replaces them. */
    SearchLog(const std::string &path, const LogHeader &header, bool again = false);

    const LogHeader &header() const {
        return contents_.header;
    }
    const std::vector<Measurement> &measured() const {
        return contents_.measured;
    }
    const std::string &warning() const {
        return contents_.warning;
    }
    /** Appends a measurement and waits until the disk has it. Throws FileError, also where its schedule is not legal
     * for the log's operator and device; the file is then as it was. */
    void append(const Measurement &measurement);

private:
    void append_line(const nlohmann::json &line);

    std::string path_;
    LockedFile file_;
    LogContents contents_;
};

}  // namespace distile

#endif
