// The code of PolyKernels on a GPU: on disk, and loaded.
#include "cubin_cache.h"
#include "cuda_setup.h"
#include "temporary_folder.h"
#include <filesystem>

using namespace distile;

namespace {

namespace fs = std::filesystem;

/** Of the library's own kernels. */
constexpr int64_t own_modules = 6;

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
    const int64_t launches = count_fake("cuLaunchKernel");
    setup.run();
    CHECK(count_fake("cuLaunchKernel") > launches + 1);
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
    // Nor does one that could not be made leave some behind.
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
    const int64_t modules = test_odd_cuda.num_variants + own_modules;
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
