#include "facts/activations.h"
#include "facts/types.h"

// The library's own kernels, in OpenCL C 1.2. A pointer comes as a buffer and the byte in it.
#define POINTER(name) __global uchar *name##_buffer, ulong name##_byte
#define AT(type, name) ((__global type *)(name##_buffer + name##_byte))

#define GROUP_ITEMS 64

#include "runtime/opencl/kernels/masks.cl"

// ---- What the kernels for tensors share ------------------------------------------------------

#define VIEW(name) POINTER(name), long name##_n, long name##_h, long name##_w
// The listed pixel `place`, of a list whose images begin after `pixels` entries.
#define LISTED(name, place)                                                                                            \
    (AT(uint, list)[pixels + place] * name##_n + (AT(uint, list)[place] >> 16) * name##_h +                            \
     (AT(uint, list)[place] & 0xffff) * name##_w)

// Elements of every type.
#define WORD_8 uchar
#define WORD_16 ushort
#define WORD_32 uint
#define CHOOSE(condition, value, other) ((condition) ? (value) : (other))
#define FLOAT_OF(bits) as_float(bits)
#define BITS_OF(value) as_uint(value)
#define LESSER(a, b) min(a, b)
#define CONVERT_TYPE(number, name, NAME, bits, ONNX, digits, widened, narrowed)                                        \
    float from_##name(const __global uchar *from, long i) {                                                            \
        const uint x = ((const __global WORD_##bits *)from)[i];                                                        \
        return as_float(widened);                                                                                      \
    }                                                                                                                  \
    void to_##name(float value, __global uchar *to, long i) {                                                          \
        const uint x = as_uint(value);                                                                                 \
        ((__global WORD_##bits *)to)[i] = (WORD_##bits)(narrowed);                                                     \
    }
DISTILE_FLOAT_TYPES(CONVERT_TYPE)

// The sum of the values of the group's items, in all of them.
float sum_of_group(float value, __local float *sums) {
    const uint item = (uint)get_local_id(0);
    sums[item] = value;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint half_of = GROUP_ITEMS / 2; half_of > 0; half_of /= 2) {
        if (item < half_of) {
            sums[item] += sums[item + half_of];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    const float sum = sums[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    return sum;
}

// NaN if either is.
float larger(float a, float b) {
    return a > b || isnan(a) ? a : b;
}

#define AT_LEAST(x, low) at_least(x, low)
#define LIMIT(x, low, high) at_most(at_least(x, low), high)
#define ONE_PLUS_EXP_MINUS(x) (1 + exp(-(x)))
#define ERF(x) erf(x)
#define TANH(x) tanh(x)
#define KEEP_NAN(x, value) (value)
#define ROW(number, name, NAME, value, gradient)                                                                       \
    case number:                                                                                                       \
        return value;

float at_least(float x, float low) {
    return x < low ? low : x;
}

float at_most(float x, float high) {
    return x > high ? high : x;
}

// By its number. NaN stays NaN.
float activate(float x, int activation, float slope) {
    switch (activation) { DISTILE_ACTIVATIONS(ROW) }
    return x;
}

// The window of a pooling, and the input's extents.
typedef struct {
    int height, width;
    int kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w, pad_top, pad_left;
    int largest, count_padding;
} Window;

// What is known of some values: their number, mean, and sum of squared deviations; or instead of the mean their
// maximum.
typedef struct {
    float count, mean, squares;
} Moments;

Moments merge(Moments a, Moments b, int largest) {
    if (a.count == 0 || b.count == 0) {
        return a.count == 0 ? b : a;
    }
    const float count = a.count + b.count, difference = b.mean - a.mean, share = b.count / count;
    Moments both = {count, larger(a.mean, b.mean), 0};
    if (!largest) {
        // An infinite mean must not become NaN.
        both.mean = a.mean * (a.count / count) + b.mean * share;
        both.squares = a.squares + b.squares + difference * difference * a.count * share;
    }
    return both;
}

// The statistics of a group of channels of an image in each group of items: the groups of channels, and the images, are
// the dimensions of the grid.
__kernel void distile_merge_groups(POINTER(moments), uint blocks, uint channels, uint size, POINTER(mean),
                                   POINTER(variance)) {
    __local Moments parts[GROUP_ITEMS];
    const uint item = (uint)get_local_id(0), group = (uint)get_group_id(0);
    const long image = (long)get_global_id(1);
    Moments all = {0, 0, 0};
    for (uint i = item; i < blocks * size; i += GROUP_ITEMS) {
        const uint block = i / size, c = group * size + i % size;
        all = merge(all, AT(Moments, moments)[(image * blocks + block) * channels + c], 0);
    }
    parts[item] = all;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint half_of = GROUP_ITEMS / 2; half_of > 0; half_of /= 2) {
        if (item < half_of) {
            parts[item] = merge(parts[item], parts[item + half_of], 0);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (item == 0) {
        const long at = image * get_num_groups(0) + group;
        AT(float, mean)[at] = parts[0].mean;
        // Rounding may leave less than 0; NaN stays.
        AT(float, variance)[at] = parts[0].count == 0 || parts[0].squares < 0 ? 0 : parts[0].squares / parts[0].count;
    }
}

// ---- Kernels for each type and each size of units --------------------------------------------

#define JOIN(name, type) name##_##type
// The name of what the file below defines for each TYPE or BYTES.
#define NAMED(name, type) JOIN(name, type)

#define LOAD NAMED(from, TYPE)
#define STORE NAMED(to, TYPE)

#define TYPE float32
#include "runtime/opencl/kernels/layers.cl"
#undef TYPE
#define TYPE float16
#include "runtime/opencl/kernels/layers.cl"
#undef TYPE
#define TYPE bfloat16
#include "runtime/opencl/kernels/layers.cl"
#undef TYPE
#define TYPE float8_e4m3fn
#include "runtime/opencl/kernels/layers.cl"
#undef TYPE
#define TYPE float8_e5m2
#include "runtime/opencl/kernels/layers.cl"
#undef TYPE

#define BYTES 1
#define UNIT uchar
#include "runtime/opencl/kernels/pixels.cl"
#undef UNIT
#undef BYTES
#define BYTES 2
#define UNIT ushort
#include "runtime/opencl/kernels/pixels.cl"
#undef UNIT
#undef BYTES
#define BYTES 4
#define UNIT uint
#include "runtime/opencl/kernels/pixels.cl"
#undef UNIT
#undef BYTES
#define BYTES 16
#define UNIT uint4
#include "runtime/opencl/kernels/pixels.cl"
