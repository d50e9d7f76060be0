/** \file
 * The virtual pixel domain of masked operators, which their generators share.
 *
 * A masked operator computes the active pixels of the tiles in a list; every other output pixel keeps its value. It
 * runs over *virtual pixels*: pixel p is pixel p % (tile_h * tile_w) of tile p / (tile_h * tile_w) of the list, so that
 * a schedule may cut the domain anywhere, also across tiles. On a CPU it has two update stages: the first for tiles
 * whose reads all lie inside the input's allocation, read in place; the second for the others, whose reads outside
 * (phantom reads) are zeros.
 *
 * An operator whose output has a higher resolution than its input has virtual pixels of the input's resolution, each of
 * which stands for scale_h x scale_w output pixels. Those that have the same place in it form a *phase*; a stage runs
 * over the phases, and for each over all of its virtual pixels.
 *
 * On a GPU one update stage serves all tiles; it takes no notice of num_interior and threads. There num_tiles is only
 * what the launch covers: the length of the list is in the device's memory (tile_count), so that a list made on the
 * device need not be waited for.
 */
#ifndef DISTILE_VIRTUAL_PIXELS_H
#define DISTILE_VIRTUAL_PIXELS_H

#include "Halide.h"
#include "epilogue.h"
#include "storage_type.h"
#include <functional>
#include <string>

namespace distile {

/** A base of generators, beside Halide's own. What it declares comes first among a generator's arguments: input,
 * tiles, bits, num_interior, num_tiles, threads, store_tiles. The generator's own inputs follow, and then tile_count on
 * a GPU, residual_input if there is one, and output. */
class VirtualPixels {
public:
    // In which activations are stored. Sums are float32, and rounded once.
    Halide::GeneratorParam<Halide::Type> dtype{"dtype", Halide::Float(32)};
    Halide::GeneratorParam<Epilogue> epilogue{"epilogue", Epilogue::None, epilogue_names()};
    Halide::GeneratorParam<bool> residual{"residual", false};
    // The granularity of the tiles in the list, in output pixels.
    Halide::GeneratorParam<int> tile_h{"tile_h", 1, 1, 65535};
    Halide::GeneratorParam<int> tile_w{"tile_w", 1, 1, 65535};
    // In place of both, for who does not know the operator's scale: the side of square tiles in virtual pixels; or 0.
    Halide::GeneratorParam<int> virtual_tile{"virtual_tile", 0, 0, 256};

    // [ci, x, y, n]. The minimum of x and y is minus the width of the zero border, if there is one.
    Halide::GeneratorInput<Halide::Buffer<>> input{"input", 4};
    // [tile, 2]: the origin x | y << 16 in pixels, and the index of the image.
    Halide::GeneratorInput<Halide::Buffer<uint32_t>> tiles{"tiles", 2};
    // [x / 32, y, n]: the mask, one bit per output pixel.
    Halide::GeneratorInput<Halide::Buffer<uint32_t>> bits{"bits", 3};
    // The first num_interior of the num_tiles tiles are read in place.
    Halide::GeneratorInput<int32_t> num_interior{"num_interior"};
    Halide::GeneratorInput<int32_t> num_tiles{"num_tiles"};
    // Threads that the call may use: schedules balance their tasks by it.
    Halide::GeneratorInput<int32_t> threads{"threads"};
    // Store every pixel of the listed tiles, not only the active ones.
    Halide::GeneratorInput<bool> store_tiles{"store_tiles"};

protected:
    /** A virtual or an output pixel, and whether its virtual pixel lies inside the image at all (a tile at the
     * right or bottom edge may reach beyond it; its coordinates are then clamped). */
    struct Pixel {
        Halide::Expr x, y, n, exists;
    };

    /** One update stage of the output: the tiles [first, last) of the list. */
    struct Stage {
        std::string name;
        Halide::Expr first, last;
        bool in_place; /**< No read of any pixel lies outside the input's allocation. */
    };

    VirtualPixels() = default;
    ~VirtualPixels() = default;

    /** For configure(): adds the arguments that come after the generator's own inputs. */
    void add_last_arguments(Halide::Internal::GeneratorBase &generator);
    /** For generate(): the output's update stages. `sums` makes the accumulator of one, a Func of (co, p), or of (co,
     * p, phase) if there are phases. Throws Halide::CompileError for tiles that are not whole virtual pixels. */
    void define_output(const std::function<Halide::Func(const Stage &)> &sums);
    /** For generate(): what is known of the extents and strides of the buffers. */
    void constrain_buffers(int in_channels, int out_channels);
    /** For schedule(): estimates, which let any autoscheduler run. */
    void estimate_input(int channels, int width, int height);
    void estimate_output(int channels, int width, int height);

    /** Extents of an image for estimates. The masked pixels dominate, so that these serve as well as any. */
    static constexpr int estimated_extent = 40;

    bool on_gpu() const {
        return gpu;
    }
    /** Whether the sums of a stage may read the input itself, rather than a copy of it. */
    bool reads_in_place(const Stage &stage) const {
        return stage.in_place && dtype.value() == Halide::Float(32);
    }
    bool has_phases() const {
        return scale_h * scale_w > 1;
    }
    /** Extents of a tile in virtual pixels. */
    int tile_rows() const {
        return virtual_tile.value() > 0 ? virtual_tile.value() : tile_h.value() / scale_h;
    }
    int tile_columns() const {
        return virtual_tile.value() > 0 ? virtual_tile.value() : tile_w.value() / scale_w;
    }
    int pixels_per_tile() const {
        return tile_rows() * tile_columns();
    }

    /** The first pixel of a tile, in a stage over the tiles before `last`. */
    Pixel origin_of(const Halide::Expr &index, const Halide::Expr &last);
    /** The virtual pixel of an index, in a stage over the tiles before `last`. */
    Pixel pixel_at(const Halide::Expr &index, const Halide::Expr &last);
    /** The output pixel of a phase that a virtual pixel stands for. */
    Pixel output_pixel(const Pixel &pixel, const Halide::Expr &phase_index);
    /** A pixel as two words whose bounds Halide does not know, so that it has no reason to clamp them again. */
    static Halide::Tuple pack(const Pixel &pixel);
    static Pixel unpack(const Halide::Tuple &words);

    /** The input at a place of an image, as float32. The place lies inside its allocation if it is read in place.
     * Elsewhere it is zero. */
    Halide::Expr load_input(const Halide::Expr &channel, const Halide::Expr &in_x, const Halide::Expr &in_y,
                            const Halide::Expr &image, bool in_place);

    StorageConversion conversion; /**< For the target. */
    Halide::Var co{"co"}, p{"p"}, phase{"phase"}, x{"x"}, y{"y"}, n{"n"};
    int scale_h = 1, scale_w = 1; /**< To be set before the output is defined. */

private:
    Halide::GeneratorInput<Halide::Buffer<>> *residual_input = nullptr;
    // [1]: the number of tiles in the list, at most num_tiles of which are computed.
    Halide::GeneratorInput<Halide::Buffer<uint32_t>> *tile_count = nullptr;
    Halide::GeneratorOutput<Halide::Buffer<>> *output = nullptr;
    bool gpu = false;

    Halide::Expr listed_tiles(const Halide::Expr &index);
    Halide::Expr is_stored(const Pixel &pixel, const Halide::Expr &index);
    void add_stage(const Stage &stage, const std::function<Halide::Func(const Stage &)> &sums);

    /** Lets every pixel begin at a multiple of 16 bytes, if its channels come to one. */
    template<typename ImageBuffer> void align_pixels(ImageBuffer &image, int channels) {
        const int lanes = 16 / dtype.value().bytes();
        if (channels % lanes == 0) {
            image.set_host_alignment(16);
            for (int i = 1; i < 4; i++) {
                image.dim(i).set_stride(image.dim(i).stride() / lanes * lanes);
            }
        }
    }
};

}  // namespace distile

#endif
