#include "operator.h"
#include "autoscheduler/compile/process.h"
#include "facts/activation_names.h"
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <unistd.h>

namespace distile::networks {

namespace {

const char *generator_of(const Operator &op) {
    switch (op.kind) {
    case DISTILE_MASKED_LINEAR:
        return "masked_linear";
    case DISTILE_MASKED_ATTENTION:
        return "masked_attention";
    default:
        return "masked_conv2d";
    }
}

nlohmann::ordered_json parameters_of(const Operator &op) {
    const distile_conv2d &conv = op.conv;
    if (op.kind == DISTILE_MASKED_ATTENTION) {
        return {{"dtype", "float32"}, {"heads", op.attention.heads}, {"head_dim", op.attention.head_dim}};
    }
    nlohmann::ordered_json json = {{"dtype", "float32"},
                                   {"epilogue", activation_names[conv.epilogue]},
                                   {"residual", conv.residual != 0},
                                   {"in_channels", conv.in_channels},
                                   {"out_channels", conv.out_channels}};
    if (op.kind == DISTILE_MASKED_LINEAR) {
        return json;
    }
    json["kernel_h"] = conv.kernel_h;
    json["kernel_w"] = conv.kernel_w;
    json["stride_h"] = conv.stride_h;
    json["stride_w"] = conv.stride_w;
    json["pad_top"] = conv.pad_top;
    json["pad_bottom"] = conv.pad_bottom;
    json["pad_left"] = conv.pad_left;
    json["pad_right"] = conv.pad_right;
    return json;
}

}  // namespace

Operator Operator::then(distile_activation epilogue) const {
    Operator result = *this;
    result.conv.epilogue = epilogue;
    return result;
}

Operator Operator::with_residual() const {
    Operator result = *this;
    result.conv.residual = 1;
    return result;
}

bindings::OperatorKey Operator::key() const {
    switch (kind) {
    case DISTILE_MASKED_LINEAR:
        return {DISTILE_CPU, DISTILE_FLOAT32,
                distile_linear{conv.in_channels, conv.out_channels, conv.epilogue, conv.residual}};
    case DISTILE_MASKED_ATTENTION:
        return {DISTILE_CPU, DISTILE_FLOAT32, attention};
    default:
        return {DISTILE_CPU, DISTILE_FLOAT32, kind, conv};
    }
}

const distile_polykernel *Operator::polykernel() const {
    return bindings::find_polykernel(key());
}

std::string Operator::name() const {
    std::string name = generator_of(*this);
    const nlohmann::ordered_json parameters = parameters_of(*this);
    for (const auto &value : parameters) {
        name += "_" + (value.is_string() ? value.get<std::string>() : std::to_string(value.get<int>()));
    }
    return name;
}

std::string Operator::type() const {
    switch (kind) {
    case DISTILE_MASKED_LINEAR:
        return "linear";
    case DISTILE_MASKED_ATTENTION:
        return "attention";
    default:
        return "convolution " + std::to_string(conv.kernel_h) + "x" + std::to_string(conv.kernel_w);
    }
}

std::string Operator::file(const distile_tensor &typical) const {
    nlohmann::ordered_json json = {{"distile_operator", 1},
                                   {"name", name()},
                                   {"generator", generator_of(*this)},
                                   {"params", parameters_of(*this)}};
    json["typical"]["batch"] = typical.batch;
    if (kind == DISTILE_MASKED_LINEAR || kind == DISTILE_MASKED_ATTENTION) {
        json["typical"]["tokens"] = typical.width;
    } else {
        json["typical"]["height"] = typical.height;
        json["typical"]["width"] = typical.width;
    }
    return json.dump(1) + "\n";
}

Operator conv2d(int32_t in, int32_t out, int32_t kernel, int32_t stride) {
    Operator op;
    op.conv.in_channels = in;
    op.conv.out_channels = out;
    op.conv.groups = op.conv.dilation_h = op.conv.dilation_w = 1;
    op.conv.kernel_h = op.conv.kernel_w = kernel;
    op.conv.stride_h = op.conv.stride_w = stride;
    op.conv.pad_top = op.conv.pad_bottom = op.conv.pad_left = op.conv.pad_right = kernel / 2;
    return op;
}

Operator linear(int32_t in, int32_t out) {
    Operator op = conv2d(in, out, 1);
    op.kind = DISTILE_MASKED_LINEAR;
    return op;
}

Operator attention(int32_t heads, int32_t head_dim) {
    Operator op;
    op.kind = DISTILE_MASKED_ATTENTION;
    op.attention = {heads, head_dim, 0};
    return op;
}

void build_polykernels(const std::vector<std::pair<Operator, distile_tensor>> &sized,
                       const std::function<void(size_t)> &progress) {
    namespace fs = std::filesystem;
    const fs::path cache = bindings::cache_folder();
    if (cache.empty()) {
        throw std::runtime_error("there is no folder for PolyKernels: set DISTILE_CACHE");
    }
    if (fs::create_directories(cache)) {
        fs::permissions(cache, fs::perms::owner_all);  // What lies there runs in programs.
    }
    for (size_t i = 0; i < sized.size(); i++) {
        progress(i);
        const TemporaryFolder temporary;
        const fs::path folder = temporary.path();
        const auto in_folder = [&](const char *file) { return (folder / file).string(); };
        std::ofstream(folder / "operator.json") << sized[i].first.file(sized[i].second);
        const std::vector<Command> commands = {
            {{DISTILE_BUILDER, "build", "--operator", in_folder("operator.json"), "--symbol", "distile_built",
              "--object", in_folder("built.o"), "--header", in_folder("built.h"), "--folder", in_folder("parts")},
             in_folder("build.log")},
            {{"cc", "-shared", "-o", in_folder("built.so"), in_folder("built.o"), "-lm"}, in_folder("link.log")}};
        for (const Command &command : commands) {
            run_commands({command}, 1, [](int) {});
        }
        bindings::load_polykernel(in_folder("built.so"));  // One that no program can load is not kept.
        // Programs that look for it meanwhile find all of it or nothing.
        const fs::path target = cache / (sized[i].first.name() + ".so");
        const std::string own = fmt::format("{}.{}.new", target.string(), getpid());
        fs::copy_file(folder / "built.so", own, fs::copy_options::overwrite_existing);
        fs::rename(own, target);
    }
}

}  // namespace distile::networks
