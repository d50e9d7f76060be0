/** \file
 * Residual blocks of stages that a team of thread blocks computes for each image (docs/cuda.md).
 */
#ifndef DISTILE_CUDA_STAGE_TEAMS_H
#define DISTILE_CUDA_STAGE_TEAMS_H

#include "runtime/cuda/cuda_device.h"
#include "runtime/stage/stage.h"
#include <vector>

namespace distile {

struct TeamProgram;

/** Steps of a stage that follow each other: either all residual blocks of one image that teams compute, or none. */
struct StageSection {
    size_t begin, end;
    bool is_for_teams;
};

/** Keeps the kernels loaded for its lifetime. */
class StageTeams {
public:
    explicit StageTeams(CudaDevice &device);
    ~StageTeams();
    StageTeams(const StageTeams &) = delete;
    StageTeams &operator=(const StageTeams &) = delete;

    /** Whether a stage has steps that teams could compute, whatever its images are. */
    static bool has_blocks(const Stage &stage);
    /** Divides the steps of a stage. */
    std::vector<StageSection> divide(const Stage &stage) const;
    /** Runs the steps of a section for teams. */
    void run(const Stage &stage, const StageSection &section, StageTrace *trace);

private:
    bool takes(const Stage &stage, const MaskShape &images) const;
    /** Whether teams are clusters for `images` images. */
    bool takes_clusters(int32_t images) const;
    void add_items(const TeamProgram &program, uint32_t blocks, const std::vector<int32_t> &steps, StageTrace &trace);

    CudaDevice &device_;
    CUmodule module_ = nullptr;
    CUfunction cluster_float16_ = nullptr, cluster_bfloat16_ = nullptr, memory_float16_ = nullptr,
               memory_bfloat16_ = nullptr;
    int32_t most_clusters_ = 0;  ///< How many run at once.
    DeviceMemory exchange_, counters_, times_;
};

}  // namespace distile

#endif
