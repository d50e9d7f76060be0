#include "runtime/cuda/stage_runner.h"
#include "runtime/base/types.h"
#include "runtime/cuda/cuda_mask.h"
#include "runtime/cuda/kernels/stage.h"
#include "runtime/cuda/stage_teams.h"
#include "runtime/cuda/stage_views.h"
#include "runtime/stage/check_stage.h"
#include "stage_bfloat16_80_deep_ptx.h"
#include "stage_bfloat16_80_ptx.h"
#include "stage_bfloat16_cubin.h"
#include "stage_float16_80_deep_ptx.h"
#include "stage_float16_80_ptx.h"
#include "stage_float16_cubin.h"
#include "stage_int8_80_deep_ptx.h"
#include "stage_int8_80_ptx.h"
#include "stage_int8_cubin.h"
#include "stage_tf32_80_deep_ptx.h"
#include "stage_tf32_80_ptx.h"
#include "stage_tf32_cubin.h"
#include "stage_uint8_80_deep_ptx.h"
#include "stage_uint8_80_ptx.h"
#include "stage_uint8_cubin.h"
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <set>

namespace distile {

/** Code for the kernels of stages, and the shared memory of their blocks. */
struct StageCode {
    const char *name;
    int32_t capability;
    bool is_machine_code;  ///< No other architecture runs it.
    bool has_teams;        ///< Teams of blocks compute small residual blocks (stage_teams.h).
    int32_t shared_bytes;
    const char *float16, *bfloat16, *tf32, *uint8, *int8;

    bool runs_on(const CudaDevice &device) const {
        return (is_machine_code ? device.capability == capability : device.capability >= capability) &&
               shared_bytes <= device.most_shared_bytes;
    }
    const char *of(distile_dtype type) const {
        switch (type) {
        case DISTILE_FLOAT32:
            return tf32;
        case DISTILE_BFLOAT16:
            return bfloat16;
        case DISTILE_UINT8:
            return uint8;
        case DISTILE_INT8:
            return int8;
        default:
            return float16;
        }
    }
};

namespace {

const char *text_of(const unsigned char *cubin) {
    return reinterpret_cast<const char *>(cubin);
}

/** The best first. */
const StageCode stage_codes[] = {
    {"sm_90", 90, true, true, stage_shared_bytes, text_of(distile_stage_float16_cubin),
     text_of(distile_stage_bfloat16_cubin), text_of(distile_stage_tf32_cubin), text_of(distile_stage_uint8_cubin),
     text_of(distile_stage_int8_cubin)},
    {"sm_80", DISTILE_STAGE_FLOAT16_80_DEEP_CAPABILITY, false, false, stage_shared_bytes_deep,
     distile_stage_float16_80_deep_ptx, distile_stage_bfloat16_80_deep_ptx, distile_stage_tf32_80_deep_ptx,
     distile_stage_uint8_80_deep_ptx, distile_stage_int8_80_deep_ptx},
    {"sm_86", DISTILE_STAGE_FLOAT16_80_CAPABILITY, false, false, stage_shared_bytes_shallow,
     distile_stage_float16_80_ptx, distile_stage_bfloat16_80_ptx, distile_stage_tf32_80_ptx, distile_stage_uint8_80_ptx,
     distile_stage_int8_80_ptx},
};

/** The code for a GPU: the first that it runs, or what tests ask for. Null: it has no stages. */
const StageCode *find_code(const CudaDevice &device) {
    const char *const wanted = std::getenv("DISTILE_STAGE_CODE");
    const auto *const found = std::find_if(std::begin(stage_codes), std::end(stage_codes), [&](const StageCode &code) {
        return (!wanted || std::string(wanted) == code.name) && code.runs_on(device);
    });
    return found == std::end(stage_codes) ? nullptr : found;
}

/** Fitted to times on an H200. */
constexpr StageCosts tile_costs{1500, 2.5f, 2.5f};
/** Counted from instructions. */
constexpr ChannelCosts channel_costs{2500, 300, 60};
constexpr AttentionCosts attention_costs{2500, 250, 8};

constexpr float log2_of_e = 1.4426950408889634f;

StageWindow axis(int32_t kernel, int32_t stride, int32_t dilation, int32_t pad) {
    return {static_cast<int16_t>(kernel), static_cast<int16_t>(stride), static_cast<int16_t>(dilation),
            static_cast<int16_t>(pad)};
}
StageWindow down_of(const distile_window &window) {
    return axis(window.kernel_h, window.stride_h, window.dilation_h, window.pad_top);
}
StageWindow across_of(const distile_window &window) {
    return axis(window.kernel_w, window.stride_w, window.dilation_w, window.pad_left);
}

/** What a launch's kernel gets, step by step. */
class ProgramWriter {
public:
    explicit ProgramWriter(const Stage &stage) : stage_(stage) {
    }

    /** Adds steps from one on, as far as one launch can have them, and returns the first that is left. */
    size_t add_from(size_t begin) {
        // A step, and what counts and prepares its mask.
        constexpr uint32_t most_at_once = 3;
        size_t end = begin;
        while (end < stage_.steps.size() && steps_.size() + most_at_once <= most_stage_steps &&
               (end == begin || !stage_.steps[end].starts_launch)) {
            const CheckedStep &step = stage_.steps[end];
            const size_t before = steps_.size();
            if (makes_mask(step.given)) {
                add_scores(step);
            } else {
                add_image(step, end);
            }
            given_.resize(given_.size() + steps_.size() - before, static_cast<int32_t>(end));
            end++;
        }
        return end;
    }

    /** The words that steps write which count masks. */
    uint64_t counting_words() const {
        return counting_words_;
    }
    /** Tells the steps where these words are. */
    void place_counted(uint32_t *words) {
        for (size_t i = 0; i < steps_.size(); i++) {
            if (counted_[i]) {
                steps_[i].rows.counted = words + *counted_[i];
            }
        }
    }

    const std::vector<StageStep> &steps() const {
        return steps_;
    }
    /** The stage's step of each of them. */
    const std::vector<int32_t> &given() const {
        return given_;
    }

private:
    static DeviceBits bits_of(distile_mask &mask) {
        return static_cast<CudaMask &>(mask).device_bits();
    }

    StageStep &add(const MaskShape &output, bool starts_level) {
        StageStep &step = steps_.emplace_back();
        counted_.emplace_back();
        step.height = make_divisor(static_cast<uint32_t>(output.height));
        step.width = make_divisor(static_cast<uint32_t>(output.width));
        step.words_per_row = make_divisor(static_cast<uint32_t>((output.width + 31) / 32));
        step.batch = static_cast<uint32_t>(output.batch);
        step.starts_level = starts_level ? 1 : 0;
        return step;
    }

    void add_scores(const CheckedStep &checked) {
        const distile_stage_step &given = checked.given;
        auto &mask = static_cast<CudaMask &>(*given.mask);
        StageStep &step = add(checked.output, checked.starts_level);
        step.work = StageWork::Score;
        step.input = view_of(given.input);
        step.made = mask.start_words(checked.output);
        step.mirror = mask.mirror;
        step.row_bytes = make_divisor((step.width.value + 7) / 8);
        step.channels = static_cast<uint32_t>(given.input->channels);
        step.bias = static_cast<const float *>(given.weights);
        step.score_bias = given.score_bias;
        step.threshold = given.threshold;
        step.down = down_of(given.window);
        step.across = across_of(given.window);
        if (given.kind == DISTILE_STEP_HALT) {
            step.later = given.from ? bits_of(*given.from).words : nullptr;
            step.totals = given.totals;
            step.weights = reinterpret_cast<const char *>(given.limits);
            step.output = view_of(given.output);
            step.reduction = given.output ? static_cast<uint32_t>(given.output->width) : 0;
        }
    }

    /** A step that makes an image. */
    void add_image(const CheckedStep &checked, size_t number) {
        const distile_stage_step &given = checked.given;
        if (given.mask && !is_prepared(given)) {
            add_preparation(checked, number);
        }
        StageStep &step = add(checked.output, checked.starts_level);
        step.input = view_of(given.input);
        step.output = view_of(given.output);
        step.residual = view_of(given.residual);
        step.weights = static_cast<const char *>(given.weights);
        step.bias = given.bias;
        if (is_quantized(given.input->dtype)) {
            const char *const behind = step.weights + requantization_offset(checked.filter());
            step.bias = reinterpret_cast<const float *>(behind);
            step.stores_floats = given.output->dtype == DISTILE_FLOAT32 ? 1 : 0;
        }
        step.down = down_of(given.window);
        step.across = across_of(given.window);
        step.kernel_w = make_divisor(static_cast<uint32_t>(given.window.kernel_w));
        step.channels = static_cast<uint32_t>(given.output->channels);
        set_work(checked, step);
        step.activation = checked.activation();
        step.later = given.later ? bits_of(*given.later).words : nullptr;
        if (given.mask) {
            step.rows = rows_of(*given.mask, given.reader);
        }
    }

    static void set_work(const CheckedStep &checked, StageStep &step) {
        if (checked.given.kind == DISTILE_STEP_NORMALIZE) {
            step.work = StageWork::Normalize;
            step.number = checked.given.epsilon;
            step.is_centred = checked.given.norm == DISTILE_LAYER_NORM ? 1 : 0;
        } else if (checked.given.kind == DISTILE_STEP_ATTENTION) {
            set_attention(checked.given, step);
        } else {
            set_window_work(checked, step);
        }
    }

    static void set_attention(const distile_stage_step &given, StageStep &step) {
        step.work = StageWork::Attend;
        step.residual = view_of(given.key);
        step.weights = static_cast<const char *>(given.value->data);
        step.number = given.scale * log2_of_e;
        step.heads = static_cast<uint16_t>(given.heads);
        step.head_channels = static_cast<uint16_t>(given.input->channels / given.heads);
        step.all_keys = given.all_keys != 0 || !given.mask ? 1 : 0;
    }

    static void set_window_work(const CheckedStep &checked, StageStep &step) {
        const distile_window &window = checked.given.window;
        const auto inputs = static_cast<uint32_t>(checked.given.input->channels);
        uint32_t channel_steps = 1;
        if (checked.given.kind == DISTILE_STEP_CONV2D && !checked.filter().is_depthwise()) {
            const auto bytes = inputs * static_cast<uint32_t>(distile_dtype_size(checked.given.input->dtype));
            channel_steps = (bytes + stage_row_bytes - 1) / stage_row_bytes;
            step.missing = static_cast<uint8_t>((channel_steps * stage_row_bytes - bytes) / stage_piece_bytes);
        } else {
            step.work = StageWork::Channels;
            step.window_work = window_work_of(checked.given.kind);
        }
        step.channel_steps = make_divisor(channel_steps);
        step.reduction = static_cast<uint32_t>(window.kernel_h * window.kernel_w) * channel_steps;
    }

    static WindowWork window_work_of(distile_step_kind kind) {
        switch (kind) {
        case DISTILE_STEP_MAX_POOL:
            return WindowWork::Largest;
        case DISTILE_STEP_AVERAGE_POOL:
        case DISTILE_STEP_SUM:
            return WindowWork::Mean;
        case DISTILE_STEP_UPSAMPLE:
            return WindowWork::Repeat;
        default:
            return WindowWork::Weigh;
        }
    }

    bool is_prepared(const distile_stage_step &given) const {
        return given.mask == kept_mask_ && (fits_ || given.kind != DISTILE_STEP_ATTENTION) &&
               (!given.reader ||
                (kept_reader_ && is_same_window(*given.reader, *kept_reader_) &&
                 kept_size_ == MaskShape{given.output->batch, given.output->height, given.output->width}));
    }

    /** Prepares the mask of a step, and what the reader reads that comes first among the steps with this mask. */
    void add_preparation(const CheckedStep &checked, size_t number) {
        kept_mask_ = checked.given.mask;
        kept_reader_ = nullptr;
        for (size_t i = number; i < stage_.steps.size() && !kept_reader_; i++) {
            const CheckedStep &step = stage_.steps[i];
            const bool makes_image = !makes_mask(step.given);
            if (makes_image && step.given.mask == kept_mask_) {
                kept_reader_ = step.given.reader;
                kept_size_ = step.output;
            } else if (makes_image && step.given.mask) {
                break;
            }
        }
        const DeviceBits bits = bits_of(*kept_mask_);
        const MaskShape mask{checked.output.batch, bits.height, bits.width};
        const int64_t words = stage_words(mask);
        if (kept_reader_ && checked.given.kind == DISTILE_STEP_ATTENTION && stage_words(kept_size_) > most_kept_words) {
            kept_reader_ = nullptr;  // Attention needs the words.
        }
        const int64_t read_words = kept_reader_ ? stage_words(kept_size_) : 0;
        fits_ = std::max(words, read_words) <= most_kept_words;
        const MaskShape output = kept_reader_ ? kept_size_ : mask;
        if (!fits_) {
            place_ = counting_words_;
            counting_words_ += static_cast<uint64_t>(read_words) + chunks_of(words) + chunks_of(read_words);
            add_work_on_mask(StageWork::Count, output);
        }
        add_work_on_mask(StageWork::Prepare, output);
    }

    static uint64_t chunks_of(int64_t words) {
        return (static_cast<uint64_t>(words) + stage_words_at_once - 1) / stage_words_at_once;
    }

    void add_work_on_mask(StageWork work, const MaskShape &output) {
        StageStep &step = add(output, false);
        step.work = work;
        step.rows = rows_of(*kept_mask_, kept_reader_);
    }

    /** The rows of the step that was added last. */
    StageRows rows_of(distile_mask &mask, const distile_window *reader) {
        const DeviceBits bits = bits_of(mask);
        StageRows rows{};
        rows.words = bits.words;
        rows.height = static_cast<uint32_t>(bits.height);
        rows.width = static_cast<uint32_t>(bits.width);
        rows.words_per_row = static_cast<uint32_t>(bits.words_per_row);
        if (reader) {
            rows.grown = 1;
            rows.down = down_of(*reader);
            rows.across = across_of(*reader);
        }
        rows.fits = fits_ ? 1 : 0;
        if (!fits_) {
            counted_.back() = place_;
        }
        return rows;
    }

    const Stage &stage_;
    std::vector<StageStep> steps_;
    std::vector<int32_t> given_;
    std::vector<std::optional<uint64_t>> counted_;  ///< Where each step's words begin, if its mask does not fit.
    uint64_t counting_words_ = 0;
    // What blocks have prepared.
    distile_mask *kept_mask_ = nullptr;
    const distile_window *kept_reader_ = nullptr;
    MaskShape kept_size_{};
    bool fits_ = false;
    uint64_t place_ = 0;  ///< Where its words begin that count it, if it does not fit.
};

/** Whether a stage needs the kernels that have steps of tokens. */
bool has_tokens(const Stage &stage) {
    return std::any_of(stage.steps.begin(), stage.steps.end(), [](const CheckedStep &step) {
        const distile_step_kind kind = step.given.kind;
        return kind == DISTILE_STEP_NORMALIZE || kind == DISTILE_STEP_ATTENTION || kind == DISTILE_STEP_HALT;
    });
}

}  // namespace

bool StageRunner::runs_on(const CudaDevice &device) {
    return find_code(device) != nullptr;
}

StageRunner::StageRunner(CudaDevice &device)
    : device_(device), code_(*find_code(device)), memory_(device), counts_(device), times_(device) {
}

StageRunner::~StageRunner() {
    teams_.reset();
    for (const auto &[type, kernels] : kernels_) {
        device_.driver.cuModuleUnload(kernels.module);
    }
}

const StageRunner::Kernels &StageRunner::kernels_for(distile_dtype type) {
    const auto known = kernels_.find(type);
    if (known != kernels_.end()) {
        return known->second;
    }
    device_.refuse_capture("the first stage of a type loads its kernels");
    const ModuleLoader &loader = *device_.loader;
    Kernels kernels{loader.load(code_.of(type)), nullptr, nullptr, nullptr};
    try {
        kernels.begin = loader.find(kernels.module, "distile_stage_begin");
        const auto find = [&](const char *name) { return loader.find(kernels.module, name); };
        // No step of tokens alone is quantized.
        const bool has_tokens = !is_quantized(type), has_plain = code_.is_machine_code || !has_tokens;
        kernels.plain = find(has_plain ? "distile_stage" : "distile_stage_tokens");
        kernels.tokens = has_tokens ? find("distile_stage_tokens") : kernels.plain;
        for (CUfunction function : {kernels.plain, kernels.tokens}) {
            device_.check(device_.driver.cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                                            code_.shared_bytes),
                          "cuFuncSetAttribute");
        }
        return kernels_.emplace(type, kernels).first->second;
    } catch (...) {
        device_.driver.cuModuleUnload(kernels.module);
        throw;
    }
}

void StageRunner::check_memory(const Stage &stage) const {
    // Steps share tensors, and the driver takes a while to answer.
    std::set<const void *> checked;
    const auto check = [&](const void *pointer, const char *name) {
        if (pointer && checked.insert(pointer).second) {
            device_.check_pointer(pointer, 1, name);
        }
    };
    for (const CheckedStep &step : stage.steps) {
        check(step.given.input->data, "input of a step");
        check(step.given.output ? step.given.output->data : nullptr, "output of a step");
        check(step.given.residual ? step.given.residual->data : nullptr, "residual of a step");
        check(step.given.weights, "memory of a step's weights");
        check(step.given.bias, "memory of a step's bias");
        check(step.given.key ? step.given.key->data : nullptr, "key of a step");
        check(step.given.value ? step.given.value->data : nullptr, "value of a step");
        check(step.given.totals, "memory of a step's totals");
        check(step.given.limits, "memory of a step's limits");
    }
}

void StageRunner::run(const Stage &given, StageTrace *trace) {
    if (trace) {
        device_.refuse_capture("distile_trace_stage waits");
    }
    check_memory(given);
    const bool has_16_bits = distile_dtype_size(given.steps.front().given.input->dtype) == 2;
    if (!code_.has_teams || !has_16_bits || !StageTeams::has_blocks(given)) {
        run_program(given, 0, trace);
        return;
    }
    if (!teams_) {
        device_.refuse_capture("the first stage of residual blocks loads its kernels");
        teams_ = std::make_unique<StageTeams>(device_);
    }
    for (const StageSection &section : teams_->divide(given)) {
        if (section.is_for_teams) {
            teams_->run(given, section, trace);
            continue;
        }
        const auto at = [&](size_t number) { return given.steps.begin() + static_cast<std::ptrdiff_t>(number); };
        run_program({{at(section.begin), at(section.end)}, given.tiles}, static_cast<int32_t>(section.begin), trace);
    }
}

void StageRunner::run_program(Stage stage, int32_t first_number, StageTrace *trace) {
    const std::vector<int32_t> order = order_by_levels(stage);
    const Kernels &kernels = kernels_for(stage.steps.front().given.input->dtype);
    auto *const function = has_tokens(stage) ? kernels.tokens : kernels.plain;
    memory_.reserve(sizeof(StageMemory));
    const CUdeviceptr memory = memory_.address();
    const auto program = std::make_unique<StageProgram>();
    for (size_t begin = 0; begin < stage.steps.size();) {
        ProgramWriter writer(stage);
        const size_t end = writer.add_from(begin);
        if (writer.counting_words() > 0) {
            counts_.reserve(writer.counting_words() * sizeof(uint32_t));
            writer.place_counted(counts_.as<uint32_t>());
        }
        const std::vector<StageStep> &steps = writer.steps();
        for (size_t first = 0; first < steps.size(); first += program->num_steps) {
            program->first = static_cast<uint32_t>(first);
            program->num_steps = static_cast<uint32_t>(std::min<size_t>(steps.size() - first, most_passed_steps));
            std::copy_n(steps.begin() + static_cast<std::ptrdiff_t>(first), program->num_steps, program->steps);
            const uint64_t words = program->num_steps * (sizeof(StageStep) / sizeof(uint32_t));
            constexpr uint32_t words_of_block = 64;
            device_.launch(kernels.begin, device_.caller_stream, grid_of(words, words_of_block), *program, memory);
        }
        LaunchGrid grid{static_cast<uint32_t>(device_.threads())};
        StageSettings settings{};
        settings.num_steps = static_cast<uint32_t>(steps.size());
        settings.tiles = stage.tiles != 0 ? stage.tiles : ~0u;
        settings.blocks = make_divisor(grid.x);
        settings.costs = tile_costs;
        settings.channel_costs = channel_costs;
        settings.attention_costs = attention_costs;
        if (trace) {
            time_items(settings);
        }
        grid.threads = stage_threads;
        grid.shared_bytes = static_cast<uint32_t>(code_.shared_bytes);
        grid.together = true;
        device_.launch(function, device_.caller_stream, grid, settings, memory);
        if (trace) {
            std::vector<int32_t> numbers;
            for (const int32_t step : writer.given()) {
                numbers.push_back(first_number + order[static_cast<size_t>(step)]);
            }
            add_items(settings, steps, numbers, *trace);
        }
        for (; begin < end; begin++) {
            if (makes_mask(stage.steps[begin].given)) {
                static_cast<CudaMask &>(*stage.steps[begin].given.mask).end_words();
            }
        }
    }
}

void StageRunner::time_items(StageSettings &settings) {
    constexpr uint32_t most_items = 4096;  // A block's items that have times.
    const uint64_t bytes = uint64_t{settings.blocks.value} * most_items * sizeof(StageItemTimes);
    times_.reserve(bytes);
    device_.check(device_.driver.cuMemsetD8Async(times_.address(), 0, bytes, device_.caller_stream), "cuMemsetD8Async");
    settings.times = times_.as<StageItemTimes>();
    settings.timed_items = most_items;
}

void StageRunner::add_items(const StageSettings &settings, const std::vector<StageStep> &steps,
                            const std::vector<int32_t> &given, StageTrace &trace) {
    const uint32_t of_block = settings.timed_items;
    std::vector<StageItemTimes> times(size_t{settings.blocks.value} * of_block);
    uint32_t began = 0;
    const auto read = [&](void *to, CUdeviceptr from, size_t bytes) {
        device_.check(device_.driver.cuMemcpyDtoHAsync(to, from, bytes, device_.caller_stream), "cuMemcpyDtoHAsync");
    };
    read(times.data(), times_.address(), times.size() * sizeof(StageItemTimes));
    read(&began, memory_.address() + offsetof(StageMemory, began), sizeof(began));
    device_.check(device_.driver.cuStreamSynchronize(device_.caller_stream), "cuStreamSynchronize");
    if (!trace.began) {
        trace.began = began;
    }
    const auto since = [&](uint32_t time) { return time - *trace.began; };
    for (size_t i = 0; i < times.size(); i++) {
        const StageItemTimes &item = times[i];
        if (item.is_set == 0) {
            continue;
        }
        const StageWork work = steps[item.step].work;
        const bool convolves = work == StageWork::Convolve,
                   prepares = work == StageWork::Prepare || work == StageWork::Count;
        trace.items.push_back({given[item.step], static_cast<int32_t>(i / of_block), prepares ? 1 : 0,
                               since(item.listed), since(item.open), convolves || prepares ? since(item.begun) : 0,
                               convolves ? since(item.multiplied) : 0, since(item.stored), since(item.told)});
    }
}

}  // namespace distile
