#include "bench/harness/speedups.h"
#include <fmt/core.h>

namespace distile::bench {

std::string speedup_table(const std::vector<Speedups> &lines) {
    std::string text = "| Active pixels |", rule = "|---|";
    for (const double density : speedup_densities) {
        text += density == 1 ? " all |" : fmt::format(" {:.0f} % |", 100 * density);
        rule += "---|";
    }
    text += "\n" + rule + "\n";
    for (const Speedups &line : lines) {
        text += "| " + line.name + " |";
        for (const std::string &cell : line.cells) {
            text += " " + cell + " |";
        }
        text += "\n";
    }
    return text;
}

}  // namespace distile::bench
