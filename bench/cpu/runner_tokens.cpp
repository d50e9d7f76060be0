// The rows of the runner for what transformers do to tokens beside their operators.
#include "bench/cpu/runner.h"
#include <distile/tokens.h>
#include <functional>
#include <random>
#include <stdexcept>

namespace distile::bench {

namespace {

/** Tokens, normalized or packed tokens, and what one function makes of them for a mask. */
class Tokens {
public:
    Tokens(const Context &context, const TokenRow &row)
        : context_(context), from_(elements_of(row)), to_(elements_of(row)), vector_(static_cast<size_t>(row.channels)),
          tokens_(distile_tokens_make(from_.data(), row.batch, row.tokens, row.channels)), others_(tokens_) {
        std::mt19937 random(1);
        for (size_t i = 0; i < from_.size(); i++) {
            from_.data()[i] = static_cast<float>(random() % 2001) * 0.001f - 1;
            to_.data()[i] = from_.data()[i];
        }
        for (size_t i = 0; i < vector_.size(); i++) {
            vector_.data()[i] = 1;
        }
        others_.data = to_.data();
    }

    /** The call of a row's function. Throws std::runtime_error for an unknown one. */
    std::function<void(distile_mask *)> find(const std::string &function) const {
        if (function == "layer_norm" || function == "rms_norm") {
            const distile_norm norm = function == "layer_norm" ? DISTILE_LAYER_NORM : DISTILE_RMS_NORM;
            return [this, norm](distile_mask *mask) { normalize(norm, mask); };
        }
        if (function == "pack") {
            return
                [this](distile_mask *mask) { check(context_, distile_pack(context_.get(), &tokens_, mask, &others_)); };
        }
        if (function == "unpack") {
            return [this](distile_mask *mask) {
                check(context_, distile_unpack(context_.get(), &others_, mask, &tokens_, DISTILE_KEEP));
            };
        }
        throw std::runtime_error("there is no function '" + function + "' of tokens");
    }

private:
    static size_t elements_of(const TokenRow &row) {
        return static_cast<size_t>(row.batch) * row.tokens * row.channels;
    }
    void normalize(distile_norm norm, distile_mask *mask) const {
        distile_normalize_args args{};
        args.input = &tokens_;
        args.output = &others_;
        args.mask = mask;
        args.gamma = args.beta = vector_.data();
        args.norm = norm;
        args.epsilon = 1e-5f;
        check(context_, distile_normalize(context_.get(), &args));
    }

    const Context &context_;
    AlignedFloats from_, to_, vector_;
    distile_tensor tokens_, others_;
};

}  // namespace

void Runner::measure(const TokenRow &row, Json &result) const {
    result["kind"] = "token";
    result["function"] = row.function;
    result["threads"] = options_.threads;
    result["mask"] = row.mask.name;
    const ByteMask bytes = make_byte_mask(row.mask, row.batch, 1, row.tokens);
    result["density"] = rounded(bytes.density());
    const Mask some = make_mask(context_), all = make_mask(context_);
    set_mask(context_, some, bytes);
    ByteMask full = bytes;
    full.bytes.assign(bytes.bytes.size(), 1);
    set_mask(context_, all, full);
    const Tokens tokens(context_, row);
    const auto call = tokens.find(row.function);
    const std::vector<Spread> spreads =
        measure_turns({[&] { call(some.get()); }, [&] { call(all.get()); }}, options_.measure);
    add_times(result, spreads[0]);
    add_comparison(result, "every token", spreads[0], spreads[1]);
}

}  // namespace distile::bench
