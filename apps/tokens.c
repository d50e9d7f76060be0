/* Attention of the tokens that a vision transformer has not dropped, 6 heads of 64 channels. */
#include <distile/distile.h>
#include <distile_attention_6_64.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 197, CHANNELS = 6 * 64, KEPT = 59 };

static float queries[TOKENS][CHANNELS], keys[TOKENS][CHANNELS], values[TOKENS][CHANNELS], result[TOKENS][CHANNELS];
static distile_context *context;

static void check(distile_status status) {
    if (status != DISTILE_OK) {
        fprintf(stderr, "%s: %s\n", distile_status_name(status), distile_context_message(context));
        exit(1);
    }
}

int main(void) {
    for (int t = 0; t < TOKENS; t++) {
        for (int c = 0; c < CHANNELS; c++) {
            queries[t][c] = (float)((t + c) % 31) * 0.05f - 0.75f;
            keys[t][c] = (float)((t + c) % 29) * 0.05f - 0.7f;
            values[t][c] = (float)t;
        }
    }

    /* Once. */
    distile_kernel *kernel;
    distile_mask *kept;
    check(distile_context_create(NULL, &context));
    check(distile_kernel_create(context, &distile_attention_6_64, &kernel));
    check(distile_mask_create(context, &kept));

    /* For every input: one mask, which all layers share. */
    int32_t indices[KEPT];
    for (int i = 0; i < KEPT; i++) {
        indices[i] = 3 * i;
    }
    check(distile_mask_set_indices(kept, indices, NULL, 1, 1, TOKENS, KEPT));

    /* In every layer: kept tokens attend to kept tokens. Without key_mask they would attend to all. */
    const distile_tensor query = distile_tokens_make(queries, 1, TOKENS, CHANNELS);
    const distile_tensor key = distile_tokens_make(keys, 1, TOKENS, CHANNELS);
    const distile_tensor value = distile_tokens_make(values, 1, TOKENS, CHANNELS);
    const distile_tensor output = distile_tokens_make(result, 1, TOKENS, CHANNELS);
    const distile_run_args args = {
        .input = &query, .key = &key, .value = &value, .output = &output, .mask = kept, .key_mask = kept};
    check(distile_run(kernel, &args));
    printf("token 3 becomes %.3f, and token 4 stays %.3f\n", result[3][0], result[4][0]);

    distile_mask_destroy(kept);
    distile_kernel_destroy(kernel);
    distile_context_destroy(context);
    return 0;
}
