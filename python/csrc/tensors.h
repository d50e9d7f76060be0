/** \file
 * Tensors of PyTorch as tensors of distile: the same memory, described twice.
 */
#ifndef DISTILE_PYTHON_TENSORS_H
#define DISTILE_PYTHON_TENSORS_H

#include "bindings/errors.h"
#include "facts/type_names.h"
#include "python/csrc/torch_errors.h"
#include <distile/distile.h>
#include <optional>
#include <string>
#include <torch/csrc/stable/device.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <vector>

namespace distile::python {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using Ints = std::vector<int64_t>;
using OptionalTensor = std::optional<Tensor>;

using bindings::check;
using bindings::fail;

/** A copy of the tensor, if there is one. */
OptionalTensor given(const Tensor *tensor);

/** How often a tensor was written in place. Tensors of inference mode do not count. */
int64_t version_of(const Tensor &tensor);
bool is_inference(const Tensor &tensor);

/** The type, or nothing if operators do not have it. */
std::optional<distile_dtype> type_of(ScalarType type);
std::optional<distile_dtype> type_of(const Tensor &tensor);

/** A tensor with the strides that distile needs. */
struct View {
    distile_tensor view;
    Tensor owner; /**< Holds the memory: the tensor itself, or its copy if its strides do not fit. */
};

/** The most rows, columns or images. */
constexpr int64_t largest_extent = 65535;

/** Tokens are images of one row, or of as few as keep rows short enough. Fails for a number without such rows. */
int64_t rows_of_tokens(int64_t tokens);

/** Some of the tokens of all images. */
struct TokenPart {
    int64_t start, count;

    /** A view of those in [N, T, ...]. */
    Tensor of(Tensor tokens) const {
        return torch::stable::narrow(tokens, 1, start, count);
    }
};
/** Parts of an image or of tokens, each with such rows, for operators that compute pixel by pixel: one, or two. */
std::vector<TokenPart> parts_of(const Tensor &tensor);

/** Whether distile reads and writes a tensor in place: [N, C, H, W] with channels innermost in memory, as
 * torch.channels_last has them, or tokens [N, T, C] with contiguous channels. */
bool fits(const Tensor &tensor);

/** The view of an image or of tokens that distile reads; a copy if the strides do not fit. */
View view_of(const Tensor &tensor, distile_dtype type);
/** Fails if a tensor's strides do not fit. */
void check_written_in_place(const Tensor &tensor);
/** The view of a tensor that is written in place. Fails if its strides do not fit. */
distile_tensor output_view(const Tensor &tensor, distile_dtype type);

/** Images [N, C, H, W] with channels innermost, uninitialised, with the type and the device of `like`. */
Tensor empty_images(const Tensor &like, int64_t batch, int64_t channels, int64_t height, int64_t width);
/** An uninitialised result with the type and the device of `like`: images as above, or contiguous tokens. */
Tensor empty_result(const Tensor &like, const Ints &sizes);
/** A tensor with the sizes of `like`. */
Tensor empty_as(const Tensor &like);
bool is_empty(const Ints &sizes);
/** The tensor, set to zero. */
Tensor zeroed(Tensor tensor);
/** Contiguous, uninitialised. */
Tensor empty(const Tensor &like, const Ints &sizes, ScalarType type);
/** The contiguous tensor that a result is written to: `out`, or a new one if that is null. Fails if `out` has another
 * shape, type or device. */
Tensor target_of(const Tensor *out, const Tensor &like, const Ints &sizes, ScalarType type);

bool have_sizes(const Tensor &tensor, const Ints &sizes);
/** "[1, 2, 3]", for messages. */
std::string text_of(const Ints &sizes);

/** Calls an operator of PyTorch with a single result. Arguments are passed as they are declared. */
template<typename... Args> Tensor call(const char *name, const char *overload, const Args &...args) {
    StableIValue stack[] = {torch::stable::detail::from(args)...};
    STABLE_TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(name, overload, stack, TORCH_ABI_VERSION));
    return torch::stable::detail::to<Tensor>(stack[0]);
}

}  // namespace distile::python

#endif
