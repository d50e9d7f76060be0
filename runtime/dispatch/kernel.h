/** \file
 * A PolyKernel in use: its time table and its choice of a variant.
 */
#ifndef DISTILE_KERNEL_H
#define DISTILE_KERNEL_H

#include "runtime/dispatch/device_choice.h"
#include "runtime/dispatch/time_table.h"
#include "runtime/dispatch/weights.h"
#include "runtime/kinds/operator_kind.h"
#include "runtime/mask/mask.h"
#include <deque>
#include <string>
#include <vector>

namespace distile {

/** What a call names whose variant the host does not know. */
constexpr const char *chosen_on_device = "chosen on the device";

/** A variant of a kernel: one of the PolyKernel's, or a dense candidate from the application. */
struct Variant : distile_variant {
    bool skips_zeros;                 /**< Its time depends on the number of nonzero weights. */
    distile_dense_candidate external; /**< `run` is null for the PolyKernel's own. */
};

}  // namespace distile

struct distile_kernel {
    distile_kernel(distile_context &given, const distile_polykernel &of);

    /** The fastest variant for a mask according to the time table. Without times, the one that computes the fewest
     * pixels; ties go to a dense one, then to the first. The application's candidates take part if every key is active:
     * `key_mask` is null or has them all. `weights` is null where they are not known: then they have as many nonzeros
     * as the times are of. */
    distile_choice choose(distile_mask &mask, distile_mask *key_mask, const distile_weights *weights);
    /** Chooses for a mask whose counts only the device knows. If several variants are possible, the device will choose,
     * and the index is -1. `weights` as above. */
    distile_choice choose_on_device(const distile_mask &mask, const distile_weights *weights);
    /** The variants from which the device chooses for masks of this shape and for these weights. */
    distile::ChoiceTable &choice_table(const distile::MaskShape &shape, const distile_weights *weights);
    /** Describes a given variant, without waiting. */
    distile_choice describe(int32_t variant, distile_mask &mask) const;
    /** Describes a variant that computes `tiles` tiles; -1 if only the device knows. */
    distile_choice choice_of(int32_t variant, int64_t active_pixels, int64_t tiles) const;
    /** A variant and its times, until they change. */
    distile::TimedVariant timed(int32_t variant) const;
    /** A mask of this shape with every pixel active, for dense variants. */
    distile_mask &full_mask(const distile::MaskShape &shape);
    /** The index of the named variant; -1 if there is none. */
    int32_t find(const char *name) const;
    void add_dense(const distile_dense_candidate &candidate);
    /** Whether a variant is a candidate of the application's. */
    bool is_external(int32_t variant) const {
        return variant >= polykernel.num_variants;
    }
    void set_times(std::vector<distile_time_point> points);
    /** Adds a point for the kernel's number of threads. Before the first, copies the points that the variant has by
     * those of other numbers, scaled to agree with it. */
    void add_time(int32_t variant, int64_t tiles, double microseconds);
    int32_t num_variants() const {
        return static_cast<int32_t>(variants.size());
    }

    distile_context &context;
    const distile_polykernel &polykernel;
    const distile::OperatorKind &kind;
    const distile_operand &input, &output;
    const distile_operand *residual, *key, *value; /**< Null for an operator without one. */
    std::string weights_shape;                     /**< "" without weights. */
    std::vector<distile::Variant> variants;
    std::vector<const distile::WeightLayout *> layouts; /**< The weight layouts that the variants read. */
    std::unique_ptr<distile::LoadedCode> code;
    std::unique_ptr<distile_mask> needed_input;      /**< Memory of read_input.cpp, made on first use. */
    std::unique_ptr<distile::DeviceChooser> chooser; /**< Made when the device first chooses. */

private:
    /** By what the times of variants that skip zeros grow with weights that have more nonzeros. */
    double stretch_of(const distile_weights *weights) const;
    /** Whether every key is active; false if the host cannot know, or if a graph being captured would outlive the
     * answer. May wait. */
    bool has_every_key(distile_mask *key_mask) const;

    struct FullMask {
        std::unique_ptr<distile_mask> mask;
        bool captured; /**< A graph reads its lists, so they must not change. */
    };

    int32_t threads_;
    std::vector<distile_time_point> points_;
    distile::TimeTable times_;
    distile::ChoiceTables choice_tables_;
    std::deque<std::string> names_;  // Names of added candidates; the variants point into it.
    // The granularities of the variants, and single pixels, with their numbers of tiles.
    std::vector<distile::Granularity> granularities_;
    std::vector<int64_t> tiles_;
    std::vector<FullMask> full_masks_;  // Oldest first.
};

#endif
