// Every PolyKernel for GPUs against the plain loop, and against the CPU's path where there is one for the operator. The
// sections have the names of the PolyKernels, so that `-c NAME` runs one of them.
#include "tests/gpu/every_polykernel.h"
#include "tests/gpu/gpu_operator.h"
#include "tests/support/catch.h"
#include "tests/support/short_tests.h"
#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

using namespace distile;
using namespace distile::gpu_operator;

namespace {

/** The first PolyKernel of a type whose channels fill whole vectors, with a residual if there is one; null if there is
 * none. */
const distile_polykernel *first_in_vectors(distile_dtype dtype) {
    const distile_polykernel *found = nullptr;
    for (const auto &[polykernel, cpu] : every_polykernel()) {
        const distile_conv2d conv = convolution_of(*polykernel);
        const bool fits = type_of(*polykernel) == dtype && conv.in_channels % lanes_of(dtype) == 0 &&
                          conv.out_channels % lanes_of(dtype) == 0;
        if (fits && (!found || (conv.residual != 0 && convolution_of(*found).residual == 0))) {
            found = polykernel;
        }
    }
    return found;
}

/** The share of the weights that are 0. */
double zeros_for(const TestedPolykernel &tested) {
    return tested.polykernel->nonzeros > 0 ? .9 : 0;
}

TestedPolykernel tested(const distile_polykernel &polykernel) {
    const auto &all = every_polykernel();
    return *std::find_if(all.begin(), all.end(),
                         [&](const TestedPolykernel &each) { return each.polykernel == &polykernel; });
}

}  // namespace

TEST_CASE("Every variant on a GPU computes what the plain loop and the CPU do, and touches nothing else",
          "[gpu_operators]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    for (const TestedPolykernel &tested : every_polykernel()) {
        DYNAMIC_SECTION(tested.polykernel->name) {
            if (!can_run(gpu, *tested.polykernel)) {
                continue;
            }
            OperatorTest test(gpu, tested, zeros_for(tested));
            run_pairwise(test);
        }
    }
}

// Every kernel once by name and once by the dispatcher: little enough for compute-sanitizer's slowest tools.
TEST_CASE("Every variant on a GPU computes a small image", "[gpu_small]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    for (const TestedPolykernel &tested : every_polykernel()) {
        DYNAMIC_SECTION(tested.polykernel->name) {
            if (!can_run(gpu, *tested.polykernel)) {
                continue;
            }
            OperatorTest test(gpu, tested, zeros_for(tested));
            for (int32_t variant = 0; variant < test.polykernel.num_variants; variant++) {
                for (Launch launch : {Launch::ByName, Launch::ByDispatcher}) {
                    Case one;
                    one.variant = variant;
                    one.launch = launch;
                    std::tie(one.height, one.width) = sizes_of(test).front();
                    one.batch = 2;
                    one.inactive = launch == Launch::ByName ? DISTILE_ZERO : DISTILE_KEEP;
                    choose_mask(one, test, launch == Launch::ByName ? "blob" : "random", test.random);
                    test.run(one);
                }
            }
        }
    }
}

TEST_CASE("Real masks at their own sizes on a GPU", "[gpu_real_masks]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    // Operators whose output has the size of their input.
    for (const distile_polykernel *polykernel :
         {&GPU_POLYKERNEL(test_conv3_16_48), &GPU_POLYKERNEL(test_dilated13_16_1_residual)}) {
        DYNAMIC_SECTION(polykernel->name) {
            OperatorTest test(gpu, tested(*polykernel));
            int number = 0;
            for (const std::string &name : real_masks()) {
                const ByteMask mask = read_real_mask(name);
                for (int32_t variant = 0; variant <= polykernel->num_variants; variant++) {
                    if (left_out(number++)) {
                        continue;
                    }
                    Case one;
                    one.variant = variant;
                    one.launch = variant % 2 == 0 ? Launch::ByName : Launch::ByDispatcher;
                    one.height = mask.height;
                    one.width = mask.width;
                    one.mask_name = name;
                    one.mask = mask.bytes;
                    test.run(one);
                }
            }
        }
    }
}

TEST_CASE("A GPU refuses views whose pixels are not aligned, and touches nothing", "[gpu_alignment]") {
    const Gpu gpu;
    if (!gpu) {
        return;
    }
    for (distile_dtype dtype : {DISTILE_FLOAT32, DISTILE_FLOAT16, DISTILE_BFLOAT16}) {
        const distile_polykernel *polykernel = first_in_vectors(dtype);
        REQUIRE((polykernel || dtype != DISTILE_FLOAT32));
        if (!polykernel) {
            continue;
        }
        DYNAMIC_SECTION(polykernel->name) {
            const distile_conv2d conv = convolution_of(*polykernel);
            const distile_operator_kind kind = polykernel->kind;
            const int32_t lanes = lanes_of(dtype), element = static_cast<int32_t>(distile_dtype_size(dtype));
            const int32_t height = 9, width = 12, batch = 2;
            const Kernel kernel = gpu.make_kernel(*polykernel);
            const Mask mask = gpu.make_mask();
            const std::vector<float> filter(filter_size(conv), 1);
            distile_weights_source source{};
            source.filter = filter.data();
            source.order = DISTILE_HWIO;
            const Weights weights = pack_weights(gpu.context, kernel, source);
            const int32_t out_height = reference_output_height(conv, height, kind);
            const int32_t out_width = reference_output_width(conv, width, kind);
            const DeviceArray<uint8_t> bytes(
                std::vector<uint8_t>(static_cast<size_t>(batch) * out_height * out_width, 1));
            gpu.check(distile_mask_set_bytes(mask.get(), bytes.data(), batch, out_height, out_width,
                                             int64_t{out_height} * out_width, out_width));

            // Room for all of them, so that nothing but the alignment is wrong.
            const size_t channels = std::max(conv.in_channels, conv.out_channels);
            const size_t room = 2 * batch * (std::max(height, out_height) + 1) * (std::max(width, out_width) + 1) *
                                (channels + 16) * element;
            const std::vector<unsigned char> before(3 * room, 0x11);
            DeviceArray<unsigned char> memory(before);
            struct Change {
                const char *what;
                int64_t offset, pixel, row, image;
                bool refused;
            };
            const Change changes[] = {
                {"nothing", 0, 0, 0, 0, false},
                {"the address by a vector, and every stride by some", lanes, lanes, 2 * lanes, 3 * lanes, false},
                {"the address by an element", 1, 0, 0, 0, true},
                {"the address by half a vector", lanes / 2, 0, 0, 0, true},
                {"the stride of pixels", 0, lanes / 2, 0, 0, true},
                {"the stride of rows", 0, 0, 3, 0, true},
                {"the stride of images", 0, 0, 0, 1, true}};
            const char *const names[] = {"input", "output", "residual"};
            for (int changed = 0; changed < (conv.residual != 0 ? 3 : 2); changed++) {
                for (const Change &change : changes) {
                    CAPTURE(names[changed], change.what);
                    distile_tensor tensors[3] = {
                        distile_tensor_make(memory.data(), batch, height, width, conv.in_channels),
                        distile_tensor_make(memory.data() + room, batch, out_height, out_width, conv.out_channels),
                        distile_tensor_make(memory.data() + 2 * room, batch, out_height, out_width, conv.out_channels)};
                    for (distile_tensor &tensor : tensors) {
                        tensor.dtype = dtype;
                    }
                    distile_tensor &tensor = tensors[changed];
                    tensor.data = static_cast<unsigned char *>(tensor.data) + change.offset * element;
                    // A view that is as wide as it was, in rows and images that are wider.
                    tensor.stride_w += change.pixel;
                    tensor.stride_h += tensor.width * change.pixel + change.row;
                    tensor.stride_n = tensor.height * tensor.stride_h + change.image;
                    distile_run_args args{};
                    args.input = &tensors[0];
                    args.output = &tensors[1];
                    args.residual = conv.residual != 0 ? &tensors[2] : nullptr;
                    args.weights = weights.get();
                    args.mask = mask.get();
                    const distile_status status = distile_run(kernel.get(), &args);
                    if (!change.refused) {
                        gpu.check(status);
                        CHECK(memory.get() != before);
                        memory.set(before);
                        continue;
                    }
                    CHECK(status == DISTILE_ERROR_BAD_ALIGNMENT);
                    const std::string message = distile_context_message(gpu.context.get());
                    CHECK(message.find("16 bytes") != std::string::npos);
                    CHECK(message.find(names[changed]) != std::string::npos);
                    CHECK(memory.get() == before);
                }
            }
        }
    }
}
