/** \file
 * Calls a function of the API with every argument wrong in turn.
 */
#ifndef DISTILE_TESTS_WRONG_ARGUMENTS_H
#define DISTILE_TESTS_WRONG_ARGUMENTS_H

#include "catch.h"
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <distile/distile.h>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <regex>
#include <set>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

namespace distile {

#ifdef __SANITIZE_ADDRESS__
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

/** The text of a header. */
inline std::string text_of(const std::string &folder, const char *header) {
    std::ifstream stream(folder + "/distile/" + header);
    std::string text(std::istreambuf_iterator<char>(stream), {});
    INFO(folder << " " << header);
    REQUIRE(!text.empty());
    return text;
}

/** The names of the functions that headers declare. */
inline std::set<std::string> declared_functions(const std::string &folder,
                                                std::initializer_list<const char *> headers) {
    std::set<std::string> names;
    for (const char *header : headers) {
        const std::string text = text_of(folder, header);
        const std::regex declaration(R"(DISTILE_API\s[^;(]*?(distile_\w+)\()");
        for (std::sregex_iterator i(text.begin(), text.end(), declaration), end; i != end; ++i) {
            names.insert((*i)[1]);
        }
    }
    return names;
}

/** The functions that were called with wrong arguments. */
class WrongArguments {
public:
    /** `message` gives what the context says, and `fail` makes a call that fails, so that it says something else. */
    WrongArguments(std::function<std::string()> message, std::function<void()> fail)
        : message_(std::move(message)), fail_(std::move(fail)) {
    }

    /** One function. After each call with a wrong argument the right ones must be accepted. */
    template<typename... Args> class Function {
    public:
        using Arguments = std::tuple<Args...>;

        Function(WrongArguments &all, std::string name, distile_status (*function)(Args...), Args... right)
            : all_(all), name_(std::move(name)), function_(function), right_(right...) {
            all_.tested_.insert(name_);
        }
        Function(const Function &) = delete;
        Function &operator=(const Function &) = delete;
        ~Function() {
            for (size_t i = 0; i < sizeof...(Args); i++) {
                INFO(name_ << ", argument " << i);
                CHECK(spoilt_[i]);
            }
        }

        /** What to do after calls that succeed. */
        Function &then(std::function<void()> after) {
            after_ = std::move(after);
            return *this;
        }
        /** There is no context yet that could keep a message. */
        Function &without_message() {
            has_message_ = false;
            return *this;
        }
        /** Each of these values in the place of argument I gives a status. */
        template<size_t I>
        Function &wrong(distile_status status, std::initializer_list<std::tuple_element_t<I, Arguments>> values) {
            // In C++ no argument may be but an enumerator of its type, and sanitizers see to it. Callers in C may.
            if (std::is_enum_v<std::tuple_element_t<I, Arguments>> && sanitized) {
                spoilt_[I] = true;
                return *this;
            }
            for (const auto &value : values) {
                Arguments arguments = right_;
                std::get<I>(arguments) = value;
                refuse(I, status, arguments);
            }
            return *this;
        }
        /** The same for a member of the struct that argument I points to. */
        template<size_t I, typename Struct, typename Member> Function &
        wrong(distile_status status, Member Struct::*member, std::initializer_list<std::common_type_t<Member>> values) {
            for (const Member &value : values) {
                spoil<I>(status, [&](Struct &spoilt) { spoilt.*member = value; });
            }
            return *this;
        }
        /** The same for an enumerator, by number. */
        template<size_t I, typename Struct, typename Member>
        Function &wrong_number(distile_status status, Member Struct::*member, std::initializer_list<int32_t> values) {
            for (const int32_t value : values) {
                static_assert(sizeof(Member) == sizeof(value), "the enumerations of the C API are int");
                spoil<I>(status, [&](Struct &spoilt) { std::memcpy(&(spoilt.*member), &value, sizeof(value)); });
            }
            return *this;
        }
        /** Argument I may have any value, and so these. */
        template<size_t I> Function &any(std::initializer_list<std::tuple_element_t<I, Arguments>> values) {
            for (const auto &value : values) {
                Arguments arguments = right_;
                std::get<I>(arguments) = value;
                accept(arguments);
            }
            spoilt_[I] = true;
            return *this;
        }

    private:
        template<size_t I, typename Change> void spoil(distile_status status, const Change &change) {
            Arguments arguments = right_;
            auto spoilt = *std::get<I>(right_);
            change(spoilt);
            std::get<I>(arguments) = &spoilt;
            refuse(I, status, arguments);
        }
        void accept(const Arguments &arguments) {
            const distile_status status = std::apply(function_, arguments);
            INFO(name_ << ": " << all_.message_());
            CHECK(std::string(distile_status_name(status)) == "DISTILE_OK");
            if (status == DISTILE_OK && after_) {
                after_();
            }
        }
        void refuse(size_t argument, distile_status expected, const Arguments &arguments) {
            INFO(name_ << ", argument " << argument);
            all_.fail_();
            const std::string before = all_.message_();
            const distile_status status = std::apply(function_, arguments);
            INFO("the message is: " << all_.message_());
            CHECK(std::string(distile_status_name(status)) == distile_status_name(expected));
            all_.refusals_.emplace(name_, distile_status_name(expected));
            // Without the object in the first argument there is no context that could keep a message.
            if (argument != 0 && has_message_) {
                CHECK(all_.message_() != before);
            }
            spoilt_[argument] = true;
            accept(right_);
        }

        WrongArguments &all_;
        std::string name_;
        distile_status (*function_)(Args...);
        Arguments right_;
        std::array<bool, sizeof...(Args)> spoilt_{};
        std::function<void()> after_;
        bool has_message_ = true;
    };

    template<typename... Args, typename... Right>
    Function<Args...> of(const std::string &name, distile_status (*function)(Args...), Right... right) {
        return Function<Args...>(*this, name, function, static_cast<Args>(right)...);
    }
    /** A function that has no status was called in another way. */
    void note(const std::string &name) {
        tested_.insert(name);
    }
    const std::set<std::string> &tested() const {
        return tested_;
    }
    /** The errors that were got from functions but that neither the comment before a function's declaration nor the one
     * at the beginning of its header names. */
    std::string undocumented(const std::string &folder, std::initializer_list<const char *> headers) const {
        const std::string prefix = "DISTILE_ERROR_";
        std::string missing;
        for (const char *header : headers) {
            const std::string text = text_of(folder, header);
            const std::string beginning = text.substr(0, text.find("*/"));
            for (const auto &[name, error] : refusals_) {
                std::smatch declaration;
                if (!std::regex_search(text, declaration, std::regex("DISTILE_API\\s[^;(]*?" + name + "\\("))) {
                    continue;
                }
                const auto end = static_cast<size_t>(declaration.position());
                const std::string comment = text.substr(text.rfind("/**", end), end - text.rfind("/**", end));
                const std::string status = error.substr(prefix.size());
                if ((beginning + comment).find(status) == std::string::npos) {
                    missing.append(name).append(": ").append(status).append("\n");
                }
            }
        }
        return missing;
    }

private:
    std::function<std::string()> message_;
    std::function<void()> fail_;
    std::set<std::string> tested_;
    std::set<std::pair<std::string, std::string>> refusals_; /**< Functions, and the errors that were got from them. */
};

}  // namespace distile

#endif
