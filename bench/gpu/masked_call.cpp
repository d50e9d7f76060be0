#include "bench/gpu/masked_call.h"

namespace distile::bench {

MaskedCall::MaskedCall(const GpuWorkbench &bench, const ByteMask &mask, const CallModes &modes)
    : bench_(bench), bytes_(mask), device_bytes_(mask.bytes), modes_(modes), input_(bench.input(modes.bordered)),
      residual_(bench.residual()), output_(bench.output_tensor()) {
}

void MaskedCall::set(const Mask &mask) const {
    bench_.set_mask(mask, bytes_, device_bytes_, modes_.context);
}

void MaskedCall::run(const Mask &mask, const char *variant) const {
    distile_run_args args{};
    args.input = &input_;
    args.residual = residual_ ? &*residual_ : nullptr;
    args.output = &output_;
    args.weights = bench_.weights.get();
    args.inactive = modes_.zero ? DISTILE_ZERO : DISTILE_KEEP;
    args.store = modes_.store;
    args.mask = mask.get();
    args.variant = variant;
    check(modes_.context ? *modes_.context : bench_.context,
          distile_run(modes_.kernel ? modes_.kernel : bench_.kernel.get(), &args));
}

void MaskedCall::set_and_run(const char *variant) const {
    set(bench_.mask);
    run(bench_.mask, variant);
}

double MaskedCall::checked(const std::function<void()> &call, bool has_epilogue) const {
    bench_.spoil();
    call();
    return bench_.check_output(bytes_, modes_.zero, has_epilogue);
}

double MaskedCall::checked(const char *variant) const {
    return checked([&] { set_and_run(variant); });
}

}  // namespace distile::bench
