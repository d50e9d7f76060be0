// The worker: one trial, measured in a process of its own.
#include "autoscheduler/measure/measure_backend.h"
#include "autoscheduler/measure/points.h"
#include "autoscheduler/measure/shared_object.h"
#include "autoscheduler/measure/trial_batch.h"
#include "autoscheduler/measure/trial_runner.h"
#include "autoscheduler/measure/waiting.h"
#include "autoscheduler/search/spread.h"
#include "autoscheduler/search/weight_file.h"
#include "plans/operator_schema.h"
#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <distile/distile.hpp>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <sys/prctl.h>
#include <sys/resource.h>

namespace distile {

namespace {

constexpr int least_rounds = 5, most_rounds = 500;
/** The error of a median that ends the repeats before the time is up. */
constexpr double wanted_error = 0.003;

/** A worker that outlives the search would disturb its successor's measurements; one that takes all memory, everybody.
 */
void limit_this_process(int64_t memory_bytes, bool limits_memory) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (can_limit_memory && limits_memory) {
        const rlimit limit{static_cast<rlim_t>(memory_bytes), static_cast<rlim_t>(memory_bytes)};
        setrlimit(RLIMIT_DATA, &limit);
    }
}

/** A mask with about `tiles` tiles, the same number in every image. `tiles` becomes the exact number. */
std::vector<uint8_t> mask_of_tiles(const TrialData &data, const Theta &theta, int64_t &tiles) {
    const int tile_h = theta.at("tile_h"), tile_w = theta.at("tile_w");
    const Extents extents = data.mask_extents();
    const int64_t all = tiles_of_image(extents, tile_h, tile_w);
    const int64_t each = std::clamp<int64_t>(std::llround(static_cast<double>(tiles) / data.batch), 1, all);
    const std::vector<uint8_t> image = TileDisc(extents.height, extents.width, tile_h, tile_w).mask(each);
    std::vector<uint8_t> bytes;
    for (int n = 0; n < data.batch; n++) {
        bytes.insert(bytes.end(), image.begin(), image.end());
    }
    tiles = each * data.batch;
    return bytes;
}

/** A trial with its code. */
struct LoadedTrial {
    LoadedTrial(const std::string &folder, const BatchSetup &setup, const BatchTrial &of)
        : trial(of.trial), object(trial_plan(setup, of.trial), folder + "/" + of.object) {
    }

    const Trial &trial;
    SharedObject object;
};

/** Checks and times trials. */
class Worker {
public:
    /** `weights`: those of read_weights(); empty: drawn ones. */
    Worker(const BatchSetup &setup, TrialDevice &device, std::vector<float> weights)
        : setup_(setup), device_(device), weights_(std::move(weights)),
          data_(setup.op, setup.op.typical_batch, {setup.op.typical_height, setup.op.typical_width}, true, weights_) {
    }

    /** "" if a trial computes what it should, for a small and for the typical size. */
    std::string check(const LoadedTrial &loaded) {
        constexpr size_t most_pixels = 48;
        const distile_polykernel &polykernel = loaded.object.polykernel();
        // An input without a border, of which every second tile or so touches an edge. Tokens have one row.
        Extents input = {setup_.op.reads_keys() ? setup_.op.typical_height : 1, 1};
        const int least_rows = setup_.op.schema().extents.size() == 1 ? 1 : 5;
        for (; setup_.op.output_of(input).height < least_rows; input.height++) {}
        for (; setup_.op.output_of(input).width < 7; input.width++) {}
        const TrialData small(setup_.op, 2, input, false, weights_);
        std::vector<uint8_t> mask(size_t{2} * small.mask_extents().height * small.mask_extents().width);
        for (size_t i = 0; i < mask.size(); i++) {
            mask[i] = i % 3 == 0 || i % 7 == 1 ? 1 : 0;
        }
        std::string wrong = check_output(*device_.runner(polykernel, small), small, polykernel, mask, most_pixels);
        if (wrong.empty()) {
            int64_t tiles = loaded.trial.tiles[loaded.trial.tiles.size() / 2];
            wrong = check_output(*device_.runner(polykernel, data_), data_, polykernel,
                                 mask_of_tiles(data_, loaded.trial.theta, tiles), most_pixels);
        }
        return wrong;
    }

    WorkerResult time(const LoadedTrial &loaded, const LoadedTrial *reference) {
        struct Point {
            TrialRunner *runner;
            size_t mask;
            int64_t tiles;
            std::vector<double> times;
        };
        const std::unique_ptr<TrialRunner> runner = device_.runner(loaded.object.polykernel(), data_);
        std::vector<Point> points;
        for (int64_t tiles : loaded.trial.tiles) {
            const std::vector<uint8_t> mask = mask_of_tiles(data_, loaded.trial.theta, tiles);
            if (points.empty() || points.back().tiles < tiles) {
                points.push_back({runner.get(), runner->add_mask(mask), tiles, {}});
            }
        }
        const size_t trial_points = points.size();
        std::unique_ptr<TrialRunner> reference_runner;
        if (reference) {
            reference_runner = device_.runner(reference->object.polykernel(), data_);
            int64_t tiles = reference->trial.tiles.back();
            const std::vector<uint8_t> mask = mask_of_tiles(data_, reference->trial.theta, tiles);
            points.push_back({reference_runner.get(), reference_runner->add_mask(mask), tiles, {}});
        }
        const Waiting waiting(setup_.threads);
        // All take turns, so that a change of the device's speed meets all of them alike, and the reference shows it.
        const auto start = std::chrono::steady_clock::now();
        for (int round = -1; round < most_rounds; round++) {
            double error = 0;
            for (Point &point : points) {
                const double us = point.runner->time_us(point.mask);
                if (round >= 0) {
                    point.times.push_back(us);
                    const Spread spread(point.times);
                    error = std::max(error, (spread.high - spread.low) / spread.median / std::sqrt(round + 1.0));
                }
            }
            const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
            // What is steady for a moment need not be for long: a fourth of the time is spent anyway.
            if (round + 1 >= least_rounds &&
                (elapsed > setup_.timing_seconds || (elapsed > setup_.timing_seconds / 4 && error < wanted_error))) {
                break;
            }
        }
        WorkerResult result;
        std::vector<RepeatedTime> repeated;
        for (size_t i = 0; i < trial_points; i++) {
            const Spread spread(points[i].times);
            result.measurement.times.push_back({points[i].tiles, spread.median, spread.low, spread.high});
            repeated.push_back({"", points[i].tiles, points[i].times});
        }
        const bool on_cpu = setup_.backend == cpu_backend().name;
        result.disturbance = on_cpu ? disturbance_with_order(repeated, waiting.share()) : disturbance_of(repeated, 0);
        if (reference) {
            const std::vector<double> &times = points.back().times;
            const auto middle = times.begin() + static_cast<ptrdiff_t>(times.size() / 2);
            result.measurement.reference_us = Spread(times).median;
            result.drift = std::abs(Spread({middle, times.end()}).median / Spread({times.begin(), middle}).median - 1);
        }
        return result;
    }

private:
    const BatchSetup &setup_;
    TrialDevice &device_;
    std::vector<float> weights_;
    TrialData data_;
};

}  // namespace

int run_worker(const std::string &folder, int index, int reference, const std::string &result_path) {
    const Batch batch = read_batch(folder);
    const BatchTrial &trial = batch.trials.at(index);
    const MeasureBackend &backend = measure_backend(batch.setup.backend);
    limit_this_process(batch.setup.memory_bytes, backend.limits_memory);
    std::unique_ptr<TrialDevice> device;
    // What cannot be loaded was not carried here whole, which is no fault of the schedule.
    std::optional<LoadedTrial> loaded, beside;
    std::vector<float> weights;
    try {
        device = backend.trial_device(batch.setup.threads);
        if (!batch.setup.device.empty() && device->name() != batch.setup.device) {
            throw FileError("the trials are for the device '" + batch.setup.device + "', and this is '" +
                            device->name() + "'");
        }
        loaded.emplace(folder, batch.setup, trial);
        if (reference >= 0) {
            beside.emplace(folder, batch.setup, batch.trials.at(reference));
        }
        if (!batch.setup.weights.empty()) {
            weights = read_weights(batch.setup.weights, batch.setup.op);
        }
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return worker_cannot_measure;
    }
    WorkerResult result;
    Measurement &measurement = result.measurement;
    const auto fail = [&](Outcome outcome, const std::string &message) {
        measurement = {};
        measurement.outcome = outcome;
        measurement.message = message;
    };
    try {
        Worker worker(batch.setup, *device, std::move(weights));
        const std::string wrong = worker.check(*loaded);
        if (wrong.empty()) {
            result = worker.time(*loaded, beside ? &*beside : nullptr);
        } else {
            fail(Outcome::WrongResult, wrong);
        }
    } catch (const Error &error) {
        const bool memory =
            error.status() == DISTILE_ERROR_OUT_OF_MEMORY || error.status() == DISTILE_ERROR_OUT_OF_DEVICE_MEMORY;
        fail(memory ? Outcome::OutOfMemory : Outcome::Crashed, error.what());
    } catch (const std::bad_alloc &) {
        fail(Outcome::OutOfMemory, "an allocation failed");
    } catch (const std::exception &error) {
        fail(Outcome::Crashed, error.what());
    }
    measurement.theta = trial.trial.theta;
    measurement.dense = trial.trial.dense;
    nlohmann::json json = to_json(measurement);
    json["drift"] = result.drift;
    json["disturbance"] = result.disturbance.degree;
    json["disturbed_by"] = result.disturbance.words;
    write_file(result_path, json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    return 0;
}

}  // namespace distile
