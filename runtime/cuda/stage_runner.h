/** \file
 * Runs stages on a GPU.
 */
#ifndef DISTILE_CUDA_STAGE_RUNNER_H
#define DISTILE_CUDA_STAGE_RUNNER_H

#include "runtime/cuda/cuda_device.h"
#include "runtime/stage/stage.h"
#include <memory>

namespace distile {

struct StageStep;
struct StageSettings;
class StageTeams;

/** Keeps the kernels loaded for its lifetime. */
class StageRunner {
public:
    /** Throws Failure: UNSUPPORTED_DEVICE unless the GPU has compute capability 9.0. */
    explicit StageRunner(CudaDevice &device);
    ~StageRunner();
    StageRunner(const StageRunner &) = delete;
    StageRunner &operator=(const StageRunner &) = delete;

    void run(const Stage &given, StageTrace *trace);

private:
    void check_memory(const Stage &stage) const;
    /** Runs steps, of which the first has a number, as items of one program. */
    void run_program(Stage stage, int32_t first_number, StageTrace *trace);
    /** Lets the blocks of a launch write down when their items come to each point. */
    void time_items(StageSettings &settings);
    /** Waits for a launch, and adds its items. */
    void add_items(const StageSettings &settings, const std::vector<StageStep> &steps,
                   const std::vector<int32_t> &given, StageTrace &trace);

    CudaDevice &device_;
    CUmodule module_ = nullptr;
    CUfunction begin_ = nullptr, float16_ = nullptr, bfloat16_ = nullptr, tokens_float16_ = nullptr,
               tokens_bfloat16_ = nullptr;
    DeviceMemory memory_, counts_, times_;
    std::unique_ptr<StageTeams> teams_;
};

}  // namespace distile

#endif
