// The code of PolyKernels on a GPU: on disk, and loaded.
#include "kernels/tensor_core/arguments.h"
#include "kernels/tensor_core/code.h"
#include "kernels/tensor_core/item_order.h"
#include "runtime/cuda/cubin_cache.h"
#include "tests/cuda/cuda_setup.h"
#include "tests/cuda/tensor_core_operator.h"
#include "tests/support/temporary_folder.h"
#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <set>

using namespace distile;

namespace {

namespace fs = std::filesystem;

/** Modules of the library's own kernels. */
constexpr int64_t library_modules = 15;

using AllArguments = tensor_core::Launch<tensor_core::most_variants>;

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
        return 0;
    }
    static int launch(distile_hooks *hooks, const distile_gpu_launch *given) {
        of(hooks).launched = *given;
        of(hooks).launches++;
        // A kernel takes as many variants as it has.
        of(hooks).all = *static_cast<const AllArguments *>(given->arguments[0]);
        return 0;
    }
    static int count_resident(distile_hooks *hooks, const distile_gpu_launch *given, int32_t *blocks) {
        of(hooks).launched = *given;
        *blocks = of(hooks).resident;
        return of(hooks).resident_result;
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

    static int map_boxes(distile_hooks *hooks, const distile_gpu_boxes *given, void *map) {
        of(hooks).boxes = *given;
        std::memset(map, 0x5a, sizeof(tensor_core::TensorMap));
        return of(hooks).boxes_result;
    }

    distile_gpu_hooks functions{use_module, launch, count_resident, allocate, get_signals, map_boxes, nullptr};
    distile_gpu_boxes boxes{};
    int boxes_result = 0;
    uint64_t scratch = 0, signals = 0;  // Bytes.
    int32_t resident = 128;
    int resident_result = 0;
    int scratch_result = 0, signals_result = 0;
    std::string code;
    distile_gpu_launch launched{};
    int launches = 0;
    AllArguments all{};
};

/** A call for 400 tiles of two images. */
distile_kernel_call call_of(Recorder &recorder, const distile_array *operands, int32_t num_operands,
                            const uint32_t *list, const uint32_t *count) {
    distile_kernel_call call{};
    call.hooks = &recorder;
    call.operands = operands;
    call.num_operands = num_operands;
    call.tile_xy = list;
    call.num_tiles = 400;
    call.tile_count = count;
    call.batch = 2;
    call.threads = 132;
    return call;
}

/** An activation of float16: channels, width, height and images, the border before it, and the strides. */
distile_array half_array(void *data, const std::array<int32_t, 4> &extents, const std::array<int32_t, 2> &border,
                         const std::array<int32_t, 3> &strides) {
    distile_array array{};
    array.data = data;
    array.dtype = DISTILE_FLOAT16;
    array.dimensions = 4;
    array.dim[0] = {0, extents[0], 1};
    array.dim[1] = {-border[0], extents[1], strides[0]};
    array.dim[2] = {-border[1], extents[2], strides[1]};
    array.dim[3] = {0, extents[3], strides[2]};
    return array;
}

}  // namespace

TEST_CASE("Code on disk is found for the same PTX, driver and GPU only, and damage is noticed", "[cuda]") {
    const TemporaryFolder folder;
    const std::string path = folder.path() + "/new", ptx = ".version 8.0\nsome code", cubin("cubin\0with\nzeros", 16);
    const CubinCache cache(path, 13000, 90);
    CHECK(cache.is_on());
    CHECK(!CubinCache("", 13000, 90).is_on());
    CHECK(cache.find(ptx).empty());
    cache.keep(ptx, cubin);
    CHECK(cache.find(ptx) == cubin);
    CHECK(CubinCache(path, 13000, 90).find(ptx) == cubin);
    CHECK(cache.find(ptx + " ").empty());
    CHECK(CubinCache(path, 13010, 90).find(ptx).empty());
    CHECK(CubinCache(path, 13000, 86).find(ptx).empty());
    REQUIRE(std::distance(fs::directory_iterator(path), fs::directory_iterator()) == 1);
    const std::string file = fs::directory_iterator(path)->path().string();
    const auto read = [&] {
        std::ifstream stream(file, std::ios::binary);
        return std::string{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
    };
    const std::string whole = read();
    for (size_t i = 0; i < whole.size(); i++) {
        std::string damaged = whole;
        damaged[i] = static_cast<char>(damaged[i] ^ 1);
        std::ofstream(file, std::ios::binary) << damaged;
        CAPTURE(i);
        CHECK(cache.find(ptx).empty());
        std::ofstream(file, std::ios::binary) << whole.substr(0, i);
        CHECK(cache.find(ptx).empty());
    }
    cache.keep(ptx, cubin);
    CHECK(read() == whole);
    // Something that can be opened, but neither read nor replaced.
    fs::remove(file);
    fs::create_directory(file);
    CHECK(cache.find(ptx).empty());
    cache.keep(ptx, cubin);
    CHECK(cache.find(ptx).empty());
    CHECK(std::distance(fs::directory_iterator(path), fs::directory_iterator()) == 1);

    // A folder that cannot be: it lies under a file.
    const CubinCache nowhere(folder.write("file", "") + "/folder", 13000, 90);
    nowhere.keep(ptx, cubin);
    CHECK(nowhere.find(ptx).empty());
}

TEMPLATE_TEST_CASE("Every item of a product is taken once, and those of few columns after each other", "[cuda]",
                   (tensor_core::ItemOrder<1, 1>), (tensor_core::ItemOrder<12, (1 << 20)>),
                   (tensor_core::ItemOrder<48, (3 << 19)>), (tensor_core::ItemOrder<50, (3 << 19)>),
                   (tensor_core::ItemOrder<7, (64 << 20)>), (tensor_core::ItemOrder<64, (9 << 17)>)) {
    const auto rows = GENERATE(uint32_t{0}, uint32_t{1}, uint32_t{2}, uint32_t{13}, uint32_t{128});
    const TestType order(rows);
    std::set<std::pair<uint32_t, uint32_t>> items;
    uint32_t columns = 0;
    for (uint32_t item = 0; item < order.count(); item++) {
        CHECK(order.row(item) < rows);
        columns = std::max(columns, order.column(item) + 1);
        items.emplace(order.row(item), order.column(item));
    }
    CHECK(items.size() == order.count());
    CHECK(order.count() == rows * columns);
}

TEST_CASE("Columns whose weights fill the L2 cache come in panels", "[cuda]") {
    // 30 MB: two panels of 10 columns, the second after all rows of the first.
    const tensor_core::ItemOrder<20, (3 << 19)> order(3);
    CHECK(order.column(0) == 0);
    CHECK(order.column(9) == 9);
    CHECK(order.row(10) == 1);
    CHECK(order.column(10) == 0);
    CHECK(order.row(30) == 0);
    CHECK(order.column(30) == 10);
    // 20 MB: one.
    const tensor_core::ItemOrder<20, (1 << 20)> whole(3);
    CHECK(whole.column(19) == 19);
    CHECK(whole.row(20) == 1);
}

TEST_CASE("A call of code for tensor cores becomes the kernel's arguments", "[cuda]") {
    std::vector<uint16_t> memory(40000);
    float bias = 0;
    uint32_t list = 0, count = 7, bits = 0;
    char weights = 0;
    // 20 x 10 pixels with a border of 1 column and 2 rows before them, and of 3 and 4 after them.
    distile_array packed{}, vector{};
    packed.data = &weights;
    vector.data = &bias;
    const distile_array operands[] = {half_array(memory.data(), {64, 24, 16, 2}, {1, 2}, {72, 1800, 30000}), packed,
                                      vector, half_array(memory.data() + 8, {24, 20, 10, 2}, {0, 0}, {24, 480, 4800}),
                                      half_array(memory.data() + 16, {24, 20, 10, 2}, {0, 0}, {32, 640, 6400})};
    Recorder recorder;
    distile_kernel_call call = call_of(recorder, operands, 5, &list, &count);
    call.tile_capacity = 400;
    call.bits = &bits;
    call.words_per_row = 1;
    call.height = 10;
    call.store_tiles = 1;
    REQUIRE(distile_call_tensor_core(tensor_core_codes.data(), &call) == 0);
    CHECK(recorder.code == tensor_core_cubin);
    const tensor_core::Arguments &made = recorder.all.arguments;
    const tensor_core::Tiles &tiles = recorder.all.tiles[0];
    CHECK(made.input.data == reinterpret_cast<char *>(memory.data() + 72 + 2 * 1800));
    CHECK(made.input.stride_w == 9);
    CHECK(made.input.stride_h == 225);
    CHECK(made.input.stride_n == 3750);
    CHECK(made.residual.data == reinterpret_cast<char *>(memory.data() + 8));
    CHECK(made.residual.stride_w == 3);
    CHECK(made.output.data == reinterpret_cast<char *>(memory.data() + 16));
    CHECK(made.output.stride_n == 800);
    CHECK(made.weights == &weights);
    CHECK(made.bias == &bias);
    CHECK(made.first_row == -2);
    CHECK(made.end_row == 14);
    CHECK(made.first_column == -1);
    CHECK(made.end_column == 23);
    CHECK(tiles.xy == &list);
    CHECK(tiles.capacity == 400);
    CHECK(tiles.count == &count);
    CHECK(tiles.blocks == 14);
    CHECK(made.bits == &bits);
    CHECK(made.words_per_row == 1);
    CHECK(made.height == 10);
    CHECK(made.width == 20);
    CHECK(made.batch == 2);
    CHECK(made.store_tiles == 1);
    CHECK(recorder.launched.kernel == std::string("distile_masked_0"));
    CHECK(recorder.launched.threads[0] == 256);
    CHECK(recorder.launched.shared_bytes == 100000);
    CHECK(recorder.launched.cluster == 2);
    CHECK(recorder.launched.early == 1);
    // 400 pixels are 7 rows of blocks, 24 channels one column, and two blocks share each.
    CHECK(recorder.launched.blocks[0] == 14);
    CHECK(recorder.launched.blocks[1] == 1);
    recorder.resident = 10;
    REQUIRE(distile_call_tensor_core(tensor_core_codes.data(), &call) == 0);
    CHECK(recorder.launched.blocks[0] == 10);
    CHECK(tiles.blocks == 10);
    recorder.resident = 128;
    // No more than the GPU holds, in whole clusters, but one.
    for (const auto &[multiprocessors, blocks] : {std::pair(9, 8), {2, 2}, {1, 2}}) {
        call.threads = multiprocessors;
        REQUIRE(distile_call_tensor_core(tensor_core_codes.data(), &call) == 0);
        CHECK(recorder.launched.blocks[0] == blocks);
    }
    CHECK(recorder.scratch == 0);
    CHECK(recorder.signals == 0);
    CHECK(recorder.boxes.array == nullptr);
    // Tiles of four pixels, of which four blocks may share 64, and two blocks on a multiprocessor.
    call.threads = 132;
    REQUIRE(distile_call_tensor_core(&tensor_core_codes[1], &call) == 0);
    CHECK(recorder.launched.blocks[0] == 100);
    CHECK(recorder.scratch == 100 * 64 * 32 * sizeof(float));
    CHECK(recorder.signals == 102 * sizeof(uint32_t));
    CHECK(reinterpret_cast<uintptr_t>(made.parts) == 4096);
    CHECK(reinterpret_cast<uintptr_t>(made.signals) == 8192);
    CHECK(recorder.boxes.array == operands);
    CHECK(recorder.boxes.pixels_w == 2);
    CHECK(recorder.boxes.step_w == 1);
    CHECK(tiles.input_map.words[15] == 0x5a5a5a5a5a5a5a5a);
    for (int *result : {&recorder.scratch_result, &recorder.signals_result, &recorder.boxes_result}) {
        *result = 7;
        recorder.launched = {};
        CHECK(distile_call_tensor_core(&tensor_core_codes[1], &call) == 7);
        CHECK(recorder.launched.kernel == nullptr);
        *result = 0;
    }
    call.threads = 10;
    REQUIRE(distile_call_tensor_core(&tensor_core_codes[1], &call) == 0);
    CHECK(recorder.launched.blocks[0] == 20);
    // Without a residual.
    const distile_array few[] = {operands[0], operands[1], operands[2], operands[4]};
    call.operands = few;
    call.num_operands = 4;
    REQUIRE(distile_call_tensor_core(&tensor_core_codes[1], &call) == 0);
    CHECK(made.residual.data == nullptr);
    CHECK(made.output.data == reinterpret_cast<char *>(memory.data() + 16));
}

TEST_CASE("Variants from which a GPU chooses share a launch of their kernel", "[cuda]") {
    std::vector<uint16_t> memory(100000);
    const uint32_t fine = 0, coarse = 0, counts[] = {5, 6};
    const distile_array image = half_array(memory.data(), {64, 20, 10, 2}, {0, 0}, {64, 1280, 12800}), packed{};
    const distile_array operands[] = {image, packed, packed,
                                      half_array(memory.data(), {24, 20, 10, 2}, {}, {24, 480, 4800})};
    Recorder recorder;
    const distile_kernel_call call = call_of(recorder, operands, 4, &fine, counts);
    // A first kernel with two variants, of which the first has no list and pairs of blocks and the other balance and
    // boxes; and a second kernel.
    std::array<distile_tensor_core_code, 4> codes = {tensor_core_codes[0], tensor_core_codes[1], tensor_core_codes[2],
                                                     tensor_core_codes[1]};
    codes[3].kernel = codes[0].kernel;
    codes[3].place = 2;
    std::array<distile_kernel_call, 3> calls = {call, call, call};
    calls[0].tile_xy = calls[0].tile_count = nullptr;
    calls[1].tile_xy = &coarse;
    calls[1].tile_count = counts + 1;
    calls[1].num_tiles = 97;
    distile_gpu_choice choice{};
    choice.num_variants = 3;
    choice.counts[1] = counts;
    const std::array<int32_t, 3> both = {0, 3, 1}, one = {1, 1, 1};
    REQUIRE(distile_choose_tensor_core(codes.data(), calls.data(), both.data(), 2, &choice) == 0);
    CHECK(recorder.launches == 1);
    CHECK(recorder.all.choice.num_variants == 3);
    CHECK(recorder.all.choice.counts[1] == counts);
    const tensor_core::Tiles *tiles = recorder.all.tiles;
    CHECK(tiles[0].xy == nullptr);
    CHECK(tiles[0].blocks == 14);
    CHECK(tiles[1].blocks == 0);
    CHECK(tiles[2].xy == &coarse);
    CHECK(tiles[2].count == counts + 1);
    CHECK(tiles[2].input_map.words[15] == 0x5a5a5a5a5a5a5a5a);
    // 388 pixels of 64 a block, in one column, may have 4 blocks each. The launch has whole clusters for all.
    CHECK(tiles[2].blocks == 28);
    CHECK(recorder.launched.blocks[0] == 28);
    CHECK(recorder.launched.cluster == 2);
    CHECK(recorder.scratch == 28 * 64 * 32 * sizeof(float));
    CHECK(recorder.signals == 30 * sizeof(uint32_t));
    calls[1].threads = 13;
    codes[0].splits = 4;
    REQUIRE(distile_choose_tensor_core(codes.data(), calls.data(), both.data(), 2, &choice) == 0);
    CHECK(recorder.all.tiles[0].blocks == 28);
    CHECK(recorder.all.tiles[2].blocks == 26);
    CHECK(recorder.launched.blocks[0] == 28);
    CHECK(recorder.launched.cluster == 4);
    REQUIRE(distile_choose_tensor_core(codes.data(), calls.data(), both.data(), 3, &choice) == 0);
    CHECK(recorder.launches == 4);
    CHECK(recorder.launched.kernel == std::string("distile_masked_1"));
    // The likeliest comes first.
    choice.ranges[0] = {10, 0, 0};
    choice.ranges[1] = {400, 1, 0};
    choice.num_ranges = 2;
    REQUIRE(distile_choose_tensor_core(codes.data(), calls.data(), both.data(), 3, &choice) == 0);
    CHECK(recorder.launches == 6);
    CHECK(recorder.launched.kernel == std::string("distile_masked_0"));
    recorder.launches = 4;
    REQUIRE(distile_choose_tensor_core(codes.data(), calls.data(), one.data(), 1, &choice) == 0);
    CHECK(recorder.launches == 5);
    recorder.resident = 24;
    REQUIRE(distile_choose_tensor_core(codes.data(), calls.data(), both.data(), 2, &choice) == 0);
    CHECK(recorder.all.tiles[0].blocks == 24);
    CHECK(recorder.all.tiles[2].blocks == 24);
    CHECK(recorder.launched.blocks[0] == 24);
    recorder.launches = 5;
    for (int *result :
         {&recorder.resident_result, &recorder.scratch_result, &recorder.signals_result, &recorder.boxes_result}) {
        *result = 7;
        CHECK(distile_choose_tensor_core(codes.data(), calls.data(), both.data(), 2, &choice) == 7);
        CHECK(recorder.launches == 5);
        *result = 0;
    }
}

TEST_CASE("Code for tensor cores is launched with what it needs", "[.fake_driver]") {
    const TensorCoreOperator op(DISTILE_FLOAT16);
    const TemporaryFolder folder;
    const std::string path = folder.path() + "/cache";
    distile_cuda_options options{};
    options.cache_folder = path.c_str();
    const int64_t compiled = count_fake("cuLinkComplete"), allowed = count_fake("cuFuncSetAttribute");
    Setup setup(op.polykernel, 2, 11, 9, options);
    // Cubins are loaded as they are, and each kernel is allowed its shared memory once.
    CHECK(count_fake("cuLinkComplete") == compiled + library_modules);
    CHECK(count_fake("cuFuncSetAttribute") == allowed + 2);
    setup.set_mask();
    struct Launch {
        const char *variant;
        int64_t cluster, early, shared, blocks;
    };
    // 198 pixels are 4 rows of blocks, and so are 60 tiles of 4 pixels, which 16 blocks may share.
    for (const Launch &due :
         {Launch{"fine", 2, 1, 100000, 8}, {"coarse", 1, 0, 60000, 16}, {"dense", 2, 1, 100000, 8}}) {
        CAPTURE(due.variant);
        setup.args.variant = due.variant;
        setup.run();
        CHECK(count_fake("cluster") == due.cluster);
        CHECK(count_fake("early") == due.early);
        CHECK(count_fake("shared") == due.shared);
        CHECK(count_fake("blocks") == due.blocks);
    }
    CHECK(count_fake("cuFuncSetAttribute") == allowed + 2);
}

TEST_CASE("All code is loaded when a PolyKernel is created", "[.fake_driver]") {
    for (const distile_polykernel *polykernel : gpu_polykernels) {
        Setup setup(*polykernel);
        set_fake("count", 7);
        const int64_t loaded = count_fake("cuModuleLoadData"), found = count_fake("cuModuleGetFunction");
        CHECK(loaded > polykernel->num_variants);
        CHECK(found > loaded);
        for (const std::string &variant : variants_of(setup)) {
            for (distile_store store : {DISTILE_STORE_EXACT, DISTILE_STORE_TILES}) {
                setup.args.store = store;
                setup.args.inactive = DISTILE_ZERO;
                setup.args.variant = variant.c_str();
                setup.set_mask();
                const int64_t before = count_fake("launches");
                setup.run();
                CHECK(count_fake("launches") >= before + 2);
                setup.args.variant = nullptr;
                setup.run();
            }
        }
        set_fake("count", 0);
        CHECK(count_fake("cuModuleLoadData") == loaded);
        CHECK(count_fake("cuModuleGetFunction") == found);
    }
    CHECK(count_fake("alive") == 0);
}

TEST_CASE("A variant that throws ends its own call only", "[.fake_driver]") {
    static bool throwing = true;
    static distile_kernel_function run;
    distile_variant variant = test_odd_cuda.variants[0];
    run = variant.run;
    variant.run = [](const distile_kernel_call *call) { return throwing ? throw std::bad_alloc() : run(call); };
    distile_polykernel polykernel = test_odd_cuda;
    polykernel.variants = &variant;
    polykernel.num_variants = 1;
    polykernel.num_times = 0;
    const Setup setup;
    distile_kernel *made = nullptr;
    setup.refuse(distile_kernel_create(setup.context.get(), &polykernel, &made), DISTILE_ERROR_OUT_OF_MEMORY, {});
    REQUIRE(made == nullptr);
    // Another kernel of that GPU still computes.
    setup.set_mask();
    const FakeSetting count("count", 7, 0);
    const int64_t launches = count_fake("launches");
    setup.run();
    CHECK(count_fake("launches") > launches + 1);
    throwing = false;
    check(setup.context, distile_kernel_create(setup.context.get(), &polykernel, &made));
    distile_kernel_destroy(made);
}

TEST_CASE("A kernel holds its code as long as it lives, and no longer", "[.fake_driver]") {
    const Setup setup;
    const auto loaded = [] { return count_fake("cuModuleLoadData") - count_fake("cuModuleUnload"); };
    const int64_t before = loaded(), waits = count_fake("cuCtxSynchronize");
    Kernel kernel = make_kernel(setup.context, test_odd_cuda);
    CHECK(loaded() == before + test_odd_cuda.num_variants);
    kernel.reset();
    CHECK(loaded() == before);
    CHECK(count_fake("cuCtxSynchronize") > waits);
    // A kernel that could not be made leaves no code behind.
    fail_fake("cuModuleGetFunction", CUDA_ERROR_NOT_FOUND);
    distile_kernel *made = nullptr;
    setup.refuse(distile_kernel_create(setup.context.get(), &test_odd_cuda, &made), DISTILE_ERROR_KERNEL,
                 {"test_odd_cuda", "cuModuleGetFunction"});
    fail_fake("cuModuleGetFunction", 0);
    CHECK(loaded() == before);
}

TEST_CASE("Code in a cache is not compiled again", "[.fake_driver]") {
    const TemporaryFolder folder;
    const std::string path = folder.path() + "/cache";
    distile_cuda_options options{};
    options.cache_folder = path.c_str();
    const auto compilations = [&] {
        const int64_t before = count_fake("cuLinkComplete");
        const Setup setup(test_odd_cuda, 1, 5, 5, options);
        return count_fake("cuLinkComplete") - before;
    };
    const int64_t modules = test_odd_cuda.num_variants + library_modules;
    CHECK(compilations() == modules);
    CHECK(compilations() == 0);
    fs::resize_file(fs::directory_iterator(path)->path(), 100);
    CHECK(compilations() == 1);
    CHECK(compilations() == 0);
    set_fake("version", CUDA_VERSION + 10);
    CHECK(compilations() == modules);
    set_fake("version", CUDA_VERSION);
    CHECK(compilations() == 0);
    const std::string file = folder.write("file", "") + "/folder";
    options.cache_folder = file.c_str();
    CHECK(compilations() == modules);
    // Without one, the driver does it.
    options.cache_folder = nullptr;
    CHECK(compilations() == 0);
    CHECK(count_fake("alive") == 0);

    distile_context *context = nullptr;
    options.cache_folder = file.c_str();
    fail_fake("cuLinkAddData", CUDA_ERROR_INVALID_PTX);
    CHECK(distile_cuda_context_create(nullptr, &options, &context) == DISTILE_ERROR_UNSUPPORTED_DEVICE);
    CHECK(contains(distile_context_message(nullptr), "9.0"));
    fail_fake("cuLinkAddData", 0);
    CHECK(count_fake("alive") == 0);
}
