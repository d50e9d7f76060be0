/** \file
 * Operators that read a key or a value, on a GPU. A first kernel makes the softmax of each row, its greatest score and
 * the inverse of its sum, and a second one computes the scores again: so no score leaves a block.
 *
 * A block takes `block_rows` rows of an image and a head, and goes through its keys by `block_keys`. Rows beyond the
 * last repeat it and store the same again. Schedules end the loops over blocks where the lists do.
 */
#include "generators/token_product.h"

namespace distile {

using namespace Halide;

namespace {

/** Adds sums of powers of 2 relative to their greatest exponents, and again relative to the greater one: a Tuple of
 * the exponent and the sum. */
Tuple added(const Tuple &sum, const Expr &exponent, const Expr &other, Expr (*power)(const Expr &)) {
    const Expr more = strict_float(exponent > sum[0]);
    const Expr less = power(strict_float(-abs(exponent - sum[0])));
    return {strict_float(select(more, exponent, sum[0])),
            strict_float(select(more, sum[1] * less + other, sum[1] + other * less))};
}

}  // namespace

/** The number of listed rows is a load whose index is always 0; were it a constant, the host, which computes bounds,
 * would load it. */
Expr TokenProduct::listed_rows(const Expr &image) {
    const Expr count = cast<int>((*tile_count)(image / (1 << 30)));
    return min(cast<int>((*row_starts)(image + 1)), count) - cast<int>((*row_starts)(image));
}

Expr TokenProduct::listed_keys(const Expr &image) {
    return select(*every_key == 0, cast<int>((*key_starts)(image + 1)) - cast<int>((*key_starts)(image)), *every_key);
}

Expr TokenProduct::row_x(const Expr &row, const Expr &image) {
    const Expr place = cast<int>((*row_starts)(image)) + min(row, listed_rows(image) - 1);
    return unsafe_promise_clamped(cast<int>(rows(unsafe_promise_clamped(place, 0, rows.dim(0).max()))), 0,
                                  output->dim(1).extent() - 1);
}

Expr TokenProduct::listed_key(const Expr &key_index, const Expr &image) {
    return min(key_index, listed_keys(image) - 1);
}

Expr TokenProduct::key_x(const Expr &key_index, const Expr &image) {
    const Expr index = listed_key(key_index, image);
    // Without a list `keys` holds something else, of which the first word is there.
    const Expr place = select(*every_key == 0, cast<int>((*key_starts)(image)) + index, 0);
    const Expr listed = cast<int>(keys(unsafe_promise_clamped(place, 0, keys.dim(0).max())));
    const Expr tokens = (key ? key->dim(1) : value->dim(1)).extent();
    return unsafe_promise_clamped(select(*every_key == 0, listed, index), 0, tokens - 1);
}

Expr TokenProduct::column(const Expr &key_index, const Expr &image) {
    const Expr columns = key ? output->dim(0).extent() : input.dim(0).extent();
    return packed_columns ? unsafe_promise_clamped(listed_key(key_index, image), 0, columns - 1)
                          : key_x(key_index, image);
}

/** Whether row r of image n sees a key. */
Expr TokenProduct::seen(const Expr &key_index, bool causal) {
    const Expr is_key = key_index < listed_keys(n);
    return causal ? is_key && key_x(key_index, n) <= row_x(r, n) + last_of_first : is_key;
}

/** The tokens at the listed keys, as float32. */
Func TokenProduct::head_rows(const std::string &name, GeneratorInput<Buffer<>> &tokens, bool zero_beyond) {
    Func staged(name);
    const Expr loaded =
        conversion.to_float32(tokens(h * head_dim + v * channel_lanes + lane, key_x(j, n), 0, n), dtype);
    staged(lane, v, j, h, n) = zero_beyond ? select(j < listed_keys(n), loaded, 0.0f) : loaded;
    staged.bound(lane, 0, channel_lanes).bound(v, 0, vectors());
    return staged;
}

/** Dot products with the queries, a Func `prefix`dots. */
Func TokenProduct::dots_with(const Func &staged, const std::string &prefix) {
    RDom of_head(0, channel_lanes, 0, vectors(), prefix + "channel");
    Func dots(prefix + "dots"), queries(prefix + "queries");
    queries(lane, v, r, h, n) =
        conversion.to_float32(input(h * head_dim + v * channel_lanes + lane, row_x(r, n), 0, n), dtype);
    dots(i, t, r, h, n) +=
        queries(of_head.x, of_head.y, r, h, n) * staged(of_head.x, of_head.y, i * key_threads + t, h, n);
    return dots;
}

/** The greatest score of each row, in units of log(2), and the inverse of its sum of powers; 0 if it sees no key. */
Func TokenProduct::softmax_on_gpu(bool causal) {
    const Func dots = dots_with(head_rows("first_keys", *key, false), "first_");
    const int items = block_keys / key_threads;
    RDom of_keys(0, items, 0, num_keys, "first_key"), of_threads(0, key_threads, "key_thread");
    Func parts("parts"), shares("shares"), totals("totals"), softmax("softmax");
    const Expr item = of_keys.y * items + of_keys.x;
    parts(t, r, h, n) = Tuple(least_score, 0.0f);
    const Tuple before = parts(t, r, h, n);
    const Tuple after = added(before, dots(item, t, r, h, n) * (scale * log2_of_e), 1.0f, exp2_of);
    const Expr is_seen = seen(item * key_threads + t, causal);
    parts(t, r, h, n) = Tuple(select(is_seen, after[0], before[0]), select(is_seen, after[1], before[1]));
    shares(t, r, h, n) = parts(t, r, h, n);
    totals(r, h, n) = Tuple(least_score, 0.0f);
    const Tuple share = shares(of_threads, r, h, n);
    totals(r, h, n) = added(totals(r, h, n), share[0], share[1], exp2_of);
    const Tuple total = totals(r, h, n);
    softmax(r, h, n) = Tuple(total[0], strict_float(select(total[1] == 0.0f, 0.0f, 1.0f / total[1])));
    return softmax;
}

Expr TokenProduct::probability(const Func &dots, const Func &softmax) {
    const Tuple of_row = softmax(r, h, n);
    return exp2_of(dots(i, t, r, h, n) * (scale * log2_of_e) - of_row[0]) * of_row[1];
}

/** The output of a product with values, where weights(t, i, r, h, n) are those of keys, 0 beyond the last. */
void TokenProduct::sum_values(const Func &weights) {
    const int items = block_keys / key_threads, last_vector = vectors() - 1;
    const Func value_rows = head_rows("value_rows", *value, true);
    RDom of_keys(0, key_threads, 0, items, 0, num_keys, "value_key"),
        of_rows(0, block_rows, 0, num_rows, 0, output->dim(3).extent(), "row");
    Func sums("sums");
    const Expr item = of_keys.z * items + of_keys.y;
    // Threads beyond the last vector compute it too.
    sums(lane, v, r, h, n) +=
        weights(of_keys.x, item, r, h, n) * value_rows(lane, min(v, last_vector), item * key_threads + of_keys.x, h, n);
    const Expr row = of_rows.y * block_rows + of_rows.x;
    (*output)(c, x, y, n) = undef(stored_type(dtype));
    (*output)(c, row_x(row, of_rows.z), 0, of_rows.z) = conversion.from_float32(
        sums(c % channel_lanes, c % head_dim / channel_lanes, row, c / head_dim, of_rows.z), dtype);
    constrain_gpu_buffers();
}

void TokenProduct::define_attention_on_gpu(bool causal) {
    const Func softmax = softmax_on_gpu(causal), dots = dots_with(head_rows("key_rows", *key, false), "");
    Func weights("weights");
    weights(t, i, r, h, n) = select(seen(i * key_threads + t, causal), probability(dots, softmax), 0.0f);
    sum_values(weights);
}

void TokenProduct::define_values_on_gpu() {
    Func weights("weights");
    const Expr key_index = i * key_threads + t;
    const Expr loaded = conversion.to_float32(input(column(key_index, n), row_x(r, n), h, n), dtype);
    weights(t, i, r, h, n) = select(seen(key_index, false), loaded, 0.0f);
    sum_values(weights);
}

void TokenProduct::define_scores_on_gpu(bool with_softmax) {
    const Func dots = dots_with(head_rows("key_rows", *key, false), "");
    Func weights("weights");
    // Keys beyond the last repeat it.
    weights(t, i, r, h, n) = with_softmax ? probability(dots, softmax_on_gpu(false)) : dots(i, t, r, h, n) * scale;
    RDom of_block(0, block_keys, 0, block_rows, 0, num_keys, 0, num_rows, 0, output->dim(3).extent(), "score");
    const Expr key_in_block = of_block[0], image = of_block[4];
    const Expr key_index = of_block[2] * block_keys + key_in_block, row = of_block[3] * block_rows + of_block[1];
    const Expr item = of_block[2] * (block_keys / key_threads) + key_in_block / key_threads;
    (*output)(c, x, y, n) = undef(stored_type(dtype));
    (*output)(column(key_index, image), row_x(row, image), y, image) =
        conversion.from_float32(weights(key_in_block % key_threads, item, row, y, image), dtype);
    constrain_gpu_buffers();
}

void TokenProduct::constrain_gpu_buffers() {
    const int channels = heads.value() * head_dim.value(), aligned = 16 / stored_type(dtype).bytes();
    const auto of_tokens = [&](auto &buffer) {
        buffer.dim(0).set_bounds(0, channels).set_stride(1);
        buffer.dim(1).set_min(0);
        buffer.dim(2).set_bounds(0, 1);
        buffer.dim(3).set_min(0);
        if (channels % aligned == 0) {
            // A GPU loads 16 bytes at once only from addresses known to be multiples of 16.
            buffer.set_host_alignment(16);
            for (const int dimension : {1, 3}) {
                buffer.dim(dimension).set_stride(buffer.dim(dimension).stride() / aligned * aligned);
            }
        }
    };
    const auto of_scores = [&](auto &buffer) {
        buffer.dim(0).set_min(0).set_stride(1);
        buffer.dim(1).set_min(0);
        buffer.dim(2).set_bounds(0, heads);
        buffer.dim(3).set_min(0);
    };
    if (key) {
        of_tokens(input);
        of_tokens(*key);
    } else {
        of_scores(input);
    }
    if (value) {
        of_tokens(*value);
        of_tokens(*output);
    } else {
        of_scores(*output);
    }
    for (GeneratorInput<Buffer<uint32_t>> *list : {&rows, &keys, row_starts, key_starts, tile_count}) {
        list->dim(0).set_min(0);
    }
}

void TokenProduct::estimate_on_gpu() {
    const int channels = heads.value() * head_dim.value();
    const Region tokens = {{0, channels}, {0, estimated_tokens}, {0, 1}, {0, 1}},
                 products = {{0, estimated_tokens}, {0, estimated_tokens}, {0, heads.value()}, {0, 1}};
    input.set_estimates(key ? tokens : products);
    output->set_estimates(value ? tokens : products);
    for (GeneratorInput<Buffer<>> *operand : {key, value}) {
        if (operand) {
            operand->set_estimates(tokens);
        }
    }
    for (GeneratorInput<Buffer<uint32_t>> *list : {&rows, &keys}) {
        list->set_estimates({{0, estimated_rows}});
    }
    for (GeneratorInput<Buffer<uint32_t>> *list : {row_starts, key_starts}) {
        list->set_estimates({{0, 2}});
    }
    tile_count->set_estimates({{0, 1}});
    every_key->set_estimate(0);
    num_rows.set_estimate((estimated_rows + block_rows - 1) / block_rows);
    num_keys.set_estimate((estimated_rows + block_keys - 1) / block_keys);
    last_of_first.set_estimate(0);
    scale.set_estimate(1);
}

}  // namespace distile
