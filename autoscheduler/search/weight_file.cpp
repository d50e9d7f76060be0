#include "autoscheduler/search/weight_file.h"
#include "masks/npy_file.h"
#include "plans/nonzeros.h"
#include "plans/operator_schema.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace distile {

namespace {

[[noreturn]] void refuse_weights(const std::string &path, const std::string &what) {
    throw FileError("the weights '" + path + "' " + what);
}

/** What [output channel, input channel, kernel row, kernel column] are. */
std::vector<size_t> filter_shape(const Operator &op) {
    const distile_conv2d conv = op.schema().convolution(op).conv;
    const auto size = [](int32_t extent) { return static_cast<size_t>(extent); };
    return {size(conv.out_channels), size(conv.in_channels / conv.groups), size(conv.kernel_h), size(conv.kernel_w)};
}

/** What float32 cannot hold becomes NaN. */
template<typename Element> std::vector<float> floats_of(const std::vector<uint8_t> &bytes) {
    constexpr Element most = std::numeric_limits<float>::max();
    std::vector<float> values(bytes.size() / sizeof(Element));
    for (size_t i = 0; i < values.size(); i++) {
        Element element{};
        std::memcpy(&element, &bytes[i * sizeof(Element)], sizeof(Element));
        values[i] = std::abs(element) <= most ? static_cast<float>(element) : std::numeric_limits<float>::quiet_NaN();
    }
    return values;
}

NpyFile open(const std::string &path) {
    try {
        return {path, {"<f4", "<f8"}};
    } catch (const std::domain_error &type) {
        refuse_weights(path,
                       std::string("are of the type ") + type.what() +
                           ", not float32 or float64: save them with numpy.save(path, weights.astype(numpy.float32))");
    } catch (const std::invalid_argument &error) {
        refuse_weights(path, std::string("are not a NumPy array (") + error.what() +
                                 "); `python -m distile weights` makes one of other files");
    } catch (const std::runtime_error &error) {
        throw FileError(error.what());
    }
}

/** The elements of a file that holds an array of this shape, or the same with all but the first dimension in one. */
std::vector<float> read(const std::string &path, const std::vector<size_t> &shape) {
    const NpyFile file = open(path);
    const size_t others = shape[1] * shape[2] * shape[3];
    if (file.shape() != shape && file.shape() != std::vector<size_t>{shape[0], others}) {
        std::string wanted;
        for (const size_t extent : shape) {
            wanted += (wanted.empty() ? "(" : ", ") + std::to_string(extent);
        }
        refuse_weights(path, "have the shape " + file.shape_text() + ", but the operator's are " + wanted + ") or (" +
                                 std::to_string(shape[0]) + ", " + std::to_string(others) + ")");
    }
    return file.type() == "<f4" ? floats_of<float>(file.bytes()) : floats_of<double>(file.bytes());
}

}  // namespace

std::vector<float> read_weights(const std::string &path, const Operator &op) {
    if (const std::string reason = why_no_nonzeros(op); !reason.empty()) {
        refuse_weights(path, "cannot be used: " + reason);
    }
    const std::vector<size_t> shape = filter_shape(op);
    const std::vector<float> given = read(path, shape);
    const size_t inputs = shape[1], taps = shape[2] * shape[3];
    std::vector<float> weights(given.size());
    for (size_t i = 0; i < given.size(); i++) {
        const size_t tap = i % taps, channel = i / taps % inputs, output = i / taps / inputs;
        if (!std::isfinite(given[i])) {
            refuse_weights(path, "hold what is no finite number of float32, for output channel " +
                                     std::to_string(output) + " and input channel " + std::to_string(channel));
        }
        weights[(output * taps + tap) * inputs + channel] = given[i];
    }
    return weights;
}

double share_of_zeros(const Operator &op, const std::vector<float> &weights, const std::string &path) {
    int64_t zeros = 0, all = 0;
    visit_prunable(op, [&](size_t first, size_t count) {
        const auto begin = weights.begin() + static_cast<ptrdiff_t>(first), end = begin + static_cast<ptrdiff_t>(count);
        all++;
        zeros += std::all_of(begin, end, [](float weight) { return weight == 0; }) ? 1 : 0;
    });
    if (zeros == all) {
        refuse_weights(path, "are all 0");
    }
    constexpr double digits = 1e4;  // For people who read the plan.
    const double share = std::round(digits * static_cast<double>(zeros) / static_cast<double>(all)) / digits;
    return std::min(share, 1 - 1 / digits);
}

}  // namespace distile
