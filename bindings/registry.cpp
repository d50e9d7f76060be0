#include "bindings/registry.h"
#include "bindings/errors.h"
#include "bindings/linked_polykernels.h"
#include "facts/kinds.h"
#include "facts/type_functions.h"
#include "facts/zeros.h"
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <distile/distile.hpp>
#include <distile/general.h>
#include <dlfcn.h>
#include <elf.h>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <sys/utsname.h>
#include <unordered_map>

namespace distile::bindings {

namespace {

struct Hash {
    size_t operator()(const OperatorKey &key) const {
        uint64_t hash = 14695981039346656037U;
        for (const int32_t number : key.numbers) {
            hash = (hash ^ static_cast<uint32_t>(number)) * 1099511628211U;
        }
        return hash;
    }
};

std::optional<OperatorKey> key_of(const distile_polykernel &polykernel) {
    OperatorTypes types(polykernel.operands[0].dtype, polykernel.operands[polykernel.num_operands - 1].dtype);
    for (int32_t i = 0; i < polykernel.num_operands; i++) {
        const distile_operand &operand = polykernel.operands[i];
        if (operand.role == DISTILE_ROLE_WEIGHTS && !is_quantized(operand.dtype)) {
            types.weights = operand.dtype;
        }
    }
    return OperatorKey::of(polykernel.device, types, polykernel.kind, polykernel.op);
}

/** Whether something is true of a PolyKernel or one behind it. */
template<typename Predicate> bool any_of_chain(const distile_polykernel &polykernel, const Predicate &is_true) {
    for (const distile_polykernel *one = &polykernel; one; one = one->fallback) {
        if (is_true(*one)) {
            return true;
        }
    }
    return false;
}

/** Whether a PolyKernel, or one behind it, reads weights in a layout. */
bool reads(const distile_polykernel &polykernel, const char *layout) {
    return any_of_chain(polykernel, [layout](const distile_polykernel &one) {
        return std::any_of(one.variants, one.variants + one.num_variants, [layout](const distile_variant &variant) {
            return variant.layout && std::strcmp(variant.layout, layout) == 0;
        });
    });
}

class Registry {
public:
    Registry() {
        for (const distile_polykernel *polykernel : linked_polykernels) {
            add(*polykernel);
        }
    }

    void add(const distile_polykernel &polykernel) {
        if (const auto key = key_of(polykernel)) {
            const std::unique_lock lock(mutex_);
            Known &known = polykernels_[*key];
            const Serves calls = serves(polykernel);
            if (calls == Serves::few_tokens) {
                known.for_few_tokens = &polykernel;
            } else if (calls == Serves::two_of_four) {
                known.for_two_of_four = &polykernel;
            } else if (!known.any || !skips_zeros(*known.any) || skips_zeros(polykernel)) {
                // One that skips zeros has code for all weights, too.
                known.any = &polykernel;
            }
        }
    }

    const distile_polykernel *find(const OperatorKey &key, std::optional<int64_t> tokens,
                                   const KeepsTwoOfFour &keeps_two_of_four) {
        const Known known = find_known(key);
        if (known.for_few_tokens && are_few(tokens)) {
            return known.for_few_tokens;
        }
        if (known.for_two_of_four && keeps_two_of_four && keeps_two_of_four()) {
            return known.for_two_of_four;
        }
        return tokens || known.any ? known.any : known.for_few_tokens;
    }

    /** Null if there is no general code. */
    const distile_polykernel *find_general(const OperatorKey &key) {
        {
            const std::shared_lock lock(mutex_);
            const auto found = general_.find(key);
            if (found != general_.end()) {
                return found->second;
            }
        }
        const distile_polykernel *const made = make_general(key);
        const std::unique_lock lock(mutex_);
        const auto [place, is_new] = general_.emplace(key, made);
        if (!is_new) {
            distile_general_polykernel_destroy(made);
        }
        return place->second;
    }

private:
    static const distile_polykernel *make_general(const OperatorKey &key) {
        const std::array<int32_t, 20> &numbers = key.numbers;
        if (numbers[0] != DISTILE_CPU || numbers[1] != numbers[2]) {
            return nullptr;
        }
        static const Context context = make_context();
        static std::mutex mutex;
        const std::lock_guard lock(mutex);
        const distile_polykernel *made = nullptr;
        const distile_status status = distile_general_polykernel_create(
            context.get(), static_cast<distile_operator_kind>(numbers[4]), &numbers[5],
            static_cast<distile_dtype>(numbers[1]), static_cast<distile_dtype>(numbers[3]), &made);
        return status == DISTILE_OK ? made : nullptr;
    }

    /** The PolyKernels of an operator; null where there is none. */
    struct Known {
        const distile_polykernel *any = nullptr, *for_few_tokens = nullptr, *for_two_of_four = nullptr;
    };

    Known find_known(const OperatorKey &key) {
        const std::shared_lock lock(mutex_);
        const auto found = polykernels_.find(key);
        return found == polykernels_.end() ? Known{} : found->second;
    }

    std::shared_mutex mutex_;
    std::unordered_map<OperatorKey, Known, Hash> polykernels_;
    std::unordered_map<OperatorKey, const distile_polykernel *, Hash> general_;
};

/** Never destroyed: threads that end later still use PolyKernels that it has made. */
Registry &registry() {
    static Registry &registry = *new Registry();
    return registry;
}

/** Whether a file ends before its headers say: to load it might end the process. */
bool is_cut_off(const std::string &path) {
    std::ifstream stream(path, std::ios::binary);
    Elf64_Ehdr header{};
    if (!stream.read(reinterpret_cast<char *>(&header), sizeof(header)) ||
        std::memcmp(static_cast<const void *>(header.e_ident), ELFMAG, SELFMAG) != 0) {
        return false;  // The loader says what is wrong.
    }
    stream.seekg(0, std::ios::end);
    // The table of sections is the last part of what linkers write.
    const uint64_t sections = uint64_t{header.e_shentsize} * header.e_shnum;
    return static_cast<uint64_t>(stream.tellg()) < header.e_shoff + sections;
}

}  // namespace

OperatorKey::OperatorKey(distile_device device, OperatorTypes types, int32_t kind, const void *parameters,
                         size_t bytes) {
    numbers[0] = device;
    numbers[1] = types.input;
    numbers[2] = types.output;
    numbers[3] = types.weights;
    numbers[4] = kind;
    std::memcpy(&numbers[5], parameters, bytes);
}

OperatorKey::OperatorKey(distile_device device, OperatorTypes types, distile_operator_kind kind,
                         const distile_conv2d &conv)
    : OperatorKey(device, types, kind, &conv, sizeof(conv)) {
}

OperatorKey::OperatorKey(distile_device device, OperatorTypes types, const distile_linear &linear)
    : OperatorKey(device, types, DISTILE_MASKED_LINEAR, &linear, sizeof(linear)) {
}

OperatorKey::OperatorKey(distile_device device, OperatorTypes types, const distile_attention &attention)
    : OperatorKey(device, types, DISTILE_MASKED_ATTENTION, &attention, sizeof(attention)) {
}

std::optional<OperatorKey> OperatorKey::of(distile_device device, OperatorTypes types, int32_t kind,
                                           const void *parameters) {
    switch (kind) {
#define DISTILE_ROW(number, NAME, name, struct_of_kind)                                                                \
    case number:                                                                                                       \
        static_assert(sizeof(struct_of_kind) % sizeof(int32_t) == 0 &&                                                 \
                      sizeof(struct_of_kind) / sizeof(int32_t) + 5 <= std::tuple_size_v<decltype(numbers)>);           \
        return OperatorKey(device, types, kind, parameters, sizeof(struct_of_kind));
        DISTILE_OPERATOR_KINDS(DISTILE_ROW)
#undef DISTILE_ROW
    default:
        return std::nullopt;
    }
}

OperatorKey OperatorKey::with_wide_weights() const {
    OperatorKey wide = *this;
    wide.numbers[3] = DISTILE_FLOAT32;
    return wide;
}

bool skips_zeros(const distile_polykernel &polykernel) {
    return any_of_chain(polykernel, [](const distile_polykernel &one) { return one.nonzeros > 0; });
}

Serves serves(const distile_polykernel &polykernel) {
    return reads(polykernel, "cuda-two-four") ? Serves::two_of_four
           : reads(polykernel, "cuda-bitmap") ? Serves::few_tokens
                                              : Serves::all_calls;
}

bool are_few(std::optional<int64_t> tokens) {
    return tokens && *tokens <= DISTILE_MOST_BITMAP_TOKENS;
}

const distile_polykernel *find_polykernel(const OperatorKey &key, std::optional<int64_t> tokens,
                                          const KeepsTwoOfFour &keeps_two_of_four) {
    const distile_polykernel *const found = registry().find(key, tokens, keeps_two_of_four);
    return found ? found : registry().find(key.with_wide_weights(), tokens, nullptr);
}

const distile_polykernel *general_polykernel(const OperatorKey &key) {
    const distile_polykernel *const found = registry().find_general(key);
    return found ? found : registry().find_general(key.with_wide_weights());
}

void add_polykernel(const distile_polykernel &polykernel) {
    registry().add(polykernel);
}

void load_polykernel(const std::string &path) {
    if (is_cut_off(path)) {
        fail("the PolyKernel in '" + path + "' cannot be loaded: the file is cut off");
    }
    void *handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    const void *symbol = handle ? dlsym(handle, "distile_built") : nullptr;
    if (!symbol) {
        const char *reason = dlerror();
        fail("the PolyKernel in '" + path + "' cannot be loaded: " + (reason ? reason : "it has no symbol"));
    }
    const auto &polykernel = *static_cast<const distile_polykernel *>(symbol);
    if (polykernel.version != DISTILE_POLYKERNEL_VERSION) {
        fail("the PolyKernel in '" + path + "' has version " + std::to_string(polykernel.version) +
             ", but this library knows version " + std::to_string(DISTILE_POLYKERNEL_VERSION) +
             ": it needs the compiler of the same version");
    }
    registry().add(polykernel);
}

std::string cache_folder() {
    const auto variable = [](const char *name) {
        const char *value = std::getenv(name);
        return std::filesystem::path(value ? value : "");
    };
    std::filesystem::path root = variable("DISTILE_CACHE");
    if (root.empty()) {
        const std::filesystem::path cache = variable("XDG_CACHE_HOME"), home = variable("HOME");
        if (cache.empty() && home.empty()) {
            return "";
        }
        root = (cache.empty() ? home / ".cache" : cache) / "distile";
    }
    utsname machine{};
    uname(&machine);
    return root / ("polykernels-" + std::to_string(DISTILE_POLYKERNEL_VERSION) + "-" + machine.machine);
}

void load_cached_polykernels() {
    using Clock = std::filesystem::file_time_type::clock;
    static std::mutex mutex;
    static std::set<std::string> loaded;
    static std::filesystem::file_time_type last_change;
    const std::string folder = cache_folder();
    const std::lock_guard lock(mutex);
    std::error_code error;
    const auto change = std::filesystem::last_write_time(folder, error);
    if (error || change == last_change) {
        return;
    }
    for (const auto &entry : std::filesystem::directory_iterator(folder, error)) {
        const std::string path = entry.path();
        if (entry.path().extension() == ".so" && loaded.count(path) == 0) {
            load_polykernel(path);
            loaded.insert(path);
        }
    }
    // What comes within the same tick of the clock does not change the time.
    const bool is_settled = Clock::now() - change > std::chrono::seconds(1);
    last_change = is_settled ? change : std::filesystem::file_time_type();
}

}  // namespace distile::bindings
