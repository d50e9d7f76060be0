/** \file
 * The planner object on a CPU.
 */
#ifndef DISTILE_CPU_PLANNER_H
#define DISTILE_CPU_PLANNER_H

#include "runtime/tensor/planner.h"
#include <vector>

namespace distile {

class CpuPlanner : public distile_planner {
public:
    CpuPlanner(distile_context &given, const PlannerSettings &settings);
    ~CpuPlanner() override;

    distile_tensor next(const distile_output_spec &spec, distile_mask &mask, bool whole) override;
    int64_t bytes() const override;

private:
    class Buffer;
    class Cleaner;

    int32_t clearing_;
    std::vector<std::unique_ptr<Buffer>> buffers_;
    size_t next_ = 0;
    std::unique_ptr<Cleaner> cleaner_;  // Destroyed before the buffers.
};

}  // namespace distile

#endif
