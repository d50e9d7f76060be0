/** \file
 * The operators of torch.ops.distile. Operators without `out` return new tensors, which are zero where the mask is not
 * active; those with `out` leave its inactive pixels unless `zero`.
 */
#include "bindings/registry.h"
#include "layers.h"
#include "operators.h"
#include "planner.h"
#include "session.h"
#include "weights.h"

namespace {

using namespace distile::python;

void load(const std::string &path) {
    distile::bindings::load_polykernel(path);
}

void fix_mask(const Tensor &mask) {
    Session::of(mask).fix_mask(mask);
}

void fix_result(const Tensor &like, bool fixed) {
    Session::of(like).fix_result(fixed);
}

void release_mask(const Tensor &mask) {
    Session::of(mask).release_mask(mask);
}

int64_t polykernel_version() {
    return DISTILE_POLYKERNEL_VERSION;
}

using Library = torch::stable::detail::StableLibrary;
using Boxed = void (*)(StableIValue *, uint64_t, uint64_t);

const std::string weighted = "Tensor input, Tensor weight, Tensor? bias, Tensor mask, Tensor? residual=None, *, ";
const std::string convolution = "int[4] padding=0, int[2] dilation=1, int groups=1, str activation='none', int place=0";

/** Defines the forms of an operator: functional; functional without gradients, which costs less to call; and `out`.
 * The second has a name of its own: PyTorch cannot unload overloads that differ in nothing else. */
void define(Library &m, const std::string &name, const std::string &arguments) {
    m.def((name + "(" + arguments + ") -> Tensor").c_str());
    m.def((name + "_inference(" + arguments + ") -> Tensor").c_str());
    m.def((name + ".out(" + arguments + ", bool zero=False, Tensor(a!) out) -> Tensor(a!)").c_str());
}

/** Defines the forms of an operator that needs none without gradients. */
void define_pair(Library &m, const std::string &name, const std::string &arguments) {
    const char *const options = arguments.find('*') == std::string::npos ? ", *" : "";
    m.def((name + "(" + arguments + ") -> Tensor").c_str());
    m.def((name + ".out(" + arguments + options + ", Tensor(a!) out) -> Tensor(a!)").c_str());
}

void implement_pair(Library &m, const std::string &name, Boxed functional, Boxed out) {
    m.impl(name.c_str(), functional);
    m.impl((name + ".out").c_str(), out);
}

void implement(Library &m, const std::string &name, Boxed functional, Boxed out) {
    implement_pair(m, name, functional, out);
    m.impl((name + "_inference").c_str(), functional);
}

/** What runs on every device. */
void implement_all(Library &m) {
    implement(m, "conv2d", TORCH_BOX(&conv2d), TORCH_BOX(&conv2d_out));
    implement(m, "conv_transpose2d", TORCH_BOX(&conv_transpose2d), TORCH_BOX(&conv_transpose2d_out));
    implement(m, "upsample_conv2d", TORCH_BOX(&upsample_conv2d), TORCH_BOX(&upsample_conv2d_out));
    implement(m, "linear", TORCH_BOX(&linear), TORCH_BOX(&linear_out));
    implement(m, "attention", TORCH_BOX(&attention), TORCH_BOX(&attention_out));
    implement(m, "layer_norm", TORCH_BOX(&layer_norm), TORCH_BOX(&layer_norm_out));
    implement(m, "rms_norm", TORCH_BOX(&rms_norm), TORCH_BOX(&rms_norm_out));
    implement(m, "max_pool2d", TORCH_BOX(&max_pool2d), TORCH_BOX(&max_pool2d_out));
    implement(m, "avg_pool2d", TORCH_BOX(&avg_pool2d), TORCH_BOX(&avg_pool2d_out));
    implement(m, "add", TORCH_BOX(&add), TORCH_BOX(&add_out));
    implement(m, "multiply", TORCH_BOX(&multiply), TORCH_BOX(&multiply_out));
    implement(m, "activate", TORCH_BOX(&activate), TORCH_BOX(&activate_out));
    implement(m, "group_norm", TORCH_BOX(&group_norm), TORCH_BOX(&group_norm_out));
    implement(m, "upsample_nearest", TORCH_BOX(&upsample_nearest), TORCH_BOX(&upsample_nearest_out));
    implement_pair(m, "global_pool", TORCH_BOX(&global_pool), TORCH_BOX(&global_pool_out));
    implement_pair(m, "group_statistics", TORCH_BOX(&group_statistics), TORCH_BOX(&group_statistics_out));
    implement_pair(m, "pack", TORCH_BOX(&pack), TORCH_BOX(&pack_out));
    implement_pair(m, "unpack", TORCH_BOX(&unpack), TORCH_BOX(&unpack_out));
    implement_pair(m, "mask_scores", TORCH_BOX(&mask_scores), TORCH_BOX(&mask_scores_out));
    implement_pair(m, "mask_dilate", TORCH_BOX(&mask_dilate), TORCH_BOX(&mask_dilate_out));
    implement_pair(m, "mask_pool", TORCH_BOX(&mask_pool), TORCH_BOX(&mask_pool_out));
    implement_pair(m, "mask_needed_input", TORCH_BOX(&mask_needed_input), TORCH_BOX(&mask_needed_input_out));
    implement_pair(m, "mask_affected_output", TORCH_BOX(&mask_affected_output), TORCH_BOX(&mask_affected_output_out));
    implement_pair(m, "mask_difference", TORCH_BOX(&mask_difference), TORCH_BOX(&mask_difference_out));
    implement_pair(m, "mask_from_indices", TORCH_BOX(&mask_from_indices), TORCH_BOX(&mask_from_indices_out));
    implement_pair(m, "mask_from_bits", TORCH_BOX(&mask_from_bits), TORCH_BOX(&mask_from_bits_out));
    m.impl("_fix_mask", TORCH_BOX(&fix_mask));
    m.impl("_release_mask", TORCH_BOX(&release_mask));
    m.impl("_fix_result", TORCH_BOX(&fix_result));
    m.impl("_planner_make", TORCH_BOX(&make_planner));
    m.impl("_planner_next", TORCH_BOX(&next_output));
}

}  // namespace

STABLE_TORCH_LIBRARY(distile, m) {
    define(m, "conv2d", weighted + "int[2] stride=1, " + convolution);
    define(m, "conv_transpose2d", weighted + "int[2] stride=1, int[2] output_padding=0, " + convolution);
    define(m, "upsample_conv2d", weighted + "int[2] scale=2, " + convolution);
    define(m, "linear", weighted + "str activation='none', int place=0");
    define(m, "attention",
           "Tensor query, Tensor key, Tensor value, Tensor mask, Tensor? key_mask=None, *, float scale=0, "
           "bool causal=False");
    define(m, "layer_norm", "Tensor input, Tensor mask, Tensor? weight, Tensor? bias, *, float epsilon=1e-5");
    define(m, "rms_norm", "Tensor input, Tensor mask, Tensor? weight, *, float epsilon=1e-6");
    // The kernel is no keyword-only argument, because PyTorch's inductor calls one of its own `kernel`.
    define(m, "max_pool2d",
           "Tensor input, Tensor mask, int[2] kernel, *, int[2] stride=1, int[2] padding=0, int[2] dilation=1");
    define(m, "avg_pool2d",
           "Tensor input, Tensor mask, int[2] kernel, *, int[2] stride=1, int[2] padding=0, bool count_padding=True");
    define(m, "add", "Tensor input, Tensor other, Tensor mask, *, str activation='none'");
    define(m, "multiply",
           "Tensor input, Tensor other, Tensor mask, *, str other_activation='none', str activation='none'");
    define(m, "activate", "Tensor input, Tensor mask, *, str activation='none'");
    define(m, "group_norm",
           "Tensor input, Tensor mask, Tensor? weight, Tensor? bias, Tensor? mean=None, Tensor? variance=None, *, "
           "int groups, float epsilon=1e-5, str activation='none'");
    define(m, "upsample_nearest", "Tensor input, Tensor mask, *, int[2] scale=2");
    define_pair(m, "global_pool", "Tensor input, Tensor? mask=None, *, bool maximum=False");
    m.def("group_statistics(Tensor input, Tensor? mask=None, *, int groups) -> (Tensor, Tensor)");
    m.def("group_statistics.out(Tensor input, Tensor? mask=None, *, int groups, Tensor(a!) mean, Tensor(b!) variance) "
          "-> (Tensor(a!), Tensor(b!))");
    define_pair(m, "pack", "Tensor input, Tensor mask");
    m.def("unpack(Tensor packed, Tensor mask) -> Tensor");
    m.def("unpack.out(Tensor packed, Tensor mask, *, bool zero=False, Tensor(a!) out) -> Tensor(a!)");
    define_pair(m, "cumulative_lengths", "Tensor mask");
    define_pair(m, "mask_scores", "Tensor input, Tensor? weight=None, *, float bias=0, float threshold=0");
    define_pair(m, "mask_dilate", "Tensor mask, int radius_h, int radius_w");
    define_pair(m, "mask_pool", "Tensor mask, int factor_h, int factor_w");
    const std::string window =
        "Tensor mask, SymInt[] size, int[2] kernel, *, int[2] stride=1, int[2] dilation=1, int[2] padding=0, int "
        "kind=0";
    define_pair(m, "mask_needed_input", window);
    define_pair(m, "mask_affected_output", window);
    define_pair(m, "mask_difference", "Tensor a, Tensor b, float threshold=0");
    define_pair(m, "mask_from_indices", "Tensor indices, SymInt height, SymInt width");
    define_pair(m, "mask_from_bits", "Tensor words, SymInt width");
    define_pair(m, "mask_to_bits", "Tensor mask");
    m.def("_planner_make(Tensor like, int buffers, int clearing) -> int");
    m.def("_planner_next(Tensor mask, int planner, int channels, ScalarType dtype, bool whole) -> int");
    m.def("_planner_bytes(int planner) -> int");
    m.def("_planner_free(int planner) -> ()");
    m.def("_load(str path) -> ()");
    m.def("_set_math(int math) -> ()");
    m.def("_polykernel_version() -> int");
    m.def("_free_weights(int place) -> ()");
    m.def("_fix_mask(Tensor mask) -> ()");
    m.def("_release_mask(Tensor mask) -> ()");
    m.def("_fix_result(Tensor like, bool fixed) -> ()");
    m.def("_times_packed() -> int");
}

STABLE_TORCH_LIBRARY_IMPL(distile, CPU, m) {
    implement_all(m);
    implement_pair(m, "cumulative_lengths", TORCH_BOX(&cumulative_lengths), TORCH_BOX(&cumulative_lengths_out));
    implement_pair(m, "mask_to_bits", TORCH_BOX(&mask_to_bits), TORCH_BOX(&mask_to_bits_out));
}

STABLE_TORCH_LIBRARY_IMPL(distile, CUDA, m) {
    implement_all(m);
}

STABLE_TORCH_LIBRARY_IMPL(distile, CompositeExplicitAutograd, m) {
    m.impl("_planner_bytes", TORCH_BOX(&planner_bytes));
    m.impl("_planner_free", TORCH_BOX(&free_planner));
    m.impl("_load", TORCH_BOX(&load));
    m.impl("_set_math", TORCH_BOX(&set_math));
    m.impl("_polykernel_version", TORCH_BOX(&polykernel_version));
    m.impl("_free_weights", TORCH_BOX(&free_weights));
    m.impl("_times_packed", TORCH_BOX(&times_packed));
}
