#include "tests/support/shared_arguments.h"
#include "facts/activations.h"
#include "tests/support/descriptors.h"
#include "tests/support/temporary_folder.h"
#include <climits>
#include <cmath>
#include <distile/layers.h>
#include <distile/layout.h>
#include <distile/mask_algebra.h>
#include <distile/planner.h>
#include <distile/polykernel.h>
#include <distile/tokens.h>
#include <distile/upsample.h>
#include <limits>

namespace distile {

namespace {

constexpr int32_t images = 2, rows = 6, columns = 7;
constexpr int32_t beyond = 65536; /**< One more than any extent may be. */
constexpr int64_t most64 = std::numeric_limits<int64_t>::max(), least64 = std::numeric_limits<int64_t>::min();

int run_nothing(void *, void *, const distile_run_args *) {
    return 0;
}

template<typename T> const T *misaligned(const T *pointer) {
    return reinterpret_cast<const T *>(reinterpret_cast<const char *>(pointer) + 1);
}

/** What the functions are called with. */
struct Fixture {
    /** An array of the device. */
    template<typename T> struct Array {
        Array(const Fixture &f, const std::vector<T> &values)
            : memory(f.device.copy(values.data(), values.size() * sizeof(T))) {
        }
        T *data() const {
            return static_cast<T *>(memory.get());
        }
        std::shared_ptr<void> memory;
    };
    /** A tensor with memory of its own. */
    struct Activation {
        Activation(const Fixture &f, int32_t scale, int32_t channels)
            : memory(f, std::vector<float>(size_t{images} * rows * columns * scale * scale * channels, 0.5f)),
              view(distile_tensor_make(memory.data(), images, rows * scale, columns * scale, channels)) {
        }
        Array<float> memory;
        distile_tensor view;
    };

    explicit Fixture(const TestedDevice &tested) : device(tested) {
        std::vector<uint8_t> few(size_t{images} * rows * columns, 0);
        few[5] = few[20] = 1;
        set(context, mask, Array<uint8_t>(*this, few));
        set(context, other_mask, Array<uint8_t>(*this, few));
        set(elsewhere, foreign_mask, bytes);
        check(context, distile_mask_set_bytes(small_mask.get(), bytes.data(), 1, 1, 1, 1, 1));
        source.filter = filter.data();
        source.order = DISTILE_OIHW;
        weights = pack_weights(context, kernel, source);
        const Kernel other = make_kernel(context, device.other);
        other_weights = pack_weights(context, other, source);
        run.input = &input.view;
        run.residual = &residual.view;
        run.output = &output.view;
        run.weights = weights.get();
        run.mask = mask.get();
    }

    static void set(const Context &of, const Mask &which, const Array<uint8_t> &to) {
        check(of, distile_mask_set_bytes(which.get(), to.data(), images, rows, columns, rows * columns, columns));
    }
    WrongArguments functions() const {
        return {[this] { return std::string(distile_context_message(context.get())); },
                [this] { distile_mask_set_bytes(mask.get(), bytes.data(), 1, 1, -77, 1, 1); }};
    }

    const TestedDevice &device;
    TemporaryFolder folder;
    Context context = device.make_context(), elsewhere = device.make_context();
    const distile_polykernel &polykernel = device.polykernel;
    Kernel kernel = make_kernel(context, polykernel);
    /** Two of few pixels, one to write to, one that was never set, one of another context, and one of another shape. */
    Mask mask = make_mask(context), other_mask = make_mask(context), result = make_mask(context),
         unset = make_mask(context), foreign_mask = make_mask(elsewhere), small_mask = make_mask(context);
    const Array<uint8_t> bytes = Array<uint8_t>(*this, std::vector<uint8_t>(size_t{images} * rows * columns, 1));
    std::vector<float> filter = std::vector<float>(size_t{9} * 48 * 48, 0.25f);
    distile_weights_source source{};
    Weights weights, other_weights;
    Activation input{*this, 1, 48}, residual{*this, 1, 16}, output{*this, 1, 16};
    distile_run_args run{};
    // On the host.
    float on_host = 0;
};

/** Everything that no tensor may be: refuse(status, the tensor with one member spoilt, or null) must be called for
 * each. For the shape and the channels these are values that no function allows; each function also has values that do
 * not fit its other arguments. */
template<typename Refuse> void spoil_tensor(Fixture &f, const distile_tensor &right, const Refuse &refuse) {
    const auto spoil = [&](distile_status status, const auto &change) {
        distile_tensor spoilt = right;
        change(spoilt);
        refuse(status, &spoilt);
    };
    refuse(DISTILE_ERROR_NULL_POINTER, nullptr);
    spoil(DISTILE_ERROR_NULL_POINTER, [](distile_tensor &view) { view.data = nullptr; });
    spoil(DISTILE_ERROR_BAD_ALIGNMENT, [](distile_tensor &view) { view.data = static_cast<char *>(view.data) + 1; });
    if (!f.device.host_memory) {
        spoil(DISTILE_ERROR_NOT_DEVICE_MEMORY, [&](distile_tensor &view) { view.data = &f.on_host; });
    }
    for (int32_t dtype : {0, -1, 4, INT_MIN, INT_MAX}) {
        spoil(DISTILE_ERROR_BAD_TYPE, [&](distile_tensor &view) { std::memcpy(&view.dtype, &dtype, sizeof(dtype)); });
    }
    for (int32_t bad : {0, -1, beyond, INT_MIN, INT_MAX}) {
        spoil(DISTILE_ERROR_BAD_SHAPE, [&](distile_tensor &view) { view.batch = bad; });
        spoil(DISTILE_ERROR_BAD_SHAPE, [&](distile_tensor &view) { view.height = bad; });
        spoil(DISTILE_ERROR_BAD_SHAPE, [&](distile_tensor &view) { view.width = bad; });
    }
    for (int32_t bad : {0, -1, INT_MIN}) {
        spoil(DISTILE_ERROR_BAD_CHANNELS, [&](distile_tensor &view) { view.channels = bad; });
    }
    for (int64_t bad : {int64_t{0}, int64_t{-1}, int64_t{1} << 31, least64, most64}) {
        spoil(DISTILE_ERROR_BAD_STRIDE, [&](distile_tensor &view) { view.stride_n = bad; });
        spoil(DISTILE_ERROR_BAD_STRIDE, [&](distile_tensor &view) { view.stride_h = bad; });
        spoil(DISTILE_ERROR_BAD_STRIDE, [&](distile_tensor &view) { view.stride_w = bad; });
    }
}

/** What needs no context. */
void check_plain_functions(WrongArguments &all) {
    distile_context *made = nullptr;
    const distile_context_options options{};
    auto create = all.of("distile_context_create", distile_context_create, &options, &made);
    create
        .then([&] {
            distile_context_destroy(made);
            made = nullptr;
        })
        .without_message()
        .wrong<0>(DISTILE_ERROR_BAD_VALUE, &distile_context_options::cpu_features, {"avx3", "avx2,fma"})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr});
    refuse_context_options(create);
    all.note("distile_context_destroy");
    distile_context_destroy(nullptr);
    all.note("distile_context_message");
    CHECK(distile_context_message(nullptr) != nullptr);
    all.note("distile_context_threads");
    CHECK(distile_context_threads(nullptr) == 0);
    all.note("distile_context_device");
    CHECK(static_cast<int>(distile_context_device(nullptr)) == 0);
    all.note("distile_version");
    CHECK(distile_version() == DISTILE_VERSION);
    all.note("distile_dtype_size");
    for (int32_t dtype : {-1, 0, 6, INT_MIN, INT_MAX}) {
        distile_dtype unknown{};
        std::memcpy(&unknown, &dtype, sizeof(dtype));
        CHECK(distile_dtype_size(unknown) == 0);
    }
    all.note("distile_status_name");
    for (int32_t status : {-1, 1000, INT_MAX, INT_MIN}) {
        distile_status unknown{};
        std::memcpy(&unknown, &status, sizeof(status));
        CHECK(std::string(distile_status_name(unknown)) == "unknown status");
    }
    // These only fill in a struct.
    all.note("distile_tensor_make");
    CHECK(distile_tensor_make(nullptr, -1, INT_MAX, INT_MAX, INT_MIN).data == nullptr);
    all.note("distile_tokens_make");
    CHECK(distile_tokens_make(nullptr, -1, INT_MAX, INT_MIN).height == 1);
    all.note("distile_nchw_make");
    CHECK(distile_nchw_make(nullptr, INT_MAX, INT_MIN, INT_MAX).data == nullptr);
}

void check_mask_sources(Fixture &f, WrongArguments &all) {
    distile_mask *made = nullptr;
    all.of("distile_mask_create", distile_mask_create, f.context.get(), &made)
        .then([&] {
            distile_mask_destroy(made);
            made = nullptr;
        })
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr});
    all.note("distile_mask_destroy");
    distile_mask_destroy(nullptr);

    distile_mask *const mask = f.result.get();
    const uint8_t byte_on_host = 1;
    auto set_bytes = all.of("distile_mask_set_bytes", distile_mask_set_bytes, mask, f.bytes.data(), images, rows,
                            columns, rows * columns, columns);
    set_bytes.wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<2>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
        .wrong<3>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
        .wrong<4>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
        .wrong<5>(DISTILE_ERROR_BAD_STRIDE, {-1, -42, 41, least64})
        .wrong<6>(DISTILE_ERROR_BAD_STRIDE, {0, -7, 6, 8, int64_t{1} << 62, least64, most64});

    const Fixture::Array<uint32_t> words(f, std::vector<uint32_t>(size_t{images} * rows, 0x55));
    const uint32_t word_on_host = 1;
    auto set_bits =
        all.of("distile_mask_set_bits", distile_mask_set_bits, mask, words.data(), images, rows, columns, 1);
    set_bits.wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<2>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
        .wrong<3>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
        .wrong<4>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
        .wrong<5>(DISTILE_ERROR_BAD_STRIDE, {0, -1, least64, most64})
        .wrong<1>(DISTILE_ERROR_BAD_ALIGNMENT, {misaligned(words.data())});

    const std::vector<int32_t> right = {0, 41, 7, 7, 12, 3}, outside = {0, 42, 7, 7, 12, 3},
                               negative = {0, 41, 7, 7, -1, 3}, right_counts = {3, 2}, many = {3, 4}, few = {-1, 2};
    const Fixture::Array<int32_t> indices(f, right), counts(f, right_counts);
    auto set_indices = all.of("distile_mask_set_indices", distile_mask_set_indices, mask, indices.data(), counts.data(),
                              images, rows, columns, 3);
    set_indices.wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .any<2>({nullptr})
        .wrong<3>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
        .wrong<4>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
        .wrong<5>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
        .wrong<6>(DISTILE_ERROR_BAD_STRIDE, {-1, least64, most64})
        .wrong<1>(DISTILE_ERROR_BAD_ALIGNMENT, {misaligned(indices.data())})
        .wrong<2>(DISTILE_ERROR_BAD_ALIGNMENT, {misaligned(counts.data())});
    if (f.device.host_memory) {
        set_indices.wrong<1>(DISTILE_ERROR_BAD_VALUE, {outside.data(), negative.data()})
            .wrong<2>(DISTILE_ERROR_BAD_VALUE, {many.data(), few.data()});
    } else {
        set_bytes.wrong<1>(DISTILE_ERROR_NOT_DEVICE_MEMORY, {&byte_on_host});
        set_bits.wrong<1>(DISTILE_ERROR_NOT_DEVICE_MEMORY, {&word_on_host});
        set_indices.wrong<1>(DISTILE_ERROR_NOT_DEVICE_MEMORY, {right.data()})
            .wrong<2>(DISTILE_ERROR_NOT_DEVICE_MEMORY, {right_counts.data()});
    }
}

void check_mask_contents(Fixture &f, WrongArguments &all) {
    distile_mask *const mask = f.mask.get(), *const unset = f.unset.get();
    const uint32_t *words = nullptr;
    int32_t words_per_row = 0;
    all.of("distile_mask_bits", distile_mask_bits, mask, &words, &words_per_row)
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<0>(DISTILE_ERROR_BAD_MASK, {unset})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr});
    const Fixture::Array<uint8_t> written(f, std::vector<uint8_t>(size_t{images} * rows * columns));
    uint8_t byte_on_host = 0;
    auto get_bytes =
        all.of("distile_mask_get_bytes", distile_mask_get_bytes, mask, written.data(), rows * columns, columns);
    get_bytes.wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<0>(DISTILE_ERROR_BAD_MASK, {unset})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<2>(DISTILE_ERROR_BAD_STRIDE, {0, -42, 41, least64})
        .wrong<3>(DISTILE_ERROR_BAD_STRIDE, {0, -7, 6, 8, int64_t{1} << 62, least64, most64});
    if (!f.device.host_memory) {
        get_bytes.wrong<1>(DISTILE_ERROR_NOT_DEVICE_MEMORY, {&byte_on_host});
    }
    all.of("distile_mask_mirror", distile_mask_mirror, f.result.get(), written.data(), rows * columns, columns)
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .any<1>({nullptr})
        .any<2>({0, least64})
        .any<3>({0, least64});
    distile_mask_mirror(f.result.get(), nullptr, 0, 0);
    int64_t number = 0;
    all.of("distile_mask_active_pixels", distile_mask_active_pixels, mask, &number)
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<0>(DISTILE_ERROR_BAD_MASK, {unset})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr});
    all.of("distile_mask_count_tiles", distile_mask_count_tiles, mask, 2, 3, &number)
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<0>(DISTILE_ERROR_BAD_MASK, {unset})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, {0, -1, beyond, INT_MIN, INT_MAX})
        .wrong<2>(DISTILE_ERROR_BAD_VALUE, {0, -1, beyond, INT_MIN, INT_MAX})
        .wrong<3>(DISTILE_ERROR_NULL_POINTER, {nullptr});
    distile_tile_list list{};
    all.of("distile_mask_tiles", distile_mask_tiles, mask, 2, 3, &list)
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<0>(DISTILE_ERROR_BAD_MASK, {unset})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, {0, -1, beyond, INT_MIN, INT_MAX})
        .wrong<2>(DISTILE_ERROR_BAD_VALUE, {0, -1, beyond, INT_MIN, INT_MAX})
        .wrong<3>(DISTILE_ERROR_NULL_POINTER, {nullptr});
}

void check_kernels(Fixture &f, WrongArguments &all) {
    distile_kernel *const kernel = f.kernel.get();
    distile_polykernel version = f.polykernel, lacking = f.polykernel, another = f.polykernel;
    version.version = 0;
    another.device = f.device.another;
    Descriptor groups(f.polykernel);
    groups.conv.groups = 5;
    distile_kernel *made = nullptr;
    auto create = all.of("distile_kernel_create", distile_kernel_create, f.context.get(), &f.polykernel, &made);
    create
        .then([&] {
            distile_kernel_destroy(made);
            made = nullptr;
        })
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_VERSION, {&version})
        .wrong<1>(DISTILE_ERROR_OTHER_DEVICE, {&another})
        .wrong<1>(DISTILE_ERROR_BAD_CHANNELS, {&groups.polykernel})
        .wrong_number<1>(DISTILE_ERROR_VERSION, &distile_polykernel::kind, {0, -1, 7, INT_MAX})
        .wrong_number<1>(DISTILE_ERROR_OTHER_DEVICE, &distile_polykernel::device, {0, -1, 4, INT_MAX})
        .wrong_number<1>(DISTILE_ERROR_VERSION, &distile_polykernel::math, {-1, 3, INT_MIN, INT_MAX})
        .wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr});
    for (const char *features : f.device.lacking) {
        lacking.features = features;
        create.wrong<1>(DISTILE_ERROR_UNSUPPORTED_DEVICE, {&lacking});
    }
    all.note("distile_kernel_destroy");
    distile_kernel_destroy(nullptr);

    distile_kernel_info info{};
    all.of("distile_kernel_get_info", distile_kernel_get_info, kernel, &info)
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr});
    distile_variant_info variant{};
    all.of("distile_kernel_get_variant", distile_kernel_get_variant, kernel, 0, &variant)
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, {-1, f.polykernel.num_variants, INT_MIN, INT_MAX})
        .wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr});
    int32_t height = 0, width = 0;
    all.of("distile_kernel_output_shape", distile_kernel_output_shape, kernel, rows, columns, &height, &width)
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
        .wrong<2>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
        .wrong<3>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<4>(DISTILE_ERROR_NULL_POINTER, {nullptr});
    all.note("distile_kernel_border");
    CHECK(distile_kernel_border(nullptr).top == 0);
    all.note("distile_kernel_num_variants");
    CHECK(distile_kernel_num_variants(nullptr) == 0);
    all.note("distile_kernel_variant_name");
    CHECK(distile_kernel_variant_name(nullptr, 0) == nullptr);
    for (int32_t index : {-1, f.polykernel.num_variants, INT_MIN, INT_MAX}) {
        CHECK(distile_kernel_variant_name(kernel, index) == nullptr);
    }
    distile_choice choice{};
    all.of("distile_kernel_choose", distile_kernel_choose, kernel, f.mask.get(), &choice)
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_BAD_MASK, {f.unset.get(), f.foreign_mask.get()})
        .wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr});
}

void check_times_and_candidates(Fixture &f, WrongArguments &all) {
    distile_kernel *const kernel = f.kernel.get();
    const std::string first = f.polykernel.variants[0].name;
    const std::string row = R"({"variant": ")" + first + R"(", "threads": 1, "tiles": 4, "us": 3})";
    const std::string good = f.folder.write("good", time_table(f.polykernel, row));
    distile_polykernel another_name = f.polykernel, another_plan = f.polykernel;
    another_name.name = "another";
    another_plan.plan_hash ^= 1;
    const std::string others = f.folder.write("others", time_table(another_name, row));
    const std::string stale = f.folder.write("stale", time_table(another_plan, row));
    const std::string none = f.folder.path() + "/none", broken = f.folder.write("broken", R"({"distile_times": 2)");
    const std::string newer = f.folder.write("newer", R"({"distile_times": 3})");
    all.of("distile_kernel_load_times", distile_kernel_load_times, kernel, good.c_str())
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_BAD_FILE, {none.c_str(), broken.c_str(), "", f.folder.path().c_str()})
        .wrong<1>(DISTILE_ERROR_VERSION, {newer.c_str()})
        .wrong<1>(DISTILE_ERROR_OTHER_OPERATOR, {others.c_str(), stale.c_str()});
    const double infinite = std::numeric_limits<double>::infinity(), nan = std::nan("");
    all.of("distile_kernel_add_time", distile_kernel_add_time, kernel, first.c_str(), 4, 3.0)
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, {"none", ""})
        .wrong<2>(DISTILE_ERROR_BAD_VALUE, {0, -1, least64})
        .wrong<3>(DISTILE_ERROR_BAD_VALUE, {0, -1, infinite, nan});

    const distile_dense_candidate candidate{"mine", run_nothing, nullptr};
    const Kernel another = make_kernel(f.context, f.polykernel);
    // Names are taken once, so that every call has its own.
    static int calls = 0;
    const auto add = [](distile_kernel *to, const distile_dense_candidate *given) {
        distile_dense_candidate fresh = given ? *given : distile_dense_candidate{};
        const std::string name = fresh.name ? fresh.name + std::to_string(calls++) : "";
        fresh.name = fresh.name && std::string(fresh.name) == "mine" ? name.c_str() : fresh.name;
        return distile_kernel_add_dense(to, given ? &fresh : nullptr);
    };
    all.of("distile_kernel_add_dense", +add, another.get(), &candidate)
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, &distile_dense_candidate::name, {nullptr})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &distile_dense_candidate::name, {first.c_str()})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, &distile_dense_candidate::run, {nullptr});
}

void check_weights(Fixture &f, WrongArguments &all) {
    const std::vector<float> vector(16, 0.5f), negative(16, -3.0f), nan(16, std::nanf(""));
    distile_weights_source source = f.source;
    source.bn_mean = source.bn_variance = vector.data();
    distile_weights *made = nullptr;
    all.of("distile_weights_pack", distile_weights_pack, f.kernel.get(), &source, &made)
        .then([&] {
            distile_weights_destroy(made);
            made = nullptr;
        })
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, &distile_weights_source::filter, {nullptr})
        .wrong_number<1>(DISTILE_ERROR_BAD_TYPE, &distile_weights_source::dtype, {-1, 4, INT_MIN, INT_MAX})
        .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &distile_weights_source::order, {0, -1, 5, INT_MAX})
        .reserved<1>(&distile_weights_source::reserved)
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &distile_weights_source::bn_mean, {nullptr})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &distile_weights_source::bn_variance, {nullptr, negative.data(), nan.data()})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &distile_weights_source::bn_epsilon, {-1.0f, std::nanf("")})
        .wrong<1>(DISTILE_ERROR_BAD_ALIGNMENT, &distile_weights_source::filter,
                  {misaligned(static_cast<const float *>(source.filter))})
        .wrong<1>(DISTILE_ERROR_BAD_ALIGNMENT, &distile_weights_source::bias, {misaligned(vector.data())})
        .wrong<1>(DISTILE_ERROR_BAD_ALIGNMENT, &distile_weights_source::bn_gamma, {misaligned(vector.data())})
        .wrong<1>(DISTILE_ERROR_BAD_ALIGNMENT, &distile_weights_source::bn_beta, {misaligned(vector.data())})
        .wrong<1>(DISTILE_ERROR_BAD_ALIGNMENT, &distile_weights_source::bn_mean, {misaligned(vector.data())})
        .wrong<1>(DISTILE_ERROR_BAD_ALIGNMENT, &distile_weights_source::bn_variance, {misaligned(vector.data())})
        .wrong<1>(DISTILE_ERROR_BAD_ALIGNMENT, &distile_weights_source::slope, {misaligned(vector.data())})
        .wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr});
    all.note("distile_weights_destroy");
    distile_weights_destroy(nullptr);
    all.note("distile_weights_bytes");
    CHECK(distile_weights_bytes(nullptr) == 0);
}

void check_run(Fixture &f, WrongArguments &all) {
    using Args = distile_run_args;
    using Tensor = const distile_tensor *;
    auto run = all.of("distile_run", distile_run, f.kernel.get(), &f.run);
    run.wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, &Args::weights, {nullptr})
        .wrong<1>(DISTILE_ERROR_BAD_WEIGHTS, &Args::weights, {f.other_weights.get()})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &Args::key, {&f.input.view})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &Args::value, {&f.input.view})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &Args::key_mask, {f.unset.get()})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, &Args::mask, {nullptr})
        .wrong<1>(DISTILE_ERROR_BAD_MASK, &Args::mask, {f.unset.get(), f.foreign_mask.get()})
        .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &Args::inactive, {-1, 2, INT_MAX})
        .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &Args::store, {-1, 2, INT_MAX})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &Args::variant, {"none", ""})
        .reserved<1>(&Args::reserved);
    all.of("distile_run_variant", distile_run_variant, f.kernel.get(), 0, &f.run)
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, {-1, f.polykernel.num_variants, INT_MIN, INT_MAX})
        .wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<2>(DISTILE_ERROR_BAD_VALUE, &Args::variant, {f.polykernel.variants[0].name, "none"})
        .wrong<2>(DISTILE_ERROR_NULL_POINTER, &Args::mask, {nullptr})
        .reserved<2>(&Args::reserved);
    // Every member of the three tensors, too.
    for (Tensor Args::*tensor : {&Args::input, &Args::residual, &Args::output}) {
        const distile_tensor &right = *(f.run.*tensor);
        spoil_tensor(f, right, [&](distile_status status, Tensor spoilt) { run.wrong<1>(status, tensor, {spoilt}); });
        for (int32_t bad : {15, beyond, INT_MAX}) {
            distile_tensor spoilt = right;
            spoilt.channels = bad;
            run.wrong<1>(DISTILE_ERROR_BAD_CHANNELS, tensor, {&spoilt});
        }
        if (!f.device.host_memory) {
            // A GPU reads whole vectors.
            distile_tensor spoilt = right;
            spoilt.data = static_cast<float *>(right.data) + 1;
            run.wrong<1>(DISTILE_ERROR_BAD_ALIGNMENT, tensor, {&spoilt});
        }
    }
    for (int32_t distile_tensor::*border : {&distile_tensor::border_top, &distile_tensor::border_bottom,
                                            &distile_tensor::border_left, &distile_tensor::border_right}) {
        for (int32_t bad : {-1, beyond, INT_MIN, INT_MAX}) {
            distile_tensor spoilt = f.input.view;
            spoilt.*border = bad;
            run.wrong<1>(DISTILE_ERROR_BAD_VALUE, &Args::input, {&spoilt});
        }
    }
    distile_tensor narrow = f.input.view;
    narrow.dtype = DISTILE_FLOAT16;
    run.wrong<1>(DISTILE_ERROR_BAD_TYPE, &Args::input, {&narrow});
    const distile_tensor over = distile_tensor_make(f.input.view.data, images, rows, columns, 16);
    run.wrong<1>(DISTILE_ERROR_ALIASING, &Args::output, {&over});
}

void check_layouts(Fixture &f, WrongArguments &all) {
    const Fixture::Activation memory(f, 1, 48);
    const distile_nchw planes = distile_nchw_make(memory.memory.data(), 48, rows, columns);
    const auto spoil = [&](auto &function, auto planes_at, auto tensor_at) {
        constexpr size_t p = decltype(planes_at)::value, t = decltype(tensor_at)::value;
        function.template wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .template wrong<p>(DISTILE_ERROR_NULL_POINTER, {nullptr})
            .template wrong<p>(DISTILE_ERROR_NULL_POINTER, &distile_nchw::data, {nullptr})
            .template wrong<p>(DISTILE_ERROR_ALIASING, &distile_nchw::data, {f.input.view.data})
            .template wrong<p>(DISTILE_ERROR_BAD_ALIGNMENT, &distile_nchw::data, {static_cast<char *>(planes.data) + 1})
            .template wrong_number<p>(DISTILE_ERROR_BAD_TYPE, &distile_nchw::dtype,
                                      {0, -1, DISTILE_FLOAT16, DISTILE_BFLOAT16, INT_MAX})
            .template wrong<p>(DISTILE_ERROR_BAD_STRIDE, &distile_nchw::stride_n, {int64_t{0}, int64_t{-1}, least64})
            .template wrong<p>(DISTILE_ERROR_BAD_STRIDE, &distile_nchw::stride_c,
                               {int64_t{0}, int64_t{-1}, most64, least64})
            .template wrong<p>(DISTILE_ERROR_BAD_STRIDE, &distile_nchw::stride_h,
                               {int64_t{0}, int64_t{-1}, most64, least64});
        if (!f.device.host_memory) {
            function.template wrong<p>(DISTILE_ERROR_NOT_DEVICE_MEMORY, &distile_nchw::data, {&f.on_host});
        }
        spoil_tensor(f, f.input.view, [&](distile_status status, const distile_tensor *spoilt) {
            function.template wrong<t>(status, {spoilt});
        });
    };
    using First = std::integral_constant<size_t, 1>;
    using Second = std::integral_constant<size_t, 2>;
    auto from = all.of("distile_from_nchw", distile_from_nchw, f.context.get(), &planes, &f.input.view);
    spoil(from, First(), Second());
    auto to = all.of("distile_to_nchw", distile_to_nchw, f.context.get(), &f.input.view, &planes);
    spoil(to, Second(), First());
}

/** Arguments 0 and 1 of a function: the mask that it sets, and the one that it reads. */
template<typename Function> void refuse_masks(Fixture &f, Function &function) {
    function.template wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .template wrong<0>(DISTILE_ERROR_BAD_MASK, {f.foreign_mask.get()})
        .template wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .template wrong<1>(DISTILE_ERROR_BAD_MASK, {f.unset.get(), f.foreign_mask.get()});
}

/** A function of a mask, a window and the size of the result. */
template<typename Called> void refuse_windows(Fixture &f, WrongArguments &all, const char *name, Called *called) {
    const distile_window window = distile_kernel_window(f.kernel.get());
    auto function = all.of(name, called, f.result.get(), f.mask.get(), &window, rows, columns);
    refuse_masks(f, function);
    function.template wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .template wrong<3>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX})
        .template wrong<4>(DISTILE_ERROR_BAD_SHAPE, {0, -1, beyond, INT_MIN, INT_MAX});
    for (int32_t distile_window::*extent :
         {&distile_window::kernel_h, &distile_window::kernel_w, &distile_window::stride_h, &distile_window::stride_w,
          &distile_window::dilation_h, &distile_window::dilation_w}) {
        function.template wrong<2>(DISTILE_ERROR_BAD_VALUE, extent, {0, -1, beyond, INT_MIN, INT_MAX});
    }
    function.template wrong_number<2>(DISTILE_ERROR_BAD_VALUE, &distile_window::kind, {-1, 3, INT_MIN, INT_MAX});
    for (int32_t distile_window::*pad : {&distile_window::pad_top, &distile_window::pad_left}) {
        function.template wrong<2>(DISTILE_ERROR_BAD_VALUE, pad, {-1, beyond, INT_MIN, INT_MAX});
    }
}

/** A function of a mask and two numbers. */
template<typename Called> void refuse_numbers(Fixture &f, WrongArguments &all, const char *name, Called *called,
                                              std::initializer_list<int32_t> bad) {
    auto function = all.of(name, called, f.result.get(), f.mask.get(), 1, 2);
    refuse_masks(f, function);
    function.template wrong<2>(DISTILE_ERROR_BAD_VALUE, bad).template wrong<3>(DISTILE_ERROR_BAD_VALUE, bad);
}

/** A function of two masks. */
template<typename Called> void refuse_pairs(Fixture &f, WrongArguments &all, const char *name, Called *called) {
    auto function = all.of(name, called, f.result.get(), f.mask.get(), f.other_mask.get());
    refuse_masks(f, function);
    function.template wrong<1>(DISTILE_ERROR_BAD_SHAPE, {f.small_mask.get()})
        .template wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .template wrong<2>(DISTILE_ERROR_BAD_MASK, {f.unset.get(), f.foreign_mask.get()})
        .template wrong<2>(DISTILE_ERROR_BAD_SHAPE, {f.small_mask.get()});
}

/** The function of a mask that sets it to the difference of two tensors. */
void refuse_differences(Fixture &f, WrongArguments &all) {
    auto difference = all.of("distile_mask_set_difference", distile_mask_set_difference, f.result.get(), &f.output.view,
                             &f.residual.view, 0.25f);
    const auto spoil = [&](auto place) {
        constexpr size_t t = decltype(place)::value;
        spoil_tensor(f, f.output.view, [&](distile_status status, const distile_tensor *spoilt) {
            difference.wrong<t>(status, {spoilt});
        });
        difference.wrong<t>(DISTILE_ERROR_BAD_SHAPE, &distile_tensor::channels, {15})
            .template wrong<t>(DISTILE_ERROR_BAD_SHAPE, &distile_tensor::batch, {1})
            .template wrong<t>(DISTILE_ERROR_BAD_SHAPE, &distile_tensor::height, {5})
            .template wrong<t>(DISTILE_ERROR_BAD_SHAPE, &distile_tensor::width, {6});
    };
    difference.wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<3>(DISTILE_ERROR_BAD_VALUE, {-1.0f, std::nanf(""), -std::numeric_limits<float>::infinity()});
    spoil(std::integral_constant<size_t, 1>());
    spoil(std::integral_constant<size_t, 2>());
}

void check_algebra(Fixture &f, WrongArguments &all) {
    all.note("distile_kernel_window");
    CHECK(distile_kernel_window(nullptr).kernel_h == 0);
    refuse_windows(f, all, "distile_mask_needed_input", distile_mask_needed_input);
    refuse_windows(f, all, "distile_mask_affected_output", distile_mask_affected_output);
    refuse_numbers(f, all, "distile_mask_dilate", distile_mask_dilate, {-1, 32768, INT_MIN, INT_MAX});
    refuse_numbers(f, all, "distile_mask_pool", distile_mask_pool, {0, -1, beyond, INT_MIN, INT_MAX});
    refuse_pairs(f, all, "distile_mask_unite", distile_mask_unite);
    refuse_pairs(f, all, "distile_mask_intersect", distile_mask_intersect);
    refuse_pairs(f, all, "distile_mask_subtract", distile_mask_subtract);
    auto invert = all.of("distile_mask_invert", distile_mask_invert, f.result.get(), f.mask.get());
    refuse_masks(f, invert);
    refuse_differences(f, all);
}

void check_planners(Fixture &f, WrongArguments &all) {
    const distile_planner_options options{};
    distile_planner *made = nullptr;
    all.of("distile_planner_create", distile_planner_create, f.context.get(), &options, &made)
        .then([&] {
            distile_planner_destroy(made);
            made = nullptr;
        })
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .any<1>({nullptr})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &distile_planner_options::buffers, {1, -1, 65, INT_MIN, INT_MAX})
        .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &distile_planner_options::clearing, {-1, 3, INT_MIN, INT_MAX})
        .reserved<1>(&distile_planner_options::reserved)
        .wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr});
    all.note("distile_planner_destroy");
    distile_planner_destroy(nullptr);
    all.note("distile_planner_bytes");
    CHECK(distile_planner_bytes(nullptr) == 0);

    const Planner planner = make_planner(f.context);
    const distile_output_spec spec = {images, rows, columns, 4, 1, 1, 1, 1, DISTILE_FLOAT32};
    distile_tensor tensor{};
    distile_store no_store{}, neither{};
    const int32_t below = -1, above = 2;
    std::memcpy(&no_store, &below, sizeof(below));
    std::memcpy(&neither, &above, sizeof(above));
    auto next = all.of("distile_planner_next", distile_planner_next, planner.get(), &spec, f.mask.get(),
                       DISTILE_STORE_EXACT, &tensor);
    next.wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_BAD_MASK, &distile_output_spec::batch, {0, 1, -1, beyond, INT_MIN, INT_MAX})
        .wrong<1>(DISTILE_ERROR_BAD_MASK, &distile_output_spec::height, {0, 1, -1, beyond, INT_MIN, INT_MAX})
        .wrong<1>(DISTILE_ERROR_BAD_MASK, &distile_output_spec::width, {0, 1, -1, beyond, INT_MIN, INT_MAX})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &distile_output_spec::channels, {0, -1, INT_MIN})
        .wrong<1>(DISTILE_ERROR_BAD_STRIDE, &distile_output_spec::channels, {INT_MAX})
        .wrong_number<1>(DISTILE_ERROR_BAD_TYPE, &distile_output_spec::dtype, {-1, 4, INT_MIN, INT_MAX})
        .wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<2>(DISTILE_ERROR_BAD_MASK, {f.unset.get(), f.foreign_mask.get()})
        .wrong<3>(DISTILE_ERROR_BAD_VALUE, {no_store, neither})
        .wrong<4>(DISTILE_ERROR_NULL_POINTER, {nullptr});
    for (int32_t distile_output_spec::*border :
         {&distile_output_spec::border_top, &distile_output_spec::border_bottom, &distile_output_spec::border_left,
          &distile_output_spec::border_right}) {
        next.wrong<1>(DISTILE_ERROR_BAD_VALUE, border, {-1, beyond, INT_MIN, INT_MAX});
    }
}

void check_upsampling(Fixture &f, WrongArguments &all) {
    using Args = distile_upsample_args;
    constexpr int32_t scale = 2;
    const Fixture::Activation large(f, scale, 16);
    const Fixture::Array<uint8_t> bytes(f, std::vector<uint8_t>(size_t{images} * rows * columns * scale * scale, 1));
    const Mask mask = make_mask(f.context);
    check(f.context, distile_mask_set_bytes(mask.get(), bytes.data(), images, rows * scale, columns * scale,
                                            rows * columns * scale * scale, columns * scale));
    Args args{};
    args.input = &f.residual.view;
    args.output = &large.view;
    args.mask = mask.get();
    args.scale_h = args.scale_w = scale;
    auto upsample = all.of("distile_upsample_nearest", distile_upsample_nearest, f.context.get(), &args);
    upsample.wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, &Args::mask, {nullptr})
        .wrong<1>(DISTILE_ERROR_BAD_MASK, &Args::mask, {f.unset.get(), f.foreign_mask.get()})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &Args::scale_h, {0, -1, INT_MIN})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &Args::scale_w, {0, -1, INT_MIN})
        .wrong<1>(DISTILE_ERROR_BAD_SHAPE, &Args::scale_h, {1, 3, INT_MAX})
        .wrong<1>(DISTILE_ERROR_BAD_SHAPE, &Args::scale_w, {1, 3, INT_MAX})
        .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &Args::inactive, {-1, 2, INT_MAX})
        .reserved<1>(&Args::reserved);
    for (const distile_tensor *Args::*tensor : {&Args::input, &Args::output}) {
        spoil_tensor(f, *(args.*tensor), [&](distile_status status, const distile_tensor *spoilt) {
            upsample.wrong<1>(status, tensor, {spoilt});
        });
    }
    distile_tensor over = large.view;
    over.data = f.residual.view.data;
    upsample.wrong<1>(DISTILE_ERROR_ALIASING, &Args::output, {&over});
}

void check_normalization(Fixture &f, WrongArguments &all) {
    using Args = distile_normalize_args;
    const Fixture::Array<float> gamma(f, std::vector<float>(16, 1)), beta(f, std::vector<float>(16, 0));
    Args args{};
    args.input = &f.residual.view;
    args.output = &f.output.view;
    args.mask = f.mask.get();
    args.gamma = gamma.data();
    args.beta = beta.data();
    args.epsilon = 1e-5f;
    auto normalize = all.of("distile_normalize", distile_normalize, f.context.get(), &args);
    normalize.wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, &Args::mask, {nullptr})
        .wrong<1>(DISTILE_ERROR_BAD_MASK, &Args::mask, {f.unset.get(), f.foreign_mask.get(), f.small_mask.get()})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &Args::epsilon, {-1e-9f, std::nanf(""), HUGE_VALF, -HUGE_VALF})
        .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &Args::norm, {-1, 2, INT_MIN, INT_MAX})
        .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &Args::inactive, {-1, 2, INT_MAX})
        .reserved<1>(&Args::reserved);
    for (const float *Args::*vector : {&Args::gamma, &Args::beta}) {
        const float *const output = static_cast<const float *>(f.output.view.data);
        normalize.wrong<1>(DISTILE_ERROR_BAD_ALIGNMENT, vector, {misaligned(gamma.data())})
            .wrong<1>(DISTILE_ERROR_ALIASING, vector, {output, output + 3});
        if (!f.device.host_memory) {
            normalize.wrong<1>(DISTILE_ERROR_NOT_DEVICE_MEMORY, vector, {&f.on_host});
        }
    }
    for (const distile_tensor *Args::*tensor : {&Args::input, &Args::output}) {
        const distile_tensor &right = *(args.*tensor);
        spoil_tensor(f, right, [&](distile_status status, const distile_tensor *spoilt) {
            normalize.wrong<1>(status, tensor, {spoilt});
        });
        distile_tensor spoilt = right;
        spoilt.channels = 15;
        normalize.wrong<1>(DISTILE_ERROR_BAD_CHANNELS, tensor, {&spoilt});
        spoilt = right;
        spoilt.height--;
        normalize.wrong<1>(DISTILE_ERROR_BAD_SHAPE, tensor, {&spoilt});
    }
    distile_tensor over = f.residual.view;
    over.data = static_cast<float *>(over.data) + 4;
    normalize.wrong<1>(DISTILE_ERROR_ALIASING, &Args::output, {&over});
}

/** Two arguments of a function that are a tensor and a packed one, and the mask between them. */
template<size_t tensor, size_t packed, typename Function>
void refuse_packing(Fixture &f, Function &function, const distile_tensor &given, const distile_tensor &to_pack) {
    function.template wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .template wrong<2>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .template wrong<2>(DISTILE_ERROR_BAD_MASK, {f.unset.get(), f.foreign_mask.get(), f.small_mask.get()});
    spoil_tensor(f, given, [&](distile_status status, const distile_tensor *spoilt) {
        function.template wrong<tensor>(status, {spoilt});
    });
    spoil_tensor(f, to_pack, [&](distile_status status, const distile_tensor *spoilt) {
        function.template wrong<packed>(status, {spoilt});
    });
    distile_tensor spoilt = to_pack;
    spoilt.channels = 15;
    function.template wrong<packed>(DISTILE_ERROR_BAD_CHANNELS, {&spoilt});
    spoilt = to_pack;
    spoilt.data = given.data;
    function.template wrong<packed>(DISTILE_ERROR_ALIASING, {&spoilt});
    if (f.device.host_memory) {
        // A packed tensor of one pixel for two active pixels.
        spoilt = to_pack;
        spoilt.batch = spoilt.height = spoilt.width = 1;
        function.template wrong<packed>(DISTILE_ERROR_BAD_SHAPE, {&spoilt});
    }
}

void check_packing(Fixture &f, WrongArguments &all) {
    const distile_tensor &tensor = f.output.view, &packed = f.residual.view;
    auto pack = all.of("distile_pack", distile_pack, f.context.get(), &tensor, f.mask.get(), &packed);
    refuse_packing<1, 3>(f, pack, tensor, packed);
    auto unpack =
        all.of("distile_unpack", distile_unpack, f.context.get(), &packed, f.mask.get(), &tensor, DISTILE_ZERO);
    refuse_packing<3, 1>(f, unpack, tensor, packed);
    distile_inactive below{}, above{};
    const int32_t numbers[] = {-1, 2};
    std::memcpy(&below, &numbers[0], sizeof(below));
    std::memcpy(&above, &numbers[1], sizeof(above));
    unpack.wrong<4>(DISTILE_ERROR_BAD_VALUE, {below, above});
    const int32_t *lengths = nullptr;
    all.of("distile_mask_cumulative_lengths", distile_mask_cumulative_lengths, f.mask.get(), &lengths)
        .wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .wrong<0>(DISTILE_ERROR_BAD_MASK, {f.unset.get()})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr});
}

/** What every function of layers.h refuses of its arguments' context, mask and pooling. */
template<typename Args, typename Function> void refuse_common(Fixture &f, Function &function) {
    function.template wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .template wrong<1>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .template wrong<1>(DISTILE_ERROR_BAD_MASK, &Args::mask,
                           {f.unset.get(), f.foreign_mask.get(), f.small_mask.get()})
        .template reserved<1>(&Args::reserved);
}

/** Tensors that no function of layers.h takes as its input or output, or that overlap. */
template<typename Args, typename Function>
void refuse_tensors(Fixture &f, Function &function, const Args &args, const distile_tensor &over) {
    for (const distile_tensor *Args::*tensor : {&Args::input, &Args::output}) {
        const distile_tensor &right = *(args.*tensor);
        spoil_tensor(f, right, [&](distile_status status, const distile_tensor *spoilt) {
            function.template wrong<1>(status, tensor, {spoilt});
        });
        distile_tensor spoilt = right;
        spoilt.channels = 15;
        function.template wrong<1>(DISTILE_ERROR_BAD_CHANNELS, tensor, {&spoilt});
        spoilt = right;
        spoilt.batch--;
        function.template wrong<1>(DISTILE_ERROR_BAD_SHAPE, tensor, {&spoilt});
    }
    function.template wrong<1>(DISTILE_ERROR_ALIASING, &Args::output, {&over});
}

void check_pooling(Fixture &f, WrongArguments &all) {
    using Args = distile_pool_args;
    Args args{};
    args.input = &f.residual.view;
    args.output = &f.output.view;
    args.mask = f.mask.get();
    args.window = {3, 3, 1, 1, 1, 1, 1, 1, DISTILE_WINDOW_CONV};
    auto pool = all.of("distile_pool", distile_pool, f.context.get(), &args);
    refuse_common<Args>(f, pool);
    refuse_tensors(f, pool, args, f.residual.view);
    std::vector<distile_window> windows;
    const auto spoil = [&](int32_t distile_window::*member, std::initializer_list<int32_t> values) {
        for (int32_t value : values) {
            windows.push_back(args.window);
            windows.back().*member = value;
        }
    };
    using Window = distile_window;
    for (int32_t Window::*member : {&Window::kernel_h, &Window::kernel_w, &Window::stride_h, &Window::stride_w,
                                    &Window::dilation_h, &Window::dilation_w}) {
        spoil(member, {0, -1, beyond, INT_MIN, INT_MAX});
    }
    spoil(&Window::pad_top, {-1, beyond, INT_MIN});
    spoil(&Window::pad_left, {-1, beyond, INT_MIN});
    for (int32_t number : {-1, 1, 2, 3, INT_MAX}) {
        windows.push_back(args.window);
        std::memcpy(&windows.back().kind, &number, sizeof(number));
    }
    for (const distile_window &window : windows) {
        pool.wrong<1>(DISTILE_ERROR_BAD_VALUE, &Args::window, {window});
    }
    windows.clear();
    // Windows without a pixel.
    spoil(&Window::stride_h, {2, beyond - 1});
    spoil(&Window::stride_w, {2, beyond - 1});
    spoil(&Window::pad_top, {3, beyond - 1});
    spoil(&Window::pad_left, {3, beyond - 1});
    for (const distile_window &window : windows) {
        pool.wrong<1>(DISTILE_ERROR_BAD_SHAPE, &Args::window, {window});
    }
    pool.wrong<1>(DISTILE_ERROR_NULL_POINTER, &Args::mask, {nullptr})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &Args::count_padding, {-1, 2})
        .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &Args::pooling, {-1, 2, INT_MAX})
        .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &Args::inactive, {-1, 2, INT_MAX});
}

void check_global_pooling(Fixture &f, WrongArguments &all) {
    using Args = distile_global_pool_args;
    distile_tensor pixels = f.output.view, over = f.residual.view;
    pixels.height = pixels.width = over.height = over.width = 1;
    Args args{};
    args.input = &f.residual.view;
    args.output = &pixels;
    args.mask = f.mask.get();
    auto pool = all.of("distile_global_pool", distile_global_pool, f.context.get(), &args);
    refuse_common<Args>(f, pool);
    refuse_tensors(f, pool, args, over);
    distile_tensor wide = pixels, high = pixels;
    wide.width = high.height = 2;
    pool.wrong<1>(DISTILE_ERROR_BAD_SHAPE, &Args::output, {&wide, &high})
        .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &Args::pooling, {-1, 2, INT_MAX});
}

void check_combination(Fixture &f, WrongArguments &all) {
    using Args = distile_combine_args;
    const Fixture::Activation other(f, 1, 16);
    Args args{};
    args.input = &f.residual.view;
    args.other = &other.view;
    args.output = &f.output.view;
    args.mask = f.mask.get();
    args.combination = DISTILE_MULTIPLY;
    auto combine = all.of("distile_combine", distile_combine, f.context.get(), &args);
    distile_tensor over = f.residual.view, shifted = f.output.view, row = other.view;
    over.data = static_cast<float *>(over.data) + 16;
    shifted.data = static_cast<float *>(shifted.data) + 16;
    row.height = 1;
    refuse_common<Args>(f, combine);
    refuse_tensors(f, combine, args, over);
    spoil_tensor(f, other.view, [&](distile_status status, const distile_tensor *spoilt) {
        combine.wrong<1>(status, &Args::other, {spoilt});
    });
    combine.wrong<1>(DISTILE_ERROR_ALIASING, &Args::other, {&shifted})
        .wrong<1>(DISTILE_ERROR_BAD_SHAPE, &Args::other, {&row})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, &Args::mask, {nullptr})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &Args::combination, {DISTILE_COPY})
        .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &Args::combination, {-1, 3, INT_MAX})
        .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &Args::activation, {-1, DISTILE_NUM_ACTIVATIONS, INT_MAX})
        .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &Args::other_activation, {-1, DISTILE_NUM_ACTIVATIONS, INT_MAX})
        .wrong<1>(DISTILE_ERROR_BAD_ALIGNMENT, &Args::slope, {misaligned(&f.on_host)})
        .wrong<1>(DISTILE_ERROR_BAD_ALIGNMENT, &Args::other_slope, {misaligned(&f.on_host)})
        .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &Args::inactive, {-1, 2, INT_MAX});
}

/** Vectors of floats that a function does not take, of which the first is right. */
template<typename Args, typename Function, typename Pointer>
void refuse_vector(Fixture &f, Function &function, Pointer *Args::*vector, Pointer *right, const distile_tensor &over) {
    auto *const overlapping = static_cast<Pointer *>(over.data);
    function.template wrong<1>(DISTILE_ERROR_BAD_ALIGNMENT, vector, {const_cast<Pointer *>(misaligned(right))})
        .template wrong<1>(DISTILE_ERROR_ALIASING, vector, {overlapping, overlapping + 3});
    if (!f.device.host_memory) {
        function.template wrong<1>(DISTILE_ERROR_NOT_DEVICE_MEMORY, vector, {&f.on_host});
    }
}

void check_group_statistics(Fixture &f, WrongArguments &all) {
    using Args = distile_group_statistics_args;
    const Fixture::Array<float> memory(f, std::vector<float>(size_t{2} * images * 4, 1));
    Args args{};
    args.input = &f.residual.view;
    args.mask = f.mask.get();
    args.groups = 4;
    args.mean = memory.data();
    args.variance = memory.data() + images * 4;
    auto find = all.of("distile_group_statistics", distile_group_statistics, f.context.get(), &args);
    refuse_common<Args>(f, find);
    spoil_tensor(f, f.residual.view, [&](distile_status status, const distile_tensor *spoilt) {
        find.wrong<1>(status, &Args::input, {spoilt});
    });
    find.wrong<1>(DISTILE_ERROR_BAD_VALUE, &Args::groups, {0, -1, 3, 17, INT_MIN, INT_MAX})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, &Args::mean, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, &Args::variance, {nullptr})
        .wrong<1>(DISTILE_ERROR_ALIASING, &Args::mean, {args.variance, args.variance + 1});
    refuse_vector(f, find, &Args::mean, args.mean, f.residual.view);
    refuse_vector(f, find, &Args::variance, args.variance, f.residual.view);
}

void check_group_norm(Fixture &f, WrongArguments &all) {
    using Args = distile_group_norm_args;
    const Fixture::Array<float> memory(f, std::vector<float>(16, 1));
    Args args{};
    args.input = &f.residual.view;
    args.output = &f.output.view;
    args.mask = f.mask.get();
    args.groups = 4;
    args.mean = args.variance = args.gamma = args.beta = memory.data();
    auto norm = all.of("distile_group_norm", distile_group_norm, f.context.get(), &args);
    distile_tensor over = f.residual.view;
    over.data = static_cast<float *>(over.data) + 4;
    refuse_common<Args>(f, norm);
    refuse_tensors(f, norm, args, over);
    norm.wrong<1>(DISTILE_ERROR_BAD_VALUE, &Args::groups, {0, -1, 3, 17, INT_MIN, INT_MAX})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, &Args::mask, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, &Args::mean, {nullptr})
        .wrong<1>(DISTILE_ERROR_NULL_POINTER, &Args::variance, {nullptr})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &Args::shared_statistics, {-1, 2})
        .wrong<1>(DISTILE_ERROR_BAD_VALUE, &Args::epsilon, {-1e-9f, std::nanf(""), HUGE_VALF, -HUGE_VALF})
        .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &Args::activation, {-1, DISTILE_NUM_ACTIVATIONS, INT_MAX})
        .wrong<1>(DISTILE_ERROR_BAD_ALIGNMENT, &Args::slope, {misaligned(&f.on_host)})
        .wrong_number<1>(DISTILE_ERROR_BAD_VALUE, &Args::inactive, {-1, 2, INT_MAX});
    for (const float *Args::*vector : {&Args::mean, &Args::variance, &Args::gamma, &Args::beta}) {
        refuse_vector(f, norm, vector, args.mean, f.output.view);
    }
}

void check_scores(Fixture &f, WrongArguments &all) {
    const Fixture::Array<float> weights(f, std::vector<float>(16, 1));
    const float *const right = weights.data();
    const distile_tensor *const tensor = &f.residual.view;
    auto set = all.of("distile_mask_set_scores", distile_mask_set_scores, f.result.get(), tensor, right, 0.5f, 0.25f);
    spoil_tensor(f, *tensor,
                 [&](distile_status status, const distile_tensor *spoilt) { set.wrong<1>(status, {spoilt}); });
    set.wrong<0>(DISTILE_ERROR_NULL_POINTER, {nullptr})
        .any<2>({nullptr})
        .wrong<2>(DISTILE_ERROR_BAD_ALIGNMENT, {misaligned(right)})
        .wrong<3>(DISTILE_ERROR_BAD_VALUE, {std::nanf("")})
        .wrong<4>(DISTILE_ERROR_BAD_VALUE, {std::nanf("")});
    if (!f.device.host_memory) {
        set.wrong<2>(DISTILE_ERROR_NOT_DEVICE_MEMORY, {&f.on_host});
    }
}

}  // namespace

void refuse_wrong_arguments(const TestedDevice &device, const std::string &include_folder) {
    Fixture f(device);
    WrongArguments all = f.functions();
    check_plain_functions(all);
    check_mask_sources(f, all);
    check_mask_contents(f, all);
    check_kernels(f, all);
    check_times_and_candidates(f, all);
    check_weights(f, all);
    check_run(f, all);
    check_layouts(f, all);
    check_algebra(f, all);
    check_planners(f, all);
    check_upsampling(f, all);
    check_normalization(f, all);
    check_packing(f, all);
    check_pooling(f, all);
    check_global_pooling(f, all);
    check_combination(f, all);
    check_group_statistics(f, all);
    check_group_norm(f, all);
    check_scores(f, all);
    const auto headers = {"distile.h", "layers.h", "layout.h", "mask_algebra.h", "planner.h", "tokens.h", "upsample.h"};
    CHECK(all.tested() == declared_functions(include_folder, headers));
    CHECK(all.undocumented(include_folder, headers) == "");
}

}  // namespace distile
