/** \file
 * Sums and maxima of each channel over the active pixels of each image.
 */
#ifndef DISTILE_PIXEL_SUMS_H
#define DISTILE_PIXEL_SUMS_H

#include "runtime/cpu/cpu_device.h"

namespace distile {

/** Sums of the values and their squares in double precision, or maxima. Each image is summed in pieces, one for each
 * task. */
class PixelSums {
public:
    /** Reads the tensor. Without a mask all pixels are active. */
    PixelSums(CpuDevice &device, const distile_tensor &tensor, const distile_mask *mask, bool largest);

    /** The mean, or the maximum, of each channel of an image; 0 without an active pixel. */
    void find_means(int64_t image, float *means) const;
    /** The mean and the variance of each group of channels of an image; 0 without an active pixel. */
    void find_statistics(int64_t image, int32_t groups, float *means, float *variances) const;

private:
    /** The words [begin, end) of an image's mask, and where their sums are. */
    struct Piece {
        int64_t begin, end;
        double *sums, *squares;
        float *largest, *row;
        int64_t *pixels;
    };

    int64_t doubles_of_piece() const;
    Piece piece(int64_t number) const;
    void sum(int64_t number) const;
    /** Adds all pieces of an image to its first. */
    void merge(int64_t image) const;

    const distile_tensor &tensor_;
    const distile_mask *mask_;
    bool largest_;
    int64_t words_, pieces_;  // The words and the pieces of an image.
    ScratchMemory memory_;
};

}  // namespace distile

#endif
