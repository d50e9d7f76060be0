/** \file
 * Calls of operators that read a key or a value, compared with the plain loops of the reference.
 */
#ifndef DISTILE_TESTS_TOKEN_CALL_H
#define DISTILE_TESTS_TOKEN_CALL_H

#include "reference/token_reference.h"
#include "tests/support/test_tensor.h"
#include <cstdint>
#include <distile/distile.hpp>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace distile {

/** What a call is made with. */
struct TokenCall {
    int32_t batch = 1, tokens = 1, keys = 1;
    std::vector<uint8_t> rows;     /**< [batch][tokens] */
    std::vector<uint8_t> key_mask; /**< [batch][keys]; empty: there is none. */
    float scale = 0;
    distile_inactive inactive = DISTILE_KEEP;
    TensorLayout input, key, value, output;
    Flush flush = Flush::Back;
    float magnitude = 1;  /**< The magnitude of queries and keys. */
    bool as_tf32 = false; /**< TF32 holds what is read. */
};

/** Bytes of which `in_thousand` in a thousand are 1. */
std::vector<uint8_t> draw_mask(size_t count, uint32_t in_thousand, std::mt19937 &random);

/** The tensors of a call. Tokens that the call must not read are NaN, and so is the output at first. */
class TokenTensors {
public:
    TokenTensors(const distile_polykernel &polykernel, const TokenCall &of, std::mt19937 &random);

    const distile_tensor *key() const {
        return key_ ? &key_->view() : nullptr;
    }
    const distile_tensor *value() const {
        return value_ ? &value_->view() : nullptr;
    }
    distile_run_args args(const Mask &rows, const Mask &key_mask) const;
    /** "" if the output holds what a call must have made of it. */
    std::string difference(const std::vector<uint32_t> &before) const;

    /** The tensors behind these views, or null. */
    TestTensor *key_memory() const {
        return key_.get();
    }
    TestTensor *value_memory() const {
        return value_.get();
    }

    TokenOperator op;
    TokenCall call;
    std::unique_ptr<TestTensor> input, output;
    double weight_error = 0; /**< Relative, of the probabilities in code that rounds them. */
    distile_math math = DISTILE_MATH_FLOAT32;
    int32_t most_rows = 0; /**< Compares about this number of the active rows with the loops; 0: all. */

private:
    distile_dtype dtype_;
    std::unique_ptr<TestTensor> key_, value_;
};

/** Makes a call and says what is wrong; "" if nothing is. */
std::string run_token_call(const Context &context, const Kernel &kernel, const distile_polykernel &polykernel,
                           const TokenCall &call, std::mt19937 &random);

}  // namespace distile

#endif
