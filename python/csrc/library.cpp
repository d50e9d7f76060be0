/** \file
 * The operators of torch.ops.distile. Operators without `out` return new tensors, which are zero where the mask is not
 * active; those with `out` leave its inactive pixels unless `zero`.
 */
#include "bindings/registry.h"
#include "python/csrc/layers.h"
#include "python/csrc/operators.h"
#include "python/csrc/parallel.h"
#include "python/csrc/planner.h"
#include "python/csrc/session.h"
#include "python/csrc/switches.h"
#include "python/csrc/twins.h"
#include "python/csrc/weights.h"
#include <distile/stage.h>

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

bool keeps_pattern(const Tensor &weight, ScalarType input) {
    return keeps_two_of_four(weight, input, 0);
}

void allow_general_code(int64_t when) {
    allow_general(static_cast<General>(when));
}

int64_t most_stage_words(bool attention) {
    return attention ? DISTILE_STAGE_ATTENTION_WORDS : DISTILE_STAGE_WORDS;
}

int64_t polykernel_version() {
    return DISTILE_POLYKERNEL_VERSION;
}

using Library = torch::stable::detail::StableLibrary;

/** A form with `out`, without its result. */
template<auto function> struct Into;
template<typename Result, typename... Parameters, Result (*function)(Parameters...)> struct Into<function> {
    static void call(Parameters... parameters) {
        (void)function(parameters...);
    }
};

const std::string weighted = "Tensor input, Tensor weight, Tensor? bias, Tensor mask, Tensor? residual=None, *, ";
const std::string convolution = "int[4] padding=0, int[2] dilation=1, int groups=1, str activation='none', int place=0";

/** Defines the forms of an operator that write into a given tensor: `out`, as PyTorch's own, and one that returns
 * nothing, which torch.compile traces in its place (shapes.py). Its tensor has another name: Dynamo wants those named
 * `out` to be contiguous. */
void define_out(Library &m, const std::string &name, const std::string &arguments) {
    m.def((name + ".out(" + arguments + ", Tensor(a!) out) -> Tensor(a!)").c_str());
    m.def((name + "_into(" + arguments + ", Tensor(a!) into) -> ()").c_str());
}

/** Defines the forms of an operator: functional; functional without gradients, which costs less to call; and with
 * `out`. They have names of their own: PyTorch cannot unload overloads that differ in nothing else. */
void define(Library &m, const std::string &name, const std::string &arguments) {
    m.def((name + "(" + arguments + ") -> Tensor").c_str());
    m.def((name + "_inference(" + arguments + ") -> Tensor").c_str());
    define_out(m, name, arguments + ", bool zero=False");
}

/** Defines the forms of an operator that needs none without gradients. */
void define_pair(Library &m, const std::string &name, const std::string &arguments) {
    m.def((name + "(" + arguments + ") -> Tensor").c_str());
    define_out(m, name, arguments + (arguments.find('*') == std::string::npos ? ", *" : ""));
}

template<auto functional, auto out> void implement_pair(Library &m, const std::string &name) {
    m.impl(name.c_str(), TORCH_BOX(functional));
    m.impl((name + ".out").c_str(), TORCH_BOX(out));
    m.impl((name + "_into").c_str(), TORCH_BOX(&Into<out>::call));
}

template<auto functional, auto out> void implement(Library &m, const std::string &name) {
    implement_pair<functional, out>(m, name);
    m.impl((name + "_inference").c_str(), TORCH_BOX(functional));
}

/** What runs on every device. */
void implement_all(Library &m) {
    implement<&conv2d, &conv2d_out>(m, "conv2d");
    implement<&conv_transpose2d, &conv_transpose2d_out>(m, "conv_transpose2d");
    implement<&upsample_conv2d, &upsample_conv2d_out>(m, "upsample_conv2d");
    implement<&linear, &linear_out>(m, "linear");
    implement<&attention, &attention_out>(m, "attention");
    implement<&layer_norm, &layer_norm_out>(m, "layer_norm");
    implement<&rms_norm, &rms_norm_out>(m, "rms_norm");
    implement<&max_pool2d, &max_pool2d_out>(m, "max_pool2d");
    implement<&avg_pool2d, &avg_pool2d_out>(m, "avg_pool2d");
    implement<&add, &add_out>(m, "add");
    implement<&multiply, &multiply_out>(m, "multiply");
    implement<&activate, &activate_out>(m, "activate");
    implement<&group_norm, &group_norm_out>(m, "group_norm");
    implement<&upsample_nearest, &upsample_nearest_out>(m, "upsample_nearest");
    implement_pair<&global_pool, &global_pool_out>(m, "global_pool");
    implement_pair<&group_statistics, &group_statistics_out>(m, "group_statistics");
    implement_pair<&pack, &pack_out>(m, "pack");
    implement_pair<&unpack, &unpack_out>(m, "unpack");
    implement_pair<&mask_scores, &mask_scores_out>(m, "mask_scores");
    implement_pair<&mask_dilate, &mask_dilate_out>(m, "mask_dilate");
    implement_pair<&mask_pool, &mask_pool_out>(m, "mask_pool");
    implement_pair<&mask_needed_input, &mask_needed_input_out>(m, "mask_needed_input");
    implement_pair<&mask_affected_output, &mask_affected_output_out>(m, "mask_affected_output");
    implement_pair<&mask_difference, &mask_difference_out>(m, "mask_difference");
    implement_pair<&mask_from_indices, &mask_from_indices_out>(m, "mask_from_indices");
    implement_pair<&mask_from_bits, &mask_from_bits_out>(m, "mask_from_bits");
    m.impl("stage", TORCH_BOX(&stage));
    m.impl("stage_inference", TORCH_BOX(&stage));
    m.impl("_run_stage", TORCH_BOX(&run_stage));
    m.impl("_keeps_two_of_four", TORCH_BOX(&keeps_pattern));
    m.impl("_fix_mask", TORCH_BOX(&fix_mask));
    m.impl("_release_mask", TORCH_BOX(&release_mask));
    m.impl("_fix_result", TORCH_BOX(&fix_result));
    m.impl("_planner_make", TORCH_BOX(&make_planner));
    m.impl("_planner_next", TORCH_BOX(&next_output));
    m.impl("_chain_run", TORCH_BOX(&run_chain));
    m.impl("_chain_collect", TORCH_BOX(&collect_images));
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
    const std::string statistics =
        "(Tensor input, Tensor? mask=None, *, int groups, Tensor(a!) mean, Tensor(b!) variance)";
    m.def(("group_statistics.out" + statistics + " -> (Tensor(a!), Tensor(b!))").c_str());
    m.def(("group_statistics_into" + statistics + " -> ()").c_str());
    define_pair(m, "pack", "Tensor input, Tensor mask");
    m.def("unpack(Tensor packed, Tensor mask) -> Tensor");
    define_out(m, "unpack", "Tensor packed, Tensor mask, *, bool zero=False");
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
    m.def("_group_make(int[] devices, int[] streams, int[] threads, float[] speeds, float imbalance, int timeout_ms, "
          "int overlap, bool any_order, int rank, int ranks, int exchange, bool asynchronous) -> int");
    m.def("_group_free(int group) -> ()");
    const std::string chain = "(int group, Tensor[] parameters, ScalarType dtype, int[] layers, str activations) -> ";
    m.def(("_chain_lacks" + chain + "int[]").c_str());
    m.def(("_chain_make" + chain + "int").c_str());
    m.def("_chain_run(Tensor? input, Tensor[] masks, Tensor(a!)? output, Tensor[] parameters, int chain, bool zero, "
          "int[] input_sizes, int[] output_sizes) -> ()");
    m.def("_chain_kept(int chain) -> int[]");
    m.def("_chain_collect(Tensor(a!) output, int chain) -> ()");
    m.def("_chain_info(int chain) -> float[]");
    m.def("_chain_free(int chain) -> ()");
    m.def("_switch_make(Tensor[] masks, int device, int[] graphs, float budget) -> int");
    m.def("_switch_launch(int switch) -> ()");
    m.def("_switch_set(int switch, int way) -> ()");
    m.def("_switch_info(int switch) -> float[]");
    m.def("_switch_free(int switch) -> ()");
    m.def("_load(str path) -> ()");
    m.def("_set_math(int math) -> ()");
    m.def("_polykernel_version() -> int");
    m.def("_define_twins() -> ()");
    m.def("_keeps_two_of_four(Tensor weight, ScalarType input) -> bool");
    m.def("_free_weights(int place) -> ()");
    m.def("_check_contents(bool read) -> ()");
    for (const std::string name : {"stage", "stage_inference"}) {
        m.def((name + "(Tensor[] tensors, Tensor[] masks, Tensor[] parameters, *, int[] steps, float[] numbers, "
                      "str activations, int[] outputs, int[] places, float[] times=[], int way=-1) -> Tensor[]")
                  .c_str());
    }
    m.def("_run_stage(Tensor(a!)[] tensors, Tensor(c!)[] parameters, Tensor(b!)[] masks, int[] borders, int[] made, "
          "int[] program, float[] numbers) -> ()");
    m.def("_pack_stage_weights(Tensor weight, int dtype, int groups, Tensor like) -> Tensor");
    m.def("_allow_general(int when) -> ()");
    m.def("_trace_stages(bool begins, Tensor like) -> Tensor");
    m.def("_set_stage_teams(int teams) -> int");
    m.def("_most_stage_words(bool attention) -> int");
    m.def("_fix_mask(Tensor mask) -> ()");
    m.def("_release_mask(Tensor mask) -> ()");
    m.def("_fix_result(Tensor like, bool fixed) -> ()");
    m.def("_times_packed() -> int");
}

STABLE_TORCH_LIBRARY_IMPL(distile, CPU, m) {
    implement_all(m);
    implement_pair<&cumulative_lengths, &cumulative_lengths_out>(m, "cumulative_lengths");
    implement_pair<&mask_to_bits, &mask_to_bits_out>(m, "mask_to_bits");
}

STABLE_TORCH_LIBRARY_IMPL(distile, CUDA, m) {
    implement_all(m);
}

STABLE_TORCH_LIBRARY_IMPL(distile, CompositeExplicitAutograd, m) {
    m.impl("_allow_general", TORCH_BOX(&allow_general_code));
    m.impl("_most_stage_words", TORCH_BOX(&most_stage_words));
    m.impl("_pack_stage_weights", TORCH_BOX(&pack_stage_weights));
    m.impl("_trace_stages", TORCH_BOX(&trace_stages));
    m.impl("_set_stage_teams", TORCH_BOX(&set_stage_teams));
    m.impl("_planner_bytes", TORCH_BOX(&planner_bytes));
    m.impl("_planner_free", TORCH_BOX(&free_planner));
    m.impl("_group_make", TORCH_BOX(&make_group));
    m.impl("_group_free", TORCH_BOX(&free_group));
    m.impl("_chain_lacks", TORCH_BOX(&lacking_polykernels));
    m.impl("_chain_make", TORCH_BOX(&make_chain));
    m.impl("_chain_kept", TORCH_BOX(&kept_images));
    m.impl("_chain_info", TORCH_BOX(&chain_info));
    m.impl("_chain_free", TORCH_BOX(&free_chain));
    m.impl("_switch_make", TORCH_BOX(&make_switch));
    m.impl("_switch_launch", TORCH_BOX(&launch_switch));
    m.impl("_switch_set", TORCH_BOX(&set_switch));
    m.impl("_switch_info", TORCH_BOX(&switch_info));
    m.impl("_switch_free", TORCH_BOX(&free_switch));
    m.impl("_load", TORCH_BOX(&load));
    m.impl("_set_math", TORCH_BOX(&set_math));
    m.impl("_polykernel_version", TORCH_BOX(&polykernel_version));
    m.impl("_define_twins", TORCH_BOX(&define_twins));
    m.impl("_free_weights", TORCH_BOX(&free_weights));
    m.impl("_check_contents", TORCH_BOX(&check_contents));
    m.impl("_times_packed", TORCH_BOX(&times_packed));
}
