/** \file
 * The operators of torch.ops.distile. Operators without `out` return new tensors, which are zero where the mask is not
 * active; those with `out` leave its inactive pixels unless `zero`.
 */
#include "operators.h"
#include "registry.h"
#include "weights.h"

namespace {

using namespace distile::python;

void load(const std::string &path) {
    load_polykernel(path);
}

int64_t polykernel_version() {
    return DISTILE_POLYKERNEL_VERSION;
}

}  // namespace

STABLE_TORCH_LIBRARY(distile, m) {
#define DISTILE_WEIGHTED "Tensor input, Tensor weight, Tensor? bias, Tensor mask, Tensor? residual=None, *, "
#define DISTILE_CONV                                                                                                   \
    "int[2] stride=1, int[4] padding=0, int[2] dilation=1, int groups=1, str activation='none', int place=0"
#define DISTILE_TRANSPOSED                                                                                             \
    "int[2] stride=1, int[4] padding=0, int[2] output_padding=0, int[2] dilation=1, int groups=1, "                    \
    "str activation='none', int place=0"
#define DISTILE_UPSAMPLED                                                                                              \
    "int[2] scale=2, int[4] padding=0, int[2] dilation=1, int groups=1, str activation='none', int place=0"
#define DISTILE_LINEAR "str activation='none', int place=0"
#define DISTILE_OUT ", bool zero=False, Tensor(a!) out) -> Tensor(a!)"
    m.def("conv2d(" DISTILE_WEIGHTED DISTILE_CONV ") -> Tensor");
    m.def("conv2d.out(" DISTILE_WEIGHTED DISTILE_CONV DISTILE_OUT);
    m.def("conv_transpose2d(" DISTILE_WEIGHTED DISTILE_TRANSPOSED ") -> Tensor");
    m.def("conv_transpose2d.out(" DISTILE_WEIGHTED DISTILE_TRANSPOSED DISTILE_OUT);
    m.def("upsample_conv2d(" DISTILE_WEIGHTED DISTILE_UPSAMPLED ") -> Tensor");
    m.def("upsample_conv2d.out(" DISTILE_WEIGHTED DISTILE_UPSAMPLED DISTILE_OUT);
    m.def("linear(" DISTILE_WEIGHTED DISTILE_LINEAR ") -> Tensor");
    m.def("linear.out(" DISTILE_WEIGHTED DISTILE_LINEAR DISTILE_OUT);
#define DISTILE_ATTENTION                                                                                              \
    "Tensor query, Tensor key, Tensor value, Tensor mask, Tensor? key_mask=None, *, float scale=0, bool causal=False"
    m.def("attention(" DISTILE_ATTENTION ") -> Tensor");
    m.def("attention.out(" DISTILE_ATTENTION DISTILE_OUT);
#define DISTILE_LAYER_NORM "Tensor input, Tensor mask, Tensor? weight, Tensor? bias, *, float epsilon=1e-5"
    m.def("layer_norm(" DISTILE_LAYER_NORM ") -> Tensor");
    m.def("layer_norm.out(" DISTILE_LAYER_NORM DISTILE_OUT);
#define DISTILE_RMS_NORM "Tensor input, Tensor mask, Tensor? weight, *, float epsilon=1e-6"
    m.def("rms_norm(" DISTILE_RMS_NORM ") -> Tensor");
    m.def("rms_norm.out(" DISTILE_RMS_NORM DISTILE_OUT);
    m.def("pack(Tensor input, Tensor mask) -> Tensor");
    m.def("pack.out(Tensor input, Tensor mask, *, Tensor(a!) out) -> Tensor(a!)");
    m.def("unpack(Tensor packed, Tensor mask) -> Tensor");
    m.def("unpack.out(Tensor packed, Tensor mask, *" DISTILE_OUT);
    m.def("cumulative_lengths(Tensor mask) -> Tensor");
    m.def("mask_dilate(Tensor mask, int radius_h, int radius_w) -> Tensor");
    m.def("mask_pool(Tensor mask, int factor_h, int factor_w) -> Tensor");
#define DISTILE_WINDOW                                                                                                 \
    "Tensor mask, SymInt[] size, *, int[2] kernel, int[2] stride=1, int[2] dilation=1, int[2] padding=0, int kind=0"
    m.def("mask_needed_input(" DISTILE_WINDOW ") -> Tensor");
    m.def("mask_affected_output(" DISTILE_WINDOW ") -> Tensor");
    m.def("mask_difference(Tensor a, Tensor b, float threshold=0) -> Tensor");
    m.def("mask_from_indices(Tensor indices, SymInt height, SymInt width) -> Tensor");
    m.def("mask_from_bits(Tensor words, SymInt width) -> Tensor");
    m.def("mask_to_bits(Tensor mask) -> Tensor");
    m.def("_load(str path) -> ()");
    m.def("_polykernel_version() -> int");
    m.def("_free_weights(int place) -> ()");
    m.def("_times_packed() -> int");
}

namespace {

void implement(torch::stable::detail::StableLibrary &m) {
    m.impl("conv2d", TORCH_BOX(&conv2d));
    m.impl("conv2d.out", TORCH_BOX(&conv2d_out));
    m.impl("conv_transpose2d", TORCH_BOX(&conv_transpose2d));
    m.impl("conv_transpose2d.out", TORCH_BOX(&conv_transpose2d_out));
    m.impl("upsample_conv2d", TORCH_BOX(&upsample_conv2d));
    m.impl("upsample_conv2d.out", TORCH_BOX(&upsample_conv2d_out));
    m.impl("linear", TORCH_BOX(&linear));
    m.impl("linear.out", TORCH_BOX(&linear_out));
    m.impl("attention", TORCH_BOX(&attention));
    m.impl("attention.out", TORCH_BOX(&attention_out));
    m.impl("layer_norm", TORCH_BOX(&layer_norm));
    m.impl("layer_norm.out", TORCH_BOX(&layer_norm_out));
    m.impl("rms_norm", TORCH_BOX(&rms_norm));
    m.impl("rms_norm.out", TORCH_BOX(&rms_norm_out));
    m.impl("pack", TORCH_BOX(&pack));
    m.impl("pack.out", TORCH_BOX(&pack_out));
    m.impl("unpack", TORCH_BOX(&unpack));
    m.impl("unpack.out", TORCH_BOX(&unpack_out));
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(distile, CPU, m) {
    implement(m);
    m.impl("cumulative_lengths", TORCH_BOX(&cumulative_lengths));
    m.impl("mask_dilate", TORCH_BOX(&mask_dilate));
    m.impl("mask_pool", TORCH_BOX(&mask_pool));
    m.impl("mask_needed_input", TORCH_BOX(&mask_needed_input));
    m.impl("mask_affected_output", TORCH_BOX(&mask_affected_output));
    m.impl("mask_difference", TORCH_BOX(&mask_difference));
    m.impl("mask_from_indices", TORCH_BOX(&mask_from_indices));
    m.impl("mask_from_bits", TORCH_BOX(&mask_from_bits));
    m.impl("mask_to_bits", TORCH_BOX(&mask_to_bits));
}

STABLE_TORCH_LIBRARY_IMPL(distile, CUDA, m) {
    implement(m);
}

STABLE_TORCH_LIBRARY_IMPL(distile, CompositeExplicitAutograd, m) {
    m.impl("_load", TORCH_BOX(&load));
    m.impl("_polykernel_version", TORCH_BOX(&polykernel_version));
    m.impl("_free_weights", TORCH_BOX(&free_weights));
    m.impl("_times_packed", TORCH_BOX(&times_packed));
}
