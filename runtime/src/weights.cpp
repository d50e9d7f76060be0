#include "weights.h"
#include "context.h"
#include "kernel.h"
#include <cmath>
#include <memory>

using distile::fail;
using distile::guarded;
using distile::MergedTap;
using distile::PolyphaseAxis;

namespace {

/** Distances in the source between neighbours in each dimension. */
struct SourceStrides {
    size_t out_channel, in_channel, row, column;
};

SourceStrides strides_of(distile_weights_order order, size_t o, size_t i, size_t h, size_t w) {
    switch (order) {
    case DISTILE_OIHW:
        return {i * h * w, h * w, w, 1};
    case DISTILE_OHWI:
        return {h * w * i, 1, w * i, i};
    case DISTILE_HWIO:
        return {1, o, w * i * o, i * o};
    case DISTILE_IOHW:
        return {h * w, o * h * w, w, 1};
    }
    return {};
}

/** What the rows or columns of packed weights are made of. */
std::vector<MergedTap> taps_of(const std::optional<PolyphaseAxis> &phases, int kernel) {
    if (phases) {
        return phases->taps();
    }
    std::vector<MergedTap> taps;
    taps.reserve(kernel);
    for (int i = 0; i < kernel; i++) {
        taps.push_back({i, i + 1});
    }
    return taps;
}

}  // namespace

namespace distile {

distile_status pack_weights(const distile_kernel &kernel, const char *call, const distile_weights_source &source,
                            size_t block, float *filter, float *packed_bias) {
    distile_context *context = kernel.context;
    const distile_conv2d &conv = kernel.polykernel->conv2d;
    const bool normalised = source.bn_mean && source.bn_variance;
    const size_t in_channels = conv.in_channels / conv.groups;
    const SourceStrides from = strides_of(source.order, conv.out_channels, in_channels, conv.kernel_h, conv.kernel_w);
    const std::optional<Polyphase> phases = polyphase_of(kernel.polykernel->kind, conv);
    const std::vector<MergedTap> rows = taps_of(phases ? std::optional(phases->rows) : std::nullopt, conv.kernel_h);
    const std::vector<MergedTap> columns =
        taps_of(phases ? std::optional(phases->columns) : std::nullopt, conv.kernel_w);
    for (int32_t o = 0; o < conv.out_channels; o++) {
        float scale = 1, bias = source.bias ? source.bias[o] : 0;
        if (normalised) {
            const float variance = source.bn_variance[o] + source.bn_epsilon;
            if (!(variance > 0)) {
                return fail(context, DISTILE_ERROR_BAD_VALUE,
                            "%s: variance + epsilon is %g at output channel %d, not above 0", call,
                            static_cast<double>(variance), o);
            }
            scale = (source.bn_gamma ? source.bn_gamma[o] : 1) / std::sqrt(variance);
            bias = (bias - source.bn_mean[o]) * scale + (source.bn_beta ? source.bn_beta[o] : 0);
        }
        packed_bias[o] = bias;
        float *to = filter + o / block * rows.size() * columns.size() * in_channels * block + o % block;
        for (const MergedTap &row : rows) {
            for (const MergedTap &column : columns) {
                for (size_t i = 0; i < in_channels; i++, to += block) {
                    const float *weights = source.filter + o * from.out_channel + i * from.in_channel;
                    // Summed and scaled in double precision, and rounded once.
                    double sum = 0;
                    for (int h = row.begin; h < row.end; h++) {
                        for (int w = column.begin; w < column.end; w++) {
                            sum += weights[h * from.row + w * from.column];
                        }
                    }
                    *to = static_cast<float>(scale * sum);
                }
            }
        }
    }
    return DISTILE_OK;
}

distile_status check_weights(const distile_kernel &kernel, const char *call, const distile_weights_source *source,
                             const void *weights) {
    distile_context *context = kernel.context;
    if (!source || !source->filter || !weights) {
        return fail(context, DISTILE_ERROR_NULL_POINTER,
                    "%s: the source, its filter or the address for the weights is null", call);
    }
    const int32_t order = raw(source->order);
    if (order < DISTILE_OIHW || order > DISTILE_IOHW) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: %d is no order of the dimensions", call, order);
    }
    const bool normalised = source->bn_mean && source->bn_variance;
    if (!normalised && (source->bn_mean || source->bn_variance || source->bn_gamma || source->bn_beta)) {
        return fail(context, DISTILE_ERROR_BAD_VALUE, "%s: batch normalisation needs both the mean and the variance",
                    call);
    }
    return DISTILE_OK;
}

}  // namespace distile

bool distile_weights::fit(const distile_polykernel &polykernel) const {
    const distile_conv2d &conv = polykernel.conv2d;
    return dtype == polykernel.dtype && layout == polykernel.layout && in_channels == conv.in_channels &&
           out_channels == conv.out_channels && groups == conv.groups && kernel_h == conv.kernel_h &&
           kernel_w == conv.kernel_w;
}

extern "C" {

distile_status distile_weights_pack(distile_kernel *kernel, const distile_weights_source *source,
                                    distile_weights **weights) {
    if (!kernel) {
        return DISTILE_ERROR_NULL_POINTER;
    }
    constexpr const char *call = "distile_weights_pack";
    if (kernel->polykernel->compute_capability != 0) {
        return fail(kernel->context, DISTILE_ERROR_BAD_VALUE, "%s: '%s' runs on a GPU: use distile_cuda_weights_pack",
                    call, kernel->polykernel->name);
    }
    distile_status status = distile::check_weights(*kernel, call, source, weights);
    if (status != DISTILE_OK) {
        return status;
    }
    return guarded(kernel->context, [&] {
        const distile_conv2d &conv = kernel->polykernel->conv2d;
        auto packed = std::make_unique<distile_weights>();
        packed->dtype = kernel->polykernel->dtype;
        packed->layout = kernel->polykernel->layout;
        packed->in_channels = conv.in_channels;
        packed->out_channels = conv.out_channels;
        packed->groups = conv.groups;
        packed->kernel_h = conv.kernel_h;
        packed->kernel_w = conv.kernel_w;
        packed->phases = distile::polyphase_of(kernel->polykernel->kind, conv);
        packed->rows = packed->phases ? packed->phases->rows.num_taps() : conv.kernel_h;
        packed->columns = packed->phases ? packed->phases->columns.num_taps() : conv.kernel_w;
        const size_t blocks = packed->num_blocks();
        packed->filter.resize(blocks * packed->rows * packed->columns * (conv.in_channels / conv.groups));
        packed->bias.resize(blocks);
        status = distile::pack_weights(*kernel, call, *source, DISTILE_CPU_CHANNEL_BLOCK,
                                       packed->filter.data()->channels, packed->bias.data()->channels);
        if (status == DISTILE_OK) {
            *weights = packed.release();
        }
        return status;
    });
}

void distile_weights_destroy(distile_weights *weights) {
    std::unique_ptr<distile_weights> owned(weights);
}

}  // extern "C"
