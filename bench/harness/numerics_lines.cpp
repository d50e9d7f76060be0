#include "numerics_lines.h"

namespace distile::bench {

std::string dtype_of(const Json &row) {
    return row.value("dtype", std::string(strict_dtype));
}

std::vector<NumericsLine> numerics_lines(const Json &rows, const std::string &peer) {
    std::vector<NumericsLine> lines;
    for (const Json &row : rows) {
        if (row.at("status") != "measured" || row.at("kind") != "convolution" || row.at("mode") != "keep" ||
            row.at("layout") != "plain" || row.at("peer_name") != peer) {
            continue;
        }
        const std::string name = row.at("row");
        const size_t mask = name.find('/') + 1, density = name.find('/', mask) + 1;
        lines.push_back({dtype_of(row), row.at("op"), row.at("mask"),
                         name.substr(density, name.find('/', density) - density), row.at("batch"), row.at("density"),
                         row.at("t_peer_us"), row.at("t_kernels_us"), row.at("t_masked_us")});
    }
    return lines;
}

std::set<int> batches_of(const std::vector<NumericsLine> &lines) {
    std::set<int> batches;
    for (const NumericsLine &line : lines) {
        batches.insert(line.batch);
    }
    return batches;
}

}  // namespace distile::bench
