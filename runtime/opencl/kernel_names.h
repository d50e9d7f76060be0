/** \file
 * The names of kernels that exist for each type.
 */
#ifndef DISTILE_OPENCL_KERNEL_NAMES_H
#define DISTILE_OPENCL_KERNEL_NAMES_H

#include "facts/type_functions.h"
#include <array>
#include <cstddef>

namespace distile {

/** "distile_<kernel>_<type>". Constants, because a program knows its kernels by the addresses of their names. */
class KernelNames {
public:
    constexpr explicit KernelNames(const char *kernel) {
        constexpr const char *types[] = {
#define DISTILE_ROW(number, name, ...) #name,
            DISTILE_FLOAT_TYPES(DISTILE_ROW)
#undef DISTILE_ROW
        };
        for (size_t place = 0; place < names_.size(); place++) {
            size_t end = 0;
            for (const char *part : {"distile_", kernel, "_", types[place]}) {
                for (; *part != '\0'; part++) {
                    names_[place][end++] = *part;
                }
            }
        }
    }
    /** The name for a floating-point type. */
    const char *of(distile_dtype dtype) const {
        return names_.at(static_cast<size_t>(float_type_place(dtype))).data();
    }

private:
    static constexpr size_t most_characters = 48;
    std::array<std::array<char, most_characters>, DISTILE_NUM_FLOAT_TYPES> names_{};
};

}  // namespace distile

#endif
