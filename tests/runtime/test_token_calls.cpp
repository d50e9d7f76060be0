// What the runtime does for operators that read a key or a value, with kernels in plain C++: the lists of rows and
// keys, what inactive rows and columns become, and every argument that it refuses.
#include "tests/support/catch.h"
#include "tests/support/plain_attention.h"
#include "tests/support/plain_linear.h"
#include "tests/support/token_call.h"
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

using namespace distile;

namespace {

/** Shapes and masks that meet every case of the lists. */
std::vector<TokenCall> calls(std::mt19937 &random) {
    std::vector<TokenCall> calls;
    for (const int32_t batch : {1, 3}) {
        for (const int32_t tokens : {1, 5, 70}) {
            for (const int32_t keys : {1, 9, 67}) {
                for (const uint32_t density : {0, 300, 1000}) {
                    for (const bool masked : {false, true}) {
                        TokenCall call;
                        call.batch = batch;
                        call.tokens = tokens;
                        call.keys = keys;
                        call.rows = draw_mask(static_cast<size_t>(batch) * tokens, density, random);
                        if (masked) {
                            call.key_mask = draw_mask(static_cast<size_t>(batch) * keys, 500, random);
                            // An image without a key.
                            std::fill_n(call.key_mask.begin(), batch > 1 ? keys : 0, uint8_t{0});
                        }
                        call.inactive = random() % 2 == 0 ? DISTILE_KEEP : DISTILE_ZERO;
                        call.scale = random() % 2 == 0 ? 0.0f : 0.3f;
                        call.output.pixel_gap = static_cast<int32_t>(random() % 3);
                        call.key.row_gap = static_cast<int32_t>(random() % 3);
                        calls.push_back(call);
                    }
                }
            }
        }
    }
    return calls;
}

/** A dense candidate of the application's: the reference over all rows and keys. It says what is wrong with what it is
 * given, beside the call's arguments. */
struct Brought {
    explicit Brought(const distile_polykernel &polykernel) : op(token_operator_of(polykernel.kind, polykernel.op)) {
    }
    void add_to(const Context &context, const Kernel &kernel, bool fastest) {
        const distile_dense_candidate candidate{"brought", &Brought::run, this};
        check(context, distile_kernel_add_dense(kernel.get(), &candidate));
        check(context, distile_kernel_add_time(kernel.get(), "plain", 1, 100));
        check(context, distile_kernel_add_time(kernel.get(), "brought", 1, fastest ? 1e-6 : 1e6));
    }

    static int run(void *user, void *stream, const distile_run_args *args) {
        auto &self = *static_cast<Brought *>(user);
        self.calls++;
        const auto expect = [&](bool good, const char *what) {
            if (!good) {
                self.wrong += std::string(what) + "; ";
            }
        };
        const distile_run_args &due = self.due;
        const float usual = self.op.scores ? 1 / std::sqrt(static_cast<float>(self.op.head_dim)) : 0;
        expect(!stream, "there is a stream");
        expect(args->input == due.input && args->key == due.key && args->value == due.value, "what it reads");
        expect(args->scale == (due.scale != 0 ? due.scale : usual), "the scale");
        expect(!args->residual && !args->weights && !args->mask && !args->key_mask && !args->variant, "not null");
        expect(args->inactive == 0 && args->store == 0, "the modes");
        expect(std::count(args->reserved, args->reserved + 4, 0) == 4, "what is reserved");
        const distile_tensor &output = *args->output, &asked = *due.output;
        self.direct = output.data == asked.data;
        expect(output.dtype == asked.dtype && output.batch == asked.batch && output.height == asked.height &&
                   output.width == asked.width && output.channels == asked.channels,
               "the output's shape");
        if (self.code != 0) {
            return self.code;
        }
        const TokenArgs all = {args->input, args->key, args->value, nullptr, args->scale};
        const auto bytes = static_cast<int64_t>(distile_dtype_size(output.dtype));
        for (int32_t n = 0; n < output.batch; n++) {
            for (int32_t y = 0; y < output.height; y++) {
                for (int32_t x = 0; x < output.width; x++) {
                    const std::vector<TokenResult> row = reference_token_row(self.op, all, n, y, x);
                    const int64_t first = n * output.stride_n + y * output.stride_h + x * output.stride_w;
                    for (int32_t c = 0; c < output.channels; c++) {
                        store_as(output.dtype, static_cast<float>(row[c].value),
                                 static_cast<char *>(output.data) + (first + c) * bytes);
                    }
                }
            }
        }
        return 0;
    }

    TokenOperator op;
    distile_run_args due{};
    int calls = 0, code = 0;
    bool direct = false;
    std::string wrong;
};

/** A call with all that it needs. Each refused argument changes one thing of it. */
struct Fixture {
    explicit Fixture(const distile_polykernel &of)
        : polykernel(of), context(make_context()), kernel(make_kernel(context, of)), rows(make_mask(context)),
          keys(make_mask(context)), tensors(of, call_of(), random) {
        set(rows, tensors.call.rows, 2, 6);
        set(keys, tensors.call.key_mask, 2, 7);
        args = tensors.args(rows, keys);
    }

    static TokenCall call_of() {
        TokenCall call;
        call.batch = 2;
        call.tokens = 6;
        call.keys = 7;
        call.rows.assign(12, 1);
        call.key_mask.assign(14, 1);
        return call;
    }
    void set(const Mask &mask, const std::vector<uint8_t> &bytes, int32_t batch, int32_t tokens) const {
        check(context, distile_mask_set_bytes(mask.get(), bytes.data(), batch, 1, tokens, tokens, tokens));
    }
    /** Leaves out one key of the last image. */
    void leave_out_a_key() const {
        std::vector<uint8_t> all_but_one(14, 1);
        all_but_one[11] = 0;
        set(keys, all_but_one, 2, 7);
    }

    /** Expects a status and a message for changed arguments, and that nothing is written. */
    void refuses(distile_status status, const std::string &message,
                 const std::function<void(distile_run_args &)> &change) const {
        distile_run_args changed = args;
        change(changed);
        const auto before = tensors.output->snapshot();
        INFO(message);
        CHECK(distile_run(kernel.get(), &changed) == status);
        const std::string given = distile_context_message(context.get());
        INFO(given);
        CHECK(given.find(message) != std::string::npos);
        CHECK(tensors.output->snapshot() == before);
    }

    const distile_polykernel &polykernel;
    std::mt19937 random{3};
    Context context;
    Kernel kernel;
    Mask rows, keys;
    TokenTensors tensors;
    distile_run_args args{};
};

}  // namespace

TEST_CASE("rows and keys are those that the masks list", "[token_calls]") {
    std::mt19937 random(1);
    const PlainAttention attention(3, 4), causal(2, 4, true), scores(3, 4, DISTILE_SCORES),
        values(2, 4, DISTILE_VALUES), one_head(1, 4, DISTILE_SCORES), packed_scores(3, 4, DISTILE_SCORES, true),
        packed_values(2, 4, DISTILE_VALUES, true);
    const Context context = make_context();
    for (const PlainAttention *plain :
         {&attention, &causal, &scores, &values, &one_head, &packed_scores, &packed_values}) {
        const Kernel kernel = make_kernel(context, plain->polykernel());
        for (const TokenCall &call : calls(random)) {
            CAPTURE(call.batch, call.tokens, call.keys, call.key_mask.size(), call.inactive);
            REQUIRE(run_token_call(context, kernel, plain->polykernel(), call, random) == "");
        }
    }
}

TEST_CASE("attention refuses what does not fit together", "[token_calls]") {
    const PlainAttention plain(2, 4);
    Fixture f(plain.polykernel());
    REQUIRE(distile_run(f.kernel.get(), &f.args) == DISTILE_OK);

    f.refuses(DISTILE_ERROR_NULL_POINTER, "the key is null", [](distile_run_args &args) { args.key = nullptr; });
    f.refuses(DISTILE_ERROR_NULL_POINTER, "the value is null", [](distile_run_args &args) { args.value = nullptr; });
    TestTensor other_heads(2, 1, 7, 12), longer(2, 1, 8, 8), more_images(3, 1, 7, 8), two_rows(2, 2, 7, 8),
        halves(2, 1, 7, 8, {}, Flush::Back, DISTILE_FLOAT16), wide_query(2, 2, 6, 8);
    f.refuses(DISTILE_ERROR_BAD_CHANNELS, "the key has 12 channels; it must have 8",
              [&](distile_run_args &args) { args.key = &other_heads.view(); });
    f.refuses(DISTILE_ERROR_BAD_CHANNELS, "the value has 12 channels",
              [&](distile_run_args &args) { args.value = &other_heads.view(); });
    f.refuses(DISTILE_ERROR_BAD_SHAPE, "the key has 2 x 7 tokens (batch, tokens), but the value 2 x 8",
              [&](distile_run_args &args) { args.value = &longer.view(); });
    f.refuses(DISTILE_ERROR_BAD_SHAPE, "the input has a batch of 2, but the key of 3", [&](distile_run_args &args) {
        args.key = args.value = &more_images.view();
        args.key_mask = nullptr;
    });
    f.refuses(DISTILE_ERROR_BAD_SHAPE, "the key has 2 rows",
              [&](distile_run_args &args) { args.key = &two_rows.view(); });
    f.refuses(DISTILE_ERROR_BAD_SHAPE, "the input has 2 rows",
              [&](distile_run_args &args) { args.input = &wide_query.view(); });
    f.refuses(DISTILE_ERROR_BAD_TYPE, "the value has data type",
              [&](distile_run_args &args) { args.value = &halves.view(); });
    f.refuses(DISTILE_ERROR_BAD_MASK, "the key mask is 2 x 1 x 6 (batch, height, width), but the keys are 2 x 1 x 7",
              [&](distile_run_args &args) { args.key_mask = f.rows.get(); });
    const Mask unset = make_mask(f.context);
    f.refuses(DISTILE_ERROR_BAD_MASK, "the key mask was never set",
              [&](distile_run_args &args) { args.key_mask = unset.get(); });
    f.refuses(DISTILE_ERROR_BAD_MASK, "the mask is 2 x 1 x 7",
              [&](distile_run_args &args) { args.mask = f.keys.get(); });
    f.refuses(DISTILE_ERROR_BAD_VALUE, "the scale is nan",
              [](distile_run_args &args) { args.scale = std::numeric_limits<float>::quiet_NaN(); });
    f.refuses(DISTILE_ERROR_ALIASING, "the value overlaps the output", [&](distile_run_args &args) {
        args.key = args.value = args.output;
        args.key_mask = nullptr;
        args.key = &f.tensors.input->view();
    });
    f.refuses(DISTILE_ERROR_ALIASING, "the input overlaps the output",
              [&](distile_run_args &args) { args.input = args.output; });
    f.refuses(DISTILE_ERROR_BAD_VALUE, "takes no residual",
              [&](distile_run_args &args) { args.residual = args.output; });

    // It has no weights.
    const float filter[8] = {};
    distile_weights_source source{};
    source.filter = filter;
    source.order = DISTILE_IO;
    distile_weights *weights = nullptr;
    CHECK(distile_weights_pack(f.kernel.get(), &source, &weights) == DISTILE_ERROR_BAD_VALUE);
    const PlainLinear linear(DISTILE_FLOAT32, 2, 4);
    const Kernel other = make_kernel(f.context, linear.polykernel());
    const Weights packed = pack_weights(f.context, other, source);
    f.refuses(DISTILE_ERROR_BAD_VALUE, "takes no weights",
              [&](distile_run_args &args) { args.weights = packed.get(); });
}

TEST_CASE("the products refuse what they do not take", "[token_calls]") {
    const PlainAttention make_scores(2, 4, DISTILE_SCORES), make_values(2, 4, DISTILE_VALUES);
    Fixture scores(make_scores.polykernel()), values(make_values.polykernel());
    REQUIRE(distile_run(scores.kernel.get(), &scores.args) == DISTILE_OK);
    REQUIRE(distile_run(values.kernel.get(), &values.args) == DISTILE_OK);
    scores.refuses(DISTILE_ERROR_BAD_VALUE, "takes no value, but one is given",
                   [](distile_run_args &args) { args.value = args.key; });
    values.refuses(DISTILE_ERROR_BAD_VALUE, "takes no key, but one is given",
                   [](distile_run_args &args) { args.key = args.value; });
    values.refuses(DISTILE_ERROR_BAD_VALUE, "takes no scale, but one is given",
                   [](distile_run_args &args) { args.scale = 2; });
    const TestTensor narrow(2, 2, 6, 6), one_head(2, 1, 6, 7);
    scores.refuses(DISTILE_ERROR_BAD_CHANNELS, "the output has 6 channels; it must have 7",
                   [&](distile_run_args &args) { args.output = &narrow.view(); });
    scores.refuses(DISTILE_ERROR_BAD_SHAPE, "the output is 2 x 1 x 6",
                   [&](distile_run_args &args) { args.output = &one_head.view(); });
    values.refuses(DISTILE_ERROR_BAD_SHAPE, "the input has 1 rows, but",
                   [&](distile_run_args &args) { args.input = &one_head.view(); });
}

TEST_CASE("operators with a filter take neither key nor value", "[token_calls]") {
    const PlainLinear linear(DISTILE_FLOAT32, 4, 4);
    const Context context = make_context();
    const Kernel kernel = make_kernel(context, linear.polykernel());
    const Mask mask = make_mask(context);
    const std::vector<uint8_t> bytes(6, 1);
    check(context, distile_mask_set_bytes(mask.get(), bytes.data(), 1, 1, 6, 6, 6));
    const std::vector<float> filter(16, 1.0f);
    distile_weights_source source{};
    source.filter = filter.data();
    source.order = DISTILE_IO;
    const Weights weights = pack_weights(context, kernel, source);
    const TestTensor input(1, 1, 6, 4), output(1, 1, 6, 4);
    distile_run_args args{};
    args.input = &input.view();
    args.output = &output.view();
    args.weights = weights.get();
    args.mask = mask.get();
    REQUIRE(distile_run(kernel.get(), &args) == DISTILE_OK);
    const auto refuses = [&](const char *what, const std::function<void(distile_run_args &)> &change) {
        distile_run_args changed = args;
        change(changed);
        CHECK(distile_run(kernel.get(), &changed) == DISTILE_ERROR_BAD_VALUE);
        CHECK(std::string(distile_context_message(context.get())).find(what) != std::string::npos);
    };
    refuses("takes no key,", [&](distile_run_args &changed) { changed.key = &input.view(); });
    refuses("takes no value,", [&](distile_run_args &changed) { changed.value = &input.view(); });
    refuses("takes no key mask,", [&](distile_run_args &changed) { changed.key_mask = mask.get(); });
    refuses("takes no scale,", [&](distile_run_args &changed) { changed.scale = 1; });
}

TEST_CASE("A dense candidate computes every row from every key, and the rows that are due become the output",
          "[token_calls]") {
    std::mt19937 random(2);
    const PlainAttention attention(3, 4), causal(2, 4, true), halves(2, 4, false, DISTILE_FLOAT16),
        scores(3, 4, DISTILE_SCORES), values(2, 4, DISTILE_VALUES), packed_scores(3, 4, DISTILE_SCORES, true),
        packed_values(2, 4, DISTILE_VALUES, true);
    const Context context = make_context();
    for (const PlainAttention *plain :
         {&attention, &causal, &halves, &scores, &values, &packed_scores, &packed_values}) {
        const Kernel kernel = make_kernel(context, plain->polykernel());
        Brought brought(plain->polykernel());
        brought.add_to(context, kernel, true);
        for (TokenCall call : calls(random)) {
            const size_t keys = call.key_mask.size();
            call.key_mask.assign(keys, 1);
            const distile_store store = random() % 3 == 0 ? DISTILE_STORE_TILES : DISTILE_STORE_EXACT;
            const std::vector<uint8_t> rows = call.rows;
            if (store == DISTILE_STORE_TILES) {
                call.rows.assign(rows.size(), 1);  // They are all written.
            }
            const bool named = random() % 2 == 0;
            CAPTURE(brought.op.scores, brought.op.values, call.batch, call.tokens, call.keys, keys, call.inactive,
                    store, named);
            const TokenTensors tensors(plain->polykernel(), call, random);
            const Mask row_mask = make_mask(context), key_mask = make_mask(context);
            check(context, distile_mask_set_bytes(row_mask.get(), rows.data(), call.batch, 1, call.tokens, call.tokens,
                                                  call.tokens));
            if (keys > 0) {
                check(context, distile_mask_set_bytes(key_mask.get(), call.key_mask.data(), call.batch, 1, call.keys,
                                                      call.keys, call.keys));
            }
            distile_run_args args = tensors.args(row_mask, key_mask);
            args.store = store;
            args.variant = named ? "brought" : nullptr;
            brought.due = args;
            brought.calls = 0;
            const std::vector<uint32_t> before = tensors.output->snapshot();
            REQUIRE(distile_run(kernel.get(), &args) == DISTILE_OK);
            REQUIRE(brought.calls == 1);
            REQUIRE(brought.wrong == "");
            REQUIRE(tensors.difference(before) == "");
            // Scratch memory only where rows are kept.
            const bool all = std::count(call.rows.begin(), call.rows.end(), 1) == std::ptrdiff_t(call.rows.size());
            REQUIRE(brought.direct == (all || call.inactive == DISTILE_ZERO));
        }
    }
}

TEST_CASE("A dense candidate is chosen by its times only where every key is active", "[token_calls]") {
    const PlainAttention attention(2, 4), scores(2, 4, DISTILE_SCORES), values(2, 4, DISTILE_VALUES);
    for (const PlainAttention *plain : {&attention, &scores, &values}) {
        Fixture f(plain->polykernel());
        Brought slow(plain->polykernel()), fast(plain->polykernel());
        slow.add_to(f.context, f.kernel, false);
        fast.due = slow.due = f.args;
        const auto run = [&](int calls) {
            fast.calls = 0;
            REQUIRE(distile_run(f.kernel.get(), &f.args) == DISTILE_OK);
            CHECK(fast.calls == calls);
            CHECK(slow.calls == 0);
            CHECK(fast.wrong == "");
        };
        run(0);
        const distile_dense_candidate faster{"faster", &Brought::run, &fast};
        REQUIRE(distile_kernel_add_dense(f.kernel.get(), &faster) == DISTILE_OK);
        run(0);
        REQUIRE(distile_kernel_add_time(f.kernel.get(), "faster", 12, 1e-6) == DISTILE_OK);
        distile_choice choice{};
        REQUIRE(distile_kernel_choose(f.kernel.get(), f.rows.get(), &choice) == DISTILE_OK);
        CHECK(choice.variant == std::string("faster"));
        CHECK(choice.dense == 1);
        CHECK(choice.tiles == 12);
        run(1);
        f.args.key_mask = nullptr;
        run(1);
        f.args.key_mask = f.keys.get();
        f.leave_out_a_key();
        run(0);
        f.set(f.keys, std::vector<uint8_t>(14, 1), 2, 7);
        run(1);
    }
}

TEST_CASE("A dense candidate that is named refuses a key mask that leaves keys out", "[token_calls]") {
    const PlainAttention attention(2, 4), scores(2, 4, DISTILE_SCORES), values(2, 4, DISTILE_VALUES);
    for (const PlainAttention *plain : {&attention, &scores, &values}) {
        Fixture f(plain->polykernel());
        Brought brought(plain->polykernel());
        brought.add_to(f.context, f.kernel, true);
        brought.due = f.args;
        f.leave_out_a_key();
        for (const distile_inactive inactive : {DISTILE_KEEP, DISTILE_ZERO}) {
            f.refuses(DISTILE_ERROR_BAD_VALUE,
                      "distile_run: the dense candidate 'brought' of 'plain_attention' reads every key, but only 13 of "
                      "14 are active",
                      [&](distile_run_args &args) {
                          args.variant = "brought";
                          args.inactive = inactive;
                      });
        }
        const auto before = f.tensors.output->snapshot();
        CHECK(distile_run_variant(f.kernel.get(), 1, &f.args) == DISTILE_ERROR_BAD_VALUE);
        CHECK(f.tensors.output->snapshot() == before);
        CHECK(brought.calls == 0);
        // Others take it, and the candidate takes all keys.
        CHECK(distile_run_variant(f.kernel.get(), 0, &f.args) == DISTILE_OK);
        f.set(f.keys, std::vector<uint8_t>(14, 1), 2, 7);
        CHECK(distile_run_variant(f.kernel.get(), 1, &f.args) == DISTILE_OK);
        CHECK(brought.calls == 1);
        CHECK(brought.wrong == "");
        brought.code = 42;
        f.refuses(DISTILE_ERROR_KERNEL, "'brought' of 'plain_attention' failed with code 42",
                  [](distile_run_args &args) { args.variant = "brought"; });
    }
}
