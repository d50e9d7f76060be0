#include "own_kernels.h"
#include "choose_90_ptx.h"
#include "choose_ptx.h"
#include "difference_ptx.h"
#include "driver.h"
#include "layout_ptx.h"
#include "mask_algebra_ptx.h"
#include "mask_sources_90_ptx.h"
#include "mask_sources_ptx.h"
#include "mask_tiles_90_ptx.h"
#include "mask_tiles_ptx.h"
#include "module_loader.h"
#include "normalize_ptx.h"
#include "packing_ptx.h"
#include "pixels_ptx.h"
#include <string>
#include <utility>

namespace distile {

const int32_t OwnKernels::oldest_cuda = DISTILE_MASK_TILES_CUDA;
const int32_t OwnKernels::oldest_capability = DISTILE_MASK_TILES_CAPABILITY;

OwnKernels::OwnKernels(const Driver &driver, const ModuleLoader &loader, int32_t capability)
    : masks_wait(capability >= DISTILE_MASK_SOURCES_90_CAPABILITY), driver_(driver) {
    const auto load = [&](const unsigned char *ptx,
                          std::initializer_list<std::pair<CUfunction *, const char *>> kernels) {
        modules_.reserve(modules_.size() + 1);
        modules_.push_back(loader.load(reinterpret_cast<const char *>(ptx)));
        for (const auto &[function, name] : kernels) {
            *function = loader.find(modules_.back(), name);
        }
    };
    try {
        load(masks_wait ? distile_mask_sources_90_ptx : distile_mask_sources_ptx,
             {{&pack_bytes, "distile_pack_bytes"},
              {&copy_bits, "distile_copy_bits"},
              {&set_indices, "distile_set_indices"}});
        load(masks_wait ? distile_mask_tiles_90_ptx : distile_mask_tiles_ptx, {{&list_tiles, "distile_list_tiles"}});
        load(distile_mask_algebra_ptx,
             {{&transfer_bits, "distile_transfer_bits"}, {&combine_bits, "distile_combine_bits"}});
        load(distile_difference_ptx, {});
        for (const auto &[dtype, name] :
             {std::pair(DISTILE_FLOAT32, "float32"), {DISTILE_FLOAT16, "float16"}, {DISTILE_BFLOAT16, "bfloat16"}}) {
            const auto find = [&, type = std::string(name)](const std::string &kernel) {
                return loader.find(modules_.back(), ("distile_compare_" + kernel + "_" + type).c_str());
            };
            compare_.at(dtype - DISTILE_FLOAT32) = {
                find("1"), find("4"), {find("pixels_1"), find("pixels_2"), find("pixels_3"), find("pixels_4")}};
        }
        load(distile_pixels_ptx, {{&update_pixels_2_, "distile_update_pixels_2"},
                                  {&update_pixels_4_, "distile_update_pixels_4"},
                                  {&update_pixels_16_, "distile_update_pixels_16"},
                                  {&hand_out, "distile_hand_out"}});
        load(distile_packing_ptx, {{&pack_[0], "distile_pack_2"},
                                   {&pack_[1], "distile_pack_4"},
                                   {&pack_[2], "distile_pack_16"},
                                   {&unpack_[0], "distile_unpack_2"},
                                   {&unpack_[1], "distile_unpack_4"},
                                   {&unpack_[2], "distile_unpack_16"},
                                   {&count_lengths, "distile_count_lengths"}});
        load(distile_normalize_ptx, {{&normalize_[0].vectors, "distile_normalize_vectors_float32"},
                                     {&normalize_[0].elements, "distile_normalize_elements_float32"},
                                     {&normalize_[1].vectors, "distile_normalize_vectors_float16"},
                                     {&normalize_[1].elements, "distile_normalize_elements_float16"},
                                     {&normalize_[2].vectors, "distile_normalize_vectors_bfloat16"},
                                     {&normalize_[2].elements, "distile_normalize_elements_bfloat16"}});
        load(masks_wait ? distile_choose_90_ptx : distile_choose_ptx, {{&choose, "distile_choose"}});
        load(distile_layout_ptx, {{&to_planes_2_, "distile_to_planes_2"},
                                  {&to_planes_4_, "distile_to_planes_4"},
                                  {&to_pixels_2_, "distile_to_pixels_2"},
                                  {&to_pixels_4_, "distile_to_pixels_4"}});
    } catch (...) {
        unload();
        throw;
    }
}

OwnKernels::~OwnKernels() {
    unload();
}

void OwnKernels::unload() {
    for (CUmodule module : modules_) {
        driver_.cuModuleUnload(module);
    }
}

const OwnKernels::Compare &OwnKernels::compare(distile_dtype dtype) const {
    return compare_.at(dtype - DISTILE_FLOAT32);
}

CUfunction OwnKernels::update_pixels(int32_t unit) const {
    return unit == 16 ? update_pixels_16_ : unit == 4 ? update_pixels_4_ : update_pixels_2_;
}

CUfunction OwnKernels::pack(int32_t unit, bool to_packed) const {
    return (to_packed ? pack_ : unpack_).at(unit == 16 ? 2 : unit == 4 ? 1 : 0);
}

const OwnKernels::Normalize &OwnKernels::normalize(distile_dtype dtype) const {
    return normalize_.at(dtype - DISTILE_FLOAT32);
}

CUfunction OwnKernels::convert_layout(int64_t element_bytes, bool to_planes) const {
    return to_planes ? (element_bytes == 4 ? to_planes_4_ : to_planes_2_)
                     : (element_bytes == 4 ? to_pixels_4_ : to_pixels_2_);
}

}  // namespace distile
