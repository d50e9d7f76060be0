/** \file
 * The loader in fake_opencl.cpp as tests use it, where it stands in for OpenCL's.
 */
#ifndef DISTILE_TESTS_FAKE_OPENCL_SESSION_H
#define DISTILE_TESTS_FAKE_OPENCL_SESSION_H

#include "runtime/opencl/library.h"
#include "tests/opencl/fake_opencl.h"
#include <dlfcn.h>
#include <stdexcept>

namespace distile {

/** A function of the fake loader. The test fails if the loader is the machine's. */
template<typename Function> Function fake_function(const char *name) {
    void *library = dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
    const auto function = library ? reinterpret_cast<Function>(dlsym(library, name)) : nullptr;
    if (!function) {
        throw std::runtime_error("run these tests with ctest: the loader is not the fake one");
    }
    return function;
}

inline int64_t count_fake(const char *what) {
    return fake_function<decltype(&fake_opencl_count)>("fake_opencl_count")(what);
}

/** Sets something of the fake loader for a while. */
class FakeSetting {
public:
    FakeSetting(const char *what, int64_t value, int64_t before) : what_(what), before_(before) {
        set(value);
    }
    ~FakeSetting() {
        set(before_);
    }
    FakeSetting(const FakeSetting &) = delete;
    FakeSetting &operator=(const FakeSetting &) = delete;

private:
    void set(int64_t value) const {
        fake_function<decltype(&fake_opencl_set)>("fake_opencl_set")(what_, value);
    }
    const char *what_;
    int64_t before_;
};

/** Lets a function fail for a while. */
class FakeFailure {
public:
    FakeFailure(const char *function, cl_int result) : function_(function) {
        fail(result);
    }
    ~FakeFailure() {
        fail(CL_SUCCESS);
    }
    FakeFailure(const FakeFailure &) = delete;
    FakeFailure &operator=(const FakeFailure &) = delete;

private:
    void fail(cl_int result) const {
        fake_function<decltype(&fake_opencl_fail)>("fake_opencl_fail")(function_, result);
    }
    const char *function_;
};

}  // namespace distile

#endif
