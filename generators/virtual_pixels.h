/** \file
 * The virtual pixel domain, shared by the generators of masked operators.
 *
 * A masked operator computes the active pixels of the tiles in a list; every other output pixel keeps its value. It
 * runs over *virtual pixels*: virtual pixel p is pixel p % (tile_h * tile_w) of tile p / (tile_h * tile_w) of the list,
 * so a schedule may split the domain anywhere, even across tiles. On a CPU it has two update stages. The first handles
 * tiles whose reads all lie inside the input's allocation and reads in place. The second handles the others, whose
 * outside reads (phantom reads) are zeros.
 *
 * If the output has a higher resolution than the input, virtual pixels have the input's resolution, and each stands for
 * scale_h x scale_w output pixels. Output pixels at the same position in their virtual pixel form a *phase*. A stage
 * runs over the phases, and for each phase over all virtual pixels.
 *
 * On a GPU one update stage serves all tiles and ignores num_interior and threads. There num_tiles is only what the
 * launch covers: the length of the list is in device memory (tile_count), so the host need not wait for a list made on
 * the device.
 */
#ifndef DISTILE_VIRTUAL_PIXELS_H
#define DISTILE_VIRTUAL_PIXELS_H

#include "Halide.h"
#include "generators/epilogue.h"
#include "generators/storage_type.h"
#include <functional>
#include <string>

namespace distile {

/** A base class of generators, in addition to Halide's. It declares a generator's first arguments: input, tiles, bits,
 * num_interior, num_tiles, threads, store_tiles, slope. The generator's own inputs follow, then tile_count on a GPU,
 * residual_input if there is one, and output. */
class VirtualPixels {
public:
    // The storage type of activations. Sums are float32, rounded once.
    Halide::GeneratorParam<distile_dtype> dtype{"dtype", DISTILE_FLOAT32, float_types_by_name()};
    Halide::GeneratorParam<distile_activation> epilogue{"epilogue", DISTILE_ACTIVATION_NONE, activations_by_name()};
    Halide::GeneratorParam<bool> residual{"residual", false};
    // The granularity of the listed tiles, in output pixels.
    Halide::GeneratorParam<int> tile_h{"tile_h", 1, 1, 65535};
    Halide::GeneratorParam<int> tile_w{"tile_w", 1, 1, 65535};
    // If not 0, replaces both: the side of square tiles in virtual pixels, for callers that do not know the scale.
    Halide::GeneratorParam<int> virtual_tile{"virtual_tile", 0, 0, 256};

    // [ci, x, y, n]. With a zero border, the minima of x and y are minus its width.
    Halide::GeneratorInput<Halide::Buffer<>> input{"input", 4};
    // [tile, 2]: the origin x | y << 16 in pixels, and the image's index.
    Halide::GeneratorInput<Halide::Buffer<uint32_t>> tiles{"tiles", 2};
    // [x / 32, y, n]: the mask, one bit per output pixel.
    Halide::GeneratorInput<Halide::Buffer<uint32_t>> bits{"bits", 3};
    // The first num_interior of the num_tiles tiles are read in place.
    Halide::GeneratorInput<int32_t> num_interior{"num_interior"};
    Halide::GeneratorInput<int32_t> num_tiles{"num_tiles"};
    // Threads that the call may use; schedules balance their tasks by it.
    Halide::GeneratorInput<int32_t> threads{"threads"};
    // Store every pixel of the listed tiles, not only the active ones.
    Halide::GeneratorInput<bool> store_tiles{"store_tiles"};
    // The epilogue's, if it has one.
    Halide::GeneratorInput<float> slope{"slope"};

protected:
    /** A virtual or output pixel, and whether its virtual pixel lies inside the image: tiles at the right or bottom
     * edge may reach beyond it, and coordinates there are clamped. */
    struct Pixel {
        Halide::Expr x, y, n, exists;
    };

    /** One update stage of the output: the tiles [first, last) of the list. */
    struct Stage {
        std::string name;
        Halide::Expr first, last;
        bool in_place; /**< All reads lie inside the input's allocation. */
    };

    VirtualPixels() = default;
    ~VirtualPixels() = default;

    /** For configure(): adds the arguments after the generator's own inputs. */
    void add_last_arguments(Halide::Internal::GeneratorBase &generator);
    /** Makes the accumulator of a stage, a Func of (co, p), of (co, p, phase) with phases, or of (co, p, group) with
     * groups apart. */
    using Sums = std::function<Halide::Func(const Stage &)>;
    /** The sum of an output channel, whose place are an accumulator's arguments. */
    using SumAt = std::function<Halide::Expr(const Halide::Func &, const std::vector<Halide::Expr> &)>;

    /** For generate(): defines the output's update stages. Throws Halide::CompileError if tiles are not whole virtual
     * pixels. */
    void define_output(
        const Sums &sums,
        const SumAt &sum_at = [](const Halide::Func &accumulator, const std::vector<Halide::Expr> &place) {
            return Halide::Expr(accumulator(place));
        });
    /** For generate(): constrains the buffers' extents and strides. */
    void constrain_buffers(int in_channels, int out_channels);
    /** For schedule(): sets estimates, which any autoscheduler needs. */
    void estimate_input(int channels, int width, int height);
    void estimate_output(int channels, int width, int height);

    /** The image extents for estimates. The masked pixels dominate, so any value will do. */
    static constexpr int estimated_extent = 40;

    bool on_gpu() const {
        return gpu;
    }
    /** The input's type. A CPU's runtime converts the input to float32 once if every channel of it is read for many
     * output channels. */
    distile_dtype input_dtype() const {
        return on_gpu() || reads_channels_once ? dtype.value() : DISTILE_FLOAT32;
    }
    bool has_phases() const {
        return scale_h * scale_w > 1;
    }
    /** A tile's extents in virtual pixels. */
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
    /** The virtual pixel at an index, in a stage over the tiles before `last`. */
    Pixel pixel_at(const Halide::Expr &index, const Halide::Expr &last);
    /** A virtual pixel's output pixel in a phase. */
    Pixel output_pixel(const Pixel &pixel, const Halide::Expr &phase_index);
    /** Packs a pixel into two words. Halide does not know their bounds, so it does not clamp them again. */
    static Halide::Tuple pack(const Pixel &pixel);
    static Pixel unpack(const Halide::Tuple &words);

    /** The input at a position of an image, as float32. If read in place, the position is inside the allocation;
     * otherwise positions outside read as zero. */
    Halide::Expr load_input(const Halide::Expr &channel, const Halide::Expr &in_x, const Halide::Expr &in_y,
                            const Halide::Expr &image, bool in_place);

    StorageConversion conversion; /**< For the target. */
    Halide::Var co{"co"}, group{"own_group"}, p{"p"}, phase{"phase"}, x{"x"}, y{"y"}, n{"n"};
    int scale_h = 1, scale_w = 1;     /**< Set before defining the output. */
    bool reads_channels_once = false; /**< Set before adding the last arguments. */
    /** If not 0, set before adding the last arguments: the groups of output channels, which the output and the residual
     * have in a last dimension of their own. */
    int groups_apart = 0;

private:
    Halide::GeneratorInput<Halide::Buffer<>> *residual_input = nullptr;
    // [1]: the length of the list. At most num_tiles tiles are computed.
    Halide::GeneratorInput<Halide::Buffer<uint32_t>> *tile_count = nullptr;
    Halide::GeneratorOutput<Halide::Buffer<>> *output = nullptr;
    bool gpu = false;

    Halide::Expr listed_tiles(const Halide::Expr &index);
    Halide::Expr is_stored(const Pixel &pixel, const Halide::Expr &index);
    void add_stage(const Stage &stage, const Sums &sums, const SumAt &sum_at);

    /** The coordinates of the channel `co` of a pixel in the output and the residual. */
    template<typename Coordinate>
    std::vector<Coordinate> at_channel(const Coordinate &column, const Coordinate &row, const Coordinate &image) const {
        std::vector<Coordinate> at = {co, column, row, image};
        if (groups_apart > 0) {
            at.push_back(group);
        }
        return at;
    }

    /** Promises that every pixel starts at a multiple of 16 bytes, if its channels fill one. */
    template<typename ImageBuffer> void align_pixels(ImageBuffer &image, int channels) {
        const int lanes = 16 / stored_type(dtype).bytes();
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
