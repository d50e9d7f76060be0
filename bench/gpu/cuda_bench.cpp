/** \file
 * The benchmark of GPUs: masked operators against dense ones of cuDNN and cuBLAS. The executable needs only the C
 * library, the driver and, for the peer, cuDNN, so it can be copied to a machine with a GPU.
 */
#include "autoscheduler/measure/gpu.h"
#include "bench/gpu/cuda_runner.h"
#include "bench/harness/machine.h"
#include "bench/harness/report.h"
#include "bench/harness/session.h"
#include "bench/harness/source_version.h"
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <fmt/core.h>

namespace {

using namespace distile::bench;

struct Options : SessionOptions {
    ReportOptions report;
    CudaRunnerOptions runner;
    std::string objects, profile;
};

constexpr const char *examples = R"(
Row names are <operator>/<mask>/<density>/n<batch>/<keep or zero>/<bordered or plain>/<cudnn, cublas or dense>, with /tf32,
/float16 or /bfloat16 behind it where that is not strict float32, and /boxes for code with tiles of 8 x 8,
choice/<device or linked>/<operator>/<mask>/<density>/n<batch>/<type>,
type/<type>/<operator>/<mask>/<density>/n<batch>, opencl/<operator>/<mask>/<density>/n<batch>, bandwidth/<operator>/<mask>/<density>/n<batch>,
mask/<size>/<mask>/<density>/pack+counts+list, algebra/<size>/<mask>/<density>/<function>, difference/<size> and
planner/<layers>x<operator>/<mask>/<density>.

Examples:
  distile_cuda_bench --out results.json                             measure all rows
  distile_cuda_bench --out results.json --resume                    go on where a run was stopped
  distile_cuda_bench --multiprocessors 16 --times conv.times.json   on a part of the GPU, by another time table
  distile_cuda_bench --data data --rows bench/rows_cuda.json        on a machine where it was not built
  distile_cuda_bench --objects objects --filter '^op1/'             with OPERATOR.WAY.so of `distile compile`
  distile_cuda_bench --summary results.json                         Markdown tables
)";

Json make_header(const CudaRunner &runner, const Options &options) {
    int driver = 0;
    CU(cuDriverGetVersion, &driver);
    return {{"date", utc_now()},
            {"backend", "cuda"},
            {"device", runner.slice().device()},
            {"system", system_name()},
            {"threads", runner.slice().multiprocessors()},
            {"multiprocessors", runner.slice().multiprocessors()},
            {"compiler", DISTILE_BENCH_COMPILER},
            {"versions",
             {{"distile", fmt::format("{}.{}.{}", DISTILE_VERSION_MAJOR, DISTILE_VERSION_MINOR, DISTILE_VERSION_PATCH)},
              {"source", source_version()},
              {"Halide", DISTILE_BENCH_HALIDE},
              {"CUDA driver", driver},
              {"cuDNN", runner.cudnn_description()},
              {"cuBLAS", runner.cublas_description()}}},
            {"rounds", options.runner.rounds},
            {"peer_seconds", options.runner.peer_seconds},
            {"about",
             "times are medians in microseconds of replayed graphs, all sides in turns; t_kernels_us: the operator's "
             "kernels for a mask that the host knows; t_masked_us: from the byte mask on the device, nothing waits; "
             "t_host_path_us: the same where the host chooses, without its wait, as t_lists_us + t_kernels_us; "
             "t_host_until_launched_us: by the host's clock, its wait included; variants_us: t_masked_us of every "
             "variant; dtype: the type of both sides, where float32 is without TF32; t_peer_us: the fastest dense "
             "convolution of cuDNN in that type, without bias and epilogue, on tensors without a border, or the linear "
             "layer of cuBLAS with its bias; t_gather_us: cuBLAS over the active tokens, gathered before and scattered "
             "after it by a list that is given; eta = "
             "t_peer_us * density / t_masked_us, eta_kernel by t_kernels_us; errors are the largest difference to "
             "plain loops on some pixels by the largest value"}};
}

/** The numbers of a row that was measured. */
std::string describe(const Json &row) {
    const std::string kind = row.at("kind");
    const auto number = [&](const char *field) { return row.value(field, 0.0); };
    const char *const met = !row.contains("met") ? "" : row.at("met") == true ? "  met" : "  MISSED";
    if (kind == "planner") {
        return fmt::format("keep {:7.2f}  zero {:7.2f}  written {:7.2f}  all {:7.2f}  background {:7.2f} us a layer",
                           number("t_keep_us"), number("t_zero_us"), number("t_written_us"), number("t_all_us"),
                           number("t_background_us"));
    }
    if (kind == "difference") {
        return fmt::format("{:8.2f} us, a copy {:8.2f} us: ratio {:.2f}  goal < {}{}", number("t_us"),
                           number("t_copy_us"), number("ratio"), number("goal_ratio"), met);
    }
    if (kind == "opencl") {
        return fmt::format("{:8.1f} us, CUDA {:8.1f} us: ratio {:.2f} (from the mask {:.2f})  goal <= {}{}",
                           number("t_us"), number("t_plain_us"), number("ratio"), number("ratio_masked"),
                           number("goal_ratio"), met);
    }
    if (kind == "type") {
        return fmt::format("{:8.1f} us, float32 {:8.1f} us: ratio {:.2f} (kernels {:.2f})  goal <= {}{}",
                           number("t_us"), number("t_plain_us"), number("ratio"), number("ratio_kernels"),
                           number("goal_ratio"), met);
    }
    if (kind == "choice") {
        const bool device = row.at("chooser") == "device";
        return fmt::format(
            "kernels {:8.1f}  masked {:8.1f}  cudnn {:8.1f} us  {}{}", number("t_kernels_us"), number("t_masked_us"),
            number("t_peer_us"),
            device ? fmt::format("{:+.2f} us against {}", number("loss_us"), row.at("best_variant").get<std::string>())
                   : fmt::format("{:+.1f} % against cudnn, by {}", 100 * number("loss"),
                                 row.at("variant").get<std::string>()),
            met);
    }
    if (kind == "bandwidth") {
        return fmt::format("{:8.1f} us, a copy {:8.1f} us: {:.0f} GB/s, {:.2f} of a copy, {:.2f} of a large one{}",
                           number("t_us"), number("t_copy_us"), number("gb_per_s"), number("share"),
                           number("share_of_large_copy"), met);
    }
    if (kind != "convolution" && kind != "linear") {
        return fmt::format("{:8.2f} us  goal < {} us{}", number("t_us"), number("goal_us"), met);
    }
    const char *const second = row.contains("t_gather_us") ? "gathered" : "TF32";
    return fmt::format("kernels {:8.1f}  masked {:8.1f}  {} {:8.1f} ({} {:7.1f}) us  eta_kernel {:5.3f}  eta {:5.3f}  "
                       "{} ({:+.1f} %)",
                       number("t_kernels_us"), number("t_masked_us"), row.at("peer_name").get<std::string>(),
                       number("t_peer_us"), second,
                       number(row.contains("t_gather_us") ? "t_gather_us" : "t_peer_tf32_us"), number("eta_kernel"),
                       number("eta"), row.at("variant").get<std::string>(), 100 * number("choice_loss"));
}

int run(Options options) {
    if (!options.report.results.empty()) {
        report(options.report);
        return 0;
    }
    if (!options.objects.empty()) {
        options.runner.own = std::make_shared<const OwnObjects>(options.objects, distile::cuda_backend());
        options.own = options.runner.own->operators();
    }
    if (options.list) {
        list_rows(options);
        return 0;
    }
    CudaRunner runner(options.runner);
    if (!options.profile.empty()) {
        runner.profile(read_rows(options.rows, options.filter, options.own).front(), options.profile);
        return 0;
    }
    return measure_rows(
        options, make_header(runner, options), [&](const Row &row, Json &result) { runner.run(row, result); },
        describe);
}

}  // namespace

int main(int argc, char **argv) {
    try {
        Options options;
        options.rows = DISTILE_BENCH_CUDA_ROWS;
        options.runner.data = DISTILE_BENCH_DATA;
        CLI::App app("Measures masked operators on an NVIDIA GPU against dense ones of cuDNN and cuBLAS, in turns.");
        app.footer(examples);
        add_session_options(app, options);
        app.add_option("--multiprocessors", options.runner.multiprocessors,
                       "Measure on some of the GPU's multiprocessors, by a green context; 0: on all")
            ->check(CLI::Range(0, 4096))
            ->capture_default_str();
        app.add_option("--rounds", options.runner.rounds, "Replays of each side in a row")
            ->check(CLI::Range(1, 100000))
            ->capture_default_str();
        app.add_option("--peer-seconds", options.runner.peer_seconds,
                       "Time to search for cuDNN's fastest plan of a convolution, at most")
            ->check(CLI::Range(0.0, 3600.0))
            ->capture_default_str();
        app.add_option("--times", options.runner.times,
                       "Time tables of `distile profile`; without them, those built in");
        app.add_option("--objects", options.objects,
                       "Folder of OPERATOR.WAY.so with their plans OPERATOR.WAY.json: PolyKernels by these names");
        app.add_option("--profile", options.profile,
                       "Run this variant of the first row once, between the marks of a profiler");
        app.add_option("--data", options.runner.data, "Folder of operators.csv and the masks")->capture_default_str();
        add_report_options(app, options.report);
        CLI11_PARSE(app, argc, argv);
        return run(options);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "distile_cuda_bench: error: %s\n", error.what());
        return 1;
    }
}
