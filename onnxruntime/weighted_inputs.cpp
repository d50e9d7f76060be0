#include "onnxruntime/weighted_inputs.h"

namespace distile::ort {

std::vector<Input> weighted_inputs() {
    return {{},
            {any_type, required, true},
            {boolean},
            {float32, optional, true},
            {type_of_output, optional},
            {type_of_output, optional}};
}

std::vector<Input> quantized_inputs() {
    std::vector<Input> inputs = weighted_inputs();
    inputs[input_filter].type = int8;
    const std::vector<Input> numbers = {{float32, required, true}, {any_type, optional, true},
                                        {float32, required, true}, {int32, optional, true},
                                        {float32, optional, true}, {type_of_output, optional, true},
                                        {float32, optional, true}, {type_of_output, optional, true}};
    inputs.insert(inputs.end(), numbers.begin(), numbers.end());
    return inputs;
}

}  // namespace distile::ort
