/** \file
 * The benchmark of orders of tiles on a GPU: masked variants on lists in several orders.
 */
#include "autoscheduler/measure/gpu.h"
#include "autoscheduler/measure/gpu_measure.h"
#include "bench/gpu/results_header.h"
#include "bench/harness/command_line.h"
#include "bench/harness/list_orders.h"
#include "bench/harness/masks.h"
#include "bench/harness/measure.h"
#include "bench/harness/operators.h"
#include "bench/harness/results.h"
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fmt/core.h>
#include <memory>
#include <random>

namespace {

using namespace distile;
using namespace distile::bench;

constexpr const char *examples = R"(
A row is <PolyKernel>/<size>/<density>: the kernel of the masked variant that the dispatcher chooses, for a known mask, on
lists of tiles in several orders. All results must have equal bits.

Examples:
  distile_order_bench --out results.json
  distile_order_bench --size 256 --once hilbert --polykernel conv3x3_256_float16_cuda     # for a profiler
)";

struct Options {
    std::vector<std::string> polykernels{"conv3x3_256_float16_cuda", "conv3x3_256_cuda", "conv1x1_256_1024_cuda",
                                         "depthwise3x3_576_cuda"};
    std::vector<int32_t> sizes{128, 256, 1024};
    std::vector<double> densities{.3, .9};
    int32_t rounds = 15;
    std::string out, once;
    bool resume = false;
};

/** Memory of the GPU with numbers from -1 to 1, for any type of 16 or 32 bits: halves with small exponents. */
std::unique_ptr<DeviceArray<uint8_t>> drawn(size_t bytes) {
    constexpr size_t most = size_t{1} << 22;
    const size_t piece = std::min(bytes, most);
    std::vector<uint16_t> halves(piece / sizeof(uint16_t));
    std::mt19937 random(1);
    for (uint16_t &half : halves) {
        half = static_cast<uint16_t>((random() & 0x83ffU) | 0x3800U);
    }
    auto memory = std::make_unique<DeviceArray<uint8_t>>(bytes);
    const auto address = reinterpret_cast<CUdeviceptr>(memory->data());
    CU(cuMemcpyHtoD, address, static_cast<const void *>(halves.data()), piece);
    for (size_t done = piece; done < bytes; done += std::min(done, bytes - done)) {
        CU(cuMemcpyDtoD, address + done, address, std::min(done, bytes - done));
    }
    CU(cuCtxSynchronize);
    return memory;
}

Json measure(const std::string &name, const GpuSlice &slice, const std::string &built_name, int32_t size,
             double density, const Options &options) {
    distile_choice choice{};
    const Context context = make_context(slice, &choice);
    const distile_polykernel &built = find_polykernel(built_name);
    const Kernel whole = make_kernel(context, built);
    const distile_polykernel &polykernel = taken_polykernel(built, whole);
    const BenchOperator op = make_operator({built_name, 0, built_name}, "order", size, size, polykernel);
    const size_t element = distile_dtype_size(op.dtype);
    distile_tensor input = distile_tensor_make(nullptr, 1, size, size, op.conv.in_channels),
                   output =
                       distile_tensor_make(nullptr, 1, op.output_height(), op.output_width(), op.conv.out_channels);
    const size_t output_bytes = static_cast<size_t>(output.stride_n) * element;
    const auto input_memory = drawn(static_cast<size_t>(input.stride_n) * element), output_memory = drawn(output_bytes);
    input.data = input_memory->data();
    output.data = output_memory->data();
    input.dtype = output.dtype = op.dtype;
    std::vector<float> filter(static_cast<size_t>(op.conv.out_channels) * (op.conv.in_channels / op.conv.groups) *
                              static_cast<size_t>(op.conv.kernel_h * op.conv.kernel_w));
    std::mt19937 random(2);
    for (float &value : filter) {
        value = std::uniform_real_distribution<float>(-.04F, .04F)(random);
    }
    distile_weights_source source{};
    source.filter = filter.data();
    source.order = DISTILE_OIHW;

    const ByteMask bytes = make_byte_mask({"blob", density, 1}, 1, output.height, output.width);
    const DeviceArray<uint8_t> device_bytes(bytes.bytes);
    const Mask mask = make_mask(context);
    check(context,
          distile_mask_set_bytes(mask.get(), device_bytes.data(), 1, bytes.height, bytes.width, 0, bytes.width));
    // The masked variant that takes the least time for this mask.
    distile_run_args args{};
    args.input = &input;
    args.output = &output;
    args.mask = mask.get();
    args.fixed_order = 1;
    double least = 0;
    std::string best, refused;
    {
        const Weights weights = pack_weights(context, whole, source);
        args.weights = weights.get();
        for (int32_t i = 0; i < polykernel.num_variants; i++) {
            if (polykernel.variants[i].dense != 0) {
                continue;
            }
            args.variant = polykernel.variants[i].name;
            try {
                const GpuGraph graph(slice, [&] { check(context, distile_run(whole.get(), &args)); });
                graph.replay();
                const double us = graph.time();
                if (best.empty() || us < least) {
                    least = us;
                    best = args.variant;
                }
            } catch (const Error &error) {
                refused = error.what();  // As where its partial sums would be too many.
            }
        }
    }
    if (best.empty()) {
        return {{"row", name},  {"status", "refused"}, {"kind", "order"}, {"kernel", built_name},
                {"size", size}, {"density", density},  {"why", refused}};
    }
    const ListedVariant listed(polykernel, best);
    args.variant = listed.variant().name;  // A call without a name may wait, which no graph can capture.
    const Kernel kernel = make_kernel(context, listed.polykernel());
    const Weights weights = pack_weights(context, kernel, source);
    args.weights = weights.get();
    const std::vector<OrderedList> lists = ordered_lists(bytes, listed.variant().tile_h, listed.variant().tile_w);
    std::vector<std::unique_ptr<DeviceArray<uint32_t>>> on_device;
    std::vector<std::unique_ptr<GpuGraph>> graphs;
    std::vector<uint8_t> first;
    bool equal = true;
    for (const OrderedList &list : lists) {
        on_device.push_back(std::make_unique<DeviceArray<uint32_t>>(list.entries));
        ListedVariant::set_list(on_device.back()->data(), static_cast<int32_t>(list.entries.size() / 2));
        const auto run = [&] { check(context, distile_run(kernel.get(), &args)); };
        if (!options.once.empty()) {
            if (options.once == list.order) {
                run();
                slice.synchronise();
            }
            continue;
        }
        CU(cuMemsetD8, reinterpret_cast<CUdeviceptr>(output.data), static_cast<unsigned char>(0), output_bytes);
        CU(cuCtxSynchronize);
        graphs.push_back(std::make_unique<GpuGraph>(slice, run));
        slice.synchronise();
        const std::vector<uint8_t> result = output_memory->get();
        equal = equal && (first.empty() || first == result);
        first = result;
    }
    Json result{{"row", name},
                {"status", "measured"},
                {"kind", "order"},
                {"kernel", built_name},
                {"size", size},
                {"density", density},
                {"variant", listed.variant().name},
                {"equal", equal}};
    std::vector<std::vector<double>> times(graphs.size());
    for (int32_t round = 0; round < options.rounds; round++) {
        for (size_t i = 0; i < graphs.size(); i++) {
            graphs[i]->replay();
            times[i].push_back(graphs[i]->time());
        }
    }
    for (size_t i = 0; i < graphs.size(); i++) {
        result[fmt::format("t_{}_us", lists[i].order)] = rounded(spread_of(times[i]).median);
    }
    return result;
}

int run(const Options &options) {
    CU(cuInit, 0U);
    const GpuSlice slice(0);
    Results results(
        options.out, options.resume,
        results_header(
            slice.device(),
            "masked variants for a known mask of blobs, on lists of tiles row by row, along curves of Morton "
            "and Hilbert, and in blocks of 16 x 16 tiles along a Hilbert curve; medians of replays of graphs "
            "in microseconds, in turns; equal: all results have equal bits"));
    bool all_equal = true;
    for (const std::string &polykernel : options.polykernels) {
        for (const int32_t size : options.sizes) {
            for (const double density : options.densities) {
                const std::string name = fmt::format("order/{}/{}/{}", polykernel, size, density);
                if (results.is_measured(name)) {
                    continue;
                }
                const Json result = measure(name, slice, polykernel, size, density, options);
                std::printf("%s\n", result.dump().c_str());
                std::fflush(stdout);
                all_equal = all_equal && result.value("equal", true);
                results.add(result);
            }
        }
    }
    return all_equal ? 0 : 1;
}

}  // namespace

int main(int argc, char **argv) {
    Options options;
    CLI::App app("Measures masked variants on lists of tiles in several orders.");
    app.footer(examples);
    app.add_option("--polykernel", options.polykernels, "Names of PolyKernels");
    app.add_option("--size", options.sizes, "Rows and columns of the images")->check(CLI::Range(8, 8192));
    app.add_option("--density", options.densities, "Parts of active pixels")->check(CLI::Range(0.0, 1.0));
    app.add_option("--rounds", options.rounds, "Rounds of a row")->check(CLI::Range(3, 1000));
    app.add_option("--once", options.once, "Only run an order once, for a profiler")
        ->check(CLI::IsMember({"rows", "morton", "hilbert", "blocks"}));
    return run_command_line(app, argc, argv, options, run);
}
