#include "cuda_runner.h"
#include "gpu.h"
#include "masks.h"
#include "peer.h"
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fmt/core.h>
#include <random>
#include <stdexcept>

namespace distile::bench {

namespace {

constexpr float spoiled = -12345.0f;
constexpr double tolerance = 1e-4;
/** TF32 keeps 10 bits of a factor's mantissa. */
constexpr double tf32_tolerance = 5e-3;
/** Pixels whose result is compared with plain loops, for each row. */
constexpr size_t sampled_pixels = 192;

std::vector<float> to_host_order(const AlignedFloats &memory) {
    return {memory.data(), memory.data() + memory.size()};
}

/** Weights as cuDNN takes them, from those of a Problem. */
std::vector<float> filter_by_output_channel(const distile_conv2d &conv, const float *hwio) {
    const size_t taps = static_cast<size_t>(conv.kernel_h) * conv.kernel_w * conv.in_channels;
    const auto outputs = static_cast<size_t>(conv.out_channels);
    std::vector<float> filter(taps * outputs);
    for (size_t tap = 0; tap < taps; tap++) {
        for (size_t o = 0; o < outputs; o++) {
            filter[o * taps + tap] = hwio[tap * outputs + o];
        }
    }
    return filter;
}

/** Some different elements of a list, in any order. */
std::vector<size_t> sample(std::vector<size_t> from, size_t count) {
    std::mt19937 random(1);
    std::shuffle(from.begin(), from.end(), random);
    from.resize(std::min(from.size(), count));
    return from;
}

}  // namespace

/** The tensors and both sides for one operator and batch. */
struct CudaRunner::Workbench {
    Workbench(CudaRunner &runner, const Operator &op, int32_t batch, const Kernel &kernel)
        : runner(runner), problem(op, batch), kernel(kernel),
          weights(pack_weights(runner.context_, kernel, problem.weights())), mask(make_mask(runner.context_)),
          plain(to_host_order(problem.input_memory(false))), bordered(to_host_order(problem.input_memory(true))),
          output(problem.output_size()),
          filter(filter_by_output_channel(op.conv, static_cast<const float *>(problem.weights().filter))) {
        if (!runner.cudnn_) {
            return;
        }
        const distile_tensor in = input(false), out = output_tensor();
        for (const bool tf32 : {false, true}) {
            Side &side = tf32 ? peer_tf32 : peer;
            side.peer = runner.cudnn_->convolution(op.conv, in, filter.data(), out, tf32);
            spoil();
            side.peer->run();
            side.error = check_peer();
            const double allowed = tf32 ? tf32_tolerance : tolerance;
            if (!(side.error <= allowed)) {
                throw std::runtime_error(fmt::format("the peer's output ({}) differs from plain loops by {} of the "
                                                     "largest value; {} is allowed",
                                                     side.peer->implementation(), side.error, allowed));
            }
            side.graph = std::make_unique<GpuGraph>(runner.slice_, [&] { side.peer->run(); });
        }
    }

    distile_tensor input(bool with_border) const {
        distile_tensor tensor = problem.input(with_border);
        const auto offset = static_cast<const float *>(tensor.data) - problem.input_memory(with_border).data();
        tensor.data = (with_border ? bordered : plain).data() + offset;
        return tensor;
    }
    distile_tensor output_tensor() const {
        const Operator &op = problem.op();
        return distile_tensor_make(output.data(), problem.batch(), op.output_height(), op.output_width(),
                                   op.conv.out_channels);
    }

    /** Fills the output with a value that no result has, so that the checks see what was written. */
    void spoil() const {
        unsigned int bits = 0;
        std::memcpy(&bits, &spoiled, sizeof(bits));
        CU(cuMemsetD32, reinterpret_cast<CUdeviceptr>(output.data()), bits, problem.output_size());
        CU(cuCtxSynchronize);
    }

    /** The largest difference of some pixels to plain loops, by the largest value. `due` gives what an element must be
     * by the sum of its products and the bias. */
    template<typename Due>
    double error_of(const std::vector<float> &result, const std::vector<size_t> &pixels, const Due &due) const {
        const Operator &op = problem.op();
        const auto width = static_cast<size_t>(op.output_width());
        const size_t size = width * static_cast<size_t>(op.output_height());
        const auto channels = static_cast<size_t>(op.conv.out_channels);
        std::vector<double> sums;
        double worst = 0, largest = std::numeric_limits<double>::min();
        for (const size_t pixel : pixels) {
            problem.sum_pixel(static_cast<int32_t>(pixel / size), static_cast<int32_t>(pixel % size / width),
                              static_cast<int32_t>(pixel % width), sums);
            for (size_t c = 0; c < channels; c++) {
                const double wanted = due(sums[c], c), difference = std::abs(result[pixel * channels + c] - wanted);
                largest = std::max(largest, std::abs(wanted));
                worst = std::isnan(difference) ? std::numeric_limits<double>::infinity() : std::max(worst, difference);
            }
        }
        return worst / largest;
    }

    double check_peer() const {
        const std::vector<float> result = output.get();
        std::vector<size_t> pixels(result.size() / problem.op().conv.out_channels);
        for (size_t i = 0; i < pixels.size(); i++) {
            pixels[i] = i;
        }
        const float *const bias = problem.weights().bias;
        return error_of(result, sample(pixels, sampled_pixels), [&](double sum, size_t c) { return sum - bias[c]; });
    }

    /** The error of active pixels of the last call. Throws std::runtime_error if an inactive pixel is not what the mode
     * asks for. */
    double check_output(const ByteMask &bytes, bool zero) const {
        const std::vector<float> result = output.get();
        const auto channels = static_cast<size_t>(problem.op().conv.out_channels);
        const float due = zero ? 0.0f : spoiled;
        std::vector<size_t> active;
        for (size_t pixel = 0; pixel < bytes.bytes.size(); pixel++) {
            if (bytes.bytes[pixel] != 0) {
                active.push_back(pixel);
                continue;
            }
            for (size_t i = pixel * channels; i < (pixel + 1) * channels; i++) {
                if (result[i] != due) {
                    throw std::runtime_error(fmt::format("the inactive pixel {} holds {}; in mode '{}' {} is due",
                                                         pixel, result[i], zero ? "zero" : "keep", due));
                }
            }
        }
        const distile_epilogue epilogue = problem.op().conv.epilogue;
        const double error = error_of(result, sample(std::move(active), sampled_pixels),
                                      [&](double sum, size_t) { return apply_epilogue(epilogue, sum); });
        if (!(error <= tolerance)) {
            throw std::runtime_error(fmt::format("our active pixels differ from plain loops by {} of the largest "
                                                 "value; {} is allowed",
                                                 error, tolerance));
        }
        return error;
    }

    void set_mask(const Mask &to, const ByteMask &bytes, const DeviceArray<uint8_t> &device_bytes) const {
        check(runner.context_, distile_mask_set_bytes(to.get(), device_bytes.data(), bytes.batch, bytes.height,
                                                      bytes.width, int64_t{bytes.height} * bytes.width, bytes.width));
    }

    struct Side {
        std::unique_ptr<GpuPeer> peer;
        double error = 0;
        std::unique_ptr<GpuGraph> graph;
    };

    CudaRunner &runner;
    Problem problem;
    const Kernel &kernel;
    Weights weights;
    Mask mask;
    DeviceArray<float> plain, bordered, output, filter;
    Side peer, peer_tf32;
};

CudaRunner::CudaRunner(CudaRunnerOptions options)
    : options_(std::move(options)), slice_(options_.multiprocessors), context_(make_context(slice_, &traced_)) {
    try {
        cudnn_ = std::make_unique<Cudnn>(slice_);
    } catch (const PeerMissing &error) {
        no_cudnn_ = error.what();
    }
}

CudaRunner::~CudaRunner() = default;

std::string CudaRunner::peer_description() const {
    return cudnn_ ? cudnn_->description() : "none: " + no_cudnn_;
}

CudaRunner::Workbench &CudaRunner::workbench(const OperatorSpec &spec, int32_t batch) {
    const std::string key = fmt::format("{}/n{}", spec.name, batch);
    if (key == bench_key_ && bench_) {
        return *bench_;
    }
    // The old one goes first: both at once need twice the memory.
    bench_.reset();
    const Operator op = find_operator(options_.data + "/operators.csv", spec);
    Kernel &kernel = kernels_[spec.polykernel];
    if (!kernel) {
        kernel = make_kernel(context_, *op.polykernel);
        for (const std::string &path : options_.times) {
            const distile_status status = distile_kernel_load_times(kernel.get(), path.c_str());
            if (status != DISTILE_ERROR_OTHER_OPERATOR) {
                check(context_, status);
            }
        }
    }
    bench_ = std::make_unique<Workbench>(*this, op, batch, kernel);
    bench_key_ = key;
    return *bench_;
}

void CudaRunner::run(const Row &row, Json &result) {
    result["backend"] = "cuda";
    result["device"] = slice_.device();
    std::visit(
        [&](const auto &what) {
            using What = std::decay_t<decltype(what)>;
            if constexpr (std::is_same_v<What, ConvolutionRow> || std::is_same_v<What, MaskRow> ||
                          std::is_same_v<What, AlgebraRow> || std::is_same_v<What, DifferenceRow> ||
                          std::is_same_v<What, PlannerRow>) {
                measure(what, result);
            } else {
                throw PeerMissing("it is a row of a CPU");
            }
        },
        row.what);
}

std::vector<Spread> CudaRunner::in_turns(const std::vector<const GpuGraph *> &graphs) const {
    // Long rounds scatter less, and fewer do.
    constexpr int32_t least_rounds = 5;
    constexpr double enough_seconds = 1;
    using Clock = std::chrono::steady_clock;
    const Clock::time_point start = Clock::now();
    const auto has_enough = [&](int32_t round) {
        return round >= least_rounds && std::chrono::duration<double>(Clock::now() - start).count() > enough_seconds;
    };
    std::vector<std::vector<double>> times(graphs.size());
    // The first round warms up and does not count.
    for (int32_t round = -1; round < options_.rounds && !has_enough(round); round++) {
        for (size_t i = 0; i < graphs.size(); i++) {
            const double time = graphs[i]->time();
            if (round >= 0) {
                times[i].push_back(time);
            }
        }
    }
    std::vector<Spread> spreads;
    spreads.reserve(times.size());
    for (std::vector<double> &series : times) {
        spreads.push_back(spread_of(std::move(series)));
    }
    return spreads;
}

void CudaRunner::measure(const ConvolutionRow &row, Json &result) {
    result["kind"] = "convolution";
    result["op"] = row.op.name;
    result["multiprocessors"] = slice_.multiprocessors();
    result["batch"] = row.batch;
    result["mask"] = row.mask.name;
    result["mode"] = row.zero ? "zero" : "keep";
    result["layout"] = row.bordered ? "bordered" : "plain";
    result["state"] = "hot";
    result["linked"] = false;
    result["peer_name"] = row.peer;
    if (row.peer != "cudnn" || row.state != State::Hot || row.linked) {
        throw std::runtime_error("a GPU is measured hot, against 'cudnn'");
    }

    const Workbench &bench = workbench(row.op, row.batch);
    const Operator &op = bench.problem.op();
    result["category"] = op.category;
    result["shape"] = op.shape();
    const ByteMask bytes =
        make_byte_mask(row.mask, row.batch, op.output_height(), op.output_width(), options_.data + "/masks");
    const double density = bytes.density();
    result["density"] = rounded(density);
    const DeviceArray<uint8_t> device_bytes(bytes.bytes);
    const distile_tensor input = bench.input(row.bordered), output = bench.output_tensor();
    distile_run_args args{};
    args.input = &input;
    args.output = &output;
    args.weights = bench.weights.get();
    args.mask = bench.mask.get();
    args.inactive = row.zero ? DISTILE_ZERO : DISTILE_KEEP;
    const auto set = [&] { bench.set_mask(bench.mask, bytes, device_bytes); };
    const auto call = [&](const char *variant) {
        args.variant = variant;
        check(context_, distile_run(bench.kernel.get(), &args));
    };

    // The path on which the host waits for the counts and chooses.
    bench.spoil();
    set();
    call(nullptr);
    const distile_choice choice = traced_;
    double error = bench.check_output(bytes, row.zero);
    // The graphs below set the mask again and again, and not all of them count it: this one has a mask of its own.
    const Mask known = make_mask(context_);
    bench.set_mask(known, bytes, device_bytes);
    args.mask = known.get();
    const GpuGraph kernels(slice_, [&] { call(nullptr); });
    args.mask = bench.mask.get();
    const GpuGraph lists(slice_, [&] {
        distile_tile_list list{};
        set();
        check(context_, distile_mask_tiles(bench.mask.get(), choice.tile_h, choice.tile_w, &list));
    });
    std::vector<double> launched, done;
    for (int32_t i = 0; i <= options_.rounds; i++) {
        using Clock = std::chrono::steady_clock;
        const auto since = [](Clock::time_point start) {
            return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
        };
        slice_.synchronise();
        const Clock::time_point start = Clock::now();
        set();
        call(nullptr);
        const double until_launched = since(start);
        slice_.synchronise();
        if (i > 0) {
            launched.push_back(until_launched);
            done.push_back(since(start));
        }
    }

    // The path without any wait, for every variant.
    bench.spoil();
    set();
    call(choice.variant);
    slice_.synchronise();
    error = std::max(error, bench.check_output(bytes, row.zero));
    distile_kernel *const variants = bench.kernel.get();
    std::vector<std::unique_ptr<GpuGraph>> masked;
    std::vector<const GpuGraph *> sides = {&kernels, &lists};
    for (int32_t i = 0; i < distile_kernel_num_variants(variants); i++) {
        masked.push_back(std::make_unique<GpuGraph>(slice_, [&] {
            set();
            call(distile_kernel_variant_name(variants, i));
        }));
        sides.push_back(masked.back().get());
    }
    const size_t num_ours = sides.size();
    if (cudnn_) {
        sides.push_back(bench.peer.graph.get());
        sides.push_back(bench.peer_tf32.graph.get());
    }
    const std::vector<Spread> spreads = in_turns(sides);
    result["rounds"] = spreads.front().rounds;

    Json by_variant = Json::object();
    size_t best = 2;
    for (size_t i = 2; i < num_ours; i++) {
        by_variant[distile_kernel_variant_name(variants, static_cast<int32_t>(i - 2))] = rounded(spreads[i].median);
        best = spreads[i].median < spreads[best].median ? i : best;
    }
    const Spread &ours = spreads[2 + static_cast<size_t>(choice.variant_index)];
    const double t_kernels = spreads[0].median, t_lists = spreads[1].median;
    result["t_masked_us"] = rounded(ours.median);
    result["t_kernels_us"] = rounded(t_kernels);
    result["t_lists_us"] = rounded(t_lists);
    result["t_host_path_us"] = rounded(t_lists + t_kernels);
    result["t_host_until_launched_us"] = rounded(spread_of(launched).median);
    result["t_host_until_done_us"] = rounded(spread_of(done).median);
    result["kernel"] = op.polykernel->name;
    result["variant"] = choice.variant;
    result["predicted_us"] = rounded(choice.predicted_us);
    result["best_variant"] = distile_kernel_variant_name(variants, static_cast<int32_t>(best - 2));
    result["t_best_us"] = rounded(spreads[best].median);
    result["choice_loss"] = rounded(ours.median / spreads[best].median - 1);
    result["masked_us"] = to_json(ours);
    result["kernels_us"] = to_json(spreads[0]);
    result["variants_us"] = by_variant;
    result["max_rel_err"] = rounded(error);
    if (!cudnn_) {
        throw PeerMissing(no_cudnn_);
    }
    const Spread &peer = spreads[num_ours], &tf32 = spreads[num_ours + 1];
    const auto eta = [&](const Spread &dense, double time) { return rounded(dense.median * density / time); };
    result["peer"] = cudnn_->description();
    result["peer_implementation"] = bench.peer.peer->implementation();
    result["peer_tf32_implementation"] = bench.peer_tf32.peer->implementation();
    result["t_peer_us"] = rounded(peer.median);
    result["t_peer_tf32_us"] = rounded(tf32.median);
    result["peer_us"] = to_json(peer);
    result["peer_tf32_us"] = to_json(tf32);
    result["peer_max_rel_err"] = rounded(bench.peer.error);
    result["peer_tf32_max_rel_err"] = rounded(bench.peer_tf32.error);
    result["speedup"] = rounded(peer.median / ours.median);
    result["eta"] = eta(peer, ours.median);
    result["eta_kernel"] = eta(peer, t_kernels);
    result["eta_host_path"] = eta(peer, t_lists + t_kernels);
    result["eta_tf32"] = eta(tf32, ours.median);
}

void CudaRunner::measure(const PlannerRow &row, Json &result) {
    result["kind"] = "planner";
    result["op"] = row.op.name;
    result["mask"] = row.mask.name;
    result["density"] = row.mask.density;
    result["batch"] = row.batch;
    const Workbench &bench = workbench(row.op, row.batch);
    const Operator &op = bench.problem.op();
    const ByteMask bytes =
        make_byte_mask(row.mask, row.batch, op.output_height(), op.output_width(), options_.data + "/masks");
    const DeviceArray<uint8_t> device_bytes(bytes.bytes);
    bench.set_mask(bench.mask, bytes, device_bytes);
    const distile_tensor input = bench.input(false), own = bench.output_tensor();
    distile_run_args args{};
    args.input = &input;
    args.weights = bench.weights.get();
    args.mask = bench.mask.get();
    const auto run = [&](const distile_tensor &output, distile_inactive inactive) {
        args.output = &output;
        args.inactive = inactive;
        check(context_, distile_run(bench.kernel.get(), &args));
    };
    const auto graph = [&](
                           const std::function<void(int32_t)> &layer, const std::function<void()> &end = [] {}) {
        return std::make_unique<GpuGraph>(slice_, [layer, end, &row] {
            for (int32_t i = 0; i < row.layers; i++) {
                layer(i);
            }
            end();
        });
    };
    // A bare operator, one that zeroes what it does not compute, and those of every planner: its tensors alone, and
    // with the operator. Without a planner there are as many tensors in turn as a planner has by default: a single one
    // would stay in the cache.
    constexpr int32_t tensors_in_turn = 3;
    const DeviceArray<float> second(bench.problem.output_size()), third(bench.problem.output_size());
    std::array<distile_tensor, tensors_in_turn> in_turn{own, own, own};
    in_turn[1].data = second.data();
    in_turn[2].data = third.data();
    std::vector<std::string> names = {"keep", "zero"};
    std::vector<std::unique_ptr<GpuGraph>> graphs;
    for (const distile_inactive inactive : {DISTILE_KEEP, DISTILE_ZERO}) {
        graphs.push_back(graph([&, inactive](int32_t i) { run(in_turn[i % tensors_in_turn], inactive); }));
    }
    const distile_output_spec spec{row.batch, own.height, own.width, own.channels, 0, 0, 0, 0, DISTILE_FLOAT32};
    std::vector<Planner> planners;
    for (const auto &[clearing, name] : {std::pair(DISTILE_CLEAR_WRITTEN, "written"),
                                         {DISTILE_CLEAR_ALL, "all"},
                                         {DISTILE_CLEAR_BACKGROUND, "background"}}) {
        planners.push_back(make_planner(context_, {0, clearing, {}}));
        distile_planner *const planner = planners.back().get();
        for (const bool with_operator : {false, true}) {
            const auto layer = [&, planner, with_operator](int32_t) {
                distile_tensor output{};
                check(context_, distile_planner_next(planner, &spec, bench.mask.get(), DISTILE_STORE_EXACT, &output));
                if (with_operator) {
                    run(output, DISTILE_KEEP);
                }
            };
            const auto end = [&, planner] { check(context_, distile_cuda_planner_join(planner)); };
            names.push_back(with_operator ? name : fmt::format("{}_alone", name));
            graphs.push_back(graph(layer, end));
        }
    }
    std::vector<const GpuGraph *> sides;
    sides.reserve(graphs.size());
    for (const std::unique_ptr<GpuGraph> &one : graphs) {
        sides.push_back(one.get());
    }
    const std::vector<Spread> spreads = in_turns(sides);
    result["rounds"] = spreads.front().rounds;
    for (size_t i = 0; i < names.size(); i++) {
        result["t_" + names[i] + "_us"] = rounded(spreads[i].median / row.layers);
    }
}

}  // namespace distile::bench
