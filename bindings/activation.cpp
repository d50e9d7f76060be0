#include "bindings/activation.h"
#include "bindings/errors.h"
#include "facts/activation_names.h"
#include <algorithm>
#include <charconv>
#include <iterator>

namespace distile::bindings {

namespace {

[[noreturn]] void fail_name(const std::string &name) {
    std::string known;
    for (const char *const there : activation_names) {
        known += (known.empty() ? "" : ", ") + std::string(there);
    }
    fail("there is no activation '" + name + "'; there are " + known);
}

/** The number in the parentheses that a text ends with, which begin at this place. */
float slope_in(const std::string &text, size_t begin) {
    const char *const first = text.data() + begin + 1, *const last = text.data() + text.size() - 1;
    float slope = 0;
    if (first < last && *last == ')') {
        const auto [end, error] = std::from_chars(first, last, slope);
        if (end == last && error == std::errc()) {
            return slope;
        }
    }
    fail("the activation '" + text + "' has no number in its parentheses, as in '" + text.substr(0, begin) + "(0.2)'");
}

}  // namespace

Activation activation_of(const std::string &text) {
    const size_t begin = text.find('(');
    const std::string name = text.substr(0, begin);
    const auto *const found = std::find(std::begin(activation_names), std::end(activation_names), name);
    if (found == std::end(activation_names)) {
        fail_name(name);
    }
    const auto number = found - std::begin(activation_names);
    if (begin != std::string::npos && !activations_with_slope[number]) {
        fail("the activation '" + text + "' has a number in parentheses, but '" + name + "' has none to give");
    }
    return {static_cast<distile_activation>(number),
            begin == std::string::npos ? DISTILE_DEFAULT_SLOPE : slope_in(text, begin)};
}

}  // namespace distile::bindings
