#include "bench/harness/break_even_summary.h"
#include "bench/harness/summary.h"
#include <algorithm>
#include <fmt/core.h>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace distile::bench {

double break_even(RelativeTimes times) {
    std::sort(times.begin(), times.end());
    if (times.front().second > 1) {
        return 0;
    }
    for (size_t i = 1; i < times.size(); i++) {
        if (times[i].second > 1) {
            const auto [below, fast] = times[i - 1];
            const auto [above, slow] = times[i];
            return below + (1 - fast) / (slow - fast) * (above - below);
        }
    }
    return times.back().first;
}

namespace {

/** "3x3 stride 2, 256 to 256 channels, 80x80" of "80x80 256->256 3x3 stride 2". */
std::string in_words(const std::string &shape) {
    const size_t pixels = shape.find(' '), arrow = shape.find("->"), channels = shape.find(' ', arrow);
    if (pixels == std::string::npos || arrow == std::string::npos || channels == std::string::npos) {
        return shape;
    }
    return fmt::format("{}, {} to {} channels, {}", shape.substr(channels + 1),
                       shape.substr(pixels + 1, arrow - pixels - 1), shape.substr(arrow + 2, channels - arrow - 2),
                       shape.substr(0, pixels));
}

/** The break-even fractions of operators and batches with blobs of at least two densities. */
std::vector<BreakEven> break_evens(const std::vector<NumericsLine> &lines, const std::string &dtype) {
    std::vector<BreakEven> found;
    for (const std::string &op : mean_operators) {
        for (const int batch : batches_of(lines)) {
            RelativeTimes masked, kernels;
            std::string shape;
            for (const NumericsLine &line : lines) {
                if (line.dtype == dtype && line.op == op && line.batch == batch && line.mask == "blob") {
                    masked.emplace_back(line.active, line.masked / line.peer);
                    kernels.emplace_back(line.active, line.kernels / line.peer);
                    shape = line.shape;
                }
            }
            if (masked.size() > 1) {
                found.push_back({op, in_words(shape), batch, break_even(masked), break_even(kernels)});
            }
        }
    }
    return found;
}

}  // namespace

std::string break_even_table(const std::vector<NumericsLine> &lines) {
    std::map<std::string, std::vector<BreakEven>> values;
    for (const std::string dtype : numerics_dtypes) {
        values[dtype] = break_evens(lines, dtype);
    }
    const std::string table =
        batch_table(batches_of(lines), "", [&](const std::string &dtype, const std::string &op, int batch) {
            const std::vector<BreakEven> &of = values.at(dtype);
            const auto value = std::find_if(of.begin(), of.end(),
                                            [&](const BreakEven &one) { return one.op == op && one.batch == batch; });
            return value == of.end() ? "" : fmt::format("{} ({})", cell(value->masked), cell(value->kernels));
        });
    return table.empty() ? ""
                         : "\nThe density at which cuDNN takes as long, from the mask and in brackets by the kernels "
                           "alone; a dash where it is faster at every measured density. 1.00: it is never faster.\n\n" +
                               table;
}

std::vector<BreakEvenPanel> break_even_panels(const Json &file) {
    const Json &header = file.at("header");
    const std::vector<NumericsLine> lines = numerics_lines(file.at("rows"), "cudnn");
    std::vector<BreakEvenPanel> panels;
    for (const std::string dtype : numerics_dtypes) {
        std::vector<BreakEven> values = break_evens(lines, dtype);
        if (!values.empty()) {
            panels.push_back({fmt::format("{}, {} multiprocessors, {}", header.at("device").get<std::string>(),
                                          header.at("multiprocessors").get<int>(), dtype),
                              std::move(values)});
        }
    }
    return panels;
}

}  // namespace distile::bench
