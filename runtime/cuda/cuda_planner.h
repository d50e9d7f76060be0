/** \file
 * The planner object on a GPU.
 */
#ifndef DISTILE_CUDA_PLANNER_H
#define DISTILE_CUDA_PLANNER_H

#include "runtime/cuda/cuda_device.h"
#include "runtime/tensor/planner.h"
#include <memory>
#include <vector>

namespace distile {

class CudaPlanner : public distile_planner {
public:
    CudaPlanner(CudaDevice &device, const PlannerSettings &settings);
    ~CudaPlanner() override;

    distile_tensor next(const distile_output_spec &spec, distile_mask &given, bool whole) override;
    int64_t bytes() const override;
    /** Makes the stream wait for background clearing of the next buffer. Returns whether there was any. */
    bool join();

private:
    class Buffer;

    CudaDevice &device_;
    int32_t clearing_;
    std::vector<std::unique_ptr<Buffer>> buffers_;
    size_t turn_ = 0;
    std::unique_ptr<SideStream> background_;
    bool pending_ = false;           ///< Background work that no stream waits for yet.
    bool pending_captured_ = false;  ///< The pending work is part of a graph.
};

}  // namespace distile

#endif
