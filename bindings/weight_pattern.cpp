#include "bindings/weight_pattern.h"
#include "bindings/errors.h"
#include <distile/distile.hpp>
#include <distile/pruned.h>
#include <mutex>

namespace distile::bindings {

bool keeps_two_of_four(const Filter &filter, distile_dtype input) {
    if (input != DISTILE_FLOAT16 && input != DISTILE_BFLOAT16) {
        return false;
    }
    distile_weights_source source{};
    source.filter = filter.values;
    source.dtype = filter.dtype;
    source.order = filter.order;
    int32_t keep = 0;
    static const Context context = [] {
        distile_context_options options{};
        options.threads = 1;  // It uses no others.
        return make_context(options);
    }();
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    check(distile_weights_keep_two_of_four(context.get(), &source, &filter.extents, input, &keep), context.get());
    return keep != 0;
}

}  // namespace distile::bindings
