/** \file
 * Runs stages on a GPU.
 */
#ifndef DISTILE_CUDA_STAGE_RUNNER_H
#define DISTILE_CUDA_STAGE_RUNNER_H

#include "runtime/cuda/cuda_device.h"
#include "runtime/stage/stage.h"
#include <map>
#include <memory>

namespace distile {

struct StageCode;
struct StageStep;
struct StageSettings;
class StageTeams;

/** Keeps the kernels loaded for its lifetime. */
class StageRunner {
public:
    /** Whether there is code for a GPU: of compute capability 8.0 or later. */
    static bool runs_on(const CudaDevice &device);
    /** For a GPU on which they run. Throws Failure. */
    explicit StageRunner(CudaDevice &device);
    ~StageRunner();
    StageRunner(const StageRunner &) = delete;
    StageRunner &operator=(const StageRunner &) = delete;

    void run(const Stage &given, StageTrace *trace);

private:
    /** The kernels for tensors of a type, once a stage has had some. */
    struct Kernels {
        CUmodule module;
        CUfunction begin, plain, tokens;
    };

    const Kernels &kernels_for(distile_dtype type);
    void check_memory(const Stage &stage) const;
    /** Runs steps, of which the first has a number, as items of one program. */
    void run_program(Stage stage, int32_t first_number, StageTrace *trace);
    /** Lets the blocks of a launch write down when their items come to each point. */
    void time_items(StageSettings &settings);
    /** Waits for a launch, and adds its items. */
    void add_items(const StageSettings &settings, const std::vector<StageStep> &steps,
                   const std::vector<int32_t> &given, StageTrace &trace);

    CudaDevice &device_;
    const StageCode &code_;
    std::map<distile_dtype, Kernels> kernels_;
    DeviceMemory memory_, counts_, times_;
    std::unique_ptr<StageTeams> teams_;
};

}  // namespace distile

#endif
