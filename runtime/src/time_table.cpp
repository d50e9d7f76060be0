#include "time_table.h"
#include "kernel.h"
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

namespace distile {

TimeTable::TimeTable(const std::vector<distile_time_point> &points, int32_t num_variants, int32_t threads)
    : variants_(num_variants) {
    for (int32_t variant = 0; variant < num_variants; variant++) {
        int32_t nearest = 0;
        for (const distile_time_point &point : points) {
            if (point.variant == variant &&
                (nearest == 0 || std::abs(point.threads - threads) < std::abs(nearest - threads))) {
                nearest = point.threads;
            }
        }
        std::vector<Point> &kept = variants_[variant];
        for (const distile_time_point &point : points) {
            if (point.variant == variant && point.threads == nearest) {
                kept.push_back({point.tiles, point.microseconds});
            }
        }
        std::sort(kept.begin(), kept.end(), [](const Point &a, const Point &b) { return a.tiles < b.tiles; });
    }
}

bool TimeTable::knows(int32_t variant) const {
    return static_cast<size_t>(variant) < variants_.size() && !variants_[variant].empty();
}

double TimeTable::predict(int32_t variant, int64_t tiles) const {
    const std::vector<Point> &points = variants_[variant];
    const auto above = std::lower_bound(points.begin(), points.end(), tiles,
                                        [](const Point &point, int64_t wanted) { return point.tiles < wanted; });
    if (above == points.begin()) {
        return points.front().microseconds;
    }
    const Point &below = *(above - 1);
    if (above == points.end()) {
        return below.microseconds * static_cast<double>(tiles) / static_cast<double>(std::max<int64_t>(below.tiles, 1));
    }
    const double part = static_cast<double>(tiles - below.tiles) / static_cast<double>(above->tiles - below.tiles);
    return below.microseconds + part * (above->microseconds - below.microseconds);
}

distile_status read_time_table(const char *path, const distile_kernel &kernel, std::vector<distile_time_point> &points,
                               std::string &message) {
    const std::string file = std::string("the time table '") + path + "'";
    std::ifstream stream(path);
    // A folder can be opened, and fails when it is read.
    if (!stream || (stream.peek(), stream.bad())) {
        message = file + " cannot be opened";
        return DISTILE_ERROR_BAD_FILE;
    }
    const nlohmann::json json = nlohmann::json::parse(stream, nullptr, false);
    if (json.is_discarded() || !json.is_object()) {
        message = file + " is not a JSON object";
        return DISTILE_ERROR_BAD_FILE;
    }
    const auto version = json.find("distile_times");
    if (version == json.end() || !version->is_number_integer()) {
        message = file + " has no integer \"distile_times\": it is not a time table";
        return DISTILE_ERROR_BAD_FILE;
    }
    if (*version != time_table_version) {
        message = file + " has version " + version->dump() + "; this library reads version " +
                  std::to_string(time_table_version);
        return DISTILE_ERROR_VERSION;
    }
    const auto name = json.find("kernel");
    if (name == json.end() || *name != kernel.polykernel->name) {
        message = file + " is of the kernel " + (name == json.end() ? "(none)" : name->dump()) + ", not of \"" +
                  kernel.polykernel->name + "\"";
        return DISTILE_ERROR_OTHER_OPERATOR;
    }
    const auto times = json.find("times");
    if (times == json.end() || !times->is_array() || times->empty()) {
        message = file + " has no array \"times\"";
        return DISTILE_ERROR_BAD_FILE;
    }
    std::vector<distile_time_point> read;
    for (const nlohmann::json &row : *times) {
        const auto field = [&](const char *key) -> const nlohmann::json & {
            static const nlohmann::json missing;
            const auto found = row.is_object() ? row.find(key) : row.end();
            return row.is_object() && found != row.end() ? *found : missing;
        };
        const nlohmann::json &variant = field("variant"), &threads = field("threads");
        const nlohmann::json &tiles = field("tiles"), &microseconds = field("us");
        if (!variant.is_string() || !threads.is_number_unsigned() || !tiles.is_number_unsigned() ||
            !microseconds.is_number() || threads.get<uint64_t>() < 1 || threads.get<uint64_t>() > 4096 ||
            tiles.get<uint64_t>() > (uint64_t{1} << 40) || !(microseconds.get<double>() > 0) ||
            !std::isfinite(microseconds.get<double>())) {
            message = file + ": the row " + row.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
                      " is not {\"variant\": name, \"threads\": 1 or more, \"tiles\": 0 or more, \"us\": above 0}";
            return DISTILE_ERROR_BAD_FILE;
        }
        const int32_t index = kernel.find(variant.get_ref<const std::string &>().c_str());
        if (index >= 0) {
            read.push_back({index, threads.get<int32_t>(), tiles.get<int64_t>(), microseconds.get<double>()});
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
