/** \file
 * The header of a GPU benchmark's results.
 */
#ifndef DISTILE_BENCH_GPU_RESULTS_HEADER_H
#define DISTILE_BENCH_GPU_RESULTS_HEADER_H

#include "autoscheduler/measure/gpu.h"
#include "bench/harness/machine.h"
#include "bench/harness/results.h"
#include "bench/harness/source_version.h"
#include <string>

namespace distile::bench {

/** `about` explains the fields of rows; `versions` are those of other software than the driver's. */
inline Json results_header(const std::string &device, const std::string &about, const Json &versions = Json::object()) {
    int driver = 0;
    CU(cuDriverGetVersion, &driver);
    Json header = {{"date", utc_now()},
                   {"backend", "cuda"},
                   {"device", device},
                   {"system", system_name()},
                   {"versions", {{"source", source_version()}, {"CUDA driver", driver}}},
                   {"about", about}};
    header["versions"].update(versions);
    return header;
}

}  // namespace distile::bench

#endif
