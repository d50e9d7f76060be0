/* Adds two channels at one pixel of a 4 x 4 image, and leaves the other pixels alone. */
#include <distile/distile.h>
#include <my_conv.h>
#include <stdio.h>

int main(void) {
    float input[4 * 4 * 2], output[4 * 4 * 3], filter[3 * 2] = {1, 1, 1, 0, 0, 1};
    unsigned char bytes[4 * 4] = {0};
    for (int i = 0; i < 4 * 4; i++) {
        input[2 * i] = (float)i;
        input[2 * i + 1] = 100;
    }
    for (int i = 0; i < 4 * 4 * 3; i++) {
        output[i] = -7;
    }
    bytes[5] = 1;

    distile_context *context = NULL;
    distile_kernel *kernel = NULL;
    distile_weights *weights = NULL;
    distile_mask *mask = NULL;
    const distile_weights_source source = {.filter = filter, .order = DISTILE_OIHW};
    const distile_tensor in = distile_tensor_make(input, 1, 4, 4, 2), out = distile_tensor_make(output, 1, 4, 4, 3);
    int failed = distile_context_create(NULL, &context) != DISTILE_OK ||
                 distile_kernel_create(context, &my_conv, &kernel) != DISTILE_OK ||
                 distile_weights_pack(kernel, &source, &weights) != DISTILE_OK ||
                 distile_mask_create(context, &mask) != DISTILE_OK ||
                 distile_mask_set_bytes(mask, bytes, 1, 4, 4, 16, 4) != DISTILE_OK;
    const distile_run_args args = {.input = &in, .output = &out, .weights = weights, .mask = mask};
    failed = failed || distile_run(kernel, &args) != DISTILE_OK;
    for (int i = 0; i < 4 * 4; i++) {
        const float expected[3] = {(float)i + 100, (float)i, 100};
        for (int c = 0; c < 3; c++) {
            failed = failed || output[3 * i + c] != (i == 5 ? expected[c] : -7.0f);
        }
    }
    printf("%s %s\n", failed ? "wrong" : "right", distile_context_message(context));
    distile_mask_destroy(mask);
    distile_weights_destroy(weights);
    distile_kernel_destroy(kernel);
    distile_context_destroy(context);
    return failed;
}
