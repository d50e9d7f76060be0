/** \file
 * What the sessions of every kind of GPU share: a context, or the reason why there is none, and tile lists.
 */
#ifndef DISTILE_TESTS_TESTED_GPU_H
#define DISTILE_TESTS_TESTED_GPU_H

#include "tests/support/catch.h"
#include <distile/distile.hpp>
#include <distile/polykernel.h>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

namespace distile {

/** Whether the machine lacks what tests on a GPU need. Whatever else keeps one from being opened is a defect. */
inline bool lacks_gpu(distile_status status) {
    return status == DISTILE_ERROR_NO_DRIVER || status == DISTILE_ERROR_NO_GPU || status == DISTILE_ERROR_OLD_DRIVER;
}

/** A context that writes what a call did. */
inline distile_context_options tracing(distile_choice &traced) {
    distile_context_options options{};
    options.trace = [](void *user, const distile_choice *choice) { *static_cast<distile_choice *>(user) = *choice; };
    options.trace_user = &traced;
    return options;
}

/** A context of a GPU, or none. */
struct TestedGpu {
    explicit operator bool() const {
        return context != nullptr;
    }
    void check(distile_status result) const {
        INFO(distile_context_message(context.get()));
        REQUIRE(distile_status_name(result) == std::string("DISTILE_OK"));
    }
    Mask make_mask() const {
        return distile::make_mask(context);
    }
    Kernel make_kernel(const distile_polykernel &polykernel) const {
        return distile::make_kernel(context, polykernel);
    }
    /** Checks the status of a call on the CPU's context. */
    void check_host(distile_status result) const {
        INFO(distile_context_message(host.get()));
        REQUIRE(distile_status_name(result) == std::string("DISTILE_OK"));
    }

    /** What the last call did. */
    std::unique_ptr<distile_choice> traced = std::make_unique<distile_choice>();
    Context context;
    Context host = make_context();  ///< A context of the CPU, for results that must be equal.

protected:
    /** Takes what was opened; where nothing was, prints a line that names the test and says why. */
    void take(distile_status status, distile_context *opened) {
        context.reset(opened);
        if (!context) {
            const std::string reason =
                distile_status_name(status) + std::string(": ") + distile_context_message(nullptr);
            INFO(reason);
            REQUIRE(lacks_gpu(status));
            std::cout << "[SKIP] " << Catch::getResultCapture().getCurrentTestName() << ": " << reason << "\n";
        }
    }
};

/** The tiles of a list, wherever it is. */
struct ListedTiles {
    std::vector<uint32_t> xy, image;

    bool operator==(const ListedTiles &other) const {
        return xy == other.xy && image == other.image;
    }
};

/** `read` copies numbers from the device. */
template<typename Read> ListedTiles read_tiles(const distile_tile_list &list, const Read &read) {
    if (!list.device_count) {
        return {{list.xy, list.xy + list.count}, {list.image, list.image + list.count}};
    }
    const uint32_t count = read(list.device_count, 1)[0];
    return {read(list.xy, count), read(list.image, count)};
}

}  // namespace distile

#endif
