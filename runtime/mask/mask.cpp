#include "runtime/mask/mask.h"
#include "runtime/mask/mask_checks.h"
#include "runtime/tensor/tensor.h"
#include <cstdint>
#include <distile/tokens.h>

using namespace distile;

namespace {

distile_status check_granularity(const char *call, const distile_mask *mask, int32_t tile_h, int32_t tile_w) {
    if (tile_h < 1 || tile_w < 1 || tile_h > largest_extent || tile_w > largest_extent) {
        return fail(&mask->context, DISTILE_ERROR_BAD_VALUE,
                    "%s: the tile is %d x %d pixels; each extent must be 1 to %d", call, tile_h, tile_w,
                    largest_extent);
    }
    return check_mask(&mask->context, call, mask);
}

}  // namespace

extern "C" {

distile_status distile_mask_create(distile_context *context, distile_mask **mask) {
    constexpr const char *call = "distile_mask_create";
    if (!context) {
        return fail_null(call, "context");
    }
    if (!mask) {
        return fail_null(context, call, "pointer to the mask");
    }
    return guarded(context, call, [&] {
        *mask = context->device->make_mask().release();
        return DISTILE_OK;
    });
}

void distile_mask_destroy(distile_mask *mask) {
    if (mask) {
        destroy(mask->context, mask);
    }
}

distile_status distile_mask_set_bytes(distile_mask *mask, const uint8_t *bytes, int32_t batch, int32_t height,
                                      int32_t width, int64_t stride_n, int64_t stride_h) {
    constexpr const char *call = "distile_mask_set_bytes";
    if (!mask) {
        return fail_null(call, "mask");
    }
    if (!bytes) {
        return fail_null(&mask->context, call, "pointer to the bytes");
    }
    const MaskShape shape = {batch, height, width};
    distile_status status = check_mask_shape(*mask, call, shape);
    if (status == DISTILE_OK) {
        const MaskShape read = {stride_n == 0 ? 1 : batch, height, width};
        status = check_strides(*mask, call, read, stride_n, stride_h);
    }
    return status != DISTILE_OK
               ? status
               : set_mask(*mask, call, shape, [&] { mask->set_bytes(shape, bytes, stride_n, stride_h); });
}

distile_status distile_mask_set_bits(distile_mask *mask, const uint32_t *words, int32_t batch, int32_t height,
                                     int32_t width, int64_t words_per_row) {
    constexpr const char *call = "distile_mask_set_bits";
    if (!mask) {
        return fail_null(call, "mask");
    }
    if (!words) {
        return fail_null(&mask->context, call, "pointer to the words");
    }
    const MaskShape shape = {batch, height, width};
    distile_status status = check_mask_shape(*mask, call, shape);
    if (status != DISTILE_OK) {
        return status;
    }
    constexpr int64_t most_words = int64_t{1} << 31;
    if (words_per_row < (width + 31) / 32 || words_per_row > most_words) {
        return fail(&mask->context, DISTILE_ERROR_BAD_STRIDE,
                    "%s: words_per_row is %lld; rows of %d pixels need %d to 2^31 words", call,
                    static_cast<long long>(words_per_row), width, (width + 31) / 32);
    }
    status = check_alignment(&mask->context, call, {{words, sizeof(uint32_t), "the array of words"}});
    return status != DISTILE_OK ? status
                                : set_mask(*mask, call, shape, [&] { mask->set_bits(shape, words, words_per_row); });
}

distile_status distile_mask_set_indices(distile_mask *mask, const int32_t *indices, const int32_t *counts,
                                        int32_t batch, int32_t height, int32_t width, int64_t stride_n) {
    constexpr const char *call = "distile_mask_set_indices";
    if (!mask) {
        return fail_null(call, "mask");
    }
    if (!indices) {
        return fail_null(&mask->context, call, "pointer to the indices");
    }
    const MaskShape shape = {batch, height, width};
    distile_status status = check_mask_shape(*mask, call, shape);
    if (status != DISTILE_OK) {
        return status;
    }
    constexpr int64_t most_indices = (int64_t{1} << 31) - 1;
    if (stride_n < 0 || stride_n > most_indices) {
        return fail(&mask->context, DISTILE_ERROR_BAD_STRIDE, "%s: stride_n is %lld; it must be 0 to 2^31 - 1", call,
                    static_cast<long long>(stride_n));
    }
    if (int64_t{height} * width > most_indices) {
        return fail(&mask->context, DISTILE_ERROR_BAD_SHAPE, "%s: an image of %d x %d is too large for 32-bit indices",
                    call, height, width);
    }
    status = check_alignment(
        &mask->context, call,
        {{indices, sizeof(int32_t), "the array of indices"}, {counts, sizeof(int32_t), "the array of counts"}});
    return status != DISTILE_OK
               ? status
               : set_mask(*mask, call, shape, [&] { mask->set_indices(call, shape, indices, counts, stride_n); });
}

distile_status distile_mask_bits(distile_mask *mask, const uint32_t **words, int32_t *words_per_row) {
    constexpr const char *call = "distile_mask_bits";
    if (!mask) {
        return fail_null(call, "mask");
    }
    distile_status status = check_pointers(
        &mask->context, call, {{words, "pointer to the words"}, {words_per_row, "pointer to the words per row"}});
    if (status == DISTILE_OK) {
        status = check_mask(&mask->context, call, mask);
    }
    if (status == DISTILE_OK) {
        const MaskBits bits = mask->bits();
        *words = bits.words;
        *words_per_row = bits.words_per_row;
    }
    return status;
}

distile_status distile_mask_get_bytes(distile_mask *mask, uint8_t *bytes, int64_t stride_n, int64_t stride_h) {
    constexpr const char *call = "distile_mask_get_bytes";
    if (!mask) {
        return fail_null(call, "mask");
    }
    if (!bytes) {
        return fail_null(&mask->context, call, "pointer to the bytes");
    }
    distile_status status = check_mask(&mask->context, call, mask);
    if (status == DISTILE_OK) {
        status = check_strides(*mask, call, mask->shape, stride_n, stride_h);
    }
    return status != DISTILE_OK ? status : guarded(&mask->context, call, [&] {
        mask->get_bytes({bytes, stride_n, stride_h});
        return DISTILE_OK;
    });
}

distile_status distile_mask_mirror(distile_mask *mask, uint8_t *bytes, int64_t stride_n, int64_t stride_h) {
    if (!mask) {
        return fail_null("distile_mask_mirror", "mask");
    }
    mask->mirror = {bytes, stride_n, stride_h};
    return DISTILE_OK;
}

distile_status distile_mask_active_pixels(distile_mask *mask, int64_t *pixels) {
    constexpr const char *call = "distile_mask_active_pixels";
    if (!mask) {
        return fail_null(call, "mask");
    }
    if (!pixels) {
        return fail_null(&mask->context, call, "pointer to the pixels");
    }
    const distile_status status = check_mask(&mask->context, call, mask);
    return status != DISTILE_OK ? status : guarded(&mask->context, call, [&] {
        *pixels = mask->active_pixels();
        return DISTILE_OK;
    });
}

distile_status distile_mask_count_tiles(distile_mask *mask, int32_t tile_h, int32_t tile_w, int64_t *count) {
    constexpr const char *call = "distile_mask_count_tiles";
    if (!mask) {
        return fail_null(call, "mask");
    }
    if (!count) {
        return fail_null(&mask->context, call, "pointer to the count");
    }
    const distile_status status = check_granularity(call, mask, tile_h, tile_w);
    return status != DISTILE_OK ? status : guarded(&mask->context, call, [&] {
        const Granularity granularity{tile_h, tile_w};
        mask->count(&granularity, 1, count);
        return DISTILE_OK;
    });
}

distile_status distile_mask_tiles(distile_mask *mask, int32_t tile_h, int32_t tile_w, distile_tile_list *list) {
    constexpr const char *call = "distile_mask_tiles";
    if (!mask) {
        return fail_null(call, "mask");
    }
    if (!list) {
        return fail_null(&mask->context, call, "pointer to the list");
    }
    const distile_status status = check_granularity(call, mask, tile_h, tile_w);
    return status != DISTILE_OK ? status : guarded(&mask->context, call, [&] {
        const TileList tiles = mask->list({tile_h, tile_w}, {0, largest_extent, 0, largest_extent});
        *list = {tiles.count, tiles.xy, tiles.image, tiles.device_count};
        return DISTILE_OK;
    });
}

distile_status distile_mask_cumulative_lengths(distile_mask *mask, const int32_t **lengths) {
    constexpr const char *call = "distile_mask_cumulative_lengths";
    if (!mask) {
        return fail_null(call, "mask");
    }
    if (!lengths) {
        return fail_null(&mask->context, call, "pointer to the lengths");
    }
    const distile_status status = check_mask(&mask->context, call, mask);
    if (status != DISTILE_OK) {
        return status;
    }
    if (mask->counts_on_host() && mask->active_pixels() > INT32_MAX) {
        return fail(&mask->context, DISTILE_ERROR_BAD_SHAPE,
                    "%s: the mask has %lld active pixels; lengths of 32 bits need fewer than 2^31", call,
                    static_cast<long long>(mask->active_pixels()));
    }
    return guarded(&mask->context, call, [&] {
        *lengths = mask->cumulative_lengths();
        return DISTILE_OK;
    });
}

}  // extern "C"
