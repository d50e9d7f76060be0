/** \file
 * The layouts of packed weights, one row each, by the backend that has them. A backend's first is what plans have
 * unless they name another:
 *
 *     ROW(name, language, bytes, channels, order, block, type_of, keeps_int4, readers)
 *
 * Plans read what code reads it: its Language, the size of the operator's type that it is for (0: any), and its output
 * channels in a block. The runtime reads how to pack: the WeightOrder; its block, as WeightLayout explains; the
 * distile_role of the operand whose type the stored weights have; whether weights of int4 keep that type; and the
 * GroupReaders.
 */
#ifndef DISTILE_FACTS_WEIGHT_LAYOUTS_H
#define DISTILE_FACTS_WEIGHT_LAYOUTS_H

/** Output channels per block where Halide's code reads the weights. */
#define DISTILE_CPU_CHANNEL_BLOCK 16
#define DISTILE_CUDA_CHANNEL_BLOCK 32
#define DISTILE_OPENCL_CHANNEL_BLOCK 32

/* On tensor cores, 16-bit types multiply the input's type, float32 multiplies TF32. */
/* clang-format off */
#define DISTILE_CPU_LAYOUTS(ROW) \
    ROW("cpu-o16", Halide, 0, DISTILE_CPU_CHANNEL_BLOCK, \
        ChannelBlocks, DISTILE_CPU_CHANNEL_BLOCK, WEIGHTS, false, Vectors) \
    ROW("cpu-k32", DotProduct, 2, 16, DotProduct, 32, INPUT, false, Vectors) \
    ROW("cpu-k64", DotProduct, 1, 16, QuantizedDotProduct, 64, WEIGHTS, true, Vectors) \
    ROW("cpu-nonzero-quads", Nonzeros, 1, 16, NonzeroQuads, 0, BIAS, false, Vectors) \
    ROW("cpu-nonzeros", Nonzeros, 0, 16, Nonzeros, 0, WEIGHTS, false, Vectors)

#define DISTILE_CUDA_LAYOUTS(ROW) \
    ROW("cuda-o32", Halide, 0, DISTILE_CUDA_CHANNEL_BLOCK, \
        ChannelBlocks, DISTILE_CUDA_CHANNEL_BLOCK, WEIGHTS, false, Threads) \
    ROW("cuda-k64", DotProduct, 1, 16, QuantizedDotProduct, 64, WEIGHTS, false, Vectors) \
    ROW("cuda-nonzeros", Nonzeros, 0, 16, PairedNonzeros, 0, WEIGHTS, false, Vectors) \
    ROW("cuda-bitmap", Bitmap, 2, 16, NonzeroBitmap, 0, WEIGHTS, false, Vectors) \
    ROW("cuda-two-four", TwoFour, 2, 64, TwoFour, 0, WEIGHTS, false, Vectors) \
    ROW("cuda-k8", TensorCore, 1, 8, QuantizedTensorCore, 128, WEIGHTS, false, Vectors) \
    ROW("cuda-k16", TensorCore, 2, 8, TensorCore, 64, INPUT, false, Vectors) \
    ROW("cuda-k32", TensorCore, 4, 8, TensorCore, 32, WEIGHTS, false, Vectors)

#define DISTILE_OPENCL_LAYOUTS(ROW) \
    ROW("opencl-o32", Halide, 0, DISTILE_OPENCL_CHANNEL_BLOCK, \
        ChannelBlocks, DISTILE_OPENCL_CHANNEL_BLOCK, WEIGHTS, false, Threads)
/* clang-format on */

/** Every row. */
#define DISTILE_WEIGHT_LAYOUTS(ROW) DISTILE_CPU_LAYOUTS(ROW) DISTILE_CUDA_LAYOUTS(ROW) DISTILE_OPENCL_LAYOUTS(ROW)

#endif
