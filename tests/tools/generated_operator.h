/** \file
 * An operator from its generator and a schedule, compiled in memory and run on arrays: what the generated code
 * computes, with no runtime around it. And the same by its definition, in double precision.
 */
#ifndef DISTILE_TESTS_GENERATED_OPERATOR_H
#define DISTILE_TESTS_GENERATED_OPERATOR_H

#include "Halide.h"
#include "schedules/space.h"
#include <distile/distile.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace distile {

/** An operator with the generator's parameters, by name. What is left out has the generator's default. */
struct GeneratedCase {
    std::string generator;
    std::map<std::string, std::string> params;
    std::string target;
    Theta theta;

    int param(const std::string &name, int fallback) const;
    bool has_residual() const;
    distile_dtype dtype() const;
};

/** A pipeline and its scheduled operator, from the generator with all that the theta says. */
struct GeneratedPipeline {
    std::shared_ptr<Halide::Internal::AbstractGenerator> generator;
    Halide::Pipeline pipeline;
    std::string source;
};

GeneratedPipeline scheduled_pipeline(const GeneratedCase &generated);

/** Arrays for a case, with values that its type holds. */
struct GeneratedArrays {
    int batch, in_height, in_width, out_height, out_width;
    std::vector<float> input;    /**< [n][y][x][ci] */
    std::vector<float> filter;   /**< [ky][kx][ci of a group][co]; with one ci for a depthwise convolution. */
    std::vector<float> bias;     /**< [co] */
    std::vector<float> residual; /**< [n][y][x][co], or nothing. */
    std::vector<uint8_t> mask;   /**< [n][y][x] of the output. */
};

GeneratedArrays random_arrays(const GeneratedCase &generated, int batch, int height, int width, double density);

/** How the code gets its input. */
enum class Reads {
    InPlace, /**< With a zero border, so that all tiles are read in place. */
    Staged   /**< With none, and with every tile among those at a border. */
};

/** The code with its arguments. */
struct GeneratedRun {
    std::function<int()> run; /**< Returns 0 for success. */
    Halide::Buffer<> output;
    distile_dtype dtype;

    /** What the code stored, [n][y][x][co]; NaN where it stored nothing. */
    std::vector<float> values() const;
};

/** A case compiled in memory. */
class GeneratedCode {
public:
    explicit GeneratedCode(const GeneratedCase &generated);
    GeneratedRun bind(const GeneratedArrays &arrays, Reads reads) const;

private:
    GeneratedCase generated_;
    Halide::Callable code_;
};

/** The output by its definition, and the sums of the absolute values of all that is added up, by which errors are
 * judged; 0 at inactive pixels. */
struct ReferenceValues {
    std::vector<double> values, scales;
};

ReferenceValues reference_values(const GeneratedCase &generated, const GeneratedArrays &arrays);

}  // namespace distile

#endif
