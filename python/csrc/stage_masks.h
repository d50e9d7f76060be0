/** \file
 * The masks of a stage, given and made, as its steps take them.
 */
#ifndef DISTILE_PYTHON_STAGE_MASKS_H
#define DISTILE_PYTHON_STAGE_MASKS_H

#include "python/csrc/session.h"

namespace distile::python::stages {

/** An element of a list, or null. */
template<typename Element> const Element *find(const std::vector<Element> &list, int64_t number) {
    if (number >= static_cast<int64_t>(list.size())) {
        fail("a step of a stage names what is not there");
    }
    return number < 0 ? nullptr : &list[static_cast<size_t>(number)];
}

/** Takes the masks: those that are `made`, not 0, by steps, and the others as they are given. The former go to their
 * tensors, too. */
class Masks {
public:
    Masks(Session &session, const std::vector<Tensor> &tensors, const Ints &made) {
        for (size_t i = 0; i < tensors.size(); i++) {
            const Tensor &tensor = tensors[i];
            const int32_t role = first_role + static_cast<int32_t>(i);
            if (made[i] == 0) {
                masks_.push_back(given(session, tensor, role, tensors.size()));
                continue;
            }
            distile_mask *const mask = session.result_mask(tensor.size(0), tensor.size(1), tensor.size(2), role);
            check(distile_mask_mirror(mask, static_cast<uint8_t *>(tensor.mutable_data_ptr()),
                                      tensor.size(1) * tensor.size(2), tensor.size(2)),
                  session.context());
            masks_.push_back(mask);
            mirrored_.push_back(mask);
        }
    }
    ~Masks() {
        for (distile_mask *const mask : mirrored_) {
            distile_mask_mirror(mask, nullptr, 0, 0);
        }
    }
    Masks(const Masks &) = delete;
    Masks &operator=(const Masks &) = delete;

    distile_mask *at(int64_t number) const {
        distile_mask *const *const mask = find(masks_, number);
        return mask ? *mask : nullptr;
    }

private:
    /** Masks of a stage keep away from the roles of other calls. */
    static constexpr int32_t first_role = 1000;
    /** Fewer masks than a session keeps on a CPU by what they hold. */
    static constexpr size_t kept_by_session = 16;

    static distile_mask *given(Session &session, const Tensor &bytes, int32_t role, size_t count) {
        if (!bytes.is_cpu() || count <= kept_by_session) {
            return session.mask(bytes, role);
        }
        session.check_mask(bytes);
        const Tensor plain = torch::stable::contiguous(bytes);
        const auto extent = [&](int64_t axis) { return static_cast<int32_t>(plain.size(axis)); };
        distile_mask *const mask = session.result_mask(plain.size(0), plain.size(1), plain.size(2), role);
        check(distile_mask_set_bytes(mask, static_cast<const uint8_t *>(plain.const_data_ptr()), extent(0), extent(1),
                                     extent(2), plain.size(1) * plain.size(2), plain.size(2)),
              session.context());
        return mask;
    }

    std::vector<distile_mask *> masks_, mirrored_;
};

}  // namespace distile::python::stages

#endif
