/** \file
 * Native objects that Python holds by number.
 */
#ifndef DISTILE_PYTHON_NUMBERED_H
#define DISTILE_PYTHON_NUMBERED_H

#include "bindings/errors.h"
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

namespace distile::python {

/** Objects by their numbers, which callers share with those that use them meanwhile. Never destroyed: at the end of a
 * process, tensors may outlive it. */
template<typename Object> class Numbered {
public:
    explicit Numbered(const char *name) : name_(name) {
    }

    int64_t add(std::shared_ptr<Object> object) {
        const std::lock_guard lock(mutex_);
        all_.emplace(++last_, std::move(object));
        return last_;
    }
    std::shared_ptr<Object> find(int64_t number) {
        const std::lock_guard lock(mutex_);
        const auto found = all_.find(number);
        if (found == all_.end()) {
            bindings::fail(std::string("there is no ") + name_ + " with the number " + std::to_string(number));
        }
        return found->second;
    }
    void remove(int64_t number) {
        std::shared_ptr<Object> old;  // Freed without the lock.
        const std::lock_guard lock(mutex_);
        const auto found = all_.find(number);
        if (found != all_.end()) {
            old = std::move(found->second);
            all_.erase(found);
        }
    }

private:
    const char *name_;
    std::mutex mutex_;
    std::unordered_map<int64_t, std::shared_ptr<Object>> all_;
    int64_t last_ = 0;
};

}  // namespace distile::python

#endif
