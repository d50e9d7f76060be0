// distile_run of operators that read keys, with descriptors that the input spells, in memory between pages that nobody
// may touch: a call succeeds and writes what the masks ask for, or is refused and writes nothing. Some name a dense
// candidate of the application's, which runs for all keys or not at all.
#include "reference/token_reference.h"
#include "tests/fuzz/fuzz_tensor.h"
#include <algorithm>
#include <distile/distile.hpp>
#include <distile/polykernel.h>
#include <test_attention_2_64_avx2.h>
#include <test_scores_3_40_softmax_avx2.h>
#include <test_values_3_40_bf16_avx2.h>
#include <vector>

using namespace distile;

namespace {

/** Fills the output with zeros. */
int fill_zero(void *, void *, const distile_run_args *args) {
    const distile_tensor &output = *args->output;
    const auto element = static_cast<int64_t>(distile_dtype_size(output.dtype));
    for (int32_t n = 0; n < output.batch; n++) {
        for (int32_t y = 0; y < output.height; y++) {
            for (int32_t x = 0; x < output.width; x++) {
                const int64_t row = n * output.stride_n + y * output.stride_h + x * output.stride_w;
                std::fill_n(static_cast<char *>(output.data) + row * element, output.channels * element, char{0});
            }
        }
    }
    return 0;
}

struct Loaded {
    Loaded(const Context &context, const distile_polykernel &polykernel)
        : op(token_operator_of(polykernel.kind, polykernel.op)), dtype(polykernel.operands[0].dtype),
          kernel(make_kernel(context, polykernel)) {
        const distile_dense_candidate dense{"vendor", fill_zero, nullptr};
        check(context, distile_kernel_add_dense(kernel.get(), &dense));
    }

    TokenOperator op;
    distile_dtype dtype;
    Kernel kernel;
};

struct Session {
    explicit Session(int32_t threads)
        : context(make(threads)), attention(context, test_attention_2_64_avx2),
          scores(context, test_scores_3_40_softmax_avx2), values(context, test_values_3_40_bf16_avx2),
          rows(make_mask(context)), keys(make_mask(context)) {
    }

    static Context make(int32_t threads) {
        distile_context_options options{};
        options.threads = threads;
        options.parallel_for = run_backwards;
        return make_context(options);
    }

    Context context;
    Loaded attention, scores, values;
    Mask rows, keys;
};

class Call {
public:
    Call(Bytes &bytes, Session &session, const Loaded &loaded) : bytes_(bytes), session_(session), loaded_(loaded) {
    }

    void run() {
        const TokenOperator &op = loaded_.op;
        const int32_t batch = bytes_.extent(3), tokens = bytes_.extent(40), keys = bytes_.extent(40);
        const int32_t channels = op.heads * op.head_dim;
        spell_as(input_, batch, op.scores ? 1 : op.heads, tokens, op.scores ? channels : keys);
        spell_as(key_, batch, 1, keys, channels);
        spell_as(value_, batch, 1, keys, channels);
        spell_as(output_, batch, op.values ? 1 : op.heads, tokens, op.values ? channels : keys);
        distile_run_args args{};
        args.input = input_.address();
        args.output = output_.address();
        args.key = op.scores != (bytes_.choice(31) == 0) ? key_.address() : nullptr;
        args.value = op.values != (bytes_.choice(31) == 0) ? value_.address() : nullptr;
        const std::vector<uint8_t> rows = set_mask(session_.rows, batch, tokens);
        const std::vector<uint8_t> columns = set_mask(session_.keys, batch, keys);
        args.mask = session_.rows.get();
        args.key_mask = bytes_.flag() ? session_.keys.get() : nullptr;
        args.scale = op.scores && bytes_.choice(7) == 0 ? bytes_.take<float>() : 0;
        args.inactive = bytes_.flag() ? DISTILE_ZERO : DISTILE_KEEP;
        if (bytes_.choice(15) == 0) {
            output_.view.data = (bytes_.flag() && args.key ? key_ : input_).view.data;
            aliased_ = true;
        }
        args.variant = bytes_.choice(3) == 1 ? "vendor" : nullptr;
        if (input_.huge || key_.huge || value_.huge || output_.huge) {
            return;
        }
        for (const Tensor *tensor : {&input_, &key_, &value_}) {
            std::fill_n(tensor->memory->words(), tensor->memory->num_words(), 0x3f003f00);
        }
        const std::vector<uint32_t> before = output_.contents();
        const distile_status status = distile_run(loaded_.kernel.get(), &args);
        if (status != DISTILE_OK) {
            require(status != DISTILE_ERROR_KERNEL, distile_context_message(session_.context.get()));
            require(output_.contents() == before, "a run that was refused wrote to the output");
            return;
        }
        require(!aliased_, "an output that lies over what is read is accepted");
        require(!args.variant || !args.key_mask || std::count(columns.begin(), columns.end(), 0) == 0,
                "a dense candidate ran without all keys");
        check_rows(rows, args.inactive);
    }

private:
    void spell_as(Tensor &tensor, int32_t batch, int32_t height, int32_t width, int32_t channels) {
        tensor.view.batch = batch;
        tensor.view.height = height;
        tensor.view.width = width;
        tensor.view.channels = channels;
        spell(bytes_, tensor.view);
        if (number(tensor.view.dtype) == DISTILE_FLOAT32) {
            tensor.view.dtype = loaded_.dtype;
        }
        tensor.place(bytes_, false);
    }

    std::vector<uint8_t> set_mask(const Mask &mask, int32_t batch, int32_t tokens) {
        const auto small = [](int32_t extent) { return extent >= 1 && extent <= 64; };
        const bool fits = small(batch) && small(tokens) && bytes_.choice(31) != 0;
        const int32_t images = fits ? batch : 1, width = fits ? tokens : 1;
        std::vector<uint8_t> active(static_cast<size_t>(images) * width);
        uint8_t eight = 0;
        for (size_t i = 0; i < active.size(); i++) {
            eight = i % 8 == 0 ? bytes_.take<uint8_t>() : eight >> 1;
            active[i] = eight & 1;
        }
        check(session_.context, distile_mask_set_bytes(mask.get(), active.data(), images, 1, width, width, width));
        return active;
    }

    /** With DISTILE_KEEP inactive rows are what they were, else 0. */
    void check_rows(const std::vector<uint8_t> &rows, distile_inactive inactive) const {
        const distile_tensor &view = output_.view;
        const auto element = static_cast<int64_t>(distile_dtype_size(view.dtype));
        const auto *first = static_cast<const char *>(view.data);
        const auto *begin = reinterpret_cast<const char *>(output_.memory->words());
        for (int32_t n = 0; n < view.batch; n++) {
            for (int32_t y = 0; y < view.height; y++) {
                for (int32_t x = 0; x < view.width; x++) {
                    const char *row = first + (n * view.stride_n + y * view.stride_h + x * view.stride_w) * element;
                    for (int64_t i = 0; rows[int64_t{n} * view.width + x] == 0 && i < view.channels * element; i++) {
                        const auto place = static_cast<size_t>(row + i - begin) % sizeof(untouched);
                        const auto kept = static_cast<char>(untouched >> (8 * place));
                        require(row[i] == (inactive == DISTILE_ZERO ? 0 : kept),
                                "an inactive row is not what it should be");
                    }
                }
            }
        }
    }

    Bytes &bytes_;
    Session &session_;
    const Loaded &loaded_;
    Tensor input_, key_, value_, output_;
    bool aliased_ = false;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static Session one(1), three(3);
    Bytes bytes(data, size);
    Session &session = bytes.flag() ? one : three;
    const int32_t which = bytes.choice(2);
    Call(bytes, session, which == 0 ? session.attention : which == 1 ? session.scores : session.values).run();
    return 0;
}
