/* Two pixels of a 3x3 convolution of 256 channels with relu, each channel of which adds two values. */
#include <distile/distile.h>
#include <distile_conv3x3_256.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef PACKAGE_VERSION_MAJOR
_Static_assert(PACKAGE_VERSION_MAJOR == DISTILE_VERSION_MAJOR && PACKAGE_VERSION_MINOR == DISTILE_VERSION_MINOR &&
                   PACKAGE_VERSION_PATCH == DISTILE_VERSION_PATCH,
               "the package has another version than its headers");
#endif

enum { SIZE = 6, PIXELS = SIZE * SIZE, CHANNELS = 256, TAPS = 9 };

int main(void) {
    float *input = calloc(PIXELS, CHANNELS * sizeof(float));
    float *output = calloc(PIXELS, CHANNELS * sizeof(float));
    float *filter = calloc(CHANNELS, CHANNELS * sizeof(float) * TAPS);
    unsigned char bytes[PIXELS] = {0};
    if (!input || !output || !filter) {
        return 1;
    }
    for (int i = 0; i < PIXELS * CHANNELS; i++) {
        input[i] = (float)(i % 31 - 15);
        output[i] = -7;
    }
    /* Channel c is the pixel's own channel c plus twice channel c + 1 of the pixel above. */
    for (int c = 0; c < CHANNELS; c++) {
        filter[(c * CHANNELS + c) * TAPS + 4] = 1;
        filter[(c * CHANNELS + (c + 1) % CHANNELS) * TAPS + 1] = 2;
    }
    bytes[2] = bytes[3 * SIZE + 4] = 1;

    distile_context *context = NULL;
    distile_kernel *kernel = NULL;
    distile_weights *weights = NULL;
    distile_mask *mask = NULL;
    const distile_weights_source source = {.filter = filter, .order = DISTILE_OIHW};
    const distile_tensor in = distile_tensor_make(input, 1, SIZE, SIZE, CHANNELS);
    const distile_tensor out = distile_tensor_make(output, 1, SIZE, SIZE, CHANNELS);
    int failed = distile_version() != DISTILE_VERSION || distile_context_create(NULL, &context) != DISTILE_OK ||
                 distile_kernel_create(context, &distile_conv3x3_256, &kernel) != DISTILE_OK ||
                 distile_weights_pack(kernel, &source, &weights) != DISTILE_OK ||
                 distile_mask_create(context, &mask) != DISTILE_OK ||
                 distile_mask_set_bytes(mask, bytes, 1, SIZE, SIZE, PIXELS, SIZE) != DISTILE_OK;
    const distile_run_args args = {.input = &in, .output = &out, .weights = weights, .mask = mask};
    failed = failed || distile_run(kernel, &args) != DISTILE_OK;
    for (int p = 0; p < PIXELS; p++) {
        for (int c = 0; c < CHANNELS; c++) {
            const float above = p < SIZE ? 0 : input[(p - SIZE) * CHANNELS + (c + 1) % CHANNELS];
            const float sum = input[p * CHANNELS + c] + 2 * above;
            const float expected = !bytes[p] ? -7 : sum > 0 ? sum : 0;
            failed = failed || output[p * CHANNELS + c] != expected;
        }
    }
    printf("%s %s\n", failed ? "wrong" : "right", context ? distile_context_message(context) : "");
    distile_mask_destroy(mask);
    distile_weights_destroy(weights);
    distile_kernel_destroy(kernel);
    distile_context_destroy(context);
    free(filter);
    free(output);
    free(input);
    return failed;
}
