#include "runtime/cuda/stage_teams.h"
#include "runtime/cuda/cuda_mask.h"
#include "runtime/cuda/kernels/stage_team.h"
#include "runtime/cuda/stage_views.h"
#include "runtime/stage/stage_target.h"
#include "runtime/tensor/tensor.h"
#include "stage_team_cubin.h"
#include <algorithm>
#include <memory>
#include <optional>

namespace distile {

namespace {

constexpr size_t least_blocks = 2;  ///< Fewer residual blocks do not pay for launches of their own.
constexpr int32_t inner = team_inner, outer = team_outer;

/** The steps of a residual block. */
struct ResidualBlock {
    const CheckedStep *scores;  ///< Null: the mask is given.
    const CheckedStep *reduce, *middle, *expand;

    size_t num_steps() const {
        return scores ? 4 : 3;
    }
};

bool convolves(const CheckedStep &step, int32_t inputs, int32_t outputs) {
    return step.given.kind == DISTILE_STEP_CONV2D && step.filter().groups == 1 && !step.given.later &&
           step.given.input->channels == inputs && step.given.output->channels == outputs;
}

bool is_middle_window(const distile_window &window) {
    return window.kernel_h == 3 && window.kernel_w == 3 && window.stride_h == 1 && window.stride_w == 1 &&
           window.dilation_h == 1 && window.dilation_w == 1 && window.pad_top == 1 && window.pad_left == 1;
}

/** Whether a step computes the pixels that the 3x3 convolution reads, or may compute any. */
bool makes_what_is_read(const distile_stage_step &reduce, const distile_stage_step &middle) {
    return reduce.mask ? reduce.mask == middle.mask && reduce.reader && is_same_window(*reduce.reader, middle.window)
                       : reduce.spreads != 0;
}

/** The residual block that begins with a step, if one does that has the channels of teams. */
std::optional<ResidualBlock> find_block(const Stage &stage, size_t begin) {
    const bool has_scores = stage.steps[begin].given.kind == DISTILE_STEP_SCORES;
    const size_t first = begin + (has_scores ? 1 : 0);
    if (first + 3 > stage.steps.size()) {
        return {};
    }
    const CheckedStep *const scores = has_scores ? &stage.steps[begin] : nullptr;
    const CheckedStep &reduce = stage.steps[first], &middle = stage.steps[first + 1], &expand = stage.steps[first + 2];
    if (!convolves(reduce, outer, inner) || !convolves(middle, inner, inner) || !convolves(expand, inner, outer)) {
        return {};
    }
    const distile_stage_step &a = reduce.given, &b = middle.given, &c = expand.given;
    const distile_tensor &image = *a.input;
    const bool is_chain = same_view(*b.input, *a.output) && same_view(*c.input, *b.output) && c.residual &&
                          same_view(*c.residual, image) && same_view(*c.output, image) && !a.residual && !b.residual;
    const bool has_windows = is_point(a.window) && is_middle_window(b.window) && is_point(c.window);
    const auto has_extents = [&](const distile_tensor *tensor) {
        return tensor->height == image.height && tensor->width == image.width;
    };
    const bool has_mask = c.mask && b.mask == c.mask && !b.reader && !c.reader && makes_what_is_read(a, b) &&
                          has_extents(a.output) && has_extents(b.output);
    const bool is_scored = !scores || (scores->given.mask == c.mask && same_view(*scores->given.input, image) &&
                                       scores->given.window.stride_h == 1 && scores->given.window.stride_w == 1);
    if (!is_chain || !has_windows || !has_mask || !is_scored) {
        return {};
    }
    return ResidualBlock{scores, &reduce, &middle, &expand};
}

/** Whether a residual block may follow others in a launch. */
bool can_follow(const ResidualBlock &block, const Stage &stage, size_t begin, size_t end) {
    if (!same_view(*block.reduce->given.input, *stage.steps[end - 1].given.output)) {
        return false;
    }
    // Teams do not wait for masks that others write to memory.
    return block.scores ||
           std::none_of(stage.steps.begin() + static_cast<std::ptrdiff_t>(begin),
                        stage.steps.begin() + static_cast<std::ptrdiff_t>(end), [&](const CheckedStep &step) {
                            return makes_mask(step.given) && step.given.mask == block.expand->given.mask;
                        });
}

TeamConvolution convolution_of(const CheckedStep &step) {
    return {static_cast<const char *>(step.given.weights) + team_weights_offset(step.filter(), step.weights_dtype),
            step.given.bias, step.activation()};
}

/** Where a result goes that somebody may read. */
StageView stored_view(const CheckedStep &step) {
    return step.given.transient != 0 ? StageView{} : view_of(step.given.output);
}

TeamBlock block_of(const ResidualBlock &block) {
    TeamBlock made{};
    made.reduce = convolution_of(*block.reduce);
    made.middle = convolution_of(*block.middle);
    made.expand = convolution_of(*block.expand);
    made.reduced = stored_view(*block.reduce);
    made.between = stored_view(*block.middle);
    auto &mask = static_cast<CudaMask &>(*block.expand->given.mask);
    if (block.scores) {
        made.scores = static_cast<const float *>(block.scores->given.weights);
        made.score_bias = block.scores->given.score_bias;
        made.threshold = block.scores->given.threshold;
        made.words = mask.start_words(block.scores->output);
        made.mirror = mask.mirror;
    } else {
        made.words = const_cast<uint32_t *>(mask.device_bits().words);  // Read alone.
    }
    return made;
}

}  // namespace

StageTeams::StageTeams(CudaDevice &device) : device_(device), exchange_(device), counters_(device), times_(device) {
    module_ = device.loader->load(reinterpret_cast<const char *>(distile_stage_team_cubin));
    try {
        cluster_float16_ = device.loader->find(module_, "distile_team_cluster_float16");
        cluster_bfloat16_ = device.loader->find(module_, "distile_team_cluster_bfloat16");
        memory_float16_ = device.loader->find(module_, "distile_team_memory_float16");
        memory_bfloat16_ = device.loader->find(module_, "distile_team_memory_bfloat16");
        const auto set = [&](CUfunction function, CUfunction_attribute attribute, int value) {
            device.check(device.driver.cuFuncSetAttribute(function, attribute, value), "cuFuncSetAttribute");
        };
        for (CUfunction function : {cluster_float16_, cluster_bfloat16_, memory_float16_, memory_bfloat16_}) {
            set(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, stage_shared_bytes);
        }
        for (CUfunction function : {cluster_float16_, cluster_bfloat16_}) {
            set(function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);
        }
        LaunchGrid grid{cluster_team};
        grid.threads = team_threads;
        grid.shared_bytes = stage_shared_bytes;
        grid.cluster = cluster_team;
        // The multiprocessors of a part of a GPU may have no neighbours that a cluster needs.
        most_clusters_ = device.has_whole_gpu ? device.most_clusters(cluster_float16_, grid) : 0;
        counters_.reserve_zeros(static_cast<uint64_t>(device.threads()) * sizeof(uint32_t));
    } catch (...) {
        device.driver.cuModuleUnload(module_);
        throw;
    }
}

StageTeams::~StageTeams() {
    device_.driver.cuModuleUnload(module_);
}

bool StageTeams::takes_clusters(int32_t images) const {
    return images <= most_clusters_;
}

bool StageTeams::takes(const Stage &stage, const MaskShape &images) const {
    constexpr auto extent = static_cast<int32_t>(most_team_extent);
    const int32_t teams = device_.threads() / static_cast<int32_t>(memory_team);
    if (images.height > extent || images.width > extent || (!takes_clusters(images.batch) && teams == 0)) {
        return false;
    }
    // Measured on an H200: fewer images leave multiprocessors idle, and more come in a second round.
    const bool is_full = images.batch <= teams && 4 * images.batch > 3 * teams;
    return stage.teams != 0 ? stage.teams > 0 : stage.tiles == 0 && is_full;
}

bool StageTeams::has_blocks(const Stage &stage) {
    for (size_t begin = 0; begin < stage.steps.size(); begin++) {
        if (find_block(stage, begin)) {
            return true;
        }
    }
    return false;
}

std::vector<StageSection> StageTeams::divide(const Stage &stage) const {
    std::vector<StageSection> sections;
    size_t plain = 0;
    for (size_t begin = 0; begin < stage.steps.size();) {
        size_t end = begin, blocks = 0;
        while (end < stage.steps.size() && blocks < most_team_blocks) {
            const std::optional<ResidualBlock> block = find_block(stage, end);
            if (!block || !takes(stage, block->expand->output) ||
                (blocks > 0 && !can_follow(*block, stage, begin, end))) {
                break;
            }
            end += block->num_steps();
            blocks++;
        }
        if (blocks < least_blocks) {
            begin = std::max(end, begin + 1);
            continue;
        }
        if (plain < begin) {
            sections.push_back({plain, begin, false});
        }
        sections.push_back({begin, end, true});
        plain = begin = end;
    }
    if (plain < stage.steps.size()) {
        sections.push_back({plain, stage.steps.size(), false});
    }
    return sections;
}

void StageTeams::run(const Stage &stage, const StageSection &section, StageTrace *trace) {
    const auto program = std::make_unique<TeamProgram>();
    std::vector<int32_t> steps;
    const MaskShape images = stage.steps[section.end - 1].output;
    for (size_t begin = section.begin; begin < section.end;) {
        const ResidualBlock block = *find_block(stage, begin);
        program->blocks[program->num_blocks++] = block_of(block);
        const auto last = static_cast<int32_t>(begin + block.num_steps()) - 1;
        steps.insert(steps.end(), {static_cast<int32_t>(begin), last - 2, last - 1, last});
        begin += block.num_steps();
    }
    program->image = view_of(stage.steps[section.end - 1].given.output);
    program->width = make_divisor(static_cast<uint32_t>(images.width));
    program->height = static_cast<uint32_t>(images.height);
    program->images = static_cast<uint32_t>(images.batch);
    const bool clusters = takes_clusters(images.batch);
    LaunchGrid grid{program->images * cluster_team};
    grid.threads = team_threads;
    grid.shared_bytes = stage_shared_bytes;
    if (clusters) {
        grid.cluster = cluster_team;
    } else {
        const uint32_t teams = std::min(program->images, static_cast<uint32_t>(device_.threads()) / memory_team);
        grid.x = teams * memory_team;
        grid.together = true;
        exchange_.reserve(uint64_t{teams} * memory_team_bytes);
        program->exchange = exchange_.as<char>();
        program->counters = counters_.as<uint32_t>();
    }
    if (trace) {
        constexpr uint32_t most_items = 4096;
        program->timed_items = most_items;
        const uint64_t bytes = uint64_t{grid.x} * most_items * sizeof(StageItemTimes);
        times_.reserve(bytes);
        device_.check(device_.driver.cuMemsetD8Async(times_.address(), 0, bytes, device_.caller_stream),
                      "cuMemsetD8Async");
        program->times = times_.as<StageItemTimes>();
    }
    const bool is_float16 = stage.steps[section.begin].given.input->dtype == DISTILE_FLOAT16;
    auto *const function = clusters     ? is_float16 ? cluster_float16_ : cluster_bfloat16_
                           : is_float16 ? memory_float16_
                                        : memory_bfloat16_;
    device_.launch(function, device_.caller_stream, grid, *program);
    for (size_t i = section.begin; i < section.end; i++) {
        if (makes_mask(stage.steps[i].given)) {
            static_cast<CudaMask &>(*stage.steps[i].given.mask).end_words();
        }
    }
    if (trace) {
        add_items(*program, grid.x, steps, *trace);
    }
}

void StageTeams::add_items(const TeamProgram &program, uint32_t blocks, const std::vector<int32_t> &steps,
                           StageTrace &trace) {
    std::vector<StageItemTimes> times(size_t{blocks} * program.timed_items);
    device_.check(device_.driver.cuMemcpyDtoHAsync(times.data(), times_.address(),
                                                   times.size() * sizeof(StageItemTimes), device_.caller_stream),
                  "cuMemcpyDtoHAsync");
    device_.check(device_.driver.cuStreamSynchronize(device_.caller_stream), "cuStreamSynchronize");
    if (!trace.began) {
        uint32_t began = ~0u;
        for (const StageItemTimes &item : times) {
            began = item.is_set != 0 ? std::min(began, item.listed) : began;
        }
        trace.began = began;
    }
    for (size_t i = 0; i < times.size(); i++) {
        const StageItemTimes &item = times[i];
        if (item.is_set == 0) {
            continue;
        }
        const bool finds_pixels = item.step % items_of_team_block == 0;
        const auto since = [&](uint32_t time) { return finds_pixels ? 0 : time - *trace.began; };
        trace.items.push_back({steps[item.step], static_cast<int32_t>(i / program.timed_items), finds_pixels ? 1 : 0,
                               item.listed - *trace.began, item.open - *trace.began, since(item.begun),
                               since(item.multiplied), item.stored - *trace.began, item.told - *trace.began});
    }
}

}  // namespace distile
