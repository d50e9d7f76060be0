#include "runtime/cuda/library_kernels.h"
#include "choose_90_ptx.h"
#include "choose_ptx.h"
#include "combine_90_ptx.h"
#include "combine_ptx.h"
#include "copy_spans_ptx.h"
#include "difference_ptx.h"
#include "facts/type_functions.h"
#include "group_norm_90_ptx.h"
#include "group_norm_ptx.h"
#include "layout_ptx.h"
#include "mask_algebra_90_ptx.h"
#include "mask_algebra_ptx.h"
#include "mask_sources_90_ptx.h"
#include "mask_sources_ptx.h"
#include "mask_tiles_90_ptx.h"
#include "mask_tiles_ptx.h"
#include "normalize_90_ptx.h"
#include "normalize_ptx.h"
#include "packing_ptx.h"
#include "pixel_sums_ptx.h"
#include "pixels_ptx.h"
#include "pooling_90_ptx.h"
#include "pooling_ptx.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/module_loader.h"
#include "scores_90_ptx.h"
#include "scores_ptx.h"
#include <string>
#include <utility>

namespace distile {

namespace {

/** The place of a floating-point type among the kernels; std::array::at() rejects others. */
size_t place_of(distile_dtype dtype) {
    return static_cast<size_t>(float_type_place(dtype));
}

/** The place of elements of 1, 2 or 4 bytes. */
size_t place_of_bytes(int64_t bytes) {
    return bytes == 4 ? 2 : bytes == 2 ? 1 : 0;
}

}  // namespace

const int32_t LibraryKernels::oldest_cuda = DISTILE_MASK_TILES_CUDA;
const int32_t LibraryKernels::oldest_capability = DISTILE_MASK_TILES_CAPABILITY;

LibraryKernels::LibraryKernels(const Driver &driver, const ModuleLoader &loader, int32_t capability)
    : masks_wait(capability >= DISTILE_MASK_SOURCES_90_CAPABILITY), driver_(driver) {
    const auto load = [&](const char *ptx, std::initializer_list<std::pair<CUfunction *, const char *>> kernels) {
        modules_.reserve(modules_.size() + 1);
        modules_.push_back(loader.load(ptx));
        for (const auto &[function, name] : kernels) {
            *function = loader.find(modules_.back(), name);
        }
    };
    // Calls find_all(type, find), where find(kernel) finds "distile_<kernel>_<type>".
    const auto load_typed = [&](const char *ptx, const auto &find_all) {
        load(ptx, {});
        size_t place = 0;
        for (const std::string type : {
#define DISTILE_ROW(number, name, ...) #name,
                 DISTILE_FLOAT_TYPES(DISTILE_ROW)
#undef DISTILE_ROW
             }) {
            find_all(place++, [&](const std::string &kernel) {
                return loader.find(modules_.back(), ("distile_" + kernel + "_" + type).c_str());
            });
        }
    };
    try {
        load(masks_wait ? distile_mask_sources_90_ptx : distile_mask_sources_ptx,
             {{&pack_bytes, "distile_pack_bytes"},
              {&unpack_bytes, "distile_unpack_bytes"},
              {&copy_bits, "distile_copy_bits"},
              {&set_indices, "distile_set_indices"}});
        load(masks_wait ? distile_mask_tiles_90_ptx : distile_mask_tiles_ptx, {{&list_tiles, "distile_list_tiles"}});
        load(masks_wait ? distile_mask_algebra_90_ptx : distile_mask_algebra_ptx,
             {{&transfer_bits, "distile_transfer_bits"}, {&combine_bits, "distile_combine_bits"}});
        load_typed(distile_difference_ptx, [&](size_t type, const auto &find) {
            compare_.at(type) = {find("compare_1"),
                                 find("compare_4"),
                                 {find("compare_pixels_1"), find("compare_pixels_2"), find("compare_pixels_3"),
                                  find("compare_pixels_4")}};
        });
        const auto find_both = [](const auto &find, const std::string &kernel) {
            return PixelKernels{find(kernel + "_vectors"), find(kernel + "_elements")};
        };
        load_typed(masks_wait ? distile_normalize_90_ptx : distile_normalize_ptx,
                   [&](size_t type, const auto &find) { normalize_.at(type) = find_both(find, "normalize"); });
        load_typed(masks_wait ? distile_pooling_90_ptx : distile_pooling_ptx,
                   [&](size_t type, const auto &find) { pool_.at(type) = find_both(find, "pool"); });
        load_typed(masks_wait ? distile_combine_90_ptx : distile_combine_ptx,
                   [&](size_t type, const auto &find) { combine_.at(type) = find_both(find, "combine"); });
        load_typed(distile_pixel_sums_ptx, [&](size_t type, const auto &find) {
            sum_pixels_.at(type) = find("sum_pixels");
            merge_pixels_.at(type) = find("merge_pixels");
        });
        merge_groups = loader.find(modules_.back(), "distile_merge_groups");
        load_typed(masks_wait ? distile_group_norm_90_ptx : distile_group_norm_ptx, [&](size_t type, const auto &find) {
            normalize_groups_.at(type) = find_both(find, "normalize_groups");
        });
        load_typed(masks_wait ? distile_scores_90_ptx : distile_scores_ptx,
                   [&](size_t type, const auto &find) { score_pixels_.at(type) = find_both(find, "score_pixels"); });
        load(distile_pixels_ptx, {{&update_pixels_1_, "distile_update_pixels_1"},
                                  {&update_pixels_2_, "distile_update_pixels_2"},
                                  {&update_pixels_4_, "distile_update_pixels_4"},
                                  {&update_pixels_16_, "distile_update_pixels_16"},
                                  {&hand_out, "distile_hand_out"}});
        load(distile_packing_ptx, {{&pack_[0], "distile_pack_1"},
                                   {&pack_[1], "distile_pack_2"},
                                   {&pack_[2], "distile_pack_4"},
                                   {&pack_[3], "distile_pack_16"},
                                   {&unpack_[0], "distile_unpack_1"},
                                   {&unpack_[1], "distile_unpack_2"},
                                   {&unpack_[2], "distile_unpack_4"},
                                   {&unpack_[3], "distile_unpack_16"}});
        load(distile_copy_spans_ptx, {{&copy_spans_[0], "distile_copy_spans_1"},
                                      {&copy_spans_[1], "distile_copy_spans_2"},
                                      {&copy_spans_[2], "distile_copy_spans_4"},
                                      {&copy_spans_[3], "distile_copy_spans_16"}});
        load(masks_wait ? distile_choose_90_ptx : distile_choose_ptx, {{&choose, "distile_choose"}});
        load(distile_layout_ptx, {{&to_planes_[0], "distile_to_planes_1"},
                                  {&to_planes_[1], "distile_to_planes_2"},
                                  {&to_planes_[2], "distile_to_planes_4"},
                                  {&to_pixels_[0], "distile_to_pixels_1"},
                                  {&to_pixels_[1], "distile_to_pixels_2"},
                                  {&to_pixels_[2], "distile_to_pixels_4"}});
    } catch (...) {
        unload();
        throw;
    }
}

LibraryKernels::~LibraryKernels() {
    unload();
}

void LibraryKernels::unload() {
    for (CUmodule module : modules_) {
        driver_.cuModuleUnload(module);
    }
}

const LibraryKernels::Compare &LibraryKernels::compare(distile_dtype dtype) const {
    return compare_.at(place_of(dtype));
}

CUfunction LibraryKernels::update_pixels(int32_t unit) const {
    return unit == 16  ? update_pixels_16_
           : unit == 4 ? update_pixels_4_
           : unit == 2 ? update_pixels_2_
                       : update_pixels_1_;
}

CUfunction LibraryKernels::pack(int32_t unit, bool to_packed) const {
    return (to_packed ? pack_ : unpack_).at(unit == 16 ? 3 : place_of_bytes(unit));
}

CUfunction LibraryKernels::copy_spans(int32_t unit) const {
    return copy_spans_.at(unit == 16 ? 3 : place_of_bytes(unit));
}

const LibraryKernels::PixelKernels &LibraryKernels::normalize(distile_dtype dtype) const {
    return normalize_.at(place_of(dtype));
}

const LibraryKernels::PixelKernels &LibraryKernels::pool(distile_dtype dtype) const {
    return pool_.at(place_of(dtype));
}

const LibraryKernels::PixelKernels &LibraryKernels::combine(distile_dtype dtype) const {
    return combine_.at(place_of(dtype));
}

const LibraryKernels::PixelKernels &LibraryKernels::normalize_groups(distile_dtype dtype) const {
    return normalize_groups_.at(place_of(dtype));
}

const LibraryKernels::PixelKernels &LibraryKernels::score_pixels(distile_dtype dtype) const {
    return score_pixels_.at(place_of(dtype));
}

CUfunction LibraryKernels::sum_pixels(distile_dtype dtype) const {
    return sum_pixels_.at(place_of(dtype));
}

CUfunction LibraryKernels::merge_pixels(distile_dtype dtype) const {
    return merge_pixels_.at(place_of(dtype));
}

CUfunction LibraryKernels::convert_layout(int64_t element_bytes, bool to_planes) const {
    return (to_planes ? to_planes_ : to_pixels_).at(place_of_bytes(element_bytes));
}

}  // namespace distile
