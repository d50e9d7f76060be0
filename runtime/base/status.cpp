#include "runtime/base/types.h"
#include <distile/distile.h>

extern "C" {

int32_t distile_version(void) {
    return DISTILE_VERSION;
}

size_t distile_dtype_size(distile_dtype dtype) {
    const distile::Type *type = distile::find_type(distile::raw(dtype));
    return type ? type->bytes : 0;
}

const char *distile_status_name(distile_status status) {
    switch (status) {
    case DISTILE_OK:
        return "DISTILE_OK";
    case DISTILE_ERROR_NULL_POINTER:
        return "DISTILE_ERROR_NULL_POINTER";
    case DISTILE_ERROR_BAD_VALUE:
        return "DISTILE_ERROR_BAD_VALUE";
    case DISTILE_ERROR_BAD_SHAPE:
        return "DISTILE_ERROR_BAD_SHAPE";
    case DISTILE_ERROR_BAD_STRIDE:
        return "DISTILE_ERROR_BAD_STRIDE";
    case DISTILE_ERROR_BAD_ALIGNMENT:
        return "DISTILE_ERROR_BAD_ALIGNMENT";
    case DISTILE_ERROR_BAD_TYPE:
        return "DISTILE_ERROR_BAD_TYPE";
    case DISTILE_ERROR_BAD_CHANNELS:
        return "DISTILE_ERROR_BAD_CHANNELS";
    case DISTILE_ERROR_BAD_MASK:
        return "DISTILE_ERROR_BAD_MASK";
    case DISTILE_ERROR_BAD_WEIGHTS:
        return "DISTILE_ERROR_BAD_WEIGHTS";
    case DISTILE_ERROR_ALIASING:
        return "DISTILE_ERROR_ALIASING";
    case DISTILE_ERROR_BAD_FILE:
        return "DISTILE_ERROR_BAD_FILE";
    case DISTILE_ERROR_VERSION:
        return "DISTILE_ERROR_VERSION";
    case DISTILE_ERROR_OTHER_OPERATOR:
        return "DISTILE_ERROR_OTHER_OPERATOR";
    case DISTILE_ERROR_OTHER_DEVICE:
        return "DISTILE_ERROR_OTHER_DEVICE";
    case DISTILE_ERROR_UNSUPPORTED_DEVICE:
        return "DISTILE_ERROR_UNSUPPORTED_DEVICE";
    case DISTILE_ERROR_OUT_OF_MEMORY:
        return "DISTILE_ERROR_OUT_OF_MEMORY";
    case DISTILE_ERROR_KERNEL:
        return "DISTILE_ERROR_KERNEL";
    case DISTILE_ERROR_INTERNAL:
        return "DISTILE_ERROR_INTERNAL";
    case DISTILE_ERROR_NO_DRIVER:
        return "DISTILE_ERROR_NO_DRIVER";
    case DISTILE_ERROR_OLD_DRIVER:
        return "DISTILE_ERROR_OLD_DRIVER";
    case DISTILE_ERROR_NO_GPU:
        return "DISTILE_ERROR_NO_GPU";
    case DISTILE_ERROR_OUT_OF_DEVICE_MEMORY:
        return "DISTILE_ERROR_OUT_OF_DEVICE_MEMORY";
    case DISTILE_ERROR_NOT_DEVICE_MEMORY:
        return "DISTILE_ERROR_NOT_DEVICE_MEMORY";
    case DISTILE_ERROR_CAPTURING:
        return "DISTILE_ERROR_CAPTURING";
    case DISTILE_ERROR_DEVICE_LOST:
        return "DISTILE_ERROR_DEVICE_LOST";
    }
    return "unknown status";
}

}  // extern "C"
