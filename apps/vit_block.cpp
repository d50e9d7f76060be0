// A-ViT-S, whose tokens halt layer by layer: 12 transformer blocks of 384 channels and 6 heads over 197 tokens. Each
// block computes only the tokens that still run:
//
//     x += projection(attention(query, key, value)), where all three are linear(layer norm(x))
//     x += linear(gelu(linear(layer norm(x))))
//
// Weights are random. Usage: vit_block [share of the tokens that the layers compute on average] [images]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <distile/distile.hpp>
#include <distile/tokens.h>
#include <distile_attention_6_64.h>
#include <distile_linear_1536_384.h>
#include <distile_linear_384_1152.h>
#include <distile_linear_384_1536.h>
#include <numeric>
#include <random>
#include <vector>
#include <vit_projection.h>

namespace {

using distile::check;
using Clock = std::chrono::steady_clock;

constexpr int channels = 384, heads = 6, head_dim = channels / heads, hidden = 4 * channels, tokens = 197, layers = 12;
constexpr int rounds = 20;
constexpr float epsilon = 1e-6F;

std::mt19937 engine(1);

std::vector<float> random_values(size_t count, float scale) {
    std::uniform_real_distribution<float> uniform(-scale, scale);
    std::vector<float> values(count);
    std::generate(values.begin(), values.end(), [&] { return uniform(engine); });
    return values;
}

/** A linear layer with its weights. */
struct Linear {
    Linear(const distile::Context &context, const distile_polykernel &polykernel, int in, int out)
        : in(in), out(out), filter(random_values(size_t{1} * in * out, 1 / std::sqrt(static_cast<float>(in)))),
          bias(random_values(out, .1F)), kernel(distile::make_kernel(context, polykernel)) {
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

/** A block's layers. */
struct Block {
    explicit Block(const distile::Context &context)
        : gamma{random_values(channels, 1), random_values(channels, 1)}, beta{random_values(channels, 1),
                                                                              random_values(channels, 1)},
          query_key_value(context, distile_linear_384_1152, channels, 3 * channels),
          projection(context, vit_projection, channels, channels),
          up(context, distile_linear_384_1536, channels, hidden),
          down(context, distile_linear_1536_384, hidden, channels) {
    }

    std::vector<float> gamma[2], beta[2];
    Linear query_key_value, projection, up, down;
};

/** Tokens of every image, in memory of their own. */
struct Tokens {
    Tokens(int images, int width)
        : memory(size_t{1} * images * tokens * width),
          tensor(distile_tokens_make(memory.data(), images, tokens, width)) {
    }
    /** Some of the channels. */
    distile_tensor part(int first, int count) const {
        distile_tensor view = tensor;
        view.data = static_cast<float *>(view.data) + first;
        view.channels = count;
        return view;
    }

    std::vector<float> memory;
    distile_tensor tensor;
};

class Network {
public:
    Network(const distile::Context &context, int images)
        : context_(context), images_(images), attention_(distile::make_kernel(context, distile_attention_6_64)),
          x_(images, channels), normal_(images, channels), query_key_value_(images, 3 * channels),
          attended_(images, channels), hidden_(images, hidden) {
        for (int i = 0; i < layers; i++) {
            blocks_.emplace_back(context);
            masks_.push_back(distile::make_mask(context));
        }
    }

    /** Sets a layer's mask, which all of its operators share. */
    void set_mask(int layer, const std::vector<uint8_t> &active) {
        check(context_, distile_mask_set_bytes(masks_[layer].get(), active.data(), images_, 1, tokens, tokens, tokens));
    }

    void run(const std::vector<float> &input) {
        x_.memory = input;
        x_.tensor.data = x_.memory.data();
        for (int i = 0; i < layers; i++) {
            run_block(blocks_[i], masks_[i].get());
        }
    }
    const std::vector<float> &result() const {
        return x_.memory;
    }

    /** The tokens of an image by definition: halted tokens are gone. `active` has one byte per layer and token. */
    std::vector<std::vector<double>> by_definition(const float *input, const std::vector<std::vector<uint8_t>> &active,
                                                   int image) const;

private:
    void run_block(const Block &block, distile_mask *mask) {
        normalize(block, 0, mask);
        run_linear(block.query_key_value, normal_.tensor, nullptr, query_key_value_.tensor, mask);
        const distile_tensor query = query_key_value_.part(0, channels),
                             key = query_key_value_.part(channels, channels),
                             value = query_key_value_.part(2 * channels, channels);
        distile_run_args args{};
        args.input = &query;
        args.key = &key;
        args.value = &value;
        args.output = &attended_.tensor;
        args.mask = args.key_mask = mask;
        check(context_, distile_run(attention_.get(), &args));
        run_linear(block.projection, attended_.tensor, &x_.tensor, x_.tensor, mask);
        normalize(block, 1, mask);
        run_linear(block.up, normal_.tensor, nullptr, hidden_.tensor, mask);
        run_linear(block.down, hidden_.tensor, &x_.tensor, x_.tensor, mask);
    }

    void normalize(const Block &block, int which, distile_mask *mask) {
        distile_normalize_args args{};
        args.input = &x_.tensor;
        args.output = &normal_.tensor;
        args.mask = mask;
        args.gamma = block.gamma[which].data();
        args.beta = block.beta[which].data();
        args.epsilon = epsilon;
        check(context_, distile_normalize(context_.get(), &args));
    }

    /** The residual may be the output: halted tokens keep their last values. */
    void run_linear(const Linear &linear, const distile_tensor &input, const distile_tensor *residual,
                    const distile_tensor &output, distile_mask *mask) {
        distile_run_args args{};
        args.input = &input;
        args.residual = residual;
        args.output = &output;
        args.weights = linear.weights.get();
        args.mask = mask;
        check(context_, distile_run(linear.kernel.get(), &args));
    }

    const distile::Context &context_;
    int images_;
    distile::Kernel attention_;
    std::vector<Block> blocks_;
    std::vector<distile::Mask> masks_;
    Tokens x_, normal_, query_key_value_, attended_, hidden_;
};

std::vector<double> normalized(const std::vector<double> &x, const std::vector<float> &gamma,
                               const std::vector<float> &beta) {
    const double mean = std::accumulate(x.begin(), x.end(), 0.0) / channels;
    double variance = 0;
    for (const double value : x) {
        variance += (value - mean) * (value - mean) / channels;
    }
    std::vector<double> y(x.size());
    for (size_t c = 0; c < x.size(); c++) {
        y[c] = (x[c] - mean) / std::sqrt(variance + epsilon) * gamma[c] + beta[c];
    }
    return y;
}

void add(std::vector<double> &to, const std::vector<double> &summand) {
    std::transform(to.begin(), to.end(), summand.begin(), to.begin(), std::plus<>());
}

/** A head's attention of a query to the keys and values of the tokens in `rows`, which have query, key and value behind
 * one another. */
void attend(const std::vector<std::vector<double>> &rows, const std::vector<double> &query, int head,
            std::vector<double> &to) {
    const int first = head * head_dim;
    std::vector<double> weights;
    for (const std::vector<double> &row : rows) {
        const auto key = row.begin() + channels + first;
        weights.push_back(std::inner_product(key, key + head_dim, query.begin() + first, 0.0) / std::sqrt(head_dim));
    }
    const double largest = *std::max_element(weights.begin(), weights.end());
    std::transform(weights.begin(), weights.end(), weights.begin(), [&](double w) { return std::exp(w - largest); });
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (size_t i = 0; i < rows.size(); i++) {
        for (int c = 0; c < head_dim; c++) {
            to[first + c] += weights[i] / sum * rows[i][2 * channels + first + c];
        }
    }
}

std::vector<std::vector<double>>
Network::by_definition(const float *input, const std::vector<std::vector<uint8_t>> &active, int image) const {
    std::vector<std::vector<double>> x(tokens);
    for (int t = 0; t < tokens; t++) {
        x[t].assign(&input[size_t{channels} * t], &input[size_t{channels} * (t + 1)]);
    }
    for (int layer = 0; layer < layers; layer++) {
        const Block &block = blocks_[layer];
        std::vector<int> running;
        std::vector<std::vector<double>> rows;
        for (int t = 0; t < tokens; t++) {
            if (active[layer][image * tokens + t] != 0) {
                running.push_back(t);
                rows.push_back(block.query_key_value.by_definition(normalized(x[t], block.gamma[0], block.beta[0])));
            }
        }
        for (size_t i = 0; i < running.size(); i++) {
            std::vector<double> &token = x[running[i]];
            std::vector<double> attended(channels);
            for (int head = 0; head < heads; head++) {
                attend(rows, rows[i], head, attended);
            }
            add(token, block.projection.by_definition(attended));
            std::vector<double> wide = block.up.by_definition(normalized(token, block.gamma[1], block.beta[1]));
            for (double &value : wide) {
                value *= .5 * (1 + std::erf(value * std::sqrt(.5)));
            }
            add(token, block.down.by_definition(wide));
        }
    }
    return x;
}

/** The tokens that run in each layer: all in the first, ever fewer after, `share` of them on average. The first token,
 * which carries the class, never halts. */
std::vector<std::vector<uint8_t>> halting_masks(int images, double share) {
    // A token runs for so many layers: a steep curve for small shares.
    const double steepness = (1 - share) / share;
    std::vector<std::vector<uint8_t>> active(layers, std::vector<uint8_t>(size_t{1} * images * tokens));
    for (int image = 0; image < images; image++) {
        std::vector<int> order(tokens - 1);
        std::iota(order.begin(), order.end(), 1);
        std::shuffle(order.begin(), order.end(), engine);
        for (int layer = 0; layer < layers; layer++) {
            const double left = std::pow(1 - (layer + .5) / layers, steepness);
            const auto count = static_cast<int64_t>(std::lround(left * (tokens - 1)));
            uint8_t *const mask = &active[layer][size_t{1} * image * tokens];
            mask[0] = 1;
            std::for_each(order.begin(), order.begin() + count, [&](int token) { mask[token] = 1; });
        }
    }
    return active;
}

double milliseconds(Clock::time_point start) {
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

int run(double share, int images) {
    if (!(share > 0 && share <= 1) || images < 1) {
        throw std::invalid_argument("the share must be above 0 and at most 1, and there must be an image");
    }
    const distile::Context context = distile::make_context();
    Network network(context, images);
    const std::vector<float> input = random_values(size_t{1} * images * tokens * channels, 1);
    const std::vector<std::vector<uint8_t>> active = halting_masks(images, share),
                                            all(layers, std::vector<uint8_t>(active[0].size(), 1));
    std::vector<double> dense, masked, masks;
    for (int round = 0; round < rounds; round++) {  // in turns, so that other programs slow both
        for (const bool is_masked : {false, true}) {
            const Clock::time_point start = Clock::now();
            for (int layer = 0; layer < layers; layer++) {
                network.set_mask(layer, (is_masked ? active : all)[layer]);
            }
            const double of_masks = milliseconds(start);
            network.run(input);
            (is_masked ? masked : dense).push_back(milliseconds(start));
            if (is_masked) {
                masks.push_back(of_masks);
            }
        }
    }
    const auto median = [](std::vector<double> &times) {
        std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
        return times[rounds / 2];
    };

    double running = 0, error = 0;
    for (const std::vector<uint8_t> &mask : active) {
        running += std::accumulate(mask.begin(), mask.end(), 0.0) / static_cast<double>(mask.size() * layers);
    }
    // One image is enough: the definition takes long.
    const std::vector<std::vector<double>> expected = network.by_definition(input.data(), active, 0);
    for (size_t i = 0; i < size_t{tokens} * channels; i++) {
        const double difference = std::abs(network.result()[i] - expected[i / channels][i % channels]);
        error = std::isnan(difference) ? HUGE_VAL : std::max(error, difference);
    }

    const double dense_ms = median(dense), masked_ms = median(masked);
    std::printf("A-ViT-S, %d image%s: the %d layers compute %.1f %% of the tokens, from all to %.1f %%.\n", images,
                images == 1 ? "" : "s", layers, 100 * running,
                100 * std::accumulate(active.back().begin(), active.back().end(), 0.0) /
                    static_cast<double>(active.back().size()));
    std::printf("all tokens  %7.2f ms\n", dense_ms);
    std::printf("masked      %7.2f ms, speed-up %.2f of %.2f, masks %.1f %% of the time, largest error %.1e\n",
                masked_ms, dense_ms / masked_ms, 1 / running, 100 * median(masks) / masked_ms, error);
    return error < 1e-4 ? 0 : 1;
}

}  // namespace

int main(int argc, char **argv) {
    try {
        return run(argc > 1 ? std::atof(argv[1]) : .3, argc > 2 ? std::atoi(argv[2]) : 1);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "vit_block: %s\n", error.what());
        return 1;
    }
}
