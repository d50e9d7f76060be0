#include "tests/support/token_call.h"
#include "reference/error_bounds.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <sstream>

namespace distile {

namespace {

void set_mask(const Context &context, const Mask &mask, const std::vector<uint8_t> &bytes, int32_t batch,
              int32_t tokens) {
    check(context, distile_mask_set_bytes(mask.get(), bytes.data(), batch, 1, tokens, tokens, tokens));
}

const distile_operand *operand_of(const distile_polykernel &polykernel, distile_role role) {
    const auto *end = polykernel.operands + polykernel.num_operands;
    const auto *found =
        std::find_if(polykernel.operands, end, [&](const distile_operand &operand) { return operand.role == role; });
    return found == end ? nullptr : found;
}

bool is_right(double got, const TokenResult &due, distile_dtype dtype, double weight_error, distile_math math) {
    if (!std::isfinite(due.value)) {
        return std::isnan(due.value) ? std::isnan(got) : got == due.value;
    }
    // Probabilities are never less than float32's least normal number.
    constexpr double least = 0x1p-126;
    return std::abs(got - due.value) <= error_bound(dtype, due.value, due.scale, math) + weight_error * due.sum + least;
}

/** Without the bits of its mantissa that TF32 has not. */
float cut_to_tf32(float value) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    bits &= ~uint32_t{0x1fff};
    std::memcpy(&value, &bits, sizeof(bits));
    return value;
}

}  // namespace

std::vector<uint8_t> draw_mask(size_t count, uint32_t in_thousand, std::mt19937 &random) {
    std::vector<uint8_t> mask(count);
    std::generate(mask.begin(), mask.end(), [&] { return static_cast<uint8_t>(random() % 1000 < in_thousand); });
    return mask;
}

TokenTensors::TokenTensors(const distile_polykernel &polykernel, const TokenCall &of, std::mt19937 &random)
    : op(token_operator_of(polykernel.kind, polykernel.op)), call(of),
      dtype_(operand_of(polykernel, DISTILE_ROLE_INPUT)->dtype) {
    const int32_t channels = op.heads * op.head_dim;
    const auto is_key = [&](int32_t n, int32_t j) {
        return call.key_mask.empty() || call.key_mask[int64_t{n} * call.keys + j] != 0;
    };
    const auto is_row = [&](int32_t n, int32_t x) { return call.rows[int64_t{n} * call.tokens + x] != 0; };
    // Only what the operator may read is a number.
    const auto make = [&](int32_t rows, int32_t tokens, int32_t width, const TensorLayout &layout, float magnitude,
                          const auto &is_read) {
        auto made = std::make_unique<TestTensor>(call.batch, rows, tokens, width, layout, call.flush, dtype_);
        for (int32_t n = 0; n < call.batch; n++) {
            for (int32_t y = 0; y < rows; y++) {
                for (int32_t x = 0; x < tokens; x++) {
                    for (int32_t c = 0; c < width; c++) {
                        if (is_read(n, x, c)) {
                            const float drawn = magnitude * distile::draw(Values::Floats, random);
                            made->set(n, y, x, c, call.as_tf32 ? cut_to_tf32(drawn) : drawn);
                        }
                    }
                }
            }
        }
        return made;
    };
    const auto of_key = [&](int32_t n, int32_t j, int32_t) { return is_key(n, j); };
    if (op.scores) {
        input = make(1, call.tokens, channels, call.input, call.magnitude,
                     [&](int32_t n, int32_t x, int32_t) { return is_row(n, x); });
        key_ = make(1, call.keys, channels, call.key, call.magnitude, of_key);
    } else {
        std::vector<std::vector<int32_t>> key_of;
        for (int32_t n = 0; n < call.batch; n++) {
            key_of.push_back(keys_of_columns(op, call.key_mask.empty() ? nullptr : call.key_mask.data(), call.keys, n));
        }
        input = make(op.heads, call.tokens, call.keys, call.input, 1,
                     [&](int32_t n, int32_t x, int32_t column) { return is_row(n, x) && key_of[n][column] >= 0; });
    }
    if (op.values) {
        value_ = make(1, call.keys, channels, call.value, 1, of_key);
    }
    output = std::make_unique<TestTensor>(call.batch, op.values ? 1 : op.heads, call.tokens,
                                          op.values ? channels : call.keys, call.output, call.flush, dtype_);
}

distile_run_args TokenTensors::args(const Mask &rows, const Mask &key_mask) const {
    distile_run_args args{};
    args.input = &input->view();
    args.key = key();
    args.value = value();
    args.output = &output->view();
    args.mask = rows.get();
    args.key_mask = call.key_mask.empty() ? nullptr : key_mask.get();
    args.scale = op.scores ? call.scale : 0;
    args.inactive = call.inactive;
    return args;
}

std::string TokenTensors::difference(const std::vector<uint32_t> &before) const {
    const distile_tensor &view = output->view();
    const TokenArgs args = {&input->view(), key(), value(), call.key_mask.empty() ? nullptr : call.key_mask.data(),
                            call.scale};
    const auto bytes = static_cast<int64_t>(distile_dtype_size(dtype_));
    std::vector<uint32_t> now = output->snapshot();
    auto *const stored = reinterpret_cast<char *>(now.data());
    const auto *const was = reinterpret_cast<const char *>(before.data());
    const int64_t first = static_cast<const char *>(view.data) - static_cast<const char *>(output->memory());
    std::ostringstream text;
    int64_t wrong = 0;
    const int64_t active_rows = std::count_if(call.rows.begin(), call.rows.end(), [](uint8_t row) { return row != 0; });
    const int64_t every = most_rows == 0 ? 1 : 1 + active_rows / most_rows;
    int64_t visited = 0;
    for (int32_t n = 0; n < view.batch; n++) {
        for (int32_t y = 0; y < view.height; y++) {
            for (int32_t x = 0; x < view.width; x++) {
                const bool active = call.rows[int64_t{n} * call.tokens + x] != 0;
                const int64_t token = first + (n * view.stride_n + y * view.stride_h + x * view.stride_w) * bytes;
                if (active && visited++ % every != 0) {
                    std::memcpy(stored + token, was + token, static_cast<size_t>(view.channels * bytes));
                    continue;
                }
                const std::vector<TokenResult> row =
                    active ? reference_token_row(op, args, n, y, x) : std::vector<TokenResult>(view.channels);
                for (int32_t c = 0; c < view.channels; c++) {
                    const int64_t place = token + c * bytes;
                    const float got = load_as(dtype_, stored + place);
                    bool right = is_right(got, row[c], dtype_, weight_error, math);
                    if (!row[c].written) {
                        right = call.inactive == DISTILE_ZERO
                                    ? got == 0
                                    : std::memcmp(stored + place, was + place, static_cast<size_t>(bytes)) == 0;
                    }
                    if (!right && wrong++ == 0) {
                        text << "image " << n << ", row " << y << ", token " << x << ", channel " << c
                             << (row[c].written ? " (computed) is " : " (not computed) is ") << got << ", due is "
                             << row[c].value << "; ";
                    }
                    // What is right here is taken out of the comparison of everything else below.
                    std::memcpy(stored + place, was + place, static_cast<size_t>(bytes));
                }
            }
        }
    }
    if (wrong > 0) {
        text << wrong << " elements are wrong; ";
    }
    if (now != before) {
        text << "memory that is not the output's changed";
    }
    return text.str();
}

std::string run_token_call(const Context &context, const Kernel &kernel, const distile_polykernel &polykernel,
                           const TokenCall &call, std::mt19937 &random) {
    const TokenTensors tensors(polykernel, call, random);
    const Mask rows = make_mask(context), keys = make_mask(context);
    set_mask(context, rows, call.rows, call.batch, call.tokens);
    if (!call.key_mask.empty()) {
        set_mask(context, keys, call.key_mask, call.batch, call.keys);
    }
    const std::vector<uint32_t> before = tensors.output->snapshot();
    const distile_run_args args = tensors.args(rows, keys);
    if (distile_run(kernel.get(), &args) != DISTILE_OK) {
        return distile_context_message(context.get());
    }
    return tensors.difference(before);
}

}  // namespace distile
