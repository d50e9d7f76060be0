#include <distile/distile.h>
#include <distile_conv3x3_256.h> /* a PolyKernel that ships: 3x3, 256 -> 256 channels, relu */
#include <stdio.h>
#include <stdlib.h>

enum { SIZE = 40, PIXELS = SIZE * SIZE, CHANNELS = 256 };

static distile_context *context;

static void check(distile_status status) {
    if (status != DISTILE_OK) {
        fprintf(stderr, "%s: %s\n", distile_status_name(status), distile_context_message(context));
        exit(1);
    }
}

int main(void) {
    float *input = calloc(PIXELS, CHANNELS * sizeof(float)); /* your activations, channels innermost */
    float *output = calloc(PIXELS, CHANNELS * sizeof(float));
    float *filter = calloc(CHANNELS, CHANNELS * sizeof(float) * 3 * 3); /* your weights */
    static unsigned char bytes[PIXELS];                                 /* your mask: 1 where the output is needed */
    bytes[3 * SIZE + 5] = 1;

    distile_tensor in = distile_tensor_make(input, 1, SIZE, SIZE, CHANNELS);
    distile_tensor out = distile_tensor_make(output, 1, SIZE, SIZE, CHANNELS);
    distile_kernel *kernel;
    distile_weights *weights;
    distile_mask *mask;

    /* Once: a context (of a GPU: distile_cuda_context_create), a kernel, its weights in its layout, and a mask. */
    check(distile_context_create(NULL, &context));
    check(distile_kernel_create(context, &distile_conv3x3_256, &kernel));
    check(distile_weights_pack(kernel, &(distile_weights_source){.filter = filter, .order = DISTILE_OIHW}, &weights));
    check(distile_mask_create(context, &mask));
    /* For every input: set the mask, run. Only the active pixels of the output change. */
    check(distile_mask_set_bytes(mask, bytes, 1, SIZE, SIZE, PIXELS, SIZE));
    check(distile_run(kernel, &(distile_run_args){.input = &in, .output = &out, .weights = weights, .mask = mask}));

    distile_choice choice;
    check(distile_kernel_choose(kernel, mask, &choice));
    printf("variant %s computed %lld of %d pixels\n", choice.variant, (long long)choice.active_pixels, PIXELS);

    distile_mask_destroy(mask);
    distile_weights_destroy(weights);
    distile_kernel_destroy(kernel);
    distile_context_destroy(context);
    free(filter);
    free(output);
    free(input);
    return 0;
}
