// The row of the runner that compares a type with float32.
#include "bench/gpu/cuda_runner.h"
#include "bench/gpu/masked_call.h"

namespace distile::bench {

void CudaRunner::measure(const TypeRow &row, Json &result) {
    result["kind"] = "type";
    result["type"] = row.type;
    const GpuWorkbench &plain = workbench(bench_, row.op, find_numerics("float32"), row.batch);
    const GpuWorkbench &typed = workbench(in_type_, row.op_in_type(), find_numerics(row.type), row.batch);
    const ByteMask bytes = draw_for(row, plain, result);

    // Both run the variant that the dispatcher chooses in float32.
    const MaskedCall in_float32(plain, bytes), in_type(typed, bytes);
    in_float32.checked(nullptr);
    const char *const variant = traced_.variant;
    result["variant"] = variant;
    result["max_rel_err"] = rounded(in_type.checked(variant));
    result["float32_max_rel_err"] = rounded(in_float32.checked(variant));

    const Mask known = make_mask(context_);
    in_type.set(known);
    const GpuGraph typed_call(slice_, [&] { in_type.set_and_run(variant); });
    const GpuGraph plain_call(slice_, [&] { in_float32.set_and_run(variant); });
    const GpuGraph typed_kernels(slice_, [&] { in_type.run(known, variant); });
    const GpuGraph plain_kernels(slice_, [&] { in_float32.run(known, variant); });
    const std::vector<Spread> spreads = in_turns({&typed_call, &plain_call, &typed_kernels, &plain_kernels});
    add_times(result, spreads[0]);
    add_comparison(result, "float32", spreads[0], spreads[1]);
    add_ratio_goal(result, row.goal_ratio);
    result["t_kernels_us"] = rounded(spreads[2].median);
    result["t_plain_kernels_us"] = rounded(spreads[3].median);
    result["ratio_kernels"] = rounded(spreads[2].median / spreads[3].median);
}

}  // namespace distile::bench
