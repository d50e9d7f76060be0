// Files of weights. The first byte of an input says for which operator.
#include "autoscheduler/search/weight_file.h"
#include "tests/fuzz/fuzz.h"
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

using namespace distile;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const InputFile file(".npy");
    const auto parse = [](const char *generator, const nlohmann::json &params) {
        return parse_operator(
            {{"distile_operator", 1}, {"name", "fuzzed"}, {"generator", generator}, {"params", params}}, "here");
    };
    static const Operator operators[] = {
        parse("masked_conv2d", {{"in_channels", 4}, {"out_channels", 2}, {"kernel_h", 1}, {"groups", 2}}),
        parse("masked_linear", {{"in_channels", 6}, {"out_channels", 2}}),
        parse("masked_conv2d", {{"dtype", "int8"}, {"in_channels", 9}, {"out_channels", 3}, {"groups", 3}}),
        parse("masked_linear", {{"in_channels", 1}, {"out_channels", 5}})};
    if (size == 0) {
        return 0;
    }
    const Operator &op = operators[data[0] % std::size(operators)];
    file.write(data + 1, size - 1);
    try {
        const std::vector<float> weights = read_weights(file.path(), op);
        require(static_cast<int64_t>(weights.size()) == op.filter_elements(), "weights are missing");
        for (const float weight : weights) {
            require(std::isfinite(weight), "a weight is no number");
        }
        const double zeros = share_of_zeros(op, weights, file.path());
        require(zeros >= 0 && zeros < 1, "a share is none");
    } catch (const FileError &) {}
    return 0;
}
