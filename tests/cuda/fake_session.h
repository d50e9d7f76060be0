/** \file
 * The driver in fake_driver.cpp as tests use it, where it stands in for a GPU's.
 */
#ifndef DISTILE_TESTS_FAKE_SESSION_H
#define DISTILE_TESTS_FAKE_SESSION_H

#include "tests/cuda/fake_driver.h"
#include <distile/distile.h>
#include <dlfcn.h>
#include <stdexcept>
#include <string>

namespace distile {

inline bool contains(const std::string &text, const std::string &part) {
    return text.find(part) != std::string::npos;
}

inline std::string name_of(distile_status status) {
    return distile_status_name(status);
}

/** A function of the fake driver. The test fails if the driver is a GPU's. */
template<typename Function> Function fake_function(const char *name) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    const auto function = library ? reinterpret_cast<Function>(dlsym(library, name)) : nullptr;
    if (!function) {
        throw std::runtime_error("run these tests with ctest: the driver is not the fake one");
    }
    return function;
}

inline void set_fake(const char *what, int64_t value) {
    fake_function<decltype(&fake_driver_set)>("fake_driver_set")(what, value);
}
inline void fail_fake(const char *function, int result) {
    fake_function<decltype(&fake_driver_fail)>("fake_driver_fail")(function, result);
}
inline void fail_fake_once(int64_t calls, int result) {
    fake_function<decltype(&fake_driver_fail_once)>("fake_driver_fail_once")(calls, result);
}
inline int64_t count_fake(const char *what) {
    return fake_function<decltype(&fake_driver_count)>("fake_driver_count")(what);
}

/** Sets something of the fake driver for a while. */
class FakeSetting {
public:
    FakeSetting(const char *what, int64_t value, int64_t before) : what_(what), before_(before) {
        set_fake(what, value);
    }
    ~FakeSetting() {
        set_fake(what_, before_);
    }
    FakeSetting(const FakeSetting &) = delete;
    FakeSetting &operator=(const FakeSetting &) = delete;

private:
    const char *what_;
    int64_t before_;
};

}  // namespace distile

#endif
