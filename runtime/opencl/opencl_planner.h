/** \file
 * The planner object on an OpenCL device.
 */
#ifndef DISTILE_OPENCL_PLANNER_H
#define DISTILE_OPENCL_PLANNER_H

#include "runtime/opencl/opencl_device.h"
#include "runtime/tensor/planner.h"
#include <memory>
#include <vector>

namespace distile {

/** Clears at the next hand-out whatever the settings say of the background: a queue has no second stream. */
class OpenClPlanner : public distile_planner {
public:
    OpenClPlanner(OpenClDevice &device, const PlannerSettings &settings);
    ~OpenClPlanner() override;

    distile_tensor next(const distile_output_spec &spec, distile_mask &mask, bool whole) override;
    int64_t bytes() const override;

private:
    class Buffer;

    bool clear_all_;
    std::vector<std::unique_ptr<Buffer>> buffers_;
    size_t turn_ = 0;
};

}  // namespace distile

#endif
