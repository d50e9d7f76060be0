/** \file
 * The PolyKernels that nodes need, some of which are built while a session runs.
 */
#ifndef DISTILE_ONNXRUNTIME_WANTED_H
#define DISTILE_ONNXRUNTIME_WANTED_H

#include "bindings/registry.h"
#include <atomic>

namespace distile::ort {

/** The zeros in weights that code of their device may skip. */
struct Zeros {
    float share = 0;          /**< Zeros by weights, or zero quads by quads of quantized ones. */
    bool two_of_four = false; /**< They have the pattern 2:4. */
};

/** Whether a PolyKernel skips as many of these zeros as any could. */
bool skips(const distile_polykernel &polykernel, const Zeros &zeros);

/** The PolyKernel of an operator, linked or of the cache folder; null if there is none. One that skips zeros, if there
 * is one for these. Calls of few tokens take one for few, if there is one; where nothing is known of the tokens, any
 * but those, if there is one. */
const distile_polykernel *find_or_load(const bindings::OperatorKey &key, const Zeros &zeros,
                                       std::optional<int64_t> tokens = {});

/** What becomes of an operator without a PolyKernel. */
enum class Answer : int32_t {
    none = 0,
    built = 1 /**< It is in the cache folder. */,
    later = 2 /**< It may come there. */
};

/** Called with the numbers of a key, the share of the weights that are 0, and whether they have the pattern 2:4, from
 * any thread: asks for the PolyKernel of an operator that has none. Returns an Answer. */
using Ask = int32_t (*)(const int32_t *numbers, int32_t count, float zeros, int32_t two_of_four);
/** Null: nobody is asked. */
void set_ask(Ask ask);

/** The PolyKernel that a node needs. */
class Wanted {
public:
    /** Asks for one that nobody has, and takes general code if none may come. */
    explicit Wanted(const bindings::OperatorKey &key, const Zeros &zeros = {});
    /** The PolyKernel for a call of as many tokens; null as long as there is none. Any thread may call. */
    const distile_polykernel *get(std::optional<int64_t> tokens = {});
    bool may_come() const {
        return answer_ == Answer::later;
    }

private:
    bindings::OperatorKey key_;
    Zeros zeros_;
    Answer answer_ = Answer::none;
    std::atomic<const distile_polykernel *> found_;
    const distile_polykernel *for_few_tokens_ = nullptr; /**< Null without zeros, or without such code. */
};

}  // namespace distile::ort

#endif
