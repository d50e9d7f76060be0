/** \file
 * The CPU as a machine whose stages are tested.
 */
#ifndef DISTILE_TESTS_CPU_MACHINE_H
#define DISTILE_TESTS_CPU_MACHINE_H

#include "tests/support/catch.h"
#include <algorithm>
#include <distile/distile.hpp>
#include <string>
#include <vector>

namespace distile {

/** A context of a CPU with some of its features. */
struct CpuMachine {
    static constexpr bool multiplies_tf32 = false;
    template<typename T> class Array {
    public:
        explicit Array(size_t count) : values_(count) {
        }
        explicit Array(const std::vector<T> &values) : values_(values) {
        }
        T *data() const {
            return const_cast<T *>(values_.data());
        }
        std::vector<T> get() const {
            return values_;
        }
        void set(const std::vector<T> &values) {
            std::copy(values.begin(), values.end(), values_.begin());
        }

    private:
        std::vector<T> values_;
    };

    explicit CpuMachine(const std::string &features, int32_t threads = 2) {
        distile_context_options options{};
        options.cpu_features = features.c_str();
        options.threads = threads;
        context = make_context(options);
    }
    Mask make_mask() const {
        return distile::make_mask(context);
    }
    void check(distile_status result) const {
        INFO(distile_context_message(context.get()));
        REQUIRE(distile_status_name(result) == std::string("DISTILE_OK"));
    }

    Context context;
};

}  // namespace distile

#endif
