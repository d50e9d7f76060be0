#include "plans/data_type.h"
#include "facts/types.h"

namespace distile {

namespace {

const DataType types[] = {
#define DISTILE_ROW(number, name, NAME, bits, ONNX, digits, widened, narrowed)                                         \
    {#name, "DISTILE_" #NAME, DISTILE_##NAME, (bits) / 8, 1.0 / (1 << (digits))},
    DISTILE_FLOAT_TYPES(DISTILE_ROW)
#undef DISTILE_ROW
#define DISTILE_ROW(number, name, NAME, bits, ONNX, least, most)                                                       \
    {#name, "DISTILE_" #NAME, DISTILE_##NAME, (bits) / 8, 0},
        DISTILE_QUANTIZED_TYPES(DISTILE_ROW)
#undef DISTILE_ROW
};

}  // namespace

const DataType *find_type(const std::string &name) {
    for (const DataType &type : types) {
        if (name == type.name) {
            return &type;
        }
    }
    return nullptr;
}

std::string known_types() {
    std::string names;
    for (const DataType &type : types) {
        names.append(names.empty() ? "\"" : ", \"").append(type.name).append("\"");
    }
    return names;
}

}  // namespace distile
