// The runtime for GPUs around its kernels: faults and wrong arguments, on a driver of our own; compiled code on disk;
// and with a GPU masks of every kind, zeros, and dense candidates.
#include "allocations.h"
#include "bitmask.h"
#include "catch.h"
#include "cubin_cache.h"
#include "fake_session.h"
#include "gpu_session.h"
#include "mask_families.h"
#include "mask_kernels.h"
#include "reference.h"
#include "temporary_folder.h"
#include "test_cuda_polykernels.h"
#include <chrono>
#include <cmath>
#include <cstring>
#include <distile/cuda_mask_algebra.h>
#include <distile/cuda_planner.h>
#include <distile/distile.hpp>
#include <distile/polykernel.h>
#include <filesystem>
#include <functional>
#include <limits>
#include <random>

using namespace distile;

namespace {

namespace fs = std::filesystem;

/** Functions of the driver that the runtime calls and that can fail. */
const char *const fallible[] = {"cuInit",
                                "cuDriverGetVersion",
                                "cuDeviceGetCount",
                                "cuDeviceGet",
                                "cuDeviceGetAttribute",
                                "cuDevicePrimaryCtxRetain",
                                "cuCtxPushCurrent",
                                "cuCtxGetDevice",
                                "cuModuleLoadData",
                                "cuModuleGetFunction",
                                "cuFuncGetAttribute",
                                "cuStreamCreate",
                                "cuEventCreate",
                                "cuStreamIsCapturing",
                                "cuMemAlloc",
                                "cuMemAllocHost",
                                "cuMemcpyHtoD",
                                "cuMemcpyDtoHAsync",
                                "cuMemcpyDtoDAsync",
                                "cuMemsetD8",
                                "cuMemsetD8Async",
                                "cuCtxSynchronize",
                                "cuStreamSynchronize",
                                "cuStreamWaitEvent",
                                "cuEventRecord",
                                "cuPointerGetAttribute",
                                "cuLaunchKernel"};

// ---- What both kinds of driver run -----------------------------------------------------------

/** A GPU and a kernel with all that a call takes, on any driver. */
struct Setup {
    explicit Setup(const distile_polykernel &polykernel = test_odd_cuda, int32_t batch = 2, int32_t height = 11,
                   int32_t width = 9, const distile_cuda_options &options = {})
        : polykernel(&polykernel), conv(polykernel.conv2d), context(make_context(tracing(traced))),
          cuda(make_cuda(context, options)), kernel(make_kernel(context, cuda, polykernel)),
          mask(make_mask(context, cuda)), out_height(reference_output_height(conv, height)),
          out_width(reference_output_width(conv, width)),
          num_pixels(static_cast<size_t>(batch) * out_height * out_width) {
        std::mt19937 random(4);
        const auto draw = [&](size_t count) {
            std::vector<float> values(count);
            for (float &value : values) {
                value = std::uniform_real_distribution<float>(-1, 1)(random);
            }
            return values;
        };
        reference.conv = conv;
        reference.filter =
            draw(static_cast<size_t>(conv.kernel_h) * conv.kernel_w * conv.in_channels * conv.out_channels);
        reference.bias = draw(conv.out_channels);
        input_values = draw(static_cast<size_t>(batch) * height * width * conv.in_channels);
        residual_values = draw(num_pixels * conv.out_channels);
        source.filter = reference.filter.data();
        source.order = DISTILE_HWIO;
        source.bias = reference.bias.data();
        weights = pack_weights(context, kernel, source);
        input_memory = std::make_unique<DeviceArray<float>>(input_values.size());
        output_memory = std::make_unique<DeviceArray<float>>(residual_values.size());
        residual_memory = std::make_unique<DeviceArray<float>>(residual_values.size());
        mask_memory = std::make_unique<DeviceArray<uint8_t>>(num_pixels);
        input = distile_tensor_make(input_memory->data(), batch, height, width, conv.in_channels);
        output = distile_tensor_make(output_memory->data(), batch, out_height, out_width, conv.out_channels);
        residual = output;
        residual.data = residual_memory->data();
        args.input = &input;
        args.output = &output;
        args.residual = conv.residual != 0 ? &residual : nullptr;
        args.weights = weights.get();
        args.mask = mask.get();
    }

    void set_mask() const {
        check(context, distile_cuda_mask_set_bytes(mask.get(), mask_memory->data(), output.batch, out_height, out_width,
                                                   int64_t{out_height} * out_width, out_width));
    }
    void run() const {
        check(context, distile_cuda_run(kernel.get(), &args));
    }
    std::string message() const {
        return distile_context_message(context.get());
    }
    /** A call returns a status, and its message has some words. */
    void refuse(distile_status status, distile_status due, const std::vector<std::string> &words) const {
        CHECK(name_of(status) == name_of(due));
        for (const std::string &word : words) {
            INFO("the message is: " << message());
            CHECK(contains(message(), word));
        }
    }
    void refuse_run(distile_status due, const std::vector<std::string> &words) const {
        refuse(distile_cuda_run(kernel.get(), &args), due, words);
    }

    const distile_polykernel *polykernel;
    distile_conv2d conv;
    distile_choice traced{};  // What the last call did.
    Context context;
    Cuda cuda;
    CudaKernel kernel;
    CudaMask mask;
    CudaWeights weights;
    int32_t out_height, out_width;
    size_t num_pixels;
    ReferenceArgs reference;
    std::vector<float> input_values, residual_values;
    distile_weights_source source{};
    std::unique_ptr<DeviceArray<float>> input_memory, output_memory, residual_memory;
    std::unique_ptr<DeviceArray<uint8_t>> mask_memory;
    distile_tensor input{}, output{}, residual{};
    distile_cuda_run_args args{};
};

std::vector<std::string> variants_of(const Setup &setup) {
    distile_kernel *variants = distile_cuda_kernel_variants(setup.kernel.get());
    std::vector<std::string> names;
    names.reserve(distile_kernel_num_variants(variants));
    for (int32_t i = 0; i < distile_kernel_num_variants(variants); i++) {
        names.emplace_back(distile_kernel_variant_name(variants, i));
    }
    return names;
}

int write_nothing(void *user, void *, const distile_tensor *, const distile_tensor *, const distile_tensor *output) {
    *static_cast<const void **>(user) = output->data;
    return 0;
}

}  // namespace

// ---- Without any driver ----------------------------------------------------------------------

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

TEST_CASE("Division by a multiplication is exact below 2^31", "[cuda]") {
    for (uint32_t value : {1u, 2u, 3u, 5u, 7u, 10u, 40u, 641u, 1000u, 1024u, 4095u, 65535u, 65536u, 6700417u,
                           (1u << 30) - 1, 1u << 30, (1u << 30) + 1, (1u << 31) - 1}) {
        const Divisor divisor = make_divisor(value);
        const auto divide = [&](uint32_t number) {
            return divisor.value == 1
                       ? number
                       : static_cast<uint32_t>(uint64_t{number} * divisor.multiplier >> 32) >> divisor.shift;
        };
        constexpr uint32_t last = (1u << 31) - 1;
        for (uint32_t multiple : {0u, 1u, 2u, 3u, 1000u, last / value / 2, last / value - 1, last / value}) {
            for (int32_t step = -1; step <= 1; step++) {
                const int64_t number = int64_t{multiple} * value + step;
                if (number >= 0 && number <= last) {
                    CAPTURE(value, number);
                    CHECK(divide(static_cast<uint32_t>(number)) == static_cast<uint32_t>(number) / value);
                }
            }
        }
        CHECK(divide(last) == last / value);
    }
}

// ---- On a driver of our own ------------------------------------------------------------------

TEST_CASE("A driver that lacks a function is too old", "[.old_driver]") {
    const Context context = make_context();
    distile_cuda *cuda = nullptr;
    CHECK(name_of(distile_cuda_create(context.get(), nullptr, &cuda)) == "DISTILE_ERROR_OLD_DRIVER");
    CHECK(contains(distile_context_message(context.get()), "cuGetErrorName"));
    CHECK(cuda == nullptr);
}

TEST_CASE("What is wrong with the machine is said when a GPU is opened", "[.fake_driver]") {
    const Context context = make_context();
    const auto refuse = [&](const char *what, int64_t value, int64_t before, const char *status,
                            const std::vector<std::string> &words) {
        const FakeSetting setting(what, value, before);
        distile_cuda *cuda = nullptr;
        CAPTURE(what, distile_context_message(context.get()));
        const distile_status found = distile_cuda_create(context.get(), nullptr, &cuda);
        CHECK(name_of(found) == status);
        // The tests that need a GPU are skipped for want of one, and for nothing else.
        CHECK(lacks_gpu(found) == (found != DISTILE_ERROR_UNSUPPORTED_GPU));
        for (const std::string &word : words) {
            INFO(distile_context_message(context.get()));
            CHECK(contains(distile_context_message(context.get()), word));
        }
        CHECK(count_fake("alive") == 0);
    };
    refuse("version", 11040, CUDA_VERSION, "DISTILE_ERROR_OLD_DRIVER", {"11.4"});
    refuse("devices", 0, 1, "DISTILE_ERROR_NO_GPU", {"no GPU 0"});
    refuse("major", 6, 9, "DISTILE_ERROR_UNSUPPORTED_GPU", {"6.0", "7."});
    fail_fake("cuInit", CUDA_ERROR_NO_DEVICE);
    refuse("devices", 1, 1, "DISTILE_ERROR_NO_GPU", {"cuInit"});
    fail_fake("cuInit", 0);
    fail_fake("cuModuleLoadData", CUDA_ERROR_NO_BINARY_FOR_GPU);
    refuse("minor", 0, 0, "DISTILE_ERROR_UNSUPPORTED_GPU", {"9.0", std::to_string(CUDA_VERSION / 1000)});
    fail_fake("cuModuleLoadData", 0);
}

TEST_CASE("Any function of the driver may fail, and nothing is left behind", "[.fake_driver]") {
    for (const char *function : fallible) {
        int refused = 0;
        {
            const Context context = make_context();
            fail_fake(function, CUDA_ERROR_NOT_PERMITTED);
            distile_cuda *cuda = nullptr;
            const distile_status status = distile_cuda_create(context.get(), nullptr, &cuda);
            CHECK(!lacks_gpu(status));
            refused += status != DISTILE_OK ? 1 : 0;
            CHECK((cuda == nullptr) == (refused == 1));
            distile_cuda_destroy(cuda);
            fail_fake(function, 0);
            const Cuda opened = make_cuda(context);
            fail_fake(function, CUDA_ERROR_NOT_PERMITTED);
            distile_cuda_kernel *kernel = nullptr;
            refused += distile_cuda_kernel_create(opened.get(), &test_odd_cuda, &kernel) != DISTILE_OK ? 1 : 0;
            distile_cuda_kernel_destroy(kernel);
            fail_fake(function, 0);
        }
        {
            Setup setup;
            setup.args.inactive = DISTILE_ZERO;
            const auto calls = [&] {
                const uint32_t *xy = nullptr, *images = nullptr, *count = nullptr;
                int failures = 0;
                for (distile_status status :
                     {distile_cuda_mask_set_bytes(setup.mask.get(), setup.mask_memory->data(), 2, setup.out_height,
                                                  setup.out_width, int64_t{setup.out_height} * setup.out_width,
                                                  setup.out_width),
                      distile_cuda_mask_tiles(setup.mask.get(), 3, 3, &xy, &images, &count),
                      distile_cuda_mask_dilate(setup.mask.get(), setup.mask.get(), 1, 1),
                      distile_cuda_run(setup.kernel.get(), &setup.args)}) {
                    failures += status != DISTILE_OK ? 1 : 0;
                }
                distile_cuda_weights *weights = nullptr;
                failures +=
                    distile_cuda_weights_pack(setup.kernel.get(), &setup.source, &weights) != DISTILE_OK ? 1 : 0;
                distile_cuda_weights_destroy(weights);
                for (const std::string &variant : variants_of(setup)) {
                    setup.args.variant = variant.c_str();
                    failures += distile_cuda_run(setup.kernel.get(), &setup.args) != DISTILE_OK ? 1 : 0;
                }
                setup.args.variant = nullptr;
                return failures;
            };
            fail_fake(function, CUDA_ERROR_NOT_PERMITTED);
            refused += calls();
            fail_fake(function, 0);
            CAPTURE(function, setup.message());
            CHECK(calls() == 0);
        }
        CAPTURE(function);
        CHECK(refused > 0);
        CHECK(count_fake("alive") == 0);
    }
}

TEST_CASE("All code is loaded when a PolyKernel is created", "[.fake_driver]") {
    for (const distile_polykernel *polykernel : test_cuda_polykernels) {
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
                const int64_t launches = count_fake("cuLaunchKernel");
                setup.run();
                CHECK(count_fake("cuLaunchKernel") >= launches + 2);
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
    variant.run = [](void **arguments) { return throwing ? throw std::bad_alloc() : run(arguments); };
    distile_polykernel polykernel = test_odd_cuda;
    polykernel.variants = &variant;
    polykernel.num_variants = 1;
    polykernel.num_times = 0;
    const Setup setup;
    distile_cuda_kernel *made = nullptr;
    setup.refuse(distile_cuda_kernel_create(setup.cuda.get(), &polykernel, &made), DISTILE_ERROR_OUT_OF_MEMORY, {});
    REQUIRE(made == nullptr);
    // Another kernel of that GPU still computes.
    setup.set_mask();
    const FakeSetting count("count", 7, 0);
    const int64_t launches = count_fake("cuLaunchKernel");
    setup.run();
    CHECK(count_fake("cuLaunchKernel") > launches + 1);
    throwing = false;
    check(setup.context, distile_cuda_kernel_create(setup.cuda.get(), &polykernel, &made));
    distile_cuda_kernel_destroy(made);
}

TEST_CASE("A kernel holds its code as long as it lives, and no longer", "[.fake_driver]") {
    const Setup setup;
    const auto loaded = [] { return count_fake("cuModuleLoadData") - count_fake("cuModuleUnload"); };
    const int64_t before = loaded(), waits = count_fake("cuCtxSynchronize");
    CudaKernel kernel = make_kernel(setup.context, setup.cuda, test_odd_cuda);
    CHECK(loaded() == before + test_odd_cuda.num_variants);
    kernel.reset();
    CHECK(loaded() == before);
    CHECK(count_fake("cuCtxSynchronize") > waits);
    // Nor does one that could not be made leave some behind.
    fail_fake("cuModuleGetFunction", CUDA_ERROR_NOT_FOUND);
    distile_cuda_kernel *made = nullptr;
    setup.refuse(distile_cuda_kernel_create(setup.cuda.get(), &test_odd_cuda, &made), DISTILE_ERROR_KERNEL,
                 {"distile_cuda_kernel_create: ", "cuModuleGetFunction"});
    fail_fake("cuModuleGetFunction", 0);
    CHECK(loaded() == before);
}

TEST_CASE("A mask whose setting failed holds nothing", "[.fake_driver]") {
    Setup setup;
    setup.set_mask();
    setup.run();
    fail_fake("cuLaunchKernel", CUDA_ERROR_NOT_PERMITTED);
    CHECK(distile_cuda_mask_set_bytes(setup.mask.get(), setup.mask_memory->data(), 2, setup.out_height, setup.out_width,
                                      int64_t{setup.out_height} * setup.out_width,
                                      setup.out_width) == DISTILE_ERROR_KERNEL);
    fail_fake("cuLaunchKernel", 0);
    setup.refuse_run(DISTILE_ERROR_BAD_MASK, {"never set"});
    setup.set_mask();
    setup.run();
}

TEST_CASE("No tile is no launch of the operator", "[.fake_driver]") {
    const Setup setup;
    setup.set_mask();
    setup.run();
    const int64_t launches = count_fake("cuLaunchKernel");
    setup.run();
    CHECK(count_fake("cuLaunchKernel") == launches);
}

TEST_CASE("A mask takes two launches from its bytes to its lists", "[.fake_driver]") {
    const Setup setup;
    const uint32_t *xy = nullptr, *images = nullptr, *count = nullptr;
    for (int round = 0; round < 3; round++) {
        const int64_t launches = count_fake("cuLaunchKernel");
        setup.set_mask();
        for (int32_t tile : {1, 2, 4, 8}) {
            check(setup.context, distile_cuda_mask_tiles(setup.mask.get(), tile, tile, &xy, &images, &count));
        }
        // The first time each is made when it is asked for.
        CHECK(count_fake("cuLaunchKernel") == launches + (round == 0 ? 5 : 2));
    }
    for (int32_t tile = 9; tile < 70; tile++) {
        check(setup.context, distile_cuda_mask_tiles(setup.mask.get(), tile, 1, &xy, &images, &count));
    }
    setup.refuse(distile_cuda_mask_tiles(setup.mask.get(), 70, 1, &xy, &images, &count), DISTILE_ERROR_BAD_VALUE,
                 {"at most 65"});
    setup.set_mask();
    check(setup.context, distile_cuda_mask_tiles(setup.mask.get(), 60, 1, &xy, &images, &count));
}

TEST_CASE("The path without a wait calls nothing that a capture forbids", "[.fake_driver]") {
    Setup setup;
    setup.args.inactive = DISTILE_ZERO;
    const std::vector<std::string> variants = variants_of(setup);
    for (const std::string &variant : variants) {
        setup.args.variant = variant.c_str();
        setup.set_mask();
        setup.run();
    }
    const FakeSetting capturing("capturing", 1, 0);
    setup.set_mask();
    for (const std::string &variant : variants) {
        setup.args.variant = variant.c_str();
        setup.run();
    }
    CHECK(count_fake("forbidden") == 0);
    setup.args.variant = nullptr;
    setup.refuse_run(DISTILE_ERROR_BAD_VALUE, {"name a variant"});
    setup.refuse(distile_cuda_mask_set_bytes(setup.mask.get(), setup.mask_memory->data(), 1, 1, 1, 1, 1), DISTILE_OK,
                 {});
    // A larger mask needs memory.
    const DeviceArray<uint8_t> *bytes = setup.mask_memory.get();
    setup.refuse(distile_cuda_mask_set_bytes(setup.mask.get(), bytes->data(), 1, 6000, 1, 6000, 1),
                 DISTILE_ERROR_BAD_VALUE, {"being captured"});
    CHECK(count_fake("forbidden") == 0);
}

TEST_CASE("What a graph reads of a dense variant stays when its kernel meets other shapes", "[.fake_driver]") {
    Setup setup;
    setup.args.variant = "dense";
    const auto run = [&](int32_t height) {
        setup.input.height = height;
        setup.out_height = reference_output_height(setup.conv, height);
        setup.output.height = setup.residual.height = setup.out_height;
        for (distile_tensor *tensor : {&setup.input, &setup.output, &setup.residual}) {
            tensor->stride_n = tensor->stride_h * tensor->height;
        }
        setup.set_mask();
        setup.run();
    };
    run(11);
    run(7);
    {
        const FakeSetting capturing("capturing", 1, 0);
        run(11);
        run(7);
        CHECK(count_fake("forbidden") == 0);
    }
    // Of shapes that are in no graph, a kernel keeps some.
    for (int32_t height = 98; height > 60; height -= 2) {
        run(height);
    }
    const int64_t alive = count_fake("alive");
    for (int32_t height = 60; height > 20; height -= 2) {
        run(height);
    }
    CHECK(count_fake("alive") == alive);
    const int64_t filled = count_fake("cuMemsetD8");
    run(11);
    run(7);
    run(22);
    CHECK(count_fake("cuMemsetD8") == filled);
}

TEST_CASE("A list that is made outside of the graph that sets its mask is made every time", "[.fake_driver]") {
    const Setup setup;
    const uint32_t *xy = nullptr, *images = nullptr, *count = nullptr;
    const auto launches_of_list = [&] {
        const int64_t before = count_fake("cuLaunchKernel");
        check(setup.context, distile_cuda_mask_tiles(setup.mask.get(), 3, 3, &xy, &images, &count));
        return count_fake("cuLaunchKernel") - before;
    };
    setup.set_mask();
    {
        const FakeSetting capturing("capturing", 1, 0);
        setup.set_mask();
    }
    for (int round = 0; round < 3; round++) {
        CHECK(launches_of_list() == 1);
    }
    {
        const FakeSetting capturing("capturing", 1, 0);
        setup.set_mask();
        CHECK(launches_of_list() == 0);
    }
    // That graph makes it.
    CHECK(launches_of_list() == 0);
    setup.set_mask();
    CHECK(launches_of_list() == 0);
}

TEST_CASE("Every wrong argument of a run is refused before anything is launched", "[.fake_driver]") {
    for (const distile_polykernel *polykernel :
         {static_cast<const distile_polykernel *>(&test_odd_cuda), test_cuda_polykernels[0]}) {
        Setup setup(*polykernel);
        setup.refuse_run(DISTILE_ERROR_BAD_MASK, {"never set"});
        setup.set_mask();
        const distile_cuda_run_args good = setup.args;
        const int64_t launches = count_fake("cuLaunchKernel");
        distile_tensor tensor{};
        const auto refuse = [&](const distile_tensor *distile_cuda_run_args::*member, distile_status status,
                                const std::vector<std::string> &words,
                                const std::function<void(distile_tensor &)> &spoil) {
            setup.args = good;
            const distile_tensor *view = good.*member;
            tensor = view ? *view : distile_tensor{};
            spoil(tensor);
            setup.args.*member = &tensor;
            setup.refuse_run(status, words);
            setup.args = good;
        };
        std::vector<std::pair<const distile_tensor * distile_cuda_run_args::*, std::string>> members = {
            {&distile_cuda_run_args::input, "input"}, {&distile_cuda_run_args::output, "output"}};
        if (setup.conv.residual != 0) {
            members.emplace_back(&distile_cuda_run_args::residual, "residual");
        }
        float on_host = 0;
        for (const auto &[member, name] : members) {
            CAPTURE(name);
            setup.args.*member = nullptr;
            setup.refuse_run(DISTILE_ERROR_NULL_POINTER, {name});
            setup.args = good;
            refuse(member, DISTILE_ERROR_NULL_POINTER, {name}, [](distile_tensor &t) { t.data = nullptr; });
            refuse(member, DISTILE_ERROR_BAD_TYPE, {name}, [](distile_tensor &t) { std::memset(&t.dtype, 9, 1); });
            refuse(member, DISTILE_ERROR_BAD_SHAPE, {name}, [](distile_tensor &t) { t.batch = 0; });
            refuse(member, DISTILE_ERROR_BAD_SHAPE, {name}, [](distile_tensor &t) { t.width = 65536; });
            refuse(member, DISTILE_ERROR_BAD_SHAPE, {}, [](distile_tensor &t) { t.height -= 2; });
            refuse(member, DISTILE_ERROR_BAD_CHANNELS, {name}, [](distile_tensor &t) { t.channels--; });
            refuse(member, DISTILE_ERROR_BAD_STRIDE, {name}, [](distile_tensor &t) { t.stride_w = t.channels - 1; });
            refuse(member, DISTILE_ERROR_BAD_STRIDE, {name}, [](distile_tensor &t) { t.stride_h--; });
            refuse(member, DISTILE_ERROR_BAD_STRIDE, {name}, [](distile_tensor &t) { t.stride_n = int64_t{1} << 40; });
            // Two images of 2^30 elements are 2^31.
            refuse(member, DISTILE_ERROR_BAD_STRIDE, {name, "2^31"},
                   [](distile_tensor &t) { t.stride_n = int64_t{1} << 30; });
            refuse(member, DISTILE_ERROR_NOT_DEVICE_MEMORY, {name, "GPU 0"},
                   [&](distile_tensor &t) { t.data = &on_host; });
            if ((good.*member)->channels % 4 == 0) {
                refuse(member, DISTILE_ERROR_BAD_STRIDE, {name, "16 bytes"},
                       [](distile_tensor &t) { t.data = static_cast<float *>(t.data) + 1; });
                refuse(member, DISTILE_ERROR_BAD_STRIDE, {name, "multiples of 4"}, [](distile_tensor &t) {
                    t.stride_h += 1;
                    t.stride_n += t.height;
                });
            }
            const FakeSetting ordinal("ordinal", 1, 0);
            refuse(member, DISTILE_ERROR_NOT_DEVICE_MEMORY, {"GPU 0"}, [](distile_tensor &) {});
        }
        refuse(&distile_cuda_run_args::output, DISTILE_ERROR_ALIASING, {"input overlaps"},
               [&](distile_tensor &t) { t.data = setup.input.data; });
        setup.args.weights = nullptr;
        setup.refuse_run(DISTILE_ERROR_NULL_POINTER, {"weights"});
        setup.args = good;
        setup.args.mask = nullptr;
        setup.refuse_run(DISTILE_ERROR_NULL_POINTER, {"mask"});
        setup.args = good;
        std::memset(&setup.args.inactive, 7, 1);
        setup.refuse_run(DISTILE_ERROR_BAD_VALUE, {"inactive"});
        setup.args = good;
        std::memset(&setup.args.store, 7, 1);
        setup.refuse_run(DISTILE_ERROR_BAD_VALUE, {"store"});
        setup.args = good;
        setup.args.variant = "none";
        setup.refuse_run(DISTILE_ERROR_BAD_VALUE, {"no variant 'none'"});
        setup.args = good;
        if (setup.conv.residual == 0) {
            setup.args.residual = &setup.output;
            setup.refuse_run(DISTILE_ERROR_BAD_VALUE, {"adds none"});
            setup.args = good;
        } else {
            refuse(&distile_cuda_run_args::residual, DISTILE_ERROR_ALIASING, {"residual overlaps"},
                   [&](distile_tensor &t) { t.data = static_cast<float *>(setup.output.data) + 1; });
        }
        const Setup other(*test_cuda_polykernels[1]);
        setup.args.weights = other.weights.get();
        setup.refuse_run(DISTILE_ERROR_BAD_WEIGHTS, {"another GPU"});
        setup.args = good;
        other.set_mask();
        setup.args.mask = other.mask.get();
        setup.refuse_run(DISTILE_ERROR_BAD_MASK, {"another context or GPU"});
        setup.args = good;
        CHECK(count_fake("cuLaunchKernel") == launches + 1);
        check(setup.context, distile_cuda_mask_set_bytes(setup.mask.get(), setup.mask_memory->data(), 1, 3, 3, 9, 3));
        setup.refuse_run(DISTILE_ERROR_BAD_MASK, {"1 x 3 x 3"});
        setup.refuse(distile_cuda_run(setup.kernel.get(), nullptr), DISTILE_ERROR_NULL_POINTER, {"arguments"});
    }
    CHECK(count_fake("alive") == 0);
}

TEST_CASE("What is wrong with an argument is said", "[.fake_driver]") {
    Setup setup;
    const auto set = [&](const uint8_t *bytes, int32_t batch, int32_t height, int32_t width, int64_t stride_n,
                         int64_t stride_h) {
        return distile_cuda_mask_set_bytes(setup.mask.get(), bytes, batch, height, width, stride_n, stride_h);
    };
    const uint8_t *bytes = setup.mask_memory->data(), on_host = 0;
    const uint32_t *xy = nullptr, *images = nullptr, *count = nullptr;
    int32_t words_per_row = 0;
    setup.refuse(distile_cuda_mask_create(setup.cuda.get(), nullptr), DISTILE_ERROR_NULL_POINTER, {"mask"});
    setup.refuse(distile_cuda_mask_bits(setup.mask.get(), &xy, &words_per_row), DISTILE_ERROR_BAD_MASK, {"never set"});
    setup.refuse(distile_cuda_mask_tiles(setup.mask.get(), 1, 1, &xy, &images, &count), DISTILE_ERROR_BAD_MASK,
                 {"never set"});
    setup.refuse(set(nullptr, 1, 1, 1, 1, 1), DISTILE_ERROR_NULL_POINTER, {"bytes"});
    setup.refuse(set(&on_host, 1, 1, 1, 1, 1), DISTILE_ERROR_NOT_DEVICE_MEMORY, {"mask", "GPU 0"});
    for (const auto &[batch, height, width] :
         {std::tuple(0, 1, 1), {1, 0, 1}, {1, 1, 0}, {65536, 1, 1}, {1, 65536, 1}, {1, 1, 65536}, {65535, 65535, 1}}) {
        setup.refuse(set(bytes, batch, height, width, int64_t{1} << 40, 65536), DISTILE_ERROR_BAD_SHAPE, {"2^31"});
    }
    setup.refuse(set(bytes, 1, 2, 2, 4, 1), DISTILE_ERROR_BAD_STRIDE, {"h 1"});
    setup.refuse(set(bytes, 2, 2, 2, 3, 2), DISTILE_ERROR_BAD_STRIDE, {"n 3"});
    setup.set_mask();
    setup.refuse(distile_cuda_mask_tiles(setup.mask.get(), 0, 1, &xy, &images, &count), DISTILE_ERROR_BAD_VALUE,
                 {"0 x 1"});
    setup.refuse(distile_cuda_mask_tiles(setup.mask.get(), 1, 65536, &xy, &images, &count), DISTILE_ERROR_BAD_VALUE,
                 {"65536"});

    distile_cuda_kernel *kernel = nullptr;
    distile_polykernel polykernel = test_odd_cuda;
    const auto create = [&](distile_status due, const std::vector<std::string> &words) {
        setup.refuse(distile_cuda_kernel_create(setup.cuda.get(), &polykernel, &kernel), due, words);
    };
    polykernel.version++;
    create(DISTILE_ERROR_VERSION, {"version"});
    polykernel = test_odd_cuda;
    polykernel.compute_capability = 0;
    create(DISTILE_ERROR_BAD_VALUE, {"distile_kernel_create"});
    polykernel.compute_capability = 103;
    create(DISTILE_ERROR_UNSUPPORTED_GPU, {"10.3", "9.0"});
    polykernel = test_odd_cuda;
    polykernel.kind = DISTILE_MASKED_CONV_TRANSPOSE2D;
    create(DISTILE_ERROR_BAD_VALUE, {"one group"});

    distile_cuda_weights *weights = nullptr;
    distile_weights_source source = setup.source;
    source.bn_gamma = source.bias;
    setup.refuse(distile_cuda_weights_pack(setup.kernel.get(), &source, &weights), DISTILE_ERROR_BAD_VALUE,
                 {"distile_cuda_weights_pack", "variance"});

    // What only a CPU runs: the variants are there for their names and times.
    distile_kernel *variants = distile_cuda_kernel_variants(setup.kernel.get());
    distile_weights *on_cpu = nullptr;
    const distile_run_args run{};
    distile_dense_candidate candidate{"mine", nullptr, nullptr};
    candidate.run = [](void *, const distile_tensor *, const distile_tensor *, const distile_tensor *) { return 0; };
    setup.refuse(distile_weights_pack(variants, &setup.source, &on_cpu), DISTILE_ERROR_BAD_VALUE, {"cuda"});
    setup.refuse(distile_run(variants, &run), DISTILE_ERROR_BAD_VALUE, {"distile_cuda_run"});
    setup.refuse(distile_kernel_add_dense(variants, &candidate), DISTILE_ERROR_BAD_VALUE, {"distile_cuda_kernel"});

    const void *written = nullptr;
    const distile_cuda_dense_candidate dense{"t1x1", write_nothing, &written};
    setup.refuse(distile_cuda_kernel_add_dense(setup.kernel.get(), &dense), DISTILE_ERROR_BAD_VALUE,
                 {"already", "t1x1"});
}

TEST_CASE("Sizes beyond what can be addressed or held give a status", "[.fake_driver]") {
    Setup setup;
    const FakeSetting memory("memory", int64_t{1} << 34, int64_t{1} << 36);
    const auto *bytes = setup.mask_memory->data();
    const auto set = [&](int32_t batch, int32_t height, int32_t width) {
        return distile_cuda_mask_set_bytes(setup.mask.get(), bytes, batch, height, width, int64_t{height} * width,
                                           width);
    };
    const uint32_t *xy = nullptr, *images = nullptr, *count = nullptr;
    setup.set_mask();
    // Its words fit, its list of twice that does not.
    check(setup.context, set(32767, 65535, 1));
    setup.refuse(distile_cuda_mask_tiles(setup.mask.get(), 1, 1, &xy, &images, &count),
                 DISTILE_ERROR_OUT_OF_DEVICE_MEMORY, {"cuMemAlloc"});
    const CudaMask second = make_mask(setup.context, setup.cuda);
    set_fake("memory", 1 << 20);
    setup.refuse(set(32767, 65535, 1), DISTILE_OK, {});
    setup.refuse(distile_cuda_mask_set_bytes(second.get(), bytes, 1, 65535, 1, 65535, 1),
                 DISTILE_ERROR_OUT_OF_DEVICE_MEMORY, {});
    setup.refuse(distile_cuda_mask_bits(second.get(), &xy, &setup.out_width), DISTILE_ERROR_BAD_MASK, {"never set"});

    // The partial sums of a split reduction, and the output of a dense candidate.
    set_fake("memory", int64_t{1} << 34);
    setup.set_mask();
    const void *written = nullptr;
    const distile_cuda_dense_candidate dense{"mine", write_nothing, &written};
    check(setup.context, distile_cuda_kernel_add_dense(setup.kernel.get(), &dense));
    for (const char *variant : {"t1x1s2", "mine"}) {
        setup.args.variant = variant;
        setup.args.inactive = DISTILE_KEEP;
        check(setup.context, distile_cuda_mask_tiles(setup.mask.get(), 1, 1, &xy, &images, &count));
        set_fake("memory", 0);
        setup.refuse_run(DISTILE_ERROR_OUT_OF_DEVICE_MEMORY, {});
        set_fake("memory", int64_t{1} << 34);
        setup.run();
    }

    // 1000 images of 32768 x 1 pixels are 6.6 million tiles of 5 x 40, that is 1.3e9 pixels.
    const DeviceArray<float> input(1), output(1);
    setup.input.batch = setup.output.batch = setup.residual.batch = 100;
    setup.input.height = 65534;
    setup.input.width = setup.out_width = 1 + setup.conv.dilation_w * (setup.conv.kernel_w - 1) - setup.conv.pad_left;
    setup.output.height = reference_output_height(setup.conv, 65534);
    setup.output.width = reference_output_width(setup.conv, setup.input.width);
    REQUIRE(setup.output.width == 1);
    const auto pack_strides = [](distile_tensor &tensor) {
        tensor.stride_w = tensor.channels;
        tensor.stride_h = tensor.stride_w * tensor.width;
        tensor.stride_n = tensor.stride_h * tensor.height;
    };
    setup.input.data = input.data();
    setup.output.data = output.data();
    pack_strides(setup.input);
    pack_strides(setup.output);
    setup.args.residual = &setup.output;
    check(setup.context, set(100, setup.output.height, 1));
    for (const auto &[variant, due] : {std::pair("t1x1", DISTILE_OK), {"t5x40", DISTILE_OK}}) {
        setup.args.variant = variant;
        setup.refuse_run(due, {});
    }
    setup.input.batch = setup.output.batch = 1000;
    check(setup.context, set(1000, setup.output.height, 1));
    setup.args.variant = "t5x40";
    setup.refuse_run(DISTILE_ERROR_BAD_SHAPE, {"2^30"});
    setup.args.variant = "t1x1";
    setup.run();
}

TEST_CASE("A context that was lost gives that status from every call", "[.fake_driver]") {
    {
        const Setup setup;
        setup.set_mask();
        const uint32_t *xy = nullptr, *images = nullptr, *count = nullptr;
        distile_cuda_kernel *kernel = nullptr;
        distile_cuda_mask *mask = nullptr;
        distile_cuda_weights *weights = nullptr;
        for (int error : {CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_CONTEXT_IS_DESTROYED}) {
            fail_fake("*", error);
            setup.refuse_run(DISTILE_ERROR_DEVICE_LOST, {});
            setup.refuse(distile_cuda_mask_tiles(setup.mask.get(), 5, 5, &xy, &images, &count),
                         DISTILE_ERROR_DEVICE_LOST, {});
            setup.refuse(distile_cuda_mask_create(setup.cuda.get(), &mask), DISTILE_ERROR_DEVICE_LOST, {});
            setup.refuse(distile_cuda_kernel_create(setup.cuda.get(), &test_odd_cuda, &kernel),
                         DISTILE_ERROR_DEVICE_LOST, {});
            setup.refuse(distile_cuda_weights_pack(setup.kernel.get(), &setup.source, &weights),
                         DISTILE_ERROR_DEVICE_LOST, {});
            distile_cuda *second = nullptr;
            setup.refuse(distile_cuda_create(setup.context.get(), nullptr, &second), DISTILE_ERROR_DEVICE_LOST, {});
        }
    }
    fail_fake("*", 0);
    CHECK(count_fake("alive") == 0);
}

TEST_CASE("A kernel's times are those of its context's multiprocessors", "[.fake_driver]") {
    const TemporaryFolder folder;
    const std::string times = folder.write("times.json", R"({"distile_times": 1, "kernel": "test_odd_cuda", "times": [
        {"variant": "t1x1", "threads": 16, "tiles": 1600, "us": 1}, {"variant": "t2x2", "threads": 16, "tiles": 1600, "us": 2},
        {"variant": "t1x1", "threads": 132, "tiles": 1600, "us": 4}, {"variant": "t2x2", "threads": 132, "tiles": 1600, "us": 3}
    ]})");
    for (int green : {16, 132}) {
        const FakeSetting setting("green", green, 132);
        const Setup setup;
        CHECK(distile_cuda_multiprocessors(setup.cuda.get()) == green);
        distile_kernel *variants = distile_cuda_kernel_variants(setup.kernel.get());
        check(setup.context, distile_kernel_load_times(variants, times.c_str()));
        const Mask mask = make_mask(setup.context);
        const std::vector<uint8_t> bytes(40 * 40, 1);
        check(setup.context, distile_mask_set_bytes(mask.get(), bytes.data(), 1, 40, 40, 1600, 40));
        distile_choice choice{};
        check(setup.context, distile_kernel_choose(variants, mask.get(), &choice));
        CHECK(choice.variant == std::string(green == 16 ? "t1x1" : "t2x2"));
        // A point that is added is one of this context's.
        check(setup.context, distile_kernel_add_time(variants, "t3x2s2", 1600, 0.25));
        check(setup.context, distile_kernel_choose(variants, mask.get(), &choice));
        CHECK(choice.variant == std::string("t3x2s2"));
    }
    // A driver that cannot say has no such contexts.
    fail_fake("cuCtxGetDevResource", CUDA_ERROR_NOT_SUPPORTED);
    const FakeSetting setting("multiprocessors", 99, 132);
    CHECK(distile_cuda_multiprocessors(Setup().cuda.get()) == 99);
    fail_fake("cuCtxGetDevResource", 0);
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
    const int64_t modules = test_odd_cuda.num_variants + 1;
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

    const Context context = make_context();
    distile_cuda *cuda = nullptr;
    options.cache_folder = file.c_str();
    fail_fake("cuLinkAddData", CUDA_ERROR_INVALID_PTX);
    CHECK(distile_cuda_create(context.get(), &options, &cuda) == DISTILE_ERROR_UNSUPPORTED_GPU);
    CHECK(contains(distile_context_message(context.get()), "9.0"));
    fail_fake("cuLinkAddData", 0);
    CHECK(count_fake("alive") == 0);
}

TEST_CASE("The time in a trace is without the wait for the counts", "[.fake_driver]") {
    const Setup setup;
    setup.set_mask();
    constexpr int64_t wait = 20000;
    const FakeSetting waiting("wait", wait, 0);
    using Clock = std::chrono::steady_clock;
    const Clock::time_point start = Clock::now();
    setup.run();
    const double whole = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
    CHECK(setup.traced.elapsed_us > 0);
    CHECK(setup.traced.elapsed_us <= whole - static_cast<double>(wait));
}

TEST_CASE("Calls of a shape that a GPU met before allocate nothing", "[.fake_driver]") {
    Setup setup;
    const void *written = nullptr;
    const distile_cuda_dense_candidate dense{"mine", write_nothing, &written};
    check(setup.context, distile_cuda_kernel_add_dense(setup.kernel.get(), &dense));
    std::vector<std::string> names = variants_of(setup);
    const CudaMask dilated = make_mask(setup.context, setup.cuda);
    const CudaPlanner planner = make_planner(setup.context, setup.cuda, {2, DISTILE_CLEAR_BACKGROUND});
    const distile_output_spec spec{2, setup.out_height, setup.out_width, 8, 1, 1, 1, 1};
    const auto use = [&] {
        setup.set_mask();
        for (distile_inactive inactive : {DISTILE_KEEP, DISTILE_ZERO}) {
            setup.args.inactive = inactive;
            setup.args.variant = nullptr;
            setup.run();
            for (const std::string &name : names) {
                setup.args.variant = name.c_str();
                setup.run();
            }
        }
        const uint32_t *xy = nullptr, *images = nullptr, *count = nullptr;
        check(setup.context, distile_cuda_mask_tiles(setup.mask.get(), 3, 7, &xy, &images, &count));
        check(setup.context, distile_cuda_mask_dilate(dilated.get(), setup.mask.get(), 1, 1));
        check(setup.context, distile_cuda_mask_set_difference(dilated.get(), &setup.output, &setup.residual, 0.5f));
        distile_tensor output{};
        check(setup.context,
              distile_cuda_planner_next(planner.get(), &spec, setup.mask.get(), DISTILE_STORE_EXACT, &output));
    };
    const FakeSetting count("count", 7, 0);
    use();
    use();
    const Watch watch;
    for (int i = 0; i < 5; i++) {
        use();
    }
    CHECK(allocations.count == 0);
    // The counter counts.
    names.emplace_back(100, 'x');
    CHECK(allocations.count > 0);
}

TEST_CASE("A dense candidate writes into the output only where that is right", "[.fake_driver]") {
    Setup setup;
    const void *written = nullptr;
    const distile_cuda_dense_candidate dense{"mine", write_nothing, &written};
    check(setup.context, distile_cuda_kernel_add_dense(setup.kernel.get(), &dense));
    CHECK(variants_of(setup).back() == "mine");
    setup.set_mask();
    for (bool named : {true, false}) {
        check(setup.context,
              distile_kernel_add_time(distile_cuda_kernel_variants(setup.kernel.get()), "mine", 1, 1e-3));
        setup.args.variant = named ? "mine" : nullptr;
        for (bool aliased : {false, true}) {
            for (distile_inactive inactive : {DISTILE_KEEP, DISTILE_ZERO}) {
                for (distile_store store : {DISTILE_STORE_EXACT, DISTILE_STORE_TILES}) {
                    CAPTURE(named, aliased, inactive, store);
                    setup.args.residual = aliased ? &setup.output : &setup.residual;
                    setup.args.inactive = inactive;
                    setup.args.store = store;
                    written = nullptr;
                    setup.run();
                    REQUIRE(written != nullptr);
                    const bool direct = !aliased && (inactive == DISTILE_ZERO || store == DISTILE_STORE_TILES);
                    CHECK((written == setup.output.data) == direct);
                }
            }
        }
    }
    const distile_cuda_dense_candidate failing{
        "failing",
        [](void *, void *, const distile_tensor *, const distile_tensor *, const distile_tensor *) { return 5; },
        nullptr};
    check(setup.context, distile_cuda_kernel_add_dense(setup.kernel.get(), &failing));
    setup.args.variant = "no such variant";
    setup.refuse_run(DISTILE_ERROR_BAD_VALUE, {"no such variant"});
    setup.args.variant = nullptr;
    setup.run();
    // What was wrong can be asked for until something else goes wrong, of which it is then no part.
    CHECK(contains(setup.message(), "no such variant"));
    setup.args.variant = "failing";
    setup.refuse_run(DISTILE_ERROR_KERNEL, {"failing", "code 5"});
    CHECK(!contains(setup.message(), "no such variant"));
}

namespace {

/** A use of the library on the fake driver, in which something may fail. A call that failed is made again, and then
 * succeeds. */
class FaultySession {
public:
    FaultySession(const Setup &setup, distile_clearing clearing, bool cached)
        : setup_(setup), args_(setup.args), clearing_(clearing), cached_(cached) {
    }
    FaultySession(const FaultySession &) = delete;
    FaultySession &operator=(const FaultySession &) = delete;
    ~FaultySession() {
        for (const auto &file : fs::directory_iterator(folder_.path())) {
            CHECK(file.path().extension() == ".cubin");
        }
    }

    void create() {
        make(context_, [&](distile_context **out) { return distile_context_create(nullptr, out); });
        distile_cuda_options options{};
        const std::string path = folder_.path();
        options.cache_folder = cached_ ? path.c_str() : nullptr;
        make(cuda_, [&](distile_cuda **out) { return distile_cuda_create(context_.get(), &options, out); });
        make(kernel_, [&](distile_cuda_kernel **out) {
            return distile_cuda_kernel_create(cuda_.get(), setup_.polykernel, out);
        });
        make(weights_,
             [&](distile_cuda_weights **out) { return distile_cuda_weights_pack(kernel_.get(), &setup_.source, out); });
        for (CudaMask *mask : {&mask_, &other_}) {
            make(*mask, [&](distile_cuda_mask **out) { return distile_cuda_mask_create(cuda_.get(), out); });
        }
        const distile_planner_options planner{2, clearing_};
        make(planner_,
             [&](distile_cuda_planner **out) { return distile_cuda_planner_create(cuda_.get(), &planner, out); });
        args_.weights = weights_.get();
        args_.mask = mask_.get();
        args_.inactive = DISTILE_ZERO;
    }

    void use(int32_t channels) {
        distile_cuda_mask *mask = mask_.get(), *other = other_.get();
        const int32_t height = setup_.out_height, width = setup_.out_width;
        step(0, [&] {
            return distile_cuda_mask_set_bytes(mask, setup_.mask_memory->data(), setup_.output.batch, height, width,
                                               int64_t{height} * width, width);
        });
        const uint32_t *xy = nullptr, *images = nullptr, *count = nullptr;
        step(0, [&] { return distile_cuda_mask_tiles(mask, 3, 7, &xy, &images, &count); });
        step(0, [&] { return distile_cuda_mask_set_difference(other, &setup_.output, &setup_.residual, 0.5f); });
        // Where the GPU fails in it, the mask holds nothing: it is another one's again.
        step(0, [&] {
            const distile_status status = distile_cuda_mask_invert(other, mask);
            return status != DISTILE_OK ? status : distile_cuda_mask_dilate(other, other, 1, 1);
        });
        for (int32_t i = -1; i < distile_kernel_num_variants(distile_cuda_kernel_variants(kernel_.get())); i++) {
            args_.variant = distile_kernel_variant_name(distile_cuda_kernel_variants(kernel_.get()), i);
            step(0, [&] { return distile_cuda_run(kernel_.get(), &args_); });
        }
        const distile_output_spec spec{setup_.output.batch, height, width, channels, 1, 1, 1, 1};
        for (int i = 0; i < 3; i++) {
            distile_tensor tensor{};
            // What clears the next buffer runs beside what follows, and nothing else does.
            step(clearing_ == DISTILE_CLEAR_BACKGROUND ? 1 : 0,
                 [&] { return distile_cuda_planner_next(planner_.get(), &spec, mask, DISTILE_STORE_EXACT, &tensor); });
            float *values = static_cast<float *>(tensor.data) - tensor.stride_h - tensor.stride_w;
            float *end = values + spec.batch * tensor.stride_n;
            REQUIRE(std::all_of(values, end, [](float value) { return value == 0; }));
            if (clearing_ == DISTILE_CLEAR_ALL) {
                // The others are cleared by kernels, which this driver does not run.
                std::fill(values, end, 1.0f);
            }
        }
        step(1, [&] { return distile_cuda_planner_join(planner_.get()); });
        REQUIRE(count_fake("beside") == 0);
    }

private:
    /** A call, and how many launches may go on beside what follows it, be it a success or not. */
    template<typename Call> void step(int64_t beside, const Call &call) {
        const int64_t failed = count_fake("failed"), refused = allocations.failures;
        distile_status status = DISTILE_OK;
        {
            const Watch watch;
            status = call();
        }
        INFO((context_ ? distile_context_message(context_.get()) : ""));
        REQUIRE(count_fake("beside") <= beside);
        if (status == DISTILE_OK) {
            return;
        }
        const bool by_driver = count_fake("failed") > failed;
        REQUIRE((by_driver || allocations.failures > refused));
        REQUIRE(name_of(status) == (by_driver ? "DISTILE_ERROR_KERNEL" : "DISTILE_ERROR_OUT_OF_MEMORY"));
        REQUIRE(name_of(call()) == "DISTILE_OK");
        REQUIRE(count_fake("beside") <= beside);
    }

    template<typename Object, typename Make>
    void make(std::unique_ptr<Object, Destroy> &owner, const Make &make_object) {
        Object *made = nullptr;
        step(0, [&] {
            const distile_status status = make_object(&made);
            return status != DISTILE_OK && made ? DISTILE_ERROR_BAD_VALUE : status;
        });
        owner.reset(made);
    }

    const Setup &setup_;
    distile_cuda_run_args args_;
    distile_clearing clearing_;
    bool cached_;
    TemporaryFolder folder_;
    Context context_;
    Cuda cuda_;
    CudaKernel kernel_;
    CudaWeights weights_;
    CudaMask mask_, other_;
    CudaPlanner planner_;
};

/** With few variants, because sessions are many. */
distile_polykernel few_variants() {
    distile_polykernel polykernel = test_odd_cuda;
    polykernel.num_variants = 2;
    polykernel.num_times = 0;
    return polykernel;
}

/** Returns how many calls of the driver it took. */
int64_t run_faulty_session(const Setup &setup, distile_clearing clearing, bool cached) {
    const int64_t calls = count_fake("*"), alive = count_fake("alive");
    allocations.count = 0;
    {
        FaultySession session(setup, clearing, cached);
        session.create();
        session.use(8);
        session.use(12);
    }
    REQUIRE(count_fake("alive") == alive);
    return count_fake("*") - calls;
}

}  // namespace

TEST_CASE("Any one call of the driver may fail, and the next try succeeds", "[.fake_driver]") {
    const distile_polykernel polykernel = few_variants();
    const Setup setup(polykernel);
    const FakeSetting count("count", 7, 0);
    for (const distile_clearing clearing : {DISTILE_CLEAR_WRITTEN, DISTILE_CLEAR_ALL, DISTILE_CLEAR_BACKGROUND}) {
        // Once is enough, because it takes most of the time.
        const bool cached = clearing == DISTILE_CLEAR_WRITTEN;
        const int64_t calls = run_faulty_session(setup, clearing, cached);
        const int64_t failed = count_fake("failed");
        for (int64_t call = 0; call < calls; call++) {
            CAPTURE(clearing, call);
            fail_fake_once(call, CUDA_ERROR_NOT_PERMITTED);
            run_faulty_session(setup, clearing, cached);
        }
        CHECK(count_fake("failed") == failed + calls);
    }
}

TEST_CASE("Any one allocation of the host may fail, and the next try succeeds", "[.fake_driver]") {
    const distile_polykernel polykernel = few_variants();
    const Setup setup(polykernel);
    const FakeSetting count("count", 7, 0);
    run_faulty_session(setup, DISTILE_CLEAR_BACKGROUND, true);
    const int64_t all = allocations.count;
    CHECK(all > 100);
    for (int64_t index = 0; index < all; index++) {
        CAPTURE(index);
        allocations.failures = 0;
        allocations.first = allocations.last = index;
        run_faulty_session(setup, DISTILE_CLEAR_BACKGROUND, true);
        CHECK(allocations.failures == 1);
    }
    allocations.last = -1;
}

// ---- With a GPU ------------------------------------------------------------------------------

namespace {

/** Makes a GPU's context current in this thread; false, and says so, where there is none. */
bool has_gpu() {
    return Gpu().cuda != nullptr;
}

/** A setup on a GPU with values in its memory, and a view of the output with room around every row and image. */
struct GpuSetup : Setup {
    GpuSetup(const distile_polykernel &polykernel, int32_t batch, int32_t height, int32_t width,
             const distile_cuda_options &options = {})
        : Setup(polykernel, batch, height, width, options), padding(4),
          spans(static_cast<size_t>(batch) * (out_height + 1)),
          row(static_cast<size_t>(out_width + 1) * (conv.out_channels + padding)) {
        input_memory->set(input_values);
        residual_memory->set(residual_values);
        room = std::make_unique<DeviceArray<float>>(spans * row);
        before.resize(spans * row);
        for (size_t i = 0; i < before.size(); i++) {
            before[i] = static_cast<float>(i % 977) * 0.25f + 1;
        }
        output.data = room->data();
        output.stride_w = conv.out_channels + padding;
        output.stride_h = static_cast<int64_t>(row);
        output.stride_n = output.stride_h * (out_height + 1);
        reference.input = distile_tensor_make(input_values.data(), batch, height, width, conv.in_channels);
        host_residual = distile_tensor_make(residual_values.data(), batch, out_height, out_width, conv.out_channels);
    }

    void set_bytes(const ByteMask &bytes) {
        reference.mask = bytes.bytes;
        mask_memory->set(bytes.bytes);
        set_mask();
    }
    /** Puts values into the output; those of the residual where it is the output. */
    void reset_output(bool aliased) {
        if (aliased) {
            for (size_t pixel = 0; pixel < num_pixels; pixel++) {
                std::copy_n(&residual_values[pixel * conv.out_channels], conv.out_channels,
                            before.begin() + static_cast<int64_t>(offset(pixel)));
            }
        }
        room->set(before);
    }
    size_t offset(size_t pixel) const {
        const size_t x = pixel % out_width, span = pixel / out_width, image = span / out_height;
        return (span + image) * row + x * (conv.out_channels + padding);
    }
    /** The PolyKernel's variant of a name, or any. */
    const distile_variant &variant_of(const std::string &name) const {
        for (int32_t i = 0; i < polykernel->num_variants; i++) {
            if (polykernel->variants[i].name == name) {
                return polykernel->variants[i];
            }
        }
        return polykernel->variants[0];
    }
    /** "" if the output is what the plain loop says, and all around it is as before. Inactive pixels that do not matter
     * may hold anything. */
    std::string difference(distile_inactive inactive, bool inactive_matters = true) {
        reference.inactive = inactive;
        reference.residual = conv.residual != 0 ? &host_residual : nullptr;
        const ReferenceOutput expected = reference_masked_conv2d(reference);
        std::vector<float> due = before;
        std::vector<double> tolerance(due.size(), 0);
        for (size_t pixel = 0; pixel < num_pixels; pixel++) {
            for (int32_t c = 0; c < conv.out_channels; c++) {
                const size_t at = offset(pixel) + c;
                const PixelState state = expected.states[pixel];
                if (state == PixelState::Computed) {
                    due[at] = expected.values[pixel * conv.out_channels + c];
                    tolerance[at] = 2e-5 * expected.largest;
                } else if (state == PixelState::Zeroed) {
                    due[at] = 0;
                }
                if (reference.mask[pixel] == 0 && !inactive_matters) {
                    tolerance[at] = std::numeric_limits<double>::infinity();
                }
            }
        }
        const std::vector<float> values = room->get();
        for (size_t i = 0; i < due.size(); i++) {
            if (!(std::abs(values[i] - due[i]) <= tolerance[i])) {
                return "element " + std::to_string(i) + " is " + std::to_string(values[i]) + ", not " +
                       std::to_string(due[i]) + ", and was " + std::to_string(before[i]);
            }
        }
        return "";
    }

    int32_t padding;
    size_t spans, row;
    std::unique_ptr<DeviceArray<float>> room;
    std::vector<float> before;
    distile_tensor host_residual{};
};

/** A dense implementation: the PolyKernel's own, over a mask of ones. */
struct OwnDense {
    explicit OwnDense(GpuSetup &setup)
        : kernel(make_kernel(setup.context, setup.cuda, *setup.polykernel)), mask(make_mask(setup.context, setup.cuda)),
          bytes(std::vector<uint8_t>(setup.num_pixels, 1)), weights(setup.weights.get()) {
        check(setup.context, distile_cuda_mask_set_bytes(mask.get(), bytes.data(), setup.output.batch, setup.out_height,
                                                         setup.out_width, int64_t{setup.out_height} * setup.out_width,
                                                         setup.out_width));
        candidate = {"mine", run, this};
        check(setup.context, distile_cuda_kernel_add_dense(setup.kernel.get(), &candidate));
    }
    static int run(void *user, void *, const distile_tensor *input, const distile_tensor *residual,
                   const distile_tensor *output) {
        const auto &self = *static_cast<const OwnDense *>(user);
        distile_cuda_run_args args{};
        args.input = input;
        args.residual = residual;
        args.output = output;
        args.weights = self.weights;
        args.mask = self.mask.get();
        args.variant = "dense";
        return static_cast<int>(distile_cuda_run(self.kernel.get(), &args));
    }

    CudaKernel kernel;
    CudaMask mask;
    DeviceArray<uint8_t> bytes;
    const distile_cuda_weights *weights;
    distile_cuda_dense_candidate candidate{};
};

const char *const mask_kinds[] = {"empty", "full", "random", "blob"};

ByteMask mask_of(const std::string &kind, int32_t batch, int32_t height, int32_t width) {
    if (kind == "empty" || kind == "full") {
        return random_mask(batch, height, width, kind == "full" ? 1.0 : 0.0, 1);
    }
    return draw_mask(kind, batch, height, width, 0.4, 3);
}

}  // namespace

TEST_CASE("Masks are made again and again at sixty-four granularities, from bytes with any strides", "[gpu][masks]") {
    if (!has_gpu()) {
        return;
    }
    const Context context = make_context();
    const Cuda cuda = make_cuda(context);
    const CudaMask mask = make_mask(context, cuda);
    const Mask expected = make_mask(context);
    std::vector<Granularity> granularities;
    for (int32_t h = 1; h <= 8; h++) {
        for (int32_t w = 1; w <= 8; w++) {
            granularities.push_back({h == 8 ? 100 : h, 5 * w - 4});
        }
    }
    // The last one has more than 2^20 tiles, so that a block is one of many.
    const int32_t shapes[][3] = {{1, 1, 1}, {3, 19, 37}, {2, 200, 131}, {5, 700, 640}};
    for (const auto &[batch, height, width] : shapes) {
        const int64_t stride_h = width + 3, stride_n = stride_h * height + 11;
        DeviceArray<uint8_t> device_bytes(static_cast<size_t>(stride_n * batch));
        // The first time each is made on demand, then all at once; the last time some are not asked for.
        for (int round = 0; round < 4; round++) {
            std::vector<uint8_t> bytes(static_cast<size_t>(stride_n * batch), 9);
            std::mt19937 random(round);
            const unsigned int odds = round == 1 ? 1 : round == 2 ? 500 : 3;
            for (int32_t n = 0; n < batch; n++) {
                for (int32_t y = 0; y < height; y++) {
                    for (int32_t x = 0; x < width; x++) {
                        bytes[n * stride_n + y * stride_h + x] = random() % odds == 0 ? random() % 255 + 1 : 0;
                    }
                }
            }
            device_bytes.set(bytes);
            check(context, distile_cuda_mask_set_bytes(mask.get(), device_bytes.data(), batch, height, width, stride_n,
                                                       stride_h));
            check(context,
                  distile_mask_set_bytes(expected.get(), bytes.data(), batch, height, width, stride_n, stride_h));
            for (size_t i = 0; i < granularities.size(); i += round == 3 ? 5 : 1) {
                const Granularity granularity = granularities[i];
                CAPTURE(batch, height, width, round, granularity.h, granularity.w);
                const uint32_t *xy = nullptr, *images = nullptr, *count = nullptr;
                check(context, distile_cuda_mask_tiles(mask.get(), granularity.h, granularity.w, &xy, &images, &count));
                distile_tile_list list{};
                check(context, distile_mask_tiles(expected.get(), granularity.h, granularity.w, &list));
                const uint32_t found = read_device(count, 1)[0];
                REQUIRE(found == list.count);
                CHECK((read_device(xy, found) == std::vector<uint32_t>(list.xy, list.xy + list.count)));
                CHECK((read_device(images, found) == std::vector<uint32_t>(list.image, list.image + list.count)));
            }
        }
    }
}

TEST_CASE("Zeros and dense candidates write what is due, and nothing around it", "[gpu][zeros]") {
    if (!has_gpu()) {
        return;
    }
    CUstream stream = nullptr;
    CU(cuStreamCreate, &stream, static_cast<unsigned int>(CU_STREAM_NON_BLOCKING));
    for (const distile_polykernel *polykernel :
         {static_cast<const distile_polykernel *>(&test_odd_cuda), test_cuda_polykernels[1]}) {
        GpuSetup setup(*polykernel, 2, 11, 9);
        const OwnDense dense(setup);
        const bool has_residual = setup.conv.residual != 0;
        for (bool on_stream : {false, true}) {
            check(setup.context, distile_cuda_set_stream(setup.cuda.get(), on_stream ? stream : nullptr));
            for (const char *kind : mask_kinds) {
                setup.set_bytes(mask_of(kind, 2, setup.out_height, setup.out_width));
                for (int way = 0; way < 8; way++) {
                    const bool aliased = has_residual && way % 2 == 1;
                    setup.args.inactive = way / 2 % 2 == 1 ? DISTILE_ZERO : DISTILE_KEEP;
                    setup.args.store = way / 4 == 1 ? DISTILE_STORE_TILES : DISTILE_STORE_EXACT;
                    setup.args.residual = !has_residual ? nullptr : aliased ? &setup.output : &setup.residual;
                    std::vector<std::string> names = variants_of(setup);
                    names.emplace_back("");
                    for (const std::string &name : names) {
                        setup.args.variant = name.empty() ? nullptr : name.c_str();
                        CAPTURE(polykernel->name, on_stream, kind, aliased, setup.args.inactive, setup.args.store,
                                name);
                        setup.reset_output(aliased);
                        setup.run();
                        setup.reference.store = setup.args.store;
                        setup.reference.dense = name == "mine" || name == "dense";
                        const distile_variant &variant = setup.variant_of(name);
                        setup.reference.tile_h = variant.tile_h;
                        setup.reference.tile_w = variant.tile_w;
                        // In place, a residual that was zeroed first gives another value in the tiles' other pixels.
                        const bool specified = !name.empty() && !(aliased && setup.args.inactive == DISTILE_ZERO &&
                                                                  setup.args.store == DISTILE_STORE_TILES);
                        CHECK(setup.difference(setup.args.inactive,
                                               specified || setup.args.store == DISTILE_STORE_EXACT) == "");
                    }
                }
            }
        }
        check(setup.context, distile_cuda_set_stream(setup.cuda.get(), nullptr));
    }
    CU(cuStreamDestroy, stream);
}

TEST_CASE("Zeros and dense candidates run in a graph", "[gpu][zeros]") {
    if (!has_gpu()) {
        return;
    }
    CUstream stream = nullptr;
    CU(cuStreamCreate, &stream, static_cast<unsigned int>(CU_STREAM_NON_BLOCKING));
    GpuSetup setup(test_odd_cuda, 2, 30, 33);
    const OwnDense dense(setup);
    check(setup.context, distile_cuda_set_stream(setup.cuda.get(), stream));
    setup.args.inactive = DISTILE_ZERO;
    for (const char *variant : {"t1x1s2", "t3x2s2", "mine"}) {
        setup.args.variant = variant;
        setup.set_bytes(mask_of("full", 2, setup.out_height, setup.out_width));
        setup.run();
        CUgraph graph = nullptr;
        CUgraphExec executable = nullptr;
        CU(cuStreamSynchronize, stream);
        CU(cuStreamBeginCapture, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
        setup.set_mask();
        setup.run();
        CU(cuStreamEndCapture, stream, &graph);
        CU(cuGraphInstantiate, &executable, graph, 0ULL);
        for (const char *kind : mask_kinds) {
            CAPTURE(variant, kind);
            const ByteMask bytes = mask_of(kind, 2, setup.out_height, setup.out_width);
            setup.reference.mask = bytes.bytes;
            setup.mask_memory->set(bytes.bytes);
            setup.reset_output(false);
            CU(cuGraphLaunch, executable, stream);
            CHECK(setup.difference(DISTILE_ZERO) == "");
        }
        CU(cuGraphExecDestroy, executable);
        CU(cuGraphDestroy, graph);
    }
    check(setup.context, distile_cuda_set_stream(setup.cuda.get(), nullptr));
    CU(cuStreamDestroy, stream);
}

TEST_CASE("Code from a cache computes the same", "[gpu]") {
    if (!has_gpu()) {
        return;
    }
    const TemporaryFolder folder;
    const std::string path = folder.path() + "/cache";
    distile_cuda_options options{};
    options.cache_folder = path.c_str();
    // Cold, warm, and with a file that was cut.
    for (int round = 0; round < 3; round++) {
        GpuSetup setup(test_odd_cuda, 1, 12, 12, options);
        const auto files = std::distance(fs::directory_iterator(path), fs::directory_iterator());
        CHECK(files == test_odd_cuda.num_variants + 1);
        setup.set_bytes(mask_of("random", 1, setup.out_height, setup.out_width));
        for (const std::string &variant : variants_of(setup)) {
            CAPTURE(round, variant);
            setup.args.variant = variant.c_str();
            setup.reset_output(false);
            setup.run();
            CHECK(setup.difference(DISTILE_KEEP) == "");
        }
        for (const auto &entry : fs::directory_iterator(path)) {
            if (round == 1) {
                fs::resize_file(entry.path(), fs::file_size(entry.path()) / 2);
            }
        }
    }
}

#if CUDA_VERSION >= 12040
TEST_CASE("A green context has its own number of multiprocessors", "[gpu]") {
    if (!has_gpu()) {
        return;
    }
    CUdevice device = 0;
    CUdevResource all{}, part{}, rest{};
    CUdevResourceDesc description = nullptr;
    CUgreenCtx green = nullptr;
    CUcontext current = nullptr;
    CUstream stream = nullptr;
    unsigned int groups = 1;
    CU(cuDeviceGet, &device, 0);
    CU(cuDeviceGetDevResource, device, &all, CU_DEV_RESOURCE_TYPE_SM);
    const Context context = make_context();
    CHECK(distile_cuda_multiprocessors(make_cuda(context).get()) == static_cast<int32_t>(all.sm.smCount));
    CU(cuDevSmResourceSplitByCount, &part, &groups, static_cast<const CUdevResource *>(&all), &rest, 0u, 16u);
    CU(cuDevResourceGenerateDesc, &description, &part, 1u);
    CU(cuGreenCtxCreate, &green, description, device, static_cast<unsigned int>(CU_GREEN_CTX_DEFAULT_STREAM));
    CU(cuCtxFromGreenCtx, &current, green);
    CU(cuGreenCtxStreamCreate, &stream, green, static_cast<unsigned int>(CU_STREAM_NON_BLOCKING), 0);
    distile_cuda_options options{};
    options.context = current;
    options.stream = stream;
    CHECK(distile_cuda_multiprocessors(make_cuda(context, options).get()) == static_cast<int32_t>(part.sm.smCount));
    CU(cuStreamDestroy, stream);
    CU(cuGreenCtxDestroy, green);
}
#endif
