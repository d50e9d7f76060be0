// What a call of attention on tensor cores becomes, without a GPU.
#include "kernels/tensor_core/attention_arguments.h"
#include "kernels/tensor_core/code.h"
#include "tests/support/catch.h"
#include <array>
#include <distile/polykernel.h>
#include <string>
#include <utility>
#include <vector>

using namespace distile;

namespace {

const char cubin[] = "\177ELF of attention";
/** 3 heads, blocks of 128 rows, one on a multiprocessor; the second shares sums, and the others have one product. */
const std::array<distile_attention_code, 4> codes = {
    {{cubin, cubin + sizeof(cubin) - 1, "distile_plain", 3, 128, 384, 1, 90000, 0, 0, 0},
     {cubin, cubin + sizeof(cubin) - 1, "distile_balanced", 3, 128, 384, 2, 90000, 5000, 1, 0},
     {cubin, cubin + sizeof(cubin) - 1, "distile_scores", 3, 128, 256, 1, 80000, 0, 0, DISTILE_SCORES},
     {cubin, cubin + sizeof(cubin) - 1, "distile_values", 3, 128, 256, 1, 70000, 0, 0, DISTILE_VALUES}}};

/** Hooks that keep what they are called with. */
struct Recorder : distile_hooks {
    Recorder() : distile_hooks{} {
        gpu = &functions;
    }
    static Recorder &of(distile_hooks *hooks) {
        return *static_cast<Recorder *>(hooks);
    }
    static int use_module(distile_hooks *hooks, const char *code, size_t bytes) {
        of(hooks).code.assign(code, bytes);
        return of(hooks).module_result;
    }
    static int launch(distile_hooks *hooks, const distile_gpu_launch *given) {
        of(hooks).launched = *given;
        of(hooks).made = *static_cast<const tensor_core::AttentionArguments *>(given->arguments[0]);
        return 0;
    }
    static int allocate(distile_hooks *hooks, uint64_t bytes, uint64_t *address) {
        of(hooks).scratch = bytes;
        *address = 4096;
        return of(hooks).scratch_result;
    }
    static int get_signals(distile_hooks *hooks, uint64_t bytes, uint64_t *address) {
        of(hooks).signals = bytes;
        *address = 8192;
        return of(hooks).signals_result;
    }

    distile_gpu_hooks functions{use_module, launch, nullptr, allocate, get_signals, nullptr, nullptr};
    std::string code;
    uint64_t scratch = 0, signals = 0;  // Bytes.
    int module_result = 0, scratch_result = 0, signals_result = 0;
    distile_gpu_launch launched{};
    tensor_core::AttentionArguments made{};
};

/** Tokens of float16, of two images: 3 heads of 32 channels. */
distile_array tokens_of(void *data, int32_t tokens, int32_t stride) {
    distile_array array{};
    array.data = data;
    array.dtype = DISTILE_FLOAT16;
    array.dimensions = 4;
    array.dim[0] = {0, 96, 1};
    array.dim[1] = {0, tokens, stride};
    array.dim[2] = {0, 1, tokens * stride};
    array.dim[3] = {0, 2, tokens * stride};
    return array;
}

/** Their scores of keys, whose rows begin at any element. */
distile_array scores_of(void *data, int32_t tokens, int32_t keys) {
    distile_array array{};
    array.data = data;
    array.dtype = DISTILE_FLOAT16;
    array.dimensions = 4;
    array.dim[0] = {0, keys, 1};
    array.dim[1] = {0, tokens, keys + 2};
    array.dim[2] = {0, 3, tokens * (keys + 2)};
    array.dim[3] = {0, 2, 3 * tokens * (keys + 2) + 5};
    return array;
}

}  // namespace

TEST_CASE("A call of attention on tensor cores becomes the kernel's arguments", "[cuda]") {
    std::vector<uint16_t> memory(400000);
    const uint32_t rows = 0, keys = 0, row_starts = 0, key_starts = 0, count = 7;
    const std::array<distile_array, 4> operands = {
        tokens_of(memory.data(), 500, 96), tokens_of(memory.data() + 8, 300, 104),
        tokens_of(memory.data() + 16, 300, 96), tokens_of(memory.data() + 24, 500, 128)};
    Recorder recorder;
    distile_kernel_call call{};
    call.hooks = &recorder;
    call.operands = operands.data();
    call.num_operands = 4;
    call.tile_xy = &rows;
    call.tile_count = &count;
    call.num_tiles = 600;
    call.batch = 2;
    call.threads = 132;
    call.key_xy = &keys;
    call.row_starts = &row_starts;
    call.key_starts = &key_starts;
    call.scale = .25f;
    REQUIRE(distile_call_attention(codes.data(), &call) == 0);
    CHECK(recorder.code == cubin);
    const tensor_core::AttentionArguments &made = recorder.made;
    CHECK(made.query.data == reinterpret_cast<char *>(memory.data()));
    CHECK(made.key.data == reinterpret_cast<char *>(memory.data() + 8));
    CHECK(made.value.data == reinterpret_cast<char *>(memory.data() + 16));
    CHECK(made.output.data == reinterpret_cast<char *>(memory.data() + 24));
    CHECK(made.query.stride_w == 12);
    CHECK(made.key.stride_w == 13);
    CHECK(made.key.stride_n == 3900);
    CHECK(made.output.stride_w == 16);
    CHECK(made.rows.tokens == &rows);
    CHECK(made.rows.starts == &row_starts);
    CHECK(made.rows.length == 500);
    CHECK(made.keys.tokens == &keys);
    CHECK(made.keys.starts == &key_starts);
    CHECK(made.keys.length == 300);
    CHECK(made.count == &count);
    CHECK(made.batch == 2);
    CHECK(made.scale == .25f);
    CHECK(made.parts == nullptr);
    CHECK(recorder.launched.kernel == std::string("distile_plain"));
    CHECK(recorder.launched.threads[0] == 384);
    CHECK(recorder.launched.shared_bytes == 90000);
    CHECK(recorder.launched.early == 0);
    // 600 rows are at most 5 blocks and the rest of each image, for each of 3 heads.
    CHECK(recorder.launched.blocks[0] == 21);
    CHECK(made.blocks == 21);
    CHECK(recorder.scratch == 0);
    CHECK(recorder.signals == 0);
    // No image has more blocks than its tokens fill.
    call.num_tiles = 1000;
    REQUIRE(distile_call_attention(codes.data(), &call) == 0);
    CHECK(recorder.launched.blocks[0] == 24);
    // No more than the GPU holds.
    for (const auto &[multiprocessors, blocks] : {std::pair(9, 9), {1, 1}, {0, 1}}) {
        call.threads = multiprocessors;
        REQUIRE(distile_call_attention(codes.data(), &call) == 0);
        CHECK(recorder.launched.blocks[0] == blocks);
    }
    // Four blocks may share an item.
    call.threads = 132;
    REQUIRE(distile_call_attention(&codes[1], &call) == 0);
    CHECK(recorder.launched.blocks[0] == 96);
    CHECK(recorder.launched.early == 1);
    CHECK(recorder.scratch == 96 * 5000);
    CHECK(recorder.signals == 98 * sizeof(uint32_t));
    CHECK(reinterpret_cast<uintptr_t>(made.parts) == 4096);
    CHECK(reinterpret_cast<uintptr_t>(made.signals) == 8192);
    for (int *result : {&recorder.module_result, &recorder.scratch_result, &recorder.signals_result}) {
        *result = 7;
        recorder.launched = {};
        CHECK(distile_call_attention(&codes[1], &call) == 7);
        CHECK(recorder.launched.kernel == nullptr);
        *result = 0;
    }
    // Every key.
    call.key_xy = call.key_starts = nullptr;
    REQUIRE(distile_call_attention(codes.data(), &call) == 0);
    CHECK(made.keys.tokens == nullptr);
    CHECK(made.keys.length == 300);
}

TEST_CASE("A call of one of attention's products on tensor cores becomes the kernel's arguments", "[cuda]") {
    std::vector<uint16_t> memory(40000);
    const uint32_t rows = 0, keys = 0, row_starts = 0, key_starts = 0, count = 7;
    const distile_array queries = tokens_of(memory.data(), 500, 104), read = tokens_of(memory.data() + 8, 301, 112),
                        scores = scores_of(memory.data() + 1, 500, 301),
                        written = tokens_of(memory.data() + 16, 500, 120);
    Recorder recorder;
    distile_kernel_call call{};
    call.hooks = &recorder;
    call.num_operands = 3;
    call.tile_xy = &rows;
    call.tile_count = &count;
    call.num_tiles = 1000;
    call.batch = 2;
    call.threads = 132;
    call.key_xy = &keys;
    call.row_starts = &row_starts;
    call.key_starts = &key_starts;
    call.scale = -.5f;
    const tensor_core::AttentionArguments &made = recorder.made;
    const auto check_common = [&](const char *kernel) {
        CHECK(recorder.launched.kernel == std::string(kernel));
        CHECK(recorder.launched.threads[0] == 256);
        CHECK(recorder.launched.blocks[0] == 24);
        CHECK(made.blocks == 24);
        CHECK(made.rows.tokens == &rows);
        CHECK(made.rows.starts == &row_starts);
        CHECK(made.rows.length == 500);
        CHECK(made.keys.tokens == &keys);
        CHECK(made.keys.starts == &key_starts);
        CHECK(made.keys.length == 301);
        CHECK(made.count == &count);
        CHECK(made.batch == 2);
        // In elements.
        CHECK(made.scores.data == reinterpret_cast<char *>(memory.data() + 1));
        CHECK(made.scores.stride_row == 303);
        CHECK(made.scores.stride_head == 500 * 303);
        CHECK(made.scores.stride_image == 3 * 500 * 303 + 5);
    };
    const std::array<distile_array, 3> for_scores = {queries, read, scores}, for_values = {scores, read, written};
    call.operands = for_scores.data();
    REQUIRE(distile_call_attention(&codes[2], &call) == 0);
    check_common("distile_scores");
    CHECK(recorder.launched.shared_bytes == 80000);
    CHECK(made.query.data == reinterpret_cast<char *>(memory.data()));
    CHECK(made.query.stride_w == 13);
    CHECK(made.key.data == reinterpret_cast<char *>(memory.data() + 8));
    CHECK(made.key.stride_w == 14);
    CHECK(made.scale == -.5f);
    CHECK(made.value.data == nullptr);
    CHECK(made.output.data == nullptr);
    call.operands = for_values.data();
    call.scale = 0;
    REQUIRE(distile_call_attention(&codes[3], &call) == 0);
    check_common("distile_values");
    CHECK(recorder.launched.shared_bytes == 70000);
    CHECK(made.value.data == reinterpret_cast<char *>(memory.data() + 8));
    CHECK(made.value.stride_w == 14);
    CHECK(made.output.data == reinterpret_cast<char *>(memory.data() + 16));
    CHECK(made.output.stride_w == 15);
    CHECK(made.query.data == nullptr);
    CHECK(made.key.data == nullptr);
}
