/** \file
 * Our side of bench/gpu/attention_rows.py as a shared library, so that a Python program that measures PyTorch measures
 * both in turns. Addresses are of the GPU. Functions return 0 for success; attention_side_message() says what is wrong.
 */
#include <cstdint>
#include <distile/cuda.h>
#include <distile/distile.hpp>
#include <distile/polykernel.h>
#include <dlfcn.h>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>

namespace {

using namespace distile;

std::string &message() {
    static std::string text;
    return text;
}

/** The PolyKernel of a shared object of `distile compile`. */
const distile_polykernel &load(const char *path) {
    void *const object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const void *const found = object ? dlsym(object, "distile_measured") : nullptr;
    if (!found) {
        throw std::runtime_error(std::string("the PolyKernel cannot be loaded: ") + dlerror());
    }
    return *static_cast<const distile_polykernel *>(found);
}

/** `variant` becomes the one that a call took. */
Context make_context(void *stream, const char **variant) {
    distile_cuda_options cuda{};
    cuda.stream = stream;
    distile_context_options options{};
    options.math = DISTILE_MATH_TF32;
    options.trace = [](void *user, const distile_choice *choice) {
        *static_cast<const char **>(user) = choice->variant;
    };
    options.trace_user = variant;
    distile_context *context = nullptr;
    if (distile_cuda_context_create(&options, &cuda, &context) != DISTILE_OK) {
        throw std::runtime_error(distile_context_message(nullptr));
    }
    return Context(context);
}

distile_tensor tokens_of(void *data, int32_t dtype, int32_t batch, int32_t tokens, int32_t channels) {
    distile_tensor tensor = distile_tensor_make(data, batch, 1, tokens, channels);
    tensor.dtype = static_cast<distile_dtype>(dtype);
    return tensor;
}

/** Runs what may throw; 0 for success. */
template<typename Body> int guarded(const Body &body) {
    try {
        body();
        return 0;
    } catch (const std::exception &error) {
        message() = error.what();
        return 1;
    }
}

}  // namespace

extern "C" {

/** Dense attention of the same tensors by somebody else, enqueued on a stream. Returns 0 for success. */
typedef int (*attention_side_dense)(void *stream, void *output);

/** An attention operator and its tensors. */
struct attention_side {
    attention_side(const char *object, void *stream) : context(make_context(stream, &variant)) {
        kernel = make_kernel(context, load(object));
        row_mask = make_mask(context);
        key_mask = make_mask(context);
    }

    const char *variant = nullptr;  // The variant of the last call.
    attention_side_dense dense = nullptr;
    Context context;
    Kernel kernel;
    Mask row_mask, key_mask;
    bool has_key_mask = false;
    distile_tensor query, key, value, output;
};

const char *attention_side_message() {
    return message().c_str();
}

/** Tensors are [batch, tokens, channels], the key and the value [batch, key_tokens, channels], of a distile_dtype. All
 * work goes to `stream`. Returns null for an error. */
attention_side *attention_side_open(const char *object, void *stream, int32_t dtype, int32_t batch, int32_t tokens,
                                    int32_t key_tokens, int32_t channels, void *query, void *key, void *value,
                                    void *output) {
    try {
        auto side = std::make_unique<attention_side>(object, stream);
        side->query = tokens_of(query, dtype, batch, tokens, channels);
        side->key = tokens_of(key, dtype, batch, key_tokens, channels);
        side->value = tokens_of(value, dtype, batch, key_tokens, channels);
        side->output = tokens_of(output, dtype, batch, tokens, channels);
        return side.release();
    } catch (const std::exception &error) {
        message() = error.what();
        return nullptr;
    }
}

void attention_side_close(attention_side *side) {
    const std::unique_ptr<attention_side> owner(side);
}

/** Takes the times of a file that `distile profile` wrote. */
int attention_side_load_times(attention_side *side, const char *path) {
    return guarded([&] { check(side->context, distile_kernel_load_times(side->kernel.get(), path)); });
}

/** Adds a dense candidate, whose output is contiguous. */
int attention_side_link(attention_side *side, const char *name, attention_side_dense dense) {
    const auto run = [](void *user, void *stream, const distile_run_args *args) {
        return static_cast<attention_side *>(user)->dense(stream, args->output->data);
    };
    const distile_dense_candidate candidate{name, run, side};
    side->dense = dense;
    return guarded([&] { check(side->context, distile_kernel_add_dense(side->kernel.get(), &candidate)); });
}

/** Tells the dispatcher how long a variant takes for `rows` rows of all images. */
int attention_side_add_time(attention_side *side, const char *variant, int64_t rows, double microseconds) {
    return guarded(
        [&] { check(side->context, distile_kernel_add_time(side->kernel.get(), variant, rows, microseconds)); });
}

/** Sets the masks from bytes [batch, tokens]; without `keys`, every key is active. */
int attention_side_set(attention_side *side, const uint8_t *rows, const uint8_t *keys) {
    return guarded([&] {
        const auto set = [&](const Mask &mask, const uint8_t *bytes, const distile_tensor &of) {
            check(side->context, distile_mask_set_bytes(mask.get(), bytes, of.batch, 1, of.width, of.width, of.width));
        };
        set(side->row_mask, rows, side->output);
        side->has_key_mask = keys != nullptr;
        if (keys) {
            set(side->key_mask, keys, side->key);
        }
    });
}

/** Inactive rows keep what they hold. If `variant` is null, the host chooses, which waits. */
int attention_side_run(attention_side *side, const char *variant) {
    distile_run_args args{};
    args.input = &side->query;
    args.key = &side->key;
    args.value = &side->value;
    args.output = &side->output;
    args.mask = side->row_mask.get();
    args.key_mask = side->has_key_mask ? side->key_mask.get() : nullptr;
    args.variant = variant;
    return guarded([&] { check(side->context, distile_run(side->kernel.get(), &args)); });
}

/** Makes the call with the variant that the host chooses for the masks, and returns its name; null for an error. Waits.
 */
const char *attention_side_choose(attention_side *side) {
    return attention_side_run(side, nullptr) == 0 ? side->variant : nullptr;
}
}
