#include "onnxruntime/wanted.h"
#include "facts/zeros.h"
#include <exception>

namespace distile::ort {

namespace {

std::atomic<Ask> asked{nullptr};

Answer ask_for(const bindings::OperatorKey &key, const Zeros &zeros) {
    const Ask ask = asked;
    return ask ? static_cast<Answer>(ask(key.numbers.data(), static_cast<int32_t>(key.numbers.size()), zeros.share,
                                         zeros.two_of_four ? 1 : 0))
               : Answer::none;
}

}  // namespace

bool skips(const distile_polykernel &polykernel, const Zeros &zeros) {
    return zeros.two_of_four ? bindings::serves(polykernel) == bindings::Serves::two_of_four
                             : zeros.share <= 0 || bindings::skips_zeros(polykernel);
}

const distile_polykernel *find_or_load(const bindings::OperatorKey &key, const Zeros &zeros,
                                       std::optional<int64_t> tokens) {
    const auto find = [&] { return bindings::find_polykernel(key, tokens, [&] { return zeros.two_of_four; }); };
    const distile_polykernel *found = find();
    if (!found || !skips(*found, zeros)) {
        bindings::load_cached_polykernels();
        found = find();
    }
    return found;
}

void set_ask(Ask ask) {
    asked = ask;
}

Wanted::Wanted(const bindings::OperatorKey &key, const Zeros &zeros)
    : key_(key), zeros_(zeros), found_(find_or_load(key, zeros)) {
    if (zeros.share >= static_cast<float>(DISTILE_LEAST_BITMAP_ZEROS)) {
        const distile_polykernel *const few = find_or_load(key, zeros, 1);
        for_few_tokens_ = few && bindings::serves(*few) == bindings::Serves::few_tokens ? few : nullptr;
    }
    if (found_) {
        return;
    }
    answer_ = ask_for(key, zeros);
    if (answer_ == Answer::built) {
        found_ = find_or_load(key, zeros);
    }
    if (!found_ && !may_come()) {
        found_ = bindings::general_polykernel(key);
    }
}

const distile_polykernel *Wanted::get(std::optional<int64_t> tokens) {
    if (for_few_tokens_ && bindings::are_few(tokens)) {
        return for_few_tokens_;
    }
    if (!found_ && answer_ == Answer::later) {
        try {
            found_ = find_or_load(key_, zeros_);
        } catch (const std::exception &) {
            return nullptr;  // What cannot be loaded is none; the next session says why.
        }
    }
    return found_;
}

}  // namespace distile::ort
