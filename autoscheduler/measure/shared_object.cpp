#include "autoscheduler/measure/shared_object.h"
#include "autoscheduler/compile/compile.h"
#include "autoscheduler/compile/process.h"
#include <dlfcn.h>
#include <elf.h>
#include <filesystem>
#include <fstream>

namespace distile {

namespace {

/** Whether a file is as long as its header says. The loader would find what is missing by a signal only. */
bool is_whole(const std::string &path) {
    Elf64_Ehdr header{};
    std::ifstream stream(path, std::ios::binary | std::ios::ate);
    const auto size = static_cast<uint64_t>(stream.tellg());
    stream.seekg(0);
    // What is no object at all, the loader tells.
    return !stream.read(reinterpret_cast<char *>(&header), sizeof(header)) ||
           header.e_shoff + uint64_t{header.e_shnum} * header.e_shentsize <= size;
}

}  // namespace

SharedObject::SharedObject(const Plan &plan, int jobs, const std::function<void(int)> &progress) {
    const TemporaryFolder folder;
    const std::string path = folder.path() + "/plan.so";
    compile_plan(plan, path, jobs, progress);
    load(path);
}

SharedObject::SharedObject(const Plan &plan, const std::string &path) {
    load(path);
    if (polykernel_->version != DISTILE_POLYKERNEL_VERSION || polykernel_->plan_hash != plan_hash(plan)) {
        throw FileError("the shared object '" + path + "' was not compiled from the plan '" + plan.name +
                        "' as it is now; `distile compile` makes a new one");
    }
}

void SharedObject::load(const std::string &path) {
    if (!is_whole(path)) {
        throw FileError("the shared object '" + path + "' is not whole: compile it again, or copy it again");
    }
    // Without a slash, the loader would search for it elsewhere.
    handle_.reset(dlopen(std::filesystem::absolute(path).c_str(), RTLD_NOW | RTLD_LOCAL));
    const void *found = handle_ ? dlsym(handle_.get(), measured_symbol) : nullptr;
    if (!found) {
        throw FileError(std::string("the compiled plan cannot be loaded: ") + dlerror());
    }
    polykernel_ = static_cast<const distile_polykernel *>(found);
}

void SharedObject::Close::operator()(void *handle) const {
    dlclose(handle);
}

}  // namespace distile
