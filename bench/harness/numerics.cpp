#include "bench/harness/numerics.h"
#include "bench/harness/typed_tensor.h"
#include <stdexcept>

namespace distile::bench {

namespace {

constexpr Numerics table[] = {
    {"float32", DISTILE_FLOAT32, DISTILE_MATH_FLOAT32},
    {"tf32", DISTILE_FLOAT32, DISTILE_MATH_TF32},
    {"float16", DISTILE_FLOAT16, DISTILE_MATH_FLOAT32},
    {"bfloat16", DISTILE_BFLOAT16, DISTILE_MATH_FLOAT32},
};

/** TF32 keeps 10 bits of a factor's mantissa. */
constexpr double tf32_tolerance = 5e-3;

}  // namespace

double Numerics::tolerance() const {
    return math == DISTILE_MATH_TF32 ? tf32_tolerance : tolerance_of(dtype);
}

double Numerics::peer_tolerance() const {
    constexpr double roundings = 4;
    return dtype == DISTILE_FLOAT32 ? tolerance() : roundings * tolerance();
}

const Numerics &find_numerics(const std::string &name) {
    std::string names;
    for (const Numerics &one : table) {
        if (name == one.name) {
            return one;
        }
        names += (names.empty() ? "'" : ", '") + std::string(one.name) + "'";
    }
    throw std::runtime_error("'" + name + "' is no type of rows; the types are " + names);
}

}  // namespace distile::bench
