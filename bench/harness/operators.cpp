#include "bench/harness/operators.h"
#include "plans/operator_table.h"
#include "reference/conv2d_reference.h"
#include <algorithm>
#include <cstring>
#include <fmt/core.h>
#include <stdexcept>

namespace distile::bench {

namespace {

OperatorRow find_row(const std::string &path, int32_t id) {
    for (const OperatorRow &row : read_operator_table(path)) {
        if (row.id == id) {
            return row;
        }
    }
    throw std::runtime_error(fmt::format("there is no operator {} in '{}'", id, path));
}

}  // namespace

int32_t BenchOperator::output_height() const {
    return reference_output_height(conv, height, kind);
}

int32_t BenchOperator::output_width() const {
    return reference_output_width(conv, width, kind);
}

std::string BenchOperator::shape() const {
    if (polykernel->kind == DISTILE_MASKED_LINEAR) {
        return fmt::format("{} tokens {}->{}", width, conv.in_channels, conv.out_channels);
    }
    const char *step = kind == DISTILE_MASKED_CONV_TRANSPOSE2D  ? "transposed, stride"
                       : kind == DISTILE_MASKED_UPSAMPLE_CONV2D ? "after upsampling by"
                                                                : "stride";
    return fmt::format("{}x{} {}->{} {}x{}{}{}", height, width, conv.in_channels, conv.out_channels, conv.kernel_h,
                       conv.kernel_w, conv.stride_h > 1 ? fmt::format(" {} {}", step, conv.stride_h) : "",
                       conv.groups > 1 ? fmt::format(" in {} groups", conv.groups) : "");
}

const distile_polykernel &taken_polykernel(const distile_polykernel &built, const Kernel &kernel) {
    distile_kernel_info info{};
    if (distile_kernel_get_info(kernel.get(), &info) == DISTILE_OK) {
        for (const distile_polykernel *candidate = &built; candidate; candidate = candidate->fallback) {
            if (std::strcmp(candidate->name, info.name) == 0) {
                return *candidate;
            }
        }
    }
    throw std::runtime_error(fmt::format("the kernel is not of the PolyKernel '{}'", built.name));
}

bool has_variant(const distile_polykernel &polykernel, const std::string &name) {
    return std::any_of(polykernel.variants, polykernel.variants + polykernel.num_variants,
                       [&](const distile_variant &variant) { return variant.name == name; });
}

const char *dense_variant(const distile_polykernel &polykernel) {
    const distile_variant *begin = polykernel.variants, *end = begin + polykernel.num_variants;
    const distile_variant *dense =
        std::find_if(begin, end, [](const distile_variant &variant) { return variant.dense != 0; });
    return dense == end ? nullptr : dense->name;
}

BenchOperator make_operator(const OperatorSpec &spec, const std::string &category, int32_t height, int32_t width,
                            const distile_polykernel &polykernel) {
    return {spec,
            category,
            height,
            width,
            polykernel.kind == DISTILE_MASKED_LINEAR ? DISTILE_MASKED_CONV2D : polykernel.kind,
            convolution_of(polykernel),
            type_of(polykernel),
            &polykernel};
}

BenchOperator find_operator(const std::string &csv_path, const OperatorSpec &spec) {
    return find_operator(csv_path, spec, find_polykernel(spec.polykernel));
}

BenchOperator find_operator(const std::string &csv_path, const OperatorSpec &spec,
                            const distile_polykernel &polykernel) {
    const OperatorRow line = find_row(csv_path, spec.id);
    // The file does not name padding, epilogues and types, so those come from the PolyKernel.
    const BenchOperator op = make_operator(spec, line.category, line.height, line.width, polykernel);
    if (op.conv.in_channels != line.in_channels || op.conv.out_channels != line.out_channels ||
        op.conv.kernel_h != line.kernel || op.conv.kernel_w != line.kernel || op.conv.stride_h != line.stride ||
        op.conv.stride_w != line.stride || op.conv.groups != (line.category == "depthwise" ? line.in_channels : 1)) {
        throw std::runtime_error(fmt::format("the PolyKernel '{}' computes {}, not operator {} of '{}'",
                                             spec.polykernel, op.shape(), spec.id, csv_path));
    }
    return op;
}

}  // namespace distile::bench
