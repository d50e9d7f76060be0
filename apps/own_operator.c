/* Runs the operator of my_operator.json inside discs of several sizes, checks every value, and times it. */
#include <distile/distile.h>
#include <math.h>
#include <my_conv.h> /* made by distile_add_polykernel(my_conv OPERATOR my_operator.json) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SIZE = 56, PIXELS = SIZE * SIZE, CHANNELS = 64, KERNEL = 3, PAD = 1, ROUNDS = 30 };

static float input[PIXELS][CHANNELS], output[PIXELS][CHANNELS];
static float filter[CHANNELS][CHANNELS][KERNEL][KERNEL], bias[CHANNELS]; /* the filter as in PyTorch: OIHW */
static unsigned char bytes[PIXELS], all[PIXELS];                         /* the masks: 1 where active */
static distile_context *context;

static void check(distile_status status) {
    if (status != DISTILE_OK) {
        fprintf(stderr, "%s: %s\n", distile_status_name(status), distile_context_message(context));
        exit(1);
    }
}

static void fill(float *values, size_t count, float scale) {
    for (size_t i = 0; i < count; i++) {
        values[i] = scale * (float)(rand() % 2001 - 1000) / 1000;
    }
}

/* One value of the output by definition: a 3x3 convolution with a bias and relu. */
static double expected(int y, int x, int channel) {
    double sum = bias[channel];
    for (int i = 0; i < KERNEL; i++) {
        for (int j = 0; j < KERNEL; j++) {
            const int row = y + i - PAD, column = x + j - PAD;
            if (row >= 0 && row < SIZE && column >= 0 && column < SIZE) {
                for (int k = 0; k < CHANNELS; k++) {
                    sum += (double)input[row * SIZE + column][k] * filter[channel][k][i][j];
                }
            }
        }
    }
    return sum > 0 ? sum : 0;
}

/* The largest error of all values. Inactive pixels must still have the -1 that they had before. */
static double largest_error(void) {
    double largest = 0;
    for (int p = 0; p < PIXELS; p++) {
        for (int c = 0; c < CHANNELS; c++) {
            const double error = fabs(output[p][c] - (bytes[p] ? expected(p / SIZE, p % SIZE, c) : -1));
            largest = isnan(error) ? HUGE_VAL : error > largest ? error : largest;
        }
    }
    return largest;
}

static double microseconds(void) {
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

/* Sets the mask and runs, as for every new input. Keeps the time if it is the shortest so far. */
static void run(distile_kernel *kernel, const distile_run_args *args, const unsigned char *active, double *shortest) {
    const double start = microseconds();
    check(distile_mask_set_bytes(args->mask, active, 1, SIZE, SIZE, PIXELS, SIZE));
    check(distile_run(kernel, args));
    const double time = microseconds() - start;
    *shortest = time < *shortest ? time : *shortest;
}

int main(void) {
    fill(&input[0][0], (size_t)PIXELS * CHANNELS, 1);
    fill(&filter[0][0][0][0], (size_t)CHANNELS * CHANNELS * KERNEL * KERNEL, 0.1f);
    fill(bias, CHANNELS, 1);
    memset(all, 1, sizeof all);

    /* Once: a context, the kernel, the weights in its layout, and a mask. */
    distile_kernel *kernel;
    distile_weights *weights;
    distile_mask *mask;
    const distile_weights_source source = {.filter = filter, .order = DISTILE_OIHW, .bias = bias};
    check(distile_context_create(NULL, &context));
    check(distile_kernel_create(context, &my_conv, &kernel));
    check(distile_weights_pack(kernel, &source, &weights));
    check(distile_mask_create(context, &mask));

    const distile_tensor in = distile_tensor_make(input, 1, SIZE, SIZE, CHANNELS);
    const distile_tensor out = distile_tensor_make(output, 1, SIZE, SIZE, CHANNELS);
    const distile_run_args args = {.input = &in, .output = &out, .weights = weights, .mask = mask};
    double worst = 0;
    printf("active   variant           masked     dense  speed-up  of the ideal\n");
    for (int radius = SIZE / 8; radius <= SIZE; radius *= 2) {
        for (int p = 0; p < PIXELS; p++) {
            const int y = p / SIZE - SIZE / 2, x = p % SIZE - SIZE / 2;
            bytes[p] = y * y + x * x < radius * radius;
            for (int c = 0; c < CHANNELS; c++) {
                output[p][c] = -1;
            }
        }
        double masked = 1e9, dense = 1e9;
        run(kernel, &args, bytes, &masked);
        const double error = largest_error();
        worst = error > worst ? error : worst;
        distile_choice choice;
        check(distile_kernel_choose(kernel, mask, &choice));
        const double active = (double)choice.active_pixels / PIXELS;
        for (int i = 0; i < ROUNDS; i++) { /* in turns, so that other programs slow both */
            run(kernel, &args, bytes, &masked);
            run(kernel, &args, all, &dense);
        }
        printf("%5.1f %%  %-14s %6.0f us %6.0f us %9.1f %11.0f %%\n", 100 * active, choice.variant, masked, dense,
               dense / masked, 100 * active * dense / masked);
    }
    printf("The largest error is %.1e.\n", worst);

    distile_mask_destroy(mask);
    distile_weights_destroy(weights);
    distile_kernel_destroy(kernel);
    distile_context_destroy(context);
    return worst < 1e-4 ? 0 : 1;
}
