#include "plans/data_type.h"

namespace distile {

namespace {

const DataType types[] = {{"float32", "DISTILE_FLOAT32", DISTILE_FLOAT32, 4, 0x1p-24},
                          {"float16", "DISTILE_FLOAT16", DISTILE_FLOAT16, 2, 0x1p-11},
                          {"bfloat16", "DISTILE_BFLOAT16", DISTILE_BFLOAT16, 2, 0x1p-8},
                          {"uint8", "DISTILE_UINT8", DISTILE_UINT8, 1, 0},
                          {"int8", "DISTILE_INT8", DISTILE_INT8, 1, 0}};

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
