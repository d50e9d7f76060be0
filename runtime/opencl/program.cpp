#include "runtime/opencl/program.h"
#include "runtime/opencl/opencl_device.h"
#include <cstring>

namespace distile {

namespace {

/** Halide's code and ours are OpenCL C 1.2. */
constexpr const char *build_options = "-cl-std=CL1.2";

}  // namespace

Program::Program(const OpenClDevice &device, const std::string &source) : device_(device) {
    if (device.cache->is_on() && build_from_cache(source)) {
        return;
    }
    const OpenClLibrary &library = device.library;
    const char *text = source.c_str();
    const size_t bytes = source.size();
    cl_int result = CL_SUCCESS;
    program_ = library.clCreateProgramWithSource(device.space->context, 1, &text, &bytes, &result);
    device.check(result, "clCreateProgramWithSource");
    result = build();
    if (result != CL_SUCCESS) {
        const std::string reason = log();
        library.clReleaseProgram(program_);
        throw Failure{fail(&device.context, opencl_status(result), "the OpenCL compiler rejected the code (%s): %s",
                           opencl_name(result), reason.c_str())};
    }
    if (device.cache->is_on()) {
        try {
            const std::string code = binary();
            if (!code.empty()) {
                device.cache->keep(source, code);
            }
        } catch (...) {
            library.clReleaseProgram(program_);
            throw;
        }
    }
}

Program::~Program() {
    for (const auto &[name, kernel] : kernels_) {
        device_.library.clReleaseKernel(kernel.handle);
    }
    device_.library.clReleaseProgram(program_);
}

bool Program::build_from_cache(const std::string &source) {
    const std::string code = device_.cache->find(source);
    if (code.empty()) {
        return false;
    }
    const auto *bytes = reinterpret_cast<const unsigned char *>(code.data());
    const size_t size = code.size();
    cl_int loaded = CL_SUCCESS, result = CL_SUCCESS;
    program_ = device_.library.clCreateProgramWithBinary(device_.space->context, 1, &device_.device, &size, &bytes,
                                                         &loaded, &result);
    if (result == CL_SUCCESS && loaded == CL_SUCCESS && build() == CL_SUCCESS) {
        return true;
    }
    if (program_) {
        device_.library.clReleaseProgram(program_);
        program_ = nullptr;
    }
    return false;
}

cl_int Program::build() {
    return device_.library.clBuildProgram(program_, 1, &device_.device, build_options, nullptr, nullptr);
}

std::string Program::log() const {
    size_t bytes = 0;
    const OpenClLibrary &library = device_.library;
    if (library.clGetProgramBuildInfo(program_, device_.device, CL_PROGRAM_BUILD_LOG, 0, nullptr, &bytes) !=
        CL_SUCCESS) {
        return "";
    }
    std::string text(bytes, '\0');
    if (library.clGetProgramBuildInfo(program_, device_.device, CL_PROGRAM_BUILD_LOG, bytes, text.data(), nullptr) !=
        CL_SUCCESS) {
        return "";
    }
    text.resize(std::strlen(text.c_str()));
    return text;
}

std::string Program::binary() const {
    // A program that was made for several devices has a binary for each; others stay empty.
    const OpenClLibrary &library = device_.library;
    cl_uint count = 0;
    if (library.clGetProgramInfo(program_, CL_PROGRAM_NUM_DEVICES, sizeof(count), &count, nullptr) != CL_SUCCESS) {
        return "";
    }
    std::vector<cl_device_id> devices(count);
    std::vector<size_t> sizes(count);
    if (library.clGetProgramInfo(program_, CL_PROGRAM_DEVICES, count * sizeof(cl_device_id), devices.data(), nullptr) !=
            CL_SUCCESS ||
        library.clGetProgramInfo(program_, CL_PROGRAM_BINARY_SIZES, count * sizeof(size_t), sizes.data(), nullptr) !=
            CL_SUCCESS) {
        return "";
    }
    std::string code;
    std::vector<unsigned char *> parts(count, nullptr);
    for (cl_uint i = 0; i < count; i++) {
        if (devices[i] == device_.device) {
            code.resize(sizes[i]);
            parts[i] = reinterpret_cast<unsigned char *>(code.data());
        }
    }
    if (library.clGetProgramInfo(program_, CL_PROGRAM_BINARIES, count * sizeof(unsigned char *), parts.data(),
                                 nullptr) != CL_SUCCESS) {
        return "";
    }
    return code;
}

const Program::Kernel &Program::kernel(const char *name) {
    for (const auto &[known, kernel] : kernels_) {
        if (known == name) {
            return kernel;
        }
    }
    kernels_.reserve(kernels_.size() + 1);
    const OpenClLibrary &library = device_.library;
    cl_int result = CL_SUCCESS;
    Kernel made{library.clCreateKernel(program_, name, &result), 0};
    device_.check(result, "clCreateKernel");
    kernels_.emplace_back(name, made);
    Kernel &kernel = kernels_.back().second;
    device_.check(library.clGetKernelWorkGroupInfo(kernel.handle, device_.device, CL_KERNEL_WORK_GROUP_SIZE,
                                                   sizeof(size_t), &kernel.most_items, nullptr),
                  "clGetKernelWorkGroupInfo");
    return kernel;
}

}  // namespace distile
