/** \file
 * Calls a function of the API with every argument wrong in turn.
 */
#ifndef DISTILE_TESTS_WRONG_ARGUMENTS_H
#define DISTILE_TESTS_WRONG_ARGUMENTS_H

#include "tests/support/catch.h"
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <distile/distile.h>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <limits>
#include <map>
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

/** What an expression's first group matches in a text, everywhere. */
inline std::set<std::string> matches(const std::string &text, const std::regex &expression) {
    std::set<std::string> found;
    for (std::sregex_iterator i(text.begin(), text.end(), expression), end; i != end; ++i) {
        found.insert((*i)[1]);
    }
    return found;
}

/** The names of the functions that headers declare. */
inline std::set<std::string> declared_functions(const std::string &folder,
                                                std::initializer_list<const char *> headers) {
    std::set<std::string> names;
    for (const char *header : headers) {
        names.merge(matches(text_of(folder, header), std::regex(R"(DISTILE_API\s[^;(]*?(distile_\w+)\()")));
    }
    return names;
}

/** The comment at the beginning of a header. */
inline std::string beginning_of(const std::string &text) {
    return text.substr(0, text.find("*/"));
}

/** What headers, texts by name, say of a function that one of them declares: at the header's beginning, and right
 * before the declaration. */
inline std::string comments_on(const std::map<std::string, std::string> &headers, const std::string &function) {
    const std::regex name("DISTILE_API\\s[^;(]*?" + function + "\\(");
    for (const auto &[header, text] : headers) {
        std::smatch declaration;
        if (std::regex_search(text, declaration, name)) {
            const std::string before = declaration.prefix();
            const size_t end = before.rfind("*/");
            const bool commented = before.find_first_not_of(" \n", end + 2) == std::string::npos;
            return beginning_of(text) + (commented ? before.substr(before.rfind("/*", end)) : "");
        }
    }
    return "";
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
        /** Wrong values of a member of the struct that argument I points to. */
        template<size_t I, typename Struct, typename Member> Function &
        wrong(distile_status status, Member Struct::*member, std::initializer_list<std::common_type_t<Member>> values) {
            for (const Member &value : values) {
                spoil<I>(status, [&](Struct &spoilt) { spoilt.*member = value; });
            }
            return *this;
        }
        /** Wrong values of an enumerator, by number. */
        template<size_t I, typename Struct, typename Member>
        Function &wrong_number(distile_status status, Member Struct::*member, std::initializer_list<int32_t> values) {
            for (const int32_t value : values) {
                static_assert(sizeof(Member) == sizeof(value), "the enumerations of the C API are int");
                spoil<I>(status, [&](Struct &spoilt) { std::memcpy(&(spoilt.*member), &value, sizeof(value)); });
            }
            return *this;
        }
        /** Every field that is reserved in the struct that argument I points to must be 0. */
        template<size_t I, typename Struct, size_t count> Function &reserved(int64_t (Struct::*fields)[count]) {
            for (size_t field = 0; field < count; field++) {
                for (const int64_t value : {int64_t{1}, int64_t{1} << 32, std::numeric_limits<int64_t>::min()}) {
                    spoil<I>(DISTILE_ERROR_BAD_VALUE, [&](Struct &spoilt) { (spoilt.*fields)[field] = value; });
                }
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
            distile_context_create(nullptr, nullptr);
            const std::string before = all_.message_();
            const distile_status status = std::apply(function_, arguments);
            INFO("the message is: " << all_.message_());
            CHECK(std::string(distile_status_name(status)) == distile_status_name(expected));
            all_.refusals_.emplace(name_, distile_status_name(expected));
            // Without the object in the first argument there is no context that could keep a message.
            const bool in_context = argument != 0 && has_message_;
            if (in_context) {
                CHECK(all_.message_() != before);
            }
            if (expected == DISTILE_ERROR_NULL_POINTER) {
                const std::string message = in_context ? all_.message_() : distile_context_message(nullptr);
                CHECK_THAT(message,
                           Catch::Matchers::StartsWith(name_ + ": the ") && Catch::Matchers::EndsWith(" is null"));
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
    /** The errors that were got from functions but that no comment in these headers names: none on the function, and
     * none of what that refers to, which are functions ("as distile_...") and the beginnings of headers. */
    std::string undocumented(const std::string &folder, std::initializer_list<const char *> headers) const {
        const std::string prefix = "DISTILE_ERROR_";
        const std::regex as_function("[Aa]s (distile_\\w+)"), header_name("(\\w+\\.h)\\b");
        std::map<std::string, std::string> texts;
        for (const char *header : headers) {
            texts[header] = text_of(folder, header);
        }
        std::string missing;
        for (const auto &[name, error] : refusals_) {
            const std::string own = comments_on(texts, name);
            std::string comments = own;
            for (const std::string &function : matches(own, as_function)) {
                comments += comments_on(texts, function);
            }
            for (const std::string &header : matches(own, header_name)) {
                comments += texts.count(header) != 0 ? beginning_of(texts[header]) : "";
            }
            const std::string status = error.substr(prefix.size());
            if (comments.find(status) == std::string::npos) {
                missing.append(name).append(": ").append(status).append("\n");
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
