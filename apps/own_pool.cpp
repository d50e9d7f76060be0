// An application's own threads instead of the context's: OpenMP's, and TBB's where the build found it.
#include <cstdio>
#include <cstdlib>
#include <distile/distile.hpp>
#include <distile_conv3x3_128.h>
#include <vector>
#ifdef DISTILE_HAS_TBB
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#endif

namespace {

constexpr int32_t size = 48, channels = 128, threads = 4;

void openmp_loop(void *, distile_task task, void *closure, int32_t count) {
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int32_t i = 0; i < count; i++) {
        task(closure, i);
    }
}

#ifdef DISTILE_HAS_TBB
void tbb_loop(void *, distile_task task, void *closure, int32_t count) {
    static tbb::task_arena arena(threads);
    arena.execute([=] { tbb::parallel_for(0, count, [=](int32_t i) { task(closure, i); }); });
}
#endif

/** A masked convolution in the threads of a loop; null: in the context's own. */
std::vector<float> convolve(distile_parallel_for loop) {
    distile_context_options options{};
    options.threads = threads;
    options.parallel_for = loop;
    const distile::Context context = distile::make_context(options);

    std::vector<float> input(size_t{size} * size * channels), output(input.size());
    std::vector<float> filter(size_t{channels} * channels * 3 * 3);
    for (size_t i = 0; i < input.size(); i++) {
        input[i] = static_cast<float>(i % 13) / 13 - 0.5F;
    }
    for (size_t i = 0; i < filter.size(); i++) {
        filter[i] = static_cast<float>(i % 17) / 170 - 0.05F;
    }
    std::vector<uint8_t> bytes(size_t{size} * size);
    for (size_t i = 0; i < bytes.size(); i++) {
        bytes[i] = i % 3 == 0 ? 1 : 0;
    }
    const distile::Kernel kernel = distile::make_kernel(context, distile_conv3x3_128);
    distile_weights_source source{};
    source.filter = filter.data();
    source.order = DISTILE_OIHW;
    const distile::Weights weights = distile::pack_weights(context, kernel, source);
    const distile::Mask mask = distile::make_mask(context);
    distile::check(context,
                   distile_mask_set_bytes(mask.get(), bytes.data(), 1, size, size, int64_t{size} * size, size));
    const distile_tensor in = distile_tensor_make(input.data(), 1, size, size, channels);
    const distile_tensor out = distile_tensor_make(output.data(), 1, size, size, channels);
    distile_run_args args{};
    args.input = &in;
    args.output = &out;
    args.weights = weights.get();
    args.mask = mask.get();
    distile::check(context, distile_run(kernel.get(), &args));
    return output;
}

}  // namespace

int main() {
    struct Pool {
        const char *name;
        distile_parallel_for loop;
    };
    const Pool pools[] = {
        {"OpenMP", openmp_loop},
#ifdef DISTILE_HAS_TBB
        {"TBB", tbb_loop},
#endif
    };
    try {
        const std::vector<float> expected = convolve(nullptr);
        for (const Pool &pool : pools) {
            // Results depend on the number of threads, not on whose they are.
            if (convolve(pool.loop) != expected) {
                std::fprintf(stderr, "%s's threads computed another result\n", pool.name);
                return EXIT_FAILURE;
            }
            std::printf("%s's threads computed the same result\n", pool.name);
        }
    } catch (const distile::Error &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return EXIT_FAILURE;
    }
    return EXIT_SUCCESS;
}
