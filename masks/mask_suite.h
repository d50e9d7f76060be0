/** \file
 * A suite of masks to search for schedules with, and another to judge them by. A recipe says how to draw both: from
 * real masks (cropped, scaled, dilated, blurred and cut off), from frames that differ, and by the drawn families. No
 * mask of one set is in the other, and real ones are of other parts of the image.
 */
#ifndef DISTILE_MASK_SUITE_H
#define DISTILE_MASK_SUITE_H

#include "masks/mask_families.h"
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace distile {

struct SuiteMask {
    ByteMask mask;
    std::string name; /**< Its family and its place there, for instance "crop-3". */
    std::string family;
    std::vector<std::string> sources; /**< What its images were made from, in words; none for drawn ones. */
    std::string licence;              /**< The SPDX name of the licence of its sources. */
    uint64_t seed = 0;                /**< The seed of its first image. */
};

class MaskSuite {
public:
    /** Reads a recipe and what it names, which lies beside it. Throws std::runtime_error that names the file. */
    explicit MaskSuite(const std::string &recipe);
    /** Reads the recipe that builds and installations have beside a program, masks/suite.json. Throws as above. */
    MaskSuite();
    ~MaskSuite();
    MaskSuite(MaskSuite &&) noexcept;

    /** "train" and "held-out". */
    static const std::vector<std::string> &sets();
    /** The name of a set in "suite:train"; "" for other texts. */
    static std::string set_in(const std::string &name);

    /** The sizes that the recipe names, as "40x40". */
    const std::vector<std::string> &sizes() const;
    /** The masks of a set. Images of one row are of tokens: their masks are drawn as squares, whose rows follow each
     * other after a token of the class, if that fills them. A tiny image may lack some, as there are few different
     * ones. Throws std::invalid_argument. */
    std::vector<SuiteMask> draw(const std::string &set, int32_t batch, int32_t height, int32_t width) const;
    /** The first image of a mask as it was drawn: for tokens, the square without the token of the class. */
    static ByteMask picture_of(const ByteMask &mask);

private:
    struct Recipe;
    std::unique_ptr<const Recipe> recipe_;
};

}  // namespace distile

#endif
