#include "autoscheduler/compile/nvrtc.h"
#include "plans/json_file.h"
#include <cstdlib>
#include <dlfcn.h>
#include <fstream>
#include <iterator>
#include <sstream>
#include <vector>

namespace distile {

namespace {

/** NVRTC has no headers of C++: these are the parts that our kernels use. */
const char *const header_names[] = {"cstdint", "type_traits"};
const char *const headers[] = {
    "#pragma once\n"
    "typedef signed char int8_t;\ntypedef short int16_t;\ntypedef int int32_t;\ntypedef long int64_t;\n"
    "typedef unsigned char uint8_t;\ntypedef unsigned short uint16_t;\ntypedef unsigned uint32_t;\n"
    "typedef unsigned long uint64_t;\ntypedef unsigned long uintptr_t;\n",
    "#pragma once\n"
    "namespace std {\n"
    "template<class T, T v> struct integral_constant { static constexpr T value = v; };\n"
    "template<bool, class A, class B> struct conditional { using type = A; };\n"
    "template<class A, class B> struct conditional<false, A, B> { using type = B; };\n"
    "template<bool c, class A, class B> using conditional_t = typename conditional<c, A, B>::type;\n"
    "}\n"};

void *library() {
    static void *const handle = [] {
        for (const char *name : {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"}) {
            if (void *found = dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
                return found;
            }
        }
        return static_cast<void *>(nullptr);
    }();
    return handle;
}

/** Calls a function of the library, and returns its status. */
template<class... Arguments> int call(const char *name, Arguments... arguments) {
    const auto function = reinterpret_cast<int (*)(Arguments...)>(dlsym(library(), name));
    if (!function) {
        throw FileError(std::string("NVRTC's library has no function ") + name);
    }
    return function(arguments...);
}

void require_success(const char *name, int status) {
    if (status != 0) {
        throw FileError(std::string("NVRTC failed: ") + name + " returned " + std::to_string(status));
    }
}

/** A source that is compiled. */
class Program {
public:
    Program(const std::string &source, const std::string &name) {
        require_success("nvrtcCreateProgram",
                        call("nvrtcCreateProgram", &program_, source.c_str(), name.c_str(),
                             static_cast<int>(std::size(headers)), &headers[0], &header_names[0]));
    }
    ~Program() {
        call("nvrtcDestroyProgram", &program_);
    }
    Program(const Program &) = delete;
    Program &operator=(const Program &) = delete;

    void compile(const std::vector<std::string> &options) {
        std::vector<const char *> words;
        words.reserve(options.size());
        for (const std::string &option : options) {
            words.push_back(option.c_str());
        }
        const int status = call("nvrtcCompileProgram", program_, static_cast<int>(words.size()),
                                static_cast<const char *const *>(words.data()));
        if (status != 0) {
            throw FileError("NVRTC cannot compile it (status " + std::to_string(status) + "):\n" +
                            get("nvrtcGetProgramLogSize", "nvrtcGetProgramLog"));
        }
    }

    /** What the library has of it: a function gives the bytes, another their number. */
    std::string get(const char *size_function, const char *function) const {
        size_t size = 0;
        require_success(size_function, call(size_function, program_, &size));
        std::string bytes(size, '\0');
        require_success(function, call(function, program_, bytes.data()));
        return bytes;
    }

private:
    void *program_ = nullptr;
};

/** PTX that drivers since CUDA 12.3 compile. The library writes the version of its own CUDA into it, which older
 * drivers refuse, though for these chips it uses nothing that is newer. */
std::string for_older_drivers(const std::string &ptx) {
    const std::string word = "\n.version ";
    const size_t at = ptx.find(word);
    if (at == std::string::npos || std::atof(ptx.c_str() + at + word.size()) <= 8.3) {
        return ptx;
    }
    return ptx.substr(0, at) + word + "8.3" + ptx.substr(ptx.find('\n', at + 1));
}

}  // namespace

bool have_nvrtc() {
    return library() != nullptr;
}

void compile_with_nvrtc(const std::string &source, const std::string &architecture, const std::string &folder,
                        const std::string &path) {
    if (!have_nvrtc()) {
        throw FileError("NVRTC's library libnvrtc.so cannot be loaded: name its folder in LD_LIBRARY_PATH");
    }
    std::ifstream file(source);
    std::stringstream text;
    text << file.rdbuf();
    if (!file) {
        throw FileError("the file '" + source + "' cannot be read");
    }
    Program program(text.str(), source);
    // Functions without a word for it are the GPU's, as nvcc's --expt-relaxed-constexpr has those of constants.
    program.compile({"--std=c++17", "-DNDEBUG", "--device-as-default-execution-space", "--include-path=" + folder,
                     "--gpu-architecture=" + architecture});
    const bool is_chip = architecture.rfind("sm_", 0) == 0;
    std::string code =
        is_chip ? program.get("nvrtcGetCUBINSize", "nvrtcGetCUBIN") : program.get("nvrtcGetPTXSize", "nvrtcGetPTX");
    if (!is_chip) {
        code.pop_back();  // A 0 byte, which who embeds it adds.
        code = for_older_drivers(code);
    }
    write_file(path, code);
}

}  // namespace distile
