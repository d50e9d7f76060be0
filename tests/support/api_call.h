/** \file
 * Legal calls of the C API, of which tests spoil one argument.
 */
#ifndef DISTILE_TESTS_API_CALL_H
#define DISTILE_TESTS_API_CALL_H

#include "test_polykernels.h"
#include "tests/support/contains.h"
#include "tests/support/reference.h"
#include "tests/support/test_tensor.h"
#include <cstdint>
#include <cstring>
#include <distile/distile.hpp>
#include <distile/polykernel.h>
#include <random>
#include <string>
#include <vector>

namespace distile {

inline const distile_polykernel &plain_kernel = test_conv3_16_48_avx2;
inline const distile_polykernel &residual_kernel = test_conv3_48_16_residual_avx2;
inline const distile_polykernel &timed_kernel = test_point_17_48_avx2;

/** An enumerator that does not exist: a C program can pass any. */
template<typename Enum> void set_raw(Enum &value, int32_t raw) {
    static_assert(sizeof(Enum) == sizeof(raw));
    std::memcpy(&value, &raw, sizeof(raw));
}

/** A legal call with random values. Tests spoil one argument, run it, and look at what it says and at the output. */
struct Call {
    explicit Call(const distile_polykernel &polykernel = plain_kernel, const distile_context_options &options = {},
                  int32_t batch = 2, int32_t height = 6, int32_t width = 7);

    void set_mask();
    std::string message() const;
    /** The call fails with this status, its message has these words, and the output is what it was. */
    void refuse(distile_status status, const std::vector<std::string> &words);
    /** The call succeeds, and the output is what the reference says for the variant of `args`. */
    void accept();
    /** accept() for a variant that the call names. */
    void accept_variant(const char *name);

    distile_conv2d conv;
    std::mt19937 random{2};
    Context context;
    Kernel kernel;
    Mask mask;
    Weights weights;
    TestTensor input, output, residual;
    distile_tensor input_view, output_view, residual_view;
    ReferenceArgs reference;
    distile_run_args args{};
};

distile_choice choose(const Call &call);

/** A mask with the first pixels active. */
void activate_first(Call &call, size_t pixels);

}  // namespace distile

#endif
