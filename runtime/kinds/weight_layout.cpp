#include "runtime/kinds/weight_layout.h"
#include "facts/weight_layouts.h"
#include "runtime/kinds/operator_kind.h"
#include <cstring>

namespace distile {

namespace {

const WeightLayout layouts[] = {
#define DISTILE_ROW(name, language, bytes, channels, order, block, type_of, keeps_int4, readers)                       \
    {name, WeightOrder::order, block, DISTILE_ROLE_##type_of, keeps_int4, GroupReaders::readers},
    DISTILE_WEIGHT_LAYOUTS(DISTILE_ROW)
#undef DISTILE_ROW
};

}  // namespace

const WeightLayout *find_layout(const char *name) {
    for (const WeightLayout &known : layouts) {
        if (std::strcmp(known.name, name) == 0) {
            return &known;
        }
    }
    return nullptr;
}

distile_dtype stored_type(const WeightLayout &layout, const distile_polykernel &polykernel, distile_role role) {
    return find_operand(polykernel, role == DISTILE_ROLE_WEIGHTS ? layout.type_of : role)->dtype;
}

}  // namespace distile
