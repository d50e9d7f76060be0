// Plan files: what is read is written and read again as it was, the C source that is made of it holds nothing but names
// and numbers, and thetas are judged without overflow.
#include "autoscheduler/bound/bound.h"
#include "autoscheduler/command/info.h"
#include "plans/emit.h"
#include "tests/fuzz/fuzz.h"
#include <algorithm>
#include <nlohmann/json.hpp>

using namespace distile;

namespace {

/** What becomes part of command lines, paths and C. */
void check_words(const Plan &plan) {
    require(is_name(plan.name) && is_name(plan.op.name) && is_name(plan.op.generator), "a name is no word");
    for (const auto &[key, value] : plan.op.params) {
        require(is_name(key) && is_name(value), "a parameter is no word");
    }
    for (const PlanVariant &variant : plan.variants) {
        require(is_name(variant.name), "a variant's name is no word");
    }
    std::string target = plan.target;
    std::replace(target.begin(), target.end(), '-', '_');
    require(is_name(target), "the target is no word");
}

void judge(const Plan &plan, const PlanVariant &variant) {
    static const DeviceProfile avx2 = generic_device_profile("generic_avx2"),
                               avx512 = generic_device_profile("generic_avx512"),
                               gpu = generic_device_profile("generic_cuda");
    for (const DeviceProfile *device : {&avx2, &avx512, &gpu}) {
        if (device->backend != plan.backend) {
            continue;
        }
        const Workload workload = workload_of(plan.op, *device);
        if (space_of(plan.backend).why_illegal(variant.theta, workload.problem).empty()) {
            require(bound(workload, variant.theta, 10).us > 0, "a legal schedule takes no time");
        }
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const InputFile file;
    file.write(data, size);
    Plan plan;
    try {
        plan = read_plan(file.path());
    } catch (const FileError &) {
        return 0;
    }
    check_words(plan);
    const std::string written = to_json(plan).dump();
    file.write(written.data(), written.size());
    require(to_json(read_plan(file.path())).dump() == written, "a plan is read another than it was written");
    const std::string source = emit_polykernels({plan}, "fuzzed");
    require(std::all_of(source.begin(), source.end(), [](char c) { return c == '\n' || (c >= ' ' && c <= '~'); }),
            "the source of a plan holds what is no text");
    require(source.find("*/") == source.rfind("*/"), "the source of a plan has more than one comment");
    const std::string described = describe_plan(plan);
    require(std::all_of(described.begin(), described.end(),
                        [](char c) { return c == '\n' || static_cast<unsigned char>(c) >= ' '; }),
            "the description of a plan holds what steers a terminal");
    for (const PlanVariant &variant : plan.variants) {
        judge(plan, variant);
    }
    return 0;
}
