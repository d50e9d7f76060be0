// A block of a diffusion transformer that edits a region, on an NVIDIA GPU in bfloat16: 4096 tokens of 1536 channels,
// 24 heads. It computes only the active tokens, which attend to all. A cache keeps the queries, keys and values of the
// others, and the output keeps their results, as an earlier step left both:
//
//     cache = linear(layer norm(input))
//     output = input + projection(attention(cache))
//     output += linear(gelu(linear(layer norm(output))))
//
// Weights are random. Everything from the byte mask on is one graph, which is replayed with ever other masks.
// Usage: diffusion_block
#include "autoscheduler/measure/gpu.h"
#include "autoscheduler/measure/gpu_measure.h"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <diffusion_down_cuda.h>
#include <diffusion_projection_cuda.h>
#include <diffusion_qkv_cuda.h>
#include <diffusion_up_cuda.h>
#include <distile/distile.hpp>
#include <distile/tokens.h>
#include <distile_attention_24_64_bfloat16_cuda.h>
#include <numeric>
#include <random>
#include <vector>

namespace {

using distile::check;
using distile::DeviceArray;
using distile::GpuGraph;
using distile::GpuSlice;

constexpr int tokens = 4096, side = 64, channels = 1536, heads = 24, head_dim = channels / heads;
constexpr int hidden = 4 * channels, rounds = 11;
constexpr float epsilon = 1e-6F;

std::mt19937 engine(1);

std::vector<float> random_values(size_t count, float scale) {
    std::uniform_real_distribution<float> uniform(-scale, scale);
    std::vector<float> values(count);
    std::generate(values.begin(), values.end(), [&] { return uniform(engine); });
    return values;
}

uint16_t to_bfloat16(float value) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float from_bfloat16(uint16_t value) {
    const uint32_t bits = uint32_t{value} << 16;
    float number = 0;
    std::memcpy(&number, &bits, sizeof(number));
    return number;
}

/** A linear layer with its weights. */
struct Linear {
    Linear(const distile::Context &context, const distile_polykernel &polykernel, int in, int out)
        : in(in), out(out), filter(random_values(size_t{1} * in * out, 1 / std::sqrt(static_cast<float>(in)))),
          bias(random_values(out, .1F)), kernel(distile::make_kernel(context, polykernel)) {
        // The GPU rounds the weights.
        std::transform(filter.begin(), filter.end(), filter.begin(),
                       [](float value) { return from_bfloat16(to_bfloat16(value)); });
        distile_weights_source source{};
        source.filter = filter.data();
        source.order = DISTILE_OI;
        source.bias = bias.data();
        weights = distile::pack_weights(context, kernel, source);
    }

    std::vector<double> by_definition(const std::vector<double> &x) const {
        std::vector<double> y(bias.begin(), bias.end());
        for (int o = 0; o < out; o++) {
            y[o] += std::inner_product(x.begin(), x.end(), filter.begin() + int64_t{o} * in, 0.0);
        }
        return y;
    }

    int in, out;
    std::vector<float> filter, bias;
    distile::Kernel kernel;
    distile::Weights weights;
};

/** The tokens' channels, on the GPU. */
struct Tokens {
    explicit Tokens(int width, const std::vector<uint16_t> &values = {})
        : width(width), memory(values.empty() ? std::vector<uint16_t>(size_t{1} * tokens * width) : values),
          tensor(view(0, width)) {
    }
    /** Some of the channels. */
    distile_tensor view(int first, int count) const {
        distile_tensor part = distile_tokens_make(memory.data() + first, 1, tokens, width);
        part.dtype = DISTILE_BFLOAT16;
        part.channels = count;
        return part;
    }
    std::vector<double> token(int index) const {
        const std::vector<uint16_t> values = memory.get();
        const auto first = values.begin() + int64_t{index} * width;
        std::vector<double> numbers(width);
        std::transform(first, first + width, numbers.begin(), from_bfloat16);
        return numbers;
    }

    int width;
    DeviceArray<uint16_t> memory;
    distile_tensor tensor;
};

std::vector<uint16_t> random_tokens() {
    const std::vector<float> values = random_values(size_t{tokens} * channels, 1);
    std::vector<uint16_t> stored(values.size());
    std::transform(values.begin(), values.end(), stored.begin(), to_bfloat16);
    return stored;
}

class Block {
public:
    explicit Block(const distile::Context &context)
        : context_(context), attention_(distile::make_kernel(context, distile_attention_24_64_bfloat16_cuda)),
          query_key_value_(context, diffusion_qkv_cuda, channels, 3 * channels),
          projection_(context, diffusion_projection_cuda, channels, channels),
          up_(context, diffusion_up_cuda, channels, hidden), down_(context, diffusion_down_cuda, hidden, channels),
          mask_(distile::make_mask(context)), input_(channels, random_tokens()), normal_(channels),
          cache_(3 * channels), attended_(channels), hidden_(hidden), output_(channels) {
    }

    void set_mask(const DeviceArray<uint8_t> &bytes) {
        check(context_, distile_mask_set_bytes(mask_.get(), bytes.data(), 1, 1, tokens, tokens, tokens));
    }

    void run() {
        normalize(input_.tensor);
        run_linear(query_key_value_, normal_.tensor, nullptr, cache_.tensor);
        const distile_tensor query = cache_.view(0, channels), key = cache_.view(channels, channels),
                             value = cache_.view(2 * channels, channels);
        distile_run_args args{};
        args.input = &query;
        args.key = &key;
        args.value = &value;
        args.output = &attended_.tensor;
        args.mask = mask_.get();
        check(context_, distile_run(attention_.get(), &args));
        run_linear(projection_, attended_.tensor, &input_.tensor, output_.tensor);
        normalize(output_.tensor);
        run_linear(up_, normal_.tensor, nullptr, hidden_.tensor);
        run_linear(down_, hidden_.tensor, &output_.tensor, output_.tensor);
    }

    /** The largest error of a token's result, by its largest value. Keys and values are those of the cache. */
    double error_of(int token) const;

private:
    void normalize(const distile_tensor &input) {
        distile_normalize_args args{};
        args.input = &input;
        args.output = &normal_.tensor;
        args.mask = mask_.get();
        args.epsilon = epsilon;
        check(context_, distile_normalize(context_.get(), &args));
    }

    void run_linear(const Linear &linear, const distile_tensor &input, const distile_tensor *residual,
                    const distile_tensor &output) {
        distile_run_args args{};
        args.input = &input;
        args.residual = residual;
        args.output = &output;
        args.weights = linear.weights.get();
        args.mask = mask_.get();
        check(context_, distile_run(linear.kernel.get(), &args));
    }

    const distile::Context &context_;
    distile::Kernel attention_;
    Linear query_key_value_, projection_, up_, down_;
    distile::Mask mask_;
    Tokens input_, normal_, cache_, attended_, hidden_, output_;
};

std::vector<double> normalized(const std::vector<double> &x) {
    const double mean = std::accumulate(x.begin(), x.end(), 0.0) / channels;
    const double variance = std::accumulate(x.begin(), x.end(), 0.0, [&](double sum, double value) {
        return sum + (value - mean) * (value - mean) / channels;
    });
    std::vector<double> y(x.size());
    std::transform(x.begin(), x.end(), y.begin(),
                   [&](double value) { return (value - mean) / std::sqrt(variance + epsilon); });
    return y;
}

double Block::error_of(int token) const {
    const std::vector<uint16_t> cache = cache_.memory.get();
    const auto cached = [&](int other, int part, int channel) {
        return from_bfloat16(cache[(int64_t{other} * 3 + part) * channels + channel]);
    };
    const std::vector<double> query = query_key_value_.by_definition(normalized(input_.token(token)));
    std::vector<double> attended(channels);
    for (int head = 0; head < heads; head++) {
        std::vector<double> weights(tokens);
        for (int other = 0; other < tokens; other++) {
            for (int c = head * head_dim; c < (head + 1) * head_dim; c++) {
                weights[other] += query[c] * cached(other, 1, c) / std::sqrt(head_dim);
            }
            weights[other] = std::exp(weights[other]);
        }
        const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
        for (int other = 0; other < tokens; other++) {
            for (int c = head * head_dim; c < (head + 1) * head_dim; c++) {
                attended[c] += weights[other] / sum * cached(other, 2, c);
            }
        }
    }
    std::vector<double> result = input_.token(token);
    const auto add = [&](const std::vector<double> &summand) {
        std::transform(result.begin(), result.end(), summand.begin(), result.begin(), std::plus<>());
    };
    add(projection_.by_definition(attended));
    std::vector<double> wide = up_.by_definition(normalized(result));
    for (double &value : wide) {
        value *= .5 * (1 + std::erf(value * std::sqrt(.5)));
    }
    add(down_.by_definition(wide));
    const std::vector<double> computed = output_.token(token);
    double error = 0, largest = 0;
    for (int c = 0; c < channels; c++) {
        const double difference = std::abs(computed[c] - result[c]);
        error = std::isnan(difference) ? HUGE_VAL : std::max(error, difference);
        largest = std::max(largest, std::abs(result[c]));
    }
    return error / largest;
}

/** A disc of tokens, whose centre moves from frame to frame. */
std::vector<uint8_t> disc(double share, int frame) {
    const double radius = share >= 1 ? 2 * side : side * std::sqrt(share / 3.14159265);
    const int middle = side / 2 + (share >= 1 ? 0 : frame % 5 - 2);
    std::vector<uint8_t> active(tokens);
    for (int y = 0; y < side; y++) {
        for (int x = 0; x < side; x++) {
            active[y * side + x] = std::hypot(y - side / 2, x - middle) < radius ? 1 : 0;
        }
    }
    return active;
}

/** A context in which the GPU chooses the variants, so that graphs may set masks. */
distile::Context make_choosing_context(const GpuSlice &slice) {
    distile_context_options options{};
    distile_cuda_options cuda{};
    cuda.context = slice.context();
    cuda.stream = slice.stream();
    cuda.choose_on_device = 1;
    distile_context *context = nullptr;
    const distile_status status = distile_cuda_context_create(&options, &cuda, &context);
    return distile::take_context(status, context);
}

int run() {
    // 0 without a GPU: the library's own error then says more than the driver's.
    distile::make_cuda_context();
    const GpuSlice slice(0);
    const distile::Context context = make_choosing_context(slice);
    Block block(context);
    DeviceArray<uint8_t> bytes(disc(1, 0));
    const GpuGraph graph(slice, [&] {
        block.set_mask(bytes);
        block.run();
    });
    double dense = 0, worst = 0;
    std::printf("%s: a block of %d channels, %d heads and %d tokens in bfloat16\n", slice.device().c_str(), channels,
                heads, tokens);
    for (const double share : {1.0, .7, .5, .3, .1, .05}) {
        std::vector<double> times;
        std::vector<uint8_t> active;
        for (int round = 0; round < rounds; round++) {
            active = disc(share, round);
            bytes.set(active);
            times.push_back(graph.time());
        }
        slice.synchronise();
        std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
        const double time = times[rounds / 2];
        dense = dense == 0 ? time : dense;
        const auto density = std::accumulate(active.begin(), active.end(), 0.0) / tokens;
        const double error = block.error_of(tokens / 2 + side / 2);
        worst = std::max(worst, error);
        std::printf("%5.1f %% of the tokens: %7.1f us, %5.2f times as fast as all, error %.1e\n", 100 * density, time,
                    dense / time, error);
    }
    return worst < .02 ? 0 : 1;
}

}  // namespace

int main() {
    try {
        return run();
    } catch (const std::exception &error) {
        std::fprintf(stderr, "diffusion_block: %s\n", error.what());
        return 1;
    }
}
