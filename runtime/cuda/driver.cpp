#include "driver.h"
#include <dlfcn.h>

namespace distile {

namespace {

struct Loaded {
    Driver driver{};
    std::string why_not;

    Loaded() {
        void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        if (!library) {
            const char *error = dlerror();
            why_not = std::string("the CUDA driver cannot be loaded: ") + (error ? error : "unknown reason");
            return;
        }
#define DISTILE_TEXT(text) #text
#define DISTILE_LOAD(name)                                                                                             \
    driver.name = reinterpret_cast<decltype(driver.name)>(dlsym(library, DISTILE_TEXT(name)));                         \
    if (!driver.name) {                                                                                                \
        why_not = "the CUDA driver has no function " DISTILE_TEXT(name);                                               \
    }
        DISTILE_CUDA_FUNCTIONS(DISTILE_LOAD)
#undef DISTILE_LOAD
#undef DISTILE_TEXT
    }
};

}  // namespace

const Driver *load_driver(std::string &why_not) {
    static const Loaded loaded;
    why_not = loaded.why_not;
    return why_not.empty() ? &loaded.driver : nullptr;
}

}  // namespace distile
