#include "python/csrc/twins.h"
#include <atomic>
#include <mutex>
#include <set>
#include <shared_mutex>

namespace distile::python {

namespace {

std::atomic<bool> defined{false};
thread_local General general = General::kept;

/** The operators that general code computes. */
class Kept {
public:
    bool has(const bindings::OperatorKey &key) {
        const std::shared_lock lock(mutex_);
        return keys_.count(key.numbers) > 0;
    }
    void add(const bindings::OperatorKey &key) {
        const std::unique_lock lock(mutex_);
        keys_.insert(key.numbers);
    }
    void clear() {
        const std::unique_lock lock(mutex_);
        keys_.clear();
    }

private:
    std::shared_mutex mutex_;
    std::set<decltype(bindings::OperatorKey::numbers)> keys_;
};

Kept &kept() {
    static Kept kept;
    return kept;
}

}  // namespace

void define_twins() {
    defined = true;
}

const distile_polykernel *polykernel_of(const bindings::OperatorKey &key, std::optional<int64_t> tokens,
                                        const bindings::KeepsTwoOfFour &keeps_two_of_four) {
    const distile_polykernel *found = bindings::find_polykernel(key, tokens, keeps_two_of_four);
    if (!found && !defined) {
        bindings::load_cached_polykernels();
        found = bindings::find_polykernel(key, tokens, keeps_two_of_four);
    }
    if (found) {
        return found;
    }
    if (general == General::always) {
        kept().add(key);
    }
    const bool takes_general = !defined || general != General::kept || kept().has(key);
    return takes_general ? bindings::general_polykernel(key) : nullptr;
}

void allow_general(General when) {
    if (when == General::forgotten) {
        kept().clear();
    }
    general = when == General::forgotten ? General::kept : when;
}

bool has_twins() {
    return defined;
}

}  // namespace distile::python
