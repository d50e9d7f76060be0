// Kernels that compute with elements of a TYPE: LOAD(from, i) and STORE(value, to, i) convert element i from and to it.

// The pixels at which two tensors differ, one item per pixel of a row.
__kernel void NAMED(distile_compare, TYPE)(POINTER(a), long a_n, long a_h, long a_w, POINTER(b), long b_n, long b_h,
                                           long b_w, int height, int width, int channels, float threshold,
                                           int words_per_row, POINTER(to)) {
    __local uint found[GROUP_ITEMS / 32];
    const int item = (int)get_local_id(0), x = (int)get_global_id(0), row = (int)get_global_id(1);
    const int image = row / height, y = row - image * height;
    if (item % 32 == 0) {
        found[item / 32] = 0;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (x < width) {
        const long at_a = image * a_n + y * a_h + x * a_w, at_b = image * b_n + y * b_h + x * b_w;
        int same = 1;
        for (int c = 0; c < channels && same; c++) {
            // Not ">": a NaN difference must count.
            same = fabs(LOAD(AT(uchar, a), at_a + c) - LOAD(AT(uchar, b), at_b + c)) <= threshold;
        }
        if (!same) {
            atomic_or(&found[item / 32], 1u << (item % 32));
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item % 32 == 0 && x < width) {
        AT(uint, to)[(long)row * words_per_row + x / 32] = found[item / 32];
    }
}

// The pixels whose scores are above a threshold, one item per pixel of a row.
__kernel void NAMED(distile_score_pixels, TYPE)(VIEW(from), int height, int width, int channels, POINTER(weights),
                                                float bias, float threshold, int words_per_row, POINTER(to)) {
    __local uint found[GROUP_ITEMS / 32];
    const int item = (int)get_local_id(0), x = (int)get_global_id(0), row = (int)get_global_id(1);
    const int image = row / height, y = row - image * height;
    if (item % 32 == 0) {
        found[item / 32] = 0;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (x < width) {
        const long first = image * from_n + y * from_h + x * from_w;
        float sum = 0;
        for (int c = 0; c < channels; c++) {
            sum += LOAD(AT(uchar, from), first + c) * (weights_buffer ? AT(float, weights)[c] : 1);
        }
        if (sum + bias > threshold) {
            atomic_or(&found[item / 32], 1u << (item % 32));
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item % 32 == 0 && x < width) {
        AT(uint, to)[(long)row * words_per_row + x / 32] = found[item / 32];
    }
}

// Layer norm or RMS norm of the listed pixels, one per group at once. The output may be the input.
__kernel void NAMED(distile_normalize, TYPE)(VIEW(from), VIEW(to), POINTER(list), uint pixels, POINTER(count),
                                             POINTER(gamma), int has_gamma, POINTER(beta), int has_beta, uint channels,
                                             int centred, float epsilon) {
    __local float sums[GROUP_ITEMS];
    const uint item = (uint)get_local_id(0), count = AT(uint, count)[0];
    for (uint place = (uint)get_group_id(0); place < count; place += (uint)get_num_groups(0)) {
        const long from = LISTED(from, place), to = LISTED(to, place);
        const float shift = centred ? LOAD(AT(uchar, from), from) : 0;
        float sum = 0, squares = 0;
        for (uint c = item; c < channels && centred; c += GROUP_ITEMS) {
            sum += LOAD(AT(uchar, from), from + c) - shift;
        }
        const float mean = sum_of_group(sum, sums) / channels;
        for (uint c = item; c < channels; c += GROUP_ITEMS) {
            const float deviation = LOAD(AT(uchar, from), from + c) - shift - mean;
            squares += deviation * deviation;
        }
        const float factor = 1 / sqrt(sum_of_group(squares, sums) / channels + epsilon);
        for (uint c = item; c < channels; c += GROUP_ITEMS) {
            const float value = (LOAD(AT(uchar, from), from + c) - shift - mean) * factor;
            STORE(value * (has_gamma ? AT(float, gamma)[c] : 1) + (has_beta ? AT(float, beta)[c] : 0), AT(uchar, to),
                  to + c);
        }
    }
}

// Pools the windows of the listed pixels, in the rows of the grid, one item per channel.
__kernel void NAMED(distile_pool, TYPE)(VIEW(from), VIEW(to), POINTER(list), uint pixels, POINTER(count), uint channels,
                                        Window window) {
    const uint c = (uint)get_global_id(0), count = AT(uint, count)[0];
    if (c >= channels) {
        return;
    }
    for (uint place = (uint)get_global_id(1); place < count; place += (uint)get_global_size(1)) {
        const uint xy = AT(uint, list)[place];
        const long image = AT(uint, list)[pixels + place] * from_n + c;
        float value = 0;
        int taps = 0;
        int y = (int)(xy >> 16) * window.stride_h - window.pad_top;
        for (int i = 0; i < window.kernel_h && y < window.height; i++, y += window.dilation_h) {
            int x = (int)(xy & 0xffff) * window.stride_w - window.pad_left;
            for (int j = 0; j < window.kernel_w && x < window.width && y >= 0; j++, x += window.dilation_w) {
                if (x >= 0) {
                    const float tap = LOAD(AT(uchar, from), image + y * from_h + x * from_w);
                    value = taps == 0 ? tap : window.largest ? larger(value, tap) : value + tap;
                    taps++;
                }
            }
        }
        if (!window.largest) {
            value /= window.count_padding ? (float)((long)window.kernel_h * window.kernel_w) : (float)taps;
        }
        STORE(value, AT(uchar, to), LISTED(to, place) + c);
    }
}

// Combines the listed pixels of two tensors, in the rows of the grid, one item per channel. How: 0 copies the first, 1
// adds, 2 multiplies. The output may be either.
__kernel void NAMED(distile_combine, TYPE)(VIEW(from), VIEW(other), VIEW(to), POINTER(list), uint pixels,
                                           POINTER(count), uint channels, int how, int other_activation,
                                           float other_slope, int activation, float slope) {
    const uint c = (uint)get_global_id(0), count = AT(uint, count)[0];
    if (c >= channels) {
        return;
    }
    for (uint place = (uint)get_global_id(1); place < count; place += (uint)get_global_size(1)) {
        float value = LOAD(AT(uchar, from), LISTED(from, place) + c);
        if (how != 0) {
            const float other =
                activate(LOAD(AT(uchar, other), LISTED(other, place) + c), other_activation, other_slope);
            value = how == 1 ? value + other : value * other;
        }
        STORE(activate(value, activation, slope), AT(uchar, to), LISTED(to, place) + c);
    }
}

// Sums a channel in each item, over every blocks-th active pixel of an image: block and image are the other dimensions
// of the grid. Sums are of differences from the first pixel, so a large mean cancels nothing. Without a list all pixels
// are active.
__kernel void NAMED(distile_sum_pixels, TYPE)(VIEW(from), POINTER(list), POINTER(lengths), uint pixels, uint width,
                                              uint channels, int largest, POINTER(moments)) {
    const uint c = (uint)get_global_id(0), blocks = (uint)get_global_size(1), image = (uint)get_global_id(2);
    if (c >= channels) {
        return;
    }
    const uint first = list_buffer ? AT(uint, lengths)[image] : 0;
    const uint count = list_buffer ? AT(uint, lengths)[image + 1] - first : pixels;
    float shift = 0, sum = 0, squares = 0, found = 0;
    for (uint i = (uint)get_global_id(1); i < count; i += blocks) {
        const uint y = list_buffer ? AT(uint, list)[first + i] >> 16 : i / width;
        const uint x = list_buffer ? AT(uint, list)[first + i] & 0xffff : i - y * width;
        const float value = LOAD(AT(uchar, from), image * from_n + y * from_h + x * from_w + c);
        if (largest) {
            shift = found == 0 ? value : larger(shift, value);
        } else {
            shift = found == 0 && isfinite(value) ? value : shift;
            sum += value - shift;
            squares += (value - shift) * (value - shift);
        }
        found++;
    }
    Moments all = {found, shift, 0};
    if (found != 0 && !largest) {
        all.mean = shift + sum / found;
        all.squares = squares - sum * (sum / found);
    }
    AT(Moments, moments)[((long)image * blocks + get_global_id(1)) * channels + c] = all;
}

// The means, or maxima, of all blocks of an image, one item per channel and one image per row of the grid.
__kernel void NAMED(distile_merge_pixels, TYPE)(POINTER(moments), uint blocks, uint channels, int largest, POINTER(to),
                                                long to_n) {
    const uint c = (uint)get_global_id(0);
    const long image = (long)get_global_id(1);
    if (c < channels) {
        Moments all = {0, 0, 0};
        for (uint block = 0; block < blocks; block++) {
            all = merge(all, AT(Moments, moments)[(image * blocks + block) * channels + c], largest);
        }
        STORE(all.mean, AT(uchar, to), image * to_n + c);
    }
}

// Group norm of the listed pixels, in the rows of the grid, one item per channel. The output may be the input.
__kernel void NAMED(distile_normalize_groups, TYPE)(VIEW(from), VIEW(to), POINTER(list), uint pixels, POINTER(count),
                                                    uint channels, POINTER(mean), POINTER(variance), uint stride,
                                                    uint size, POINTER(gamma), POINTER(beta), float epsilon,
                                                    int activation, float slope) {
    const uint c = (uint)get_global_id(0), count = AT(uint, count)[0];
    if (c >= channels) {
        return;
    }
    const float gamma = gamma_buffer ? AT(float, gamma)[c] : 1, beta = beta_buffer ? AT(float, beta)[c] : 0;
    for (uint place = (uint)get_global_id(1); place < count; place += (uint)get_global_size(1)) {
        const long at = (long)AT(uint, list)[pixels + place] * stride + c / size;
        const float value = LOAD(AT(uchar, from), LISTED(from, place) + c) - AT(float, mean)[at];
        const float factor = gamma / sqrt(AT(float, variance)[at] + epsilon);
        STORE(activate(value * factor + beta, activation, slope), AT(uchar, to), LISTED(to, place) + c);
    }
}
