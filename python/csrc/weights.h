/** \file
 * Packed weights. A module owns a place for its own, by a number; they are packed again when a weight has changed.
 */
#ifndef DISTILE_PYTHON_WEIGHTS_H
#define DISTILE_PYTHON_WEIGHTS_H

#include "python/csrc/session.h"
#include <functional>
#include <memory>

namespace distile::python {

using SharedWeights = std::shared_ptr<distile_weights>;

/** The weights of an operator, packed from a filter [out, in] or [out, in, rows, columns] (in, out for transposed
 * convolutions: the order) and a bias, with the slope of the activation. With a place other than 0, packs only if the
 * place holds no weights packed from these tensors as they are. On a CPU their contents decide, of which each call
 * makes a checksum (check_contents()); else PyTorch's count of writes, which tensors of inference mode lack, so that
 * they are packed each time. */
SharedWeights pack_weights(Session &session, const distile_polykernel &polykernel, const Tensor &filter,
                           const OptionalTensor &bias, distile_weights_order order, float slope, int64_t place);

/** Whether a filter [out, in] or [out, in, rows, columns] has the pattern 2:4 for inputs of a type. A place remembers
 * it as long as the filter stays as it is. False in a capture of a graph before which it was not asked. */
bool keeps_two_of_four(const Tensor &filter, ScalarType input, int64_t place);

/** The weights of an operator in host memory, as the library packs them. */
class HostWeights {
public:
    HostWeights(const Tensor &filter, const OptionalTensor &bias, distile_weights_order order, float slope);

    /** As long as this lives, and stays where it is. */
    distile_weights_source source() const;

private:
    Tensor filter_;
    OptionalTensor bias_;
    distile_dtype type_;
    distile_weights_order order_;
    float slope_;
};

struct WeightSources;

/** Weights as they are now, to see later whether they are others, or were written, by what pack_weights() goes by. */
class WeightState {
public:
    WeightState(const Tensor &filter, const OptionalTensor &bias);

    /** False also for tensors whose writes do not show. */
    bool operator==(const WeightState &other) const;

private:
    std::shared_ptr<const WeightSources> sources_;
};

/** What a place keeps for stages beside packed weights. */
enum class StageParameter : int32_t { weights, vector };

/** What `make` makes of a parameter for stages that compute with this type; what it made before if the place holds that
 * of the parameter as it is. Parameters are on the device of the call. */
Tensor stage_parameter(const Tensor &parameter, StageParameter what, distile_dtype type, int64_t place,
                       const std::function<Tensor()> &make);

/** Whether calls on a CPU read the contents of weights, to find those that PyTorch did not see written. */
void check_contents(bool read);

/** Frees what a place holds. */
void free_weights(int64_t place);

/** How often weights were packed, for tests. */
int64_t times_packed();
/** Counts weights that others have packed. */
void count_packed(int64_t times);

}  // namespace distile::python

#endif
