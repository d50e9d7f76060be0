#include "masked_call.h"

namespace distile::bench {

MaskedCall::MaskedCall(const GpuWorkbench &bench, const ByteMask &mask, bool bordered, bool zero)
    : bench_(bench), bytes_(mask), device_bytes_(mask.bytes), zero_(zero), input_(bench.input(bordered)),
      residual_(bench.residual()), output_(bench.output_tensor()) {
}

void MaskedCall::set(const Mask &mask) const {
    bench_.set_mask(mask, bytes_, device_bytes_);
}

void MaskedCall::run(const Mask &mask, const char *variant) const {
    distile_run_args args{};
    args.input = &input_;
    args.residual = residual_ ? &*residual_ : nullptr;
    args.output = &output_;
    args.weights = bench_.weights.get();
    args.inactive = zero_ ? DISTILE_ZERO : DISTILE_KEEP;
    args.mask = mask.get();
    args.variant = variant;
    check(bench_.context, distile_run(bench_.kernel.get(), &args));
}

void MaskedCall::set_and_run(const char *variant) const {
    set(bench_.mask);
    run(bench_.mask, variant);
}

double MaskedCall::checked(const char *variant) const {
    bench_.spoil();
    set_and_run(variant);
    return bench_.check_output(bytes_, zero_);
}

}  // namespace distile::bench
