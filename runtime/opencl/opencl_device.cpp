#include "runtime/opencl/opencl_device.h"
#include "kernels/call.h"
#include "opencl_kernels.h"
#include "runtime/base/types.h"
#include "runtime/gpu/rehearsal.h"
#include "runtime/gpu/views.h"
#include "runtime/opencl/opencl_code.h"
#include "runtime/opencl/opencl_mask.h"
#include "runtime/opencl/opencl_planner.h"
#include "runtime/tensor/tensor.h"
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <vector>

namespace distile {

namespace {

constexpr int32_t oldest_version = 12;

/** 12 for "OpenCL 1.2 and more"; 0 for another text. */
int32_t version_of(const std::string &text) {
    int major = 0, minor = 0;
    return std::sscanf(text.c_str(), "OpenCL %d.%d", &major, &minor) == 2 ? 10 * major + minor : 0;
}

bool has_word(const std::string &text, const std::string &wanted) {
    std::istringstream words(text);
    for (std::string word; words >> word;) {
        if (word == wanted) {
            return true;
        }
    }
    return false;
}

}  // namespace

// ---- The context -----------------------------------------------------------------------------

OpenClDevice::OpenClDevice(distile_context &given, const OpenClLibrary &loaded) : Device(given), library(loaded) {
    context.gpu = &OpenClCode::hooks;
}

OpenClDevice::~OpenClDevice() {
    if (queue) {
        library.clFinish(queue);
    }
    scratch_.reset();
    own_.reset();
    if (queue) {
        library.clReleaseCommandQueue(queue);
    }
}

void OpenClDevice::open(const distile_opencl_options &options) {
    if (options.queue) {
        use_queue(static_cast<cl_command_queue>(options.queue));
    } else {
        make_queue(options.device);
    }
    if (options.shared) {
        share(*options.shared);
    }
    find_features(options.cache_folder);
    own_ = std::make_unique<Program>(*this, opencl_kernels);
    scratch_ = std::make_unique<GrowingBuffer>(*this);
}

void OpenClDevice::use_queue(cl_command_queue given) {
    cl_context used = nullptr;
    cl_command_queue_properties properties = 0;
    check(library.clRetainCommandQueue(given), "clRetainCommandQueue");
    queue = given;
    check(library.clGetCommandQueueInfo(queue, CL_QUEUE_CONTEXT, sizeof(cl_context), &used, nullptr),
          "clGetCommandQueueInfo");
    check(library.clGetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof(cl_device_id), &device, nullptr),
          "clGetCommandQueueInfo");
    check(library.clGetCommandQueueInfo(queue, CL_QUEUE_PROPERTIES, sizeof(properties), &properties, nullptr),
          "clGetCommandQueueInfo");
    out_of_order_ = (properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE) != 0;
    space = std::make_shared<AddressSpace>(library, used);
}

void OpenClDevice::make_queue(int32_t number) {
    cl_uint num_platforms = 0;
    const cl_int result = library.clGetPlatformIDs(0, nullptr, &num_platforms);
    if (opencl_status(result) == DISTILE_ERROR_NO_DRIVER || (result == CL_SUCCESS && num_platforms == 0)) {
        throw Failure{fail(&context, DISTILE_ERROR_NO_DRIVER,
                           "the OpenCL loader finds no driver; install one, which puts a file into "
                           "/etc/OpenCL/vendors")};
    }
    check(result, "clGetPlatformIDs");
    std::vector<cl_platform_id> platforms(num_platforms);
    check(library.clGetPlatformIDs(num_platforms, platforms.data(), nullptr), "clGetPlatformIDs");
    std::vector<cl_device_id> devices;
    for (cl_platform_id platform : platforms) {
        cl_uint count = 0;
        const cl_int found = library.clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, nullptr, &count);
        if (found == CL_DEVICE_NOT_FOUND || count == 0) {
            continue;
        }
        check(found, "clGetDeviceIDs");
        devices.resize(devices.size() + count);
        check(library.clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, count, devices.data() + devices.size() - count,
                                     nullptr),
              "clGetDeviceIDs");
    }
    // A driver for CPUs may come before that of a GPU.
    std::stable_partition(devices.begin(), devices.end(), [&](cl_device_id one) {
        cl_device_type type = 0;
        check(library.clGetDeviceInfo(one, CL_DEVICE_TYPE, sizeof(type), &type, nullptr), "clGetDeviceInfo");
        return (type & CL_DEVICE_TYPE_GPU) != 0;
    });
    if (number < 0 || static_cast<size_t>(number) >= devices.size()) {
        throw Failure{fail(&context, DISTILE_ERROR_NO_GPU, "there is no OpenCL device %d; the drivers have %zu", number,
                           devices.size())};
    }
    device = devices[static_cast<size_t>(number)];
    cl_int made = CL_SUCCESS;
    cl_context used = library.clCreateContext(nullptr, 1, &device, nullptr, nullptr, &made);
    check(made, "clCreateContext");
    try {
        space = std::make_shared<AddressSpace>(library, used);
    } catch (...) {
        library.clReleaseContext(used);
        throw;
    }
    // The space keeps a reference of its own.
    library.clReleaseContext(used);
    queue = library.clCreateCommandQueue(used, device, 0, &made);
    check(made, "clCreateCommandQueue");
}

void OpenClDevice::share(const distile_context &other) {
    if (other.device->kind() != DISTILE_OPENCL) {
        throw Failure{fail(&context, DISTILE_ERROR_OTHER_DEVICE, "the shared context is not for an OpenCL device")};
    }
    const auto &theirs = static_cast<const OpenClDevice &>(*other.device);
    if (theirs.space->context != space->context || theirs.device != device) {
        throw Failure{
            fail(&context, DISTILE_ERROR_OTHER_DEVICE,
                 "the shared context has another cl_context or device; give both contexts queues of the same")};
    }
    space = theirs.space;
}

std::string OpenClDevice::text_of(cl_device_info which) const {
    size_t bytes = 0;
    check(library.clGetDeviceInfo(device, which, 0, nullptr, &bytes), "clGetDeviceInfo");
    std::string text(bytes, '\0');
    check(library.clGetDeviceInfo(device, which, bytes, text.data(), nullptr), "clGetDeviceInfo");
    text.resize(std::strlen(text.c_str()));
    return text;
}

template<typename Value> Value OpenClDevice::value_of(cl_device_info which) const {
    Value value{};
    check(library.clGetDeviceInfo(device, which, sizeof(value), &value, nullptr), "clGetDeviceInfo");
    return value;
}

void OpenClDevice::find_features(const char *cache_folder) {
    const std::string version = text_of(CL_DEVICE_VERSION);
    version_ = version_of(version);
    if (version_ < oldest_version) {
        throw Failure{fail(&context, DISTILE_ERROR_OLD_DRIVER,
                           "the device has '%s', but this library needs OpenCL %d.%d", version.c_str(),
                           oldest_version / 10, oldest_version % 10)};
    }
    extensions_ = text_of(CL_DEVICE_EXTENSIONS);
    compute_units_ = static_cast<int32_t>(value_of<cl_uint>(CL_DEVICE_MAX_COMPUTE_UNITS));
    most_items_ = value_of<size_t>(CL_DEVICE_MAX_WORK_GROUP_SIZE);
    local_bytes_ = value_of<cl_ulong>(CL_DEVICE_LOCAL_MEM_SIZE);
    most_bytes_ = value_of<cl_ulong>(CL_DEVICE_MAX_MEM_ALLOC_SIZE);
    if (most_items_ < group_items) {
        throw Failure{fail(&context, DISTILE_ERROR_UNSUPPORTED_DEVICE,
                           "the device has work-groups of up to %zu items, but this library needs %zu", most_items_,
                           group_items)};
    }
    cache.emplace(cache_folder ? cache_folder : "",
                  "device " + text_of(CL_DEVICE_NAME) + ", " + version + ", driver " + text_of(CL_DRIVER_VERSION),
                  ".bin");
}

// ---- Errors and checks -----------------------------------------------------------------------

void OpenClDevice::check(cl_int result, const char *what) const {
    if (result != CL_SUCCESS) {
        throw Failure{fail(&context, opencl_status(result), "%s failed: %s (%d)", what, opencl_name(result), result)};
    }
}

Place OpenClDevice::place_of(const void *address, const char *name) const {
    const std::optional<Place> place = space->find(address);
    if (!place) {
        throw Failure{fail(&context, DISTILE_ERROR_NOT_DEVICE_MEMORY,
                           "the %s is not an address of distile_opencl_map in this context", name)};
    }
    return *place;
}

void OpenClDevice::check_range(const void *pointer, uint64_t bytes, size_t alignment, const char *name) const {
    const Place place = place_of(pointer, name);
    if (bytes > place.bytes - place.offset) {
        throw Failure{fail(
            &context, DISTILE_ERROR_NOT_DEVICE_MEMORY, "the %s needs %llu bytes, but its buffer ends after %llu", name,
            static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(place.bytes - place.offset))};
    }
    if (place.offset % alignment != 0) {
        throw Failure{
            fail(&context, DISTILE_ERROR_BAD_ALIGNMENT, "the %s is not aligned to %zu bytes", name, alignment)};
    }
}

bool OpenClDevice::is_inside(const distile_tensor &tensor, const Place &place) const {
    const distile_tensor whole = with_border_inside(tensor);
    const int64_t bytes = element_bytes(tensor.dtype);
    const int64_t before = static_cast<const char *>(tensor.data) - static_cast<const char *>(whole.data);
    const int64_t last = (whole.batch - 1) * whole.stride_n + (whole.height - 1) * whole.stride_h +
                         (whole.width - 1) * whole.stride_w + whole.channels;
    const int64_t first = static_cast<int64_t>(place.offset) - before;
    return first >= 0 && first + last * bytes <= static_cast<int64_t>(place.bytes) &&
           first / bytes + last <= largest_span;
}

void OpenClDevice::check_view(const distile_tensor &tensor, const char *name) const {
    const auto bytes = static_cast<uint64_t>(element_bytes(tensor.dtype));
    check_range(tensor.data, bytes, bytes, name);
    if (!is_inside(without_border(tensor), place_of(tensor.data, name))) {
        throw Failure{fail(&context, DISTILE_ERROR_NOT_DEVICE_MEMORY, "the %s reaches beyond its buffer", name)};
    }
}

distile_status OpenClDevice::check_memory(const char *call, const distile_tensor &tensor, const char *name) const {
    const std::optional<Place> place = space->find(tensor.data);
    if (!place) {
        return fail(&context, DISTILE_ERROR_NOT_DEVICE_MEMORY,
                    "%s: the %s is not an address of distile_opencl_map in this context", call, name);
    }
    const distile_status status = check_alignment(context, call, tensor, name);
    if (status == DISTILE_OK && !is_inside(tensor, *place)) {
        return fail(&context, DISTILE_ERROR_NOT_DEVICE_MEMORY,
                    "%s: the %s reaches beyond its buffer, or beyond the first 2^31 elements of it", call, name);
    }
    return status;
}

std::string OpenClDevice::missing_features(const distile_polykernel &polykernel) const {
    const std::string version = "opencl_";
    std::istringstream words(polykernel.features);
    for (std::string word; words >> word;) {
        const bool is_version = word.compare(0, version.size(), version) == 0;
        const bool has =
            is_version ? version_of("OpenCL " + word.substr(version.size())) <= version_ : has_word(extensions_, word);
        if (!has) {
            return "'" + word + "'";
        }
    }
    return "";
}

// ---- Memory and objects ----------------------------------------------------------------------

std::unique_ptr<OwnedBuffer> OpenClDevice::make_buffer(uint64_t bytes, const void *content) const {
    if (bytes > most_bytes_) {
        throw Failure{fail(&context, DISTILE_ERROR_OUT_OF_DEVICE_MEMORY,
                           "a buffer of %llu bytes exceeds the device's limit of %llu",
                           static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(most_bytes_))};
    }
    cl_int result = CL_SUCCESS;
    const cl_mem_flags flags = CL_MEM_READ_WRITE | (content ? CL_MEM_COPY_HOST_PTR : 0);
    cl_mem buffer = library.clCreateBuffer(space->context, flags, std::max<uint64_t>(bytes, 1),
                                           const_cast<void *>(content), &result);
    check(result, "clCreateBuffer");
    return std::make_unique<OwnedBuffer>(space, space->map(buffer, std::max<uint64_t>(bytes, 1)));
}

std::unique_ptr<distile_mask> OpenClDevice::make_mask() {
    return std::make_unique<OpenClMask>(*this);
}

std::unique_ptr<distile_planner> OpenClDevice::make_planner(const PlannerSettings &settings) {
    return std::make_unique<OpenClPlanner>(*this, settings);
}

std::shared_ptr<const void> OpenClDevice::upload(const void *from, size_t bytes) {
    const std::shared_ptr<const OwnedBuffer> buffer = make_buffer(bytes, from);
    return {buffer, buffer->address()};
}

ScratchMemory OpenClDevice::take_scratch(size_t bytes) {
    scratch_->reserve(bytes);
    // The memory stays here for the next call: all work is in the order of the calls.
    return {scratch_->as<void>(), [](void *) {}};
}

// ---- Work ------------------------------------------------------------------------------------

void OpenClDevice::order() const {
    if (out_of_order_) {
        check(library.clEnqueueBarrierWithWaitList(queue, 0, nullptr, nullptr), "clEnqueueBarrierWithWaitList");
    }
}

void OpenClDevice::fill(const void *address, uint32_t word, uint64_t bytes) const {
    const Place place = place_of(address, "memory");
    // Patterns must divide what they fill.
    const size_t pattern = bytes % sizeof(word) == 0 && place.offset % sizeof(word) == 0 ? sizeof(word) : 1;
    order();
    check(library.clEnqueueFillBuffer(queue, place.buffer, &word, pattern, place.offset, bytes, 0, nullptr, nullptr),
          "clEnqueueFillBuffer");
    order();
}

void OpenClDevice::copy(const void *from, void *to, uint64_t bytes) const {
    const Place source = place_of(from, "memory"), target = place_of(to, "memory");
    order();
    check(library.clEnqueueCopyBuffer(queue, source.buffer, target.buffer, source.offset, target.offset, bytes, 0,
                                      nullptr, nullptr),
          "clEnqueueCopyBuffer");
    order();
}

void OpenClDevice::read(const void *from, void *to, uint64_t bytes) const {
    const Place place = place_of(from, "memory");
    order();
    check(library.clEnqueueReadBuffer(queue, place.buffer, CL_TRUE, place.offset, bytes, to, 0, nullptr, nullptr),
          "clEnqueueReadBuffer");
}

void OpenClDevice::set_buffer(cl_kernel kernel, cl_uint index, cl_mem buffer) const {
    check(library.clSetKernelArg(kernel, index, sizeof(cl_mem), &buffer), "clSetKernelArg");
}

void OpenClDevice::set_argument(cl_kernel kernel, cl_uint &index, const void *address) const {
    const Place place = address ? place_of(address, "memory") : Place{nullptr, 0, 0};
    set_buffer(kernel, index++, place.buffer);
    const cl_ulong offset = place.offset;
    check(library.clSetKernelArg(kernel, index++, sizeof(offset), &offset), "clSetKernelArg");
}

void OpenClDevice::set_argument(cl_kernel kernel, cl_uint &index, const LocalBytes &local) const {
    check(library.clSetKernelArg(kernel, index++, local.bytes, nullptr), "clSetKernelArg");
}

void OpenClDevice::enqueue(cl_kernel kernel, const ItemGrid &grid) const {
    order();
    check(library.clEnqueueNDRangeKernel(queue, kernel, 3, nullptr, grid.items.data(), grid.group.data(), 0, nullptr,
                                         nullptr),
          "clEnqueueNDRangeKernel");
    order();
}

PixelUnit OpenClDevice::unit_of(const distile_tensor &tensor, const distile_tensor *other) {
    constexpr int64_t vector_bytes = 16;
    const int64_t element = element_bytes(tensor.dtype);
    const bool in_vectors = is_in_units(tensor, vector_bytes) && (!other || is_in_units(*other, vector_bytes));
    const int64_t bytes = in_vectors ? vector_bytes : element;
    return {bytes, bytes / element};
}

void OpenClDevice::update_pixels(const distile_tensor &output, const distile_tensor *from,
                                 const PixelChange &update) const {
    const auto [unit, lanes] = unit_of(output, from);
    const auto units = static_cast<uint32_t>(output.channels / lanes);
    const char *name = unit == 16  ? "distile_update_pixels_16"
                       : unit == 4 ? "distile_update_pixels_4"
                       : unit == 2 ? "distile_update_pixels_2"
                                   : "distile_update_pixels_1";
    const distile_tensor &source = from ? *from : output;
    // A row of the grid is an image's row.
    launch(name,
           items_for(uint64_t{units} * static_cast<uint32_t>(output.width),
                     static_cast<uint64_t>(output.batch) * output.height),
           update.words, update.words_per_row, output.data, cl_long{output.stride_n / lanes},
           cl_long{output.stride_h / lanes}, cl_long{output.stride_w / lanes}, from ? from->data : nullptr,
           cl_long{source.stride_n / lanes}, cl_long{source.stride_h / lanes}, cl_long{source.stride_w / lanes},
           output.height, output.width, units, update.scale_h, update.scale_w, update.invert ? 1 : 0,
           update.zero ? 1 : 0);
}

void OpenClDevice::update_pixels(distile_mask *mask, const distile_tensor &output, const distile_tensor *from,
                                 bool zero) {
    const MaskBits bits = mask ? mask->bits() : MaskBits{};
    // Without a source and a mask, all pixels become zero.
    update_pixels(output, from, {bits.words, bits.words_per_row, !mask && !from, zero});
}

void OpenClDevice::upsample_nearest(const distile_tensor &input, const distile_tensor &output, distile_mask &mask,
                                    int32_t scale_h, int32_t scale_w, bool zero) {
    check_view(input, "input");
    check_view(output, "output");
    const MaskBits bits = mask.bits();
    update_pixels(output, &input, {bits.words, bits.words_per_row, false, zero, scale_h, scale_w});
}

void OpenClDevice::convert_layout(const distile_nchw &planes, const distile_tensor &tensor, bool to_planes) {
    const int64_t bytes = element_bytes(tensor.dtype);
    const int64_t last = (tensor.batch - 1) * planes.stride_n + (tensor.channels - 1) * planes.stride_c +
                         (tensor.height - 1) * planes.stride_h + tensor.width;
    check_range(planes.data, static_cast<uint64_t>(last * bytes), static_cast<size_t>(bytes), "NCHW tensor");
    check_view(tensor, "tensor");
    launch(bytes == 4   ? "distile_convert_layout_4"
           : bytes == 2 ? "distile_convert_layout_2"
                        : "distile_convert_layout_1",
           items_for(static_cast<uint64_t>(tensor.width) * static_cast<uint32_t>(tensor.channels),
                     static_cast<uint64_t>(tensor.batch) * tensor.height),
           planes.data, cl_long{planes.stride_n}, cl_long{planes.stride_c}, cl_long{planes.stride_h}, tensor.data,
           cl_long{tensor.stride_n}, cl_long{tensor.stride_h}, cl_long{tensor.stride_w}, tensor.height, tensor.width,
           tensor.channels, to_planes ? 1 : 0);
}

std::unique_ptr<LoadedCode> OpenClDevice::load(const distile_kernel &kernel) {
    auto code = std::make_unique<OpenClCode>(*this);
    rehearse(kernel,
             [&](const distile_variant &variant, distile_kernel_call &call) { return code->run(variant, call, true); });
    return code;
}

RunResult OpenClDevice::run(LoadedCode *code, const VariantCalls &calls, const Zeros *zeros) {
    // With store_tiles, tiles must be stored last.
    if (zeros) {
        update_pixels(&zeros->mask, zeros->output, nullptr, true);
    }
    RunResult result{};
    for (int32_t i = 0; i < calls.num_calls && result.code == 0; i++) {
        const distile_variant &variant = calls.polykernel.variants[calls.variants[i]];
        result = static_cast<OpenClCode &>(*code).run(variant, calls.calls[i], false);
        result.failed = i;
    }
    return result;
}

}  // namespace distile
