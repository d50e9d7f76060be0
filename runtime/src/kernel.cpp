#include "kernel.h"
#include "context.h"
#include "cpu_features.h"
#include "operators.h"
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>

using distile::fail;
using distile::guarded;

distile_kernel::distile_kernel(distile_context *context, const distile_polykernel *polykernel, int32_t threads)
    : context(context), polykernel(polykernel), threads_(threads), full_mask_(context) {
    for (int32_t i = 0; i < polykernel->num_variants; i++) {
        const distile_variant &variant = polykernel->variants[i];
        variants.push_back({variant, {}});
        granularities_.push_back({variant.tile_h, variant.tile_w});
    }
    tiles_.resize(variants.size());
    set_times(std::vector<distile_time_point>(polykernel->times, polykernel->times + polykernel->num_times));
}

int32_t distile_kernel::find(const char *name) const {
    for (int32_t i = 0; i < num_variants(); i++) {
        if (std::strcmp(name, variants[i].name) == 0) {
            return i;
        }
    }
    return -1;
}

distile::Variant &distile_kernel::add_dense(const char *name) {
    // Room is made first, so that a failure leaves the kernel as it was.
    variants.reserve(variants.size() + 1);
    granularities_.reserve(variants.size() + 1);
    tiles_.reserve(variants.size() + 1);
    names_.emplace_back(name);
    distile::Variant variant{};
    variant.name = names_.back().c_str();
    variant.tile_h = variant.tile_w = 1;
    variant.dense = 1;
    variants.push_back(variant);
    granularities_.push_back({1, 1});
    tiles_.push_back(0);
    return variants.back();
}

void distile_kernel::set_times(std::vector<distile_time_point> points) {
    times_ = distile::TimeTable(points, num_variants(), threads_);
    points_ = std::move(points);
}

void distile_kernel::add_time(int32_t variant, int64_t tiles, double microseconds) {
    std::vector<distile_time_point> points = points_;
    const bool is_first = std::none_of(points.begin(), points.end(), [&](const distile_time_point &point) {
        return point.variant == variant && point.threads == threads_;
    });
    if (is_first && times_.knows(variant)) {
        // What is known of other numbers of threads gives the curve its shape, and this point its height.
        const double scale = microseconds / times_.predict(variant, tiles);
        for (const distile::TimeTable::Point &point : times_.points(variant)) {
            points.push_back({variant, threads_, point.tiles, scale * point.microseconds});
        }
    }
    points.erase(std::remove_if(points.begin(), points.end(),
                                [&](const distile_time_point &point) {
                                    return point.variant == variant && point.tiles == tiles &&
                                           point.threads == threads_;
                                }),
                 points.end());
    points.push_back({variant, threads_, tiles, microseconds});
    set_times(std::move(points));
}

int64_t distile_kernel::tiles_of(int32_t variant, int64_t active_tiles, const distile::Bitmask &bits) const {
    const distile_variant &which = variants[variant];
    if (which.dense == 0) {
        return active_tiles;
    }
    const int64_t rows = (bits.height + which.tile_h - 1) / which.tile_h;
    const int64_t columns = (bits.width + which.tile_w - 1) / which.tile_w;
    return bits.batch * rows * columns;
}

distile_choice distile_kernel::choice_of(int32_t variant, int64_t active_pixels, int64_t tiles) const {
    const distile_variant &chosen = variants[variant];
    distile_choice choice{};
    choice.kernel = polykernel->name;
    choice.variant = chosen.name;
    choice.variant_index = variant;
    choice.dense = chosen.dense;
    choice.tile_h = chosen.tile_h;
    choice.tile_w = chosen.tile_w;
    choice.tiles = tiles;
    choice.active_pixels = active_pixels;
    choice.predicted_us = times_.knows(variant) ? times_.predict(variant, tiles) : 0;
    return choice;
}

distile_choice distile_kernel::describe(int32_t variant, distile_mask &mask) const {
    int64_t tiles = 0;
    if (variants[variant].dense == 0) {
        mask.count(&granularities_[variant], 1, &tiles);
    }
    return choice_of(variant, mask.active_pixels, tiles_of(variant, tiles, mask.bits));
}

distile_choice distile_kernel::choose(distile_mask &mask) {
    mask.count(granularities_.data(), num_variants(), tiles_.data());
    for (int32_t i = 0; i < num_variants(); i++) {
        tiles_[i] = tiles_of(i, tiles_[i], mask.bits);
    }
    return choose(tiles_, mask.active_pixels);
}

distile_choice distile_kernel::choose(const std::vector<int64_t> &tiles, int64_t active_pixels) const {
    int32_t best = 0;
    double best_cost = 0;
    bool best_known = false;
    for (int32_t i = 0; i < num_variants(); i++) {
        const distile_variant &variant = variants[i];
        const bool known = times_.knows(i);
        const double pixels = static_cast<double>(tiles[i]) * variant.tile_h * variant.tile_w;
        const double cost = known ? times_.predict(i, tiles[i]) : pixels;
        // Of the same pixels a dense variant makes less work, because it needs no list.
        const bool denser = !known && variant.dense && !variants[best].dense && cost == best_cost;
        if (i == 0 || (known && !best_known) || (known == best_known && (cost < best_cost || denser))) {
            best = i;
            best_cost = cost;
            best_known = known;
        }
    }
    return choice_of(best, active_pixels, tiles[best]);
}

distile_mask &distile_kernel::full_mask(const distile::Bitmask &shape) {
    const distile::Bitmask &have = full_mask_.bits;
    if (!full_mask_.is_set() || have.batch != shape.batch || have.height != shape.height || have.width != shape.width) {
        full_mask_.set_all(shape.batch, shape.height, shape.width);
    }
    return full_mask_;
}

extern "C" {

distile_status distile_kernel_create(distile_context *context, const distile_polykernel *polykernel,
                                     distile_kernel **kernel) {
    if (!context) {
        return DISTILE_ERROR_NULL_POINTER;
    }
    if (!polykernel || !kernel) {
        return fail(context, DISTILE_ERROR_NULL_POINTER,
                    "distile_kernel_create: the PolyKernel or the address for the kernel is null");
    }
    return guarded(context, [&] {
        const char *allowed = context->options.cpu_features;
        std::string lacking;
        for (const distile_polykernel *candidate = polykernel; candidate; candidate = candidate->otherwise) {
            const distile_status known = distile::check_polykernel(context, "distile_kernel_create", *candidate);
            if (known != DISTILE_OK) {
                return known;
            }
            if (candidate->compute_capability != 0) {
                return fail(context, DISTILE_ERROR_BAD_VALUE,
                            "distile_kernel_create: '%s' runs on a GPU: create it with distile_cuda_kernel_create",
                            candidate->name);
            }
            const std::string missing = distile::missing_cpu_feature(candidate->cpu_features, allowed);
            if (missing.empty()) {
                *kernel = std::make_unique<distile_kernel>(context, candidate, context->options.threads).release();
                return DISTILE_OK;
            }
            lacking += (lacking.empty() ? "'" : ", '") + missing + "' for '" + candidate->name + "'";
        }
        return fail(context, DISTILE_ERROR_UNSUPPORTED_CPU,
                    "distile_kernel_create: this CPU%s lacks %s; distile_add_polykernel adds a portable PolyKernel "
                    "behind the others unless it is told NO_PORTABLE",
                    allowed ? ", as the context's cpu_features limit it," : "", lacking.c_str());
    });
}

void distile_kernel_destroy(distile_kernel *kernel) {
    std::unique_ptr<distile_kernel> owned(kernel);
}

const distile_polykernel *distile_kernel_polykernel(const distile_kernel *kernel) {
    return kernel ? kernel->polykernel : nullptr;
}

int32_t distile_kernel_num_variants(const distile_kernel *kernel) {
    return kernel ? kernel->num_variants() : 0;
}

const char *distile_kernel_variant_name(const distile_kernel *kernel, int32_t index) {
    if (!kernel || index < 0 || index >= kernel->num_variants()) {
        return nullptr;
    }
    return kernel->variants[index].name;
}

distile_status distile_kernel_load_times(distile_kernel *kernel, const char *path) {
    if (!kernel) {
        return DISTILE_ERROR_NULL_POINTER;
    }
    distile_context *context = kernel->context;
    if (!path) {
        return fail(context, DISTILE_ERROR_NULL_POINTER, "distile_kernel_load_times: the path is null");
    }
    return guarded(context, [&] {
        std::vector<distile_time_point> points;
        std::string message;
        const distile_status status = distile::read_time_table(path, *kernel, points, message);
        if (status != DISTILE_OK) {
            return fail(context, status, "distile_kernel_load_times: %s", message.c_str());
        }
        kernel->set_times(std::move(points));
        return DISTILE_OK;
    });
}

distile_status distile_kernel_add_time(distile_kernel *kernel, const char *variant, int64_t tiles,
                                       double microseconds) {
    if (!kernel) {
        return DISTILE_ERROR_NULL_POINTER;
    }
    distile_context *context = kernel->context;
    if (!variant) {
        return fail(context, DISTILE_ERROR_NULL_POINTER, "distile_kernel_add_time: the variant's name is null");
    }
    const int32_t index = kernel->find(variant);
    if (index < 0) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "distile_kernel_add_time: '%s' has no variant '%s'",
                    kernel->polykernel->name, variant);
    }
    if (tiles < 1 || !(microseconds > 0) || !std::isfinite(microseconds)) {
        return fail(context, DISTILE_ERROR_BAD_VALUE,
                    "distile_kernel_add_time: %lld tiles in %g microseconds: both must be finite and above 0",
                    static_cast<long long>(tiles), microseconds);
    }
    return guarded(context, [&] {
        kernel->add_time(index, tiles, microseconds);
        return DISTILE_OK;
    });
}

distile_status distile_kernel_add_dense(distile_kernel *kernel, const distile_dense_candidate *candidate) {
    if (!kernel) {
        return DISTILE_ERROR_NULL_POINTER;
    }
    distile_context *context = kernel->context;
    if (!candidate || !candidate->name || !candidate->run) {
        return fail(context, DISTILE_ERROR_NULL_POINTER,
                    "distile_kernel_add_dense: the candidate, its name or its function is null");
    }
    if (kernel->polykernel->compute_capability != 0) {
        return fail(context, DISTILE_ERROR_BAD_VALUE,
                    "distile_kernel_add_dense: '%s' runs on a GPU: use distile_cuda_kernel_add_dense",
                    kernel->polykernel->name);
    }
    if (kernel->find(candidate->name) >= 0) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "distile_kernel_add_dense: '%s' already has a variant '%s'",
                    kernel->polykernel->name, candidate->name);
    }
    return guarded(context, [&] {
        distile::Variant &variant = kernel->add_dense(candidate->name);
        variant.external = *candidate;
        variant.external.name = variant.name;
        return DISTILE_OK;
    });
}

distile_status distile_kernel_choose(distile_kernel *kernel, distile_mask *mask, distile_choice *choice) {
    if (!kernel) {
        return DISTILE_ERROR_NULL_POINTER;
    }
    distile_context *context = kernel->context;
    if (!choice) {
        return fail(context, DISTILE_ERROR_NULL_POINTER, "distile_kernel_choose: the address for the choice is null");
    }
    const distile_status status = distile::check_mask(context, context, "distile_kernel_choose", mask);
    return status != DISTILE_OK ? status : guarded(context, [&] {
        *choice = kernel->choose(*mask);
        return DISTILE_OK;
    });
}

distile_status distile_run(distile_kernel *kernel, const distile_run_args *args) {
    if (!kernel) {
        return DISTILE_ERROR_NULL_POINTER;
    }
    distile_context *context = kernel->context;
    if (!args) {
        return fail(context, DISTILE_ERROR_NULL_POINTER, "distile_run: the arguments are null");
    }
    if (kernel->polykernel->compute_capability != 0) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "distile_run: '%s' runs on a GPU: use distile_cuda_run",
                    kernel->polykernel->name);
    }
    return guarded(context, [&]() -> distile_status {
        const distile_status status = distile::check_run(*kernel, *args);
        if (status != DISTILE_OK) {
            return status;
        }
        distile_choice choice{};
        if (args->variant) {
            const int32_t variant = kernel->find(args->variant);
            if (variant < 0) {
                return fail(context, DISTILE_ERROR_BAD_VALUE, "distile_run: '%s' has no variant '%s'",
                            kernel->polykernel->name, args->variant);
            }
            choice = kernel->describe(variant, *args->mask);
        } else {
            choice = kernel->choose(*args->mask);
        }
        if (!context->options.trace) {
            return distile::run_variant(*kernel, *args, choice.variant_index);
        }
        using Clock = std::chrono::steady_clock;
        const Clock::time_point start = Clock::now();
        const distile_status result = distile::run_variant(*kernel, *args, choice.variant_index);
        choice.elapsed_us = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
        if (result == DISTILE_OK) {
            context->options.trace(context->options.trace_user, &choice);
        }
        return result;
    });
}

}  // extern "C"
