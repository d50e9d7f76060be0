#include "onnxruntime/wanted.h"
#include "facts/zeros.h"
#include <exception>

namespace distile::ort {

namespace {

std::atomic<Ask> asked{nullptr};

Answer ask_for(const bindings::OperatorKey &key, float zeros) {
    const Ask ask = asked;
    return ask ? static_cast<Answer>(ask(key.numbers.data(), static_cast<int32_t>(key.numbers.size()), zeros))
               : Answer::none;
}

}  // namespace

const distile_polykernel *find_or_load(const bindings::OperatorKey &key, bool skips_zeros,
                                       std::optional<int64_t> tokens) {
    const distile_polykernel *found = bindings::find_polykernel(key, tokens);
    if (!found || (skips_zeros && !bindings::skips_zeros(*found))) {
        bindings::load_cached_polykernels();
        found = bindings::find_polykernel(key, tokens);
    }
    return found;
}

void set_ask(Ask ask) {
    asked = ask;
}

Wanted::Wanted(const bindings::OperatorKey &key, float zeros)
    : key_(key), skips_zeros_(zeros > 0), found_(find_or_load(key, skips_zeros_)) {
    if (zeros >= static_cast<float>(DISTILE_LEAST_BITMAP_ZEROS)) {
        const distile_polykernel *const few = find_or_load(key, true, 1);
        for_few_tokens_ = few && bindings::serves(*few) == bindings::Serves::few_tokens ? few : nullptr;
    }
    if (found_) {
        return;
    }
    answer_ = ask_for(key, zeros);
    if (answer_ == Answer::built) {
        found_ = find_or_load(key, skips_zeros_);
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
            found_ = find_or_load(key_, skips_zeros_);
        } catch (const std::exception &) {
            return nullptr;  // What cannot be loaded is none; the next session says why.
        }
    }
    return found_;
}

}  // namespace distile::ort
