/** \file
 * The PolyKernels that nodes need, some of which are built while a session runs.
 */
#ifndef DISTILE_ONNXRUNTIME_WANTED_H
#define DISTILE_ONNXRUNTIME_WANTED_H

#include "bindings/registry.h"
#include <atomic>

namespace distile::ort {

/** The PolyKernel of an operator, linked or of the cache folder; null if there is none. */
const distile_polykernel *find_or_load(const bindings::OperatorKey &key);

/** What becomes of an operator without a PolyKernel. */
enum class Answer : int32_t {
    none = 0,
    built = 1 /**< It is in the cache folder. */,
    later = 2 /**< It may come there. */
};

/** Called with the numbers of a key, from any thread: asks for the PolyKernel of an operator that has none. Returns an
 * Answer. */
using Ask = int32_t (*)(const int32_t *numbers, int32_t count);
/** Null: nobody is asked. */
void set_ask(Ask ask);

/** The PolyKernel that a node needs. */
class Wanted {
public:
    /** Asks for one that nobody has. */
    explicit Wanted(const bindings::OperatorKey &key);
    /** Null as long as there is none. Any thread may call. */
    const distile_polykernel *get();
    bool may_come() const {
        return answer_ == Answer::later;
    }

private:
    bindings::OperatorKey key_;
    Answer answer_ = Answer::none;
    std::atomic<const distile_polykernel *> found_;
};

}  // namespace distile::ort

#endif
