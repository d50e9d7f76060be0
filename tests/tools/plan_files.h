/** \file
 * Good operator and plan files, changes of them, and how they are refused.
 */
#ifndef DISTILE_TESTS_PLAN_FILES_H
#define DISTILE_TESTS_PLAN_FILES_H

#include "plans/operator_schema.h"
#include "schedules/space.h"
#include "tests/support/contains.h"
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace distile {

constexpr const char *avx2 = "x86-64-linux-avx-avx2-f16c-fma-sse41",
                     *avx512 = "x86-64-linux-avx-avx2-avx512-avx512_skylake-f16c-fma-sse41",
                     *hopper = "x86-64-linux-cuda-cuda_capability_90a",
                     *ampere = "x86-64-linux-cuda-cuda_capability_80";

/** What a function throws as a FileError, which must name `words`. */
void refuse(const std::function<void()> &read, const std::vector<std::string> &words);

distile_conv2d conv_of(const Operator &op);

nlohmann::json good_operator();
nlohmann::json good_theta();
/** A legal theta for depthwise convolutions. */
Theta depthwise_theta();
nlohmann::json tensor_core_theta();

/** The hash of good_plan(), which changes only where what it covers changes. */
extern const char *const good_hash;
nlohmann::json good_plan();
/** A plan of TF32 for tensor cores. */
nlohmann::json tensor_core_plan();
/** A plan for tensor cores of an operator of another type. */
nlohmann::json tensor_core_plan_in(const char *type);

/** A change of a good file, and what must be said about it. */
struct Change {
    std::function<void(nlohmann::json &)> make;
    std::vector<std::string> words;
};

/** Sets the value at a JSON pointer to one that is refused with a message that has all of `words`. */
Change set(const std::string &pointer, const nlohmann::json &value, std::vector<std::string> words);
/** Takes a member from an object, which must be named. */
Change erase(const std::string &parent, const std::string &member);

/** Every changed file, and files that hold no such object, must be refused with what is wrong and the file's path. */
void refuse_changes(const nlohmann::json &good, const std::vector<Change> &changes,
                    const std::function<void(const std::string &)> &read);

}  // namespace distile

#endif
