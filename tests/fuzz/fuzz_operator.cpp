// Operator files: what is read is written and read again as it was, and all that is computed from it is defined.
#include "autoscheduler/bound/bound.h"
#include "autoscheduler/bound/rank.h"
#include "plans/operator.h"
#include "tests/fuzz/fuzz.h"
#include <nlohmann/json.hpp>

using namespace distile;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const InputFile file;
    static const DeviceProfile devices[] = {generic_device_profile("generic_avx2"),
                                            generic_device_profile("generic_cuda")};
    file.write(data, size);
    Operator op;
    try {
        op = read_operator(file.path());
    } catch (const FileError &) {
        return 0;
    }
    const nlohmann::json written = to_json(op);
    require(to_json(parse_operator(written, "written")) == written, "an operator is read another than it was written");
    require(!op.summary().empty(), "an operator has no summary");
    for (const DeviceProfile &device : devices) {
        const Workload workload = workload_of(op, device);
        for (int extent : {1, 16, 65535}) {
            require(density_bucket(workload, .3).tiles(extent, extent) >= 1, "a density of .3 has no tile");
        }
    }
    return 0;
}
