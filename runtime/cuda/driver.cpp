#include "runtime/cuda/driver.h"
#include <dlfcn.h>

namespace distile {

namespace {

struct Loaded {
    Driver driver{};
    DriverFailure failure{DISTILE_OK, ""};

    Loaded() {
        void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        if (!library) {
            const char *error = dlerror();
            failure = {DISTILE_ERROR_NO_DRIVER,
                       std::string("cannot load the CUDA driver: ") + (error ? error : "unknown reason")};
            return;
        }
// Two steps, so names that cuda.h versions by macro are expanded.
#define DISTILE_TEXT(text) #text
#define DISTILE_LOAD(name) load(library, DISTILE_TEXT(name), driver.name);
        DISTILE_CUDA_FUNCTIONS(DISTILE_LOAD)
#define DISTILE_FIND(name) find(library, DISTILE_TEXT(name), driver.name);
#ifdef DISTILE_CUDA_RESOURCES
        DISTILE_FIND(cuCtxGetDevResource)
#endif
#ifdef DISTILE_CUDA_SWITCHES
        DISTILE_CUDA_GRAPH_FUNCTIONS(DISTILE_FIND)
#endif
#undef DISTILE_FIND
#undef DISTILE_LOAD
#undef DISTILE_TEXT
    }

private:
    template<typename Function> static void find(void *library, const char *name, Function &function) {
        function = reinterpret_cast<Function>(dlsym(library, name));
    }
    template<typename Function> void load(void *library, const char *name, Function &function) {
        find(library, name, function);
        if (!function) {
            failure = {DISTILE_ERROR_OLD_DRIVER, std::string("the CUDA driver is too old: it lacks ") + name};
        }
    }
};

}  // namespace

const Driver *load_driver(DriverFailure &failure) {
    static const Loaded loaded;
    failure = loaded.failure;
    return failure.status == DISTILE_OK ? &loaded.driver : nullptr;
}

}  // namespace distile
