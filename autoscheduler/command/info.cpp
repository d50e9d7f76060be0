#include "autoscheduler/command/info.h"
#include "autoscheduler/bound/buildable.h"
#include "plans/dot_product.h"
#include "plans/operator_schema.h"
#include "schedules/cpu_space.h"
#include "schedules/tensor_core_space.h"
#include <algorithm>
#include <cmath>
#include <fmt/core.h>
#include <set>

namespace distile {

namespace {

/** The time of a variant at a number of tiles, linear between its points; negative where it has none. */
double time_at(const Plan &plan, const std::string &variant, int threads, double tiles) {
    const PlanTime *below = nullptr, *above = nullptr;
    for (const PlanTime &time : plan.times) {
        if (time.variant != variant || time.threads != threads) {
            continue;
        }
        if (static_cast<double>(time.tiles) <= tiles && (!below || time.tiles > below->tiles)) {
            below = &time;
        }
        if (static_cast<double>(time.tiles) >= tiles && (!above || time.tiles < above->tiles)) {
            above = &time;
        }
    }
    if (!below || !above) {
        return -1;
    }
    if (below->tiles == above->tiles) {
        return below->microseconds;
    }
    const double part = (tiles - static_cast<double>(below->tiles)) / static_cast<double>(above->tiles - below->tiles);
    return below->microseconds + part * (above->microseconds - below->microseconds);
}

/** The column of the variants' names. */
size_t name_width(const Plan &plan) {
    size_t width = 14;
    for (const PlanVariant &variant : plan.variants) {
        width = std::max(width, variant.name.size() + 2);
    }
    return width;
}

std::string describe_times(const Plan &plan) {
    if (plan.times.empty()) {
        return "No time table: the dispatcher takes the variant that computes the fewest pixels.\n"
               "`distile profile` measures one.\n";
    }
    std::string text = fmt::format("Time table of: {}\n", plan.profiled_device);
    if (!plan.doubt.empty()) {
        text += fmt::format("These times are doubtful; {}\n", plan.doubt);
    }
    const int height = plan.op.typical_mask().height, width = plan.op.typical_mask().width;
    std::set<int> thread_counts;
    for (const PlanTime &time : plan.times) {
        thread_counts.insert(time.threads);
    }
    for (int threads : thread_counts) {
        text += fmt::format("\nMicroseconds on {} x {} x {} output pixels with {} {}{}, by active pixels "
                            "in whole tiles (* the fastest)\n  {:<{}}",
                            plan.op.typical_batch, height, width, threads, get_backend(plan.backend).worker,
                            threads == 1 ? "" : "s", "", name_width(plan));
        const double densities[] = {0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0};
        for (double density : densities) {
            text += fmt::format("{:>9.0f} %", 100 * density);
        }
        text += "\n";
        const auto tiles_of = [&](const PlanVariant &variant, double density) {
            const int tile_h = variant.tile_h(), tile_w = variant.tile_w();
            const double all = plan.op.typical_batch * std::ceil(static_cast<double>(height) / tile_h) *
                               std::ceil(static_cast<double>(width) / tile_w);
            return variant.dense ? all : std::max(1.0, std::round(density * all));
        };
        std::vector<double> fastest;
        for (double density : densities) {
            double best = -1;
            for (const PlanVariant &variant : plan.variants) {
                const double time = time_at(plan, variant.name, threads, tiles_of(variant, density));
                best = time >= 0 && (best < 0 || time < best) ? time : best;
            }
            fastest.push_back(best);
        }
        for (const PlanVariant &variant : plan.variants) {
            text += fmt::format("  {:<{}}", variant.name, name_width(plan));
            for (size_t i = 0; i < fastest.size(); i++) {
                const double time = time_at(plan, variant.name, threads, tiles_of(variant, densities[i]));
                text += time < 0 ? fmt::format("{:>11}", "-")
                                 : fmt::format("{:>10.1f}{}", time, time <= fastest[i] ? "*" : " ");
            }
            text += "\n";
        }
    }
    return text;
}

std::string describe_padded_groups(int outputs, int padded) {
    return fmt::format("Groups     each in blocks of its own, {} output channels padded to {}\n", outputs, padded);
}

/** How code for dot products computes groups; "" if no block has parts of several and none is padded. */
std::string describe_sections(const OperatorFacts &facts, DotProducts instructions) {
    const ChannelSections sections = channel_sections(facts);
    if (sections.is_depthwise()) {
        return "";
    }
    if (sections.together() > 1) {
        const bool apart = sections.apart() > 1 && instructions != DotProducts::AmxInt8;
        return fmt::format("Groups     {} in a block of {} output channels, {}\n", sections.together(),
                           ChannelSections::block,
                           apart ? "each multiplied alone" : "each multiplied with zeros for the others");
    }
    return sections.outputs() == sections.padded_outputs()
               ? ""
               : describe_padded_groups(sections.outputs(), sections.padded_outputs());
}

/** Says that blocks of output channels read the input channels of several groups; "" if they do not. */
std::string describe_joined_groups(int outputs, int inputs, int group_inputs) {
    return inputs == group_inputs
               ? ""
               : fmt::format("Groups     {} output channels read {} input channels, of which each counts {}\n", outputs,
                             inputs, group_inputs);
}

/** How code computes groups that are no whole blocks of output channels; "" if it has none. */
std::string describe_groups(const Plan &plan) {
    OperatorFacts facts = facts_of(plan.op);
    if (facts.groups == 1 || facts.depthwise) {
        return "";
    }
    const PlanVariant &variant = plan.variants.front();
    facts.channel_block = plan.channel_block(variant);
    const GroupBlocks blocks = group_blocks(facts, get_backend(plan.backend).group_readers);
    if (variant.language == Language::DotProduct) {
        return describe_sections(facts, dot_products_of(plan.op, plan.features()).value());
    }
    if (variant.language == Language::TensorCore) {
        const GroupPanels panels = group_panels(facts);
        return panels.groups > 1
                   ? describe_joined_groups(panels.outputs, panels.inputs, facts.in_channels)
                   : fmt::format("Groups     each in blocks of its own, of its {} output channels\n", panels.outputs);
    }
    switch (blocks.form()) {
    case GroupForm::Padded:
        return describe_padded_groups(blocks.group_outputs, blocks.padded_outputs());
    case GroupForm::Diagonals:
        return fmt::format("Groups     {} in a block of {} output channels, with their weights by diagonals\n",
                           blocks.block / blocks.group_outputs, blocks.block);
    case GroupForm::Whole:
        break;
    }
    return blocks.readers == GroupReaders::Threads && blocks.group_outputs % blocks.block != 0
               ? "Groups     each thread finds its own, and reads in place\n"
               : "";
}

}  // namespace

std::string describe_plan(const Plan &plan) {
    const std::string needs = get_backend(plan.backend).needs(plan.features());
    std::string text =
        fmt::format("PolyKernel {}\nOperator   {}: {}\nBackend    {}, weight layout {}\n"
                    "Needs      {}\n{}{}\nVariants\n",
                    plan.name, plan.op.name, plan.op.summary(), plan.backend, plan.layout, needs,
                    plan.math == Math::TF32 ? "Math       TF32, sums in float32\n" : "", describe_groups(plan));
    for (const PlanVariant &variant : plan.variants) {
        const bool ordered = variant.order != DISTILE_TILES_BY_ROWS;
        text += fmt::format("  {:<{}}{}{}{}\n", variant.name, name_width(plan),
                            space_of(plan, variant).describe(variant.theta),
                            variant.dense ? " (dense candidate: every pixel)" : "",
                            ordered ? fmt::format(", tiles in the order {}", order_name(variant.order)) : "");
    }
    return text + "\n" + describe_times(plan);
}

}  // namespace distile
