// What messages say: common mistakes leave those that the tables of two pages explain, and enumerators have names.
#include "runtime/base/enumerators.h"
#include "tests/support/catch.h"
#include "tests/support/session.h"
#include <cstring>
#include <distile/layers.h>
#include <distile/mask_algebra.h>
#include <distile/planner.h>
#include <distile/tokens.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <vector>

using namespace distile;

namespace {

/** A message with 0 for every number, because the pages have other sizes. */
std::string without_numbers(const std::string &message) {
    return std::regex_replace(message, std::regex("[0-9]+"), "0");
}

/** The runtime's messages that a page explains: the first cells of its tables. */
std::vector<std::string> explained_messages(const std::string &page) {
    std::ifstream file(DISTILE_DOCS_FOLDER "/" + page);
    const std::regex row("^\\| `(distile_[a-z_]+: [^`]+)` \\|.*");
    std::vector<std::string> messages;
    std::smatch cells;
    for (std::string line; std::getline(file, line);) {
        if (std::regex_match(line, cells, row)) {
            messages.push_back(cells[1]);
        }
    }
    return messages;
}

/** The message of a run after a mistake. */
template<typename Mistake> std::string message_after(const Mistake &make_mistake) {
    const Session session;
    distile_tensor input = session.input.view(), output = session.output.view();
    distile_run_args args{};
    args.input = &input;
    args.output = &output;
    args.weights = session.weights.get();
    args.mask = session.mask.get();
    make_mistake(session, input, output);
    CHECK(distile_run(session.kernel.get(), &args) != DISTILE_OK);
    return session.message();
}

/** Sets an enumeration to a number that it may lack, as a caller in C can. */
template<typename Enum> void set_number(Enum &value, int32_t number) {
    std::memcpy(&value, &number, sizeof(number));
}

/** The enumerators of a type in the public headers, in order, without further names of the same numbers. */
std::string names_in_headers(const std::string &type) {
    for (const auto &entry : std::filesystem::directory_iterator(DISTILE_INCLUDE_FOLDER "/distile")) {
        std::ifstream file(entry.path());
        const std::string text{std::istreambuf_iterator<char>(file), {}};
        const size_t begin = text.find("typedef enum " + type + " {"), end = text.find('}', begin);
        if (begin != std::string::npos) {
            const std::string body = text.substr(begin, end - begin);
            const std::regex enumerator("\\b(DISTILE_[A-Z0-9_]+) = [0-9]");
            std::string names;
            for (std::sregex_iterator i(body.begin(), body.end(), enumerator); i != std::sregex_iterator(); ++i) {
                names += (names.empty() ? "" : ", ") + (*i)[1].str();
            }
            return names;
        }
    }
    return "no header has " + type;
}

/** The calls that a context refuses, one after the other: each must leave a message with these words. */
struct Refusals {
    template<typename Call> void operator()(const Call &call, const std::string &words) const {
        CHECK(call() != DISTILE_OK);
        INFO("the message is: " << session.message());
        CHECK(session.message().find(words) != std::string::npos);
    }
    Session session;
};

}  // namespace

TEST_CASE("Messages have the names of all enumerators that a call takes", "[messages]") {
    CHECK(Enumerators<distile_math>::names == names_in_headers("distile_math"));
    CHECK(Enumerators<distile_weights_order>::names == names_in_headers("distile_weights_order"));
    CHECK(Enumerators<distile_inactive>::names == names_in_headers("distile_inactive"));
    CHECK(Enumerators<distile_store>::names == names_in_headers("distile_store"));
    CHECK(Enumerators<distile_pooling>::names == names_in_headers("distile_pooling"));
    CHECK(Enumerators<distile_combination>::names == names_in_headers("distile_combination"));
    CHECK(Enumerators<distile_window_kind>::names == names_in_headers("distile_window_kind"));
    CHECK(Enumerators<distile_clearing>::names == names_in_headers("distile_clearing"));
    CHECK(Enumerators<distile_norm>::names == names_in_headers("distile_norm"));
    CHECK(Enumerators<distile_activation>::names == names_in_headers("distile_activation"));
}

TEST_CASE("Calls say which enumerators and types they take, by name", "[messages]") {
    const Refusals refuse;
    distile_context *const context = refuse.session.context.get();
    const distile_tensor input = refuse.session.input.view(), output = refuse.session.output.view();
    const auto run = [&](const auto &change) {
        distile_tensor in = input;
        distile_run_args args{};
        args.input = &in;
        args.output = &output;
        args.weights = refuse.session.weights.get();
        args.mask = refuse.session.mask.get();
        change(args, in);
        return distile_run(refuse.session.kernel.get(), &args);
    };
    using Args = distile_run_args &;
    using Tensor = distile_tensor &;
    refuse([&] { return run([](Args args, Tensor) { set_number(args.inactive, 7); }); },
           "inactive is 7; it must be one of DISTILE_KEEP, DISTILE_ZERO");
    refuse([&] { return run([](Args args, Tensor) { set_number(args.store, -1); }); },
           "store is -1; it must be one of DISTILE_STORE_EXACT, DISTILE_STORE_TILES");
    refuse([&] { return run([](Args, Tensor in) { in.dtype = DISTILE_BFLOAT16; }); },
           "the input has data type bfloat16; it must have float32");
    refuse([&] { return run([](Args, Tensor in) { set_number(in.dtype, 99); }); },
           "the input has data type 99; it must have float32");

    const auto pack = [&](const auto &change) {
        distile_weights_source source{};
        source.filter = refuse.session.reference.filter.data();
        source.order = DISTILE_HWIO;
        change(source);
        distile_weights *weights = nullptr;
        return distile_weights_pack(refuse.session.kernel.get(), &source, &weights);
    };
    using Source = distile_weights_source &;
    refuse([&] { return pack([](Source source) { source.dtype = DISTILE_INT4; }); },
           "the filter has the data type int4; the types are float32");
    refuse([&] { return pack([](Source source) { set_number(source.order, 9); }); },
           "order is 9; it must be one of DISTILE_OIHW, DISTILE_OHWI, DISTILE_HWIO, DISTILE_IOHW");

    const auto combine = [&](const auto &change) {
        distile_combine_args args{};
        args.input = &output;
        args.output = &output;
        args.mask = refuse.session.mask.get();
        change(args);
        return distile_combine(context, &args);
    };
    using Combine = distile_combine_args &;
    refuse([&] { return combine([](Combine args) { set_number(args.combination, 3); }); },
           "combination is 3; it must be one of DISTILE_COPY, DISTILE_ADD, DISTILE_MULTIPLY");
    refuse([&] { return combine([](Combine args) { set_number(args.activation, 99); }); },
           "activation is 99; it must be one of DISTILE_ACTIVATION_NONE, DISTILE_ACTIVATION_RELU");

    distile_global_pool_args pool{};
    pool.input = &input;
    TestTensor pooled(1, 1, 1, 16);
    pool.output = &pooled.view();
    set_number(pool.pooling, 2);
    refuse([&] { return distile_global_pool(context, &pool); },
           "pooling is 2; it must be one of DISTILE_MAX_POOLING, DISTILE_AVERAGE_POOLING");

    distile_normalize_args normalize{};
    normalize.input = normalize.output = &output;
    normalize.mask = refuse.session.mask.get();
    set_number(normalize.norm, 5);
    refuse([&] { return distile_normalize(context, &normalize); },
           "norm is 5; it must be one of DISTILE_LAYER_NORM, DISTILE_RMS_NORM");

    distile_window window = distile_kernel_window(refuse.session.kernel.get());
    set_number(window.kind, 8);
    const Mask result = make_mask(refuse.session.context);
    refuse([&] { return distile_mask_needed_input(result.get(), refuse.session.mask.get(), &window, 9, 11); },
           "the window's kind is 8; it must be one of DISTILE_WINDOW_CONV");

    distile_planner_options options = planner_options(2, DISTILE_CLEAR_ALL);
    set_number(options.clearing, 4);
    distile_planner *planner = nullptr;
    refuse([&] { return distile_planner_create(context, &options, &planner); },
           "clearing is 4; it must be one of DISTILE_CLEAR_WRITTEN, DISTILE_CLEAR_ALL, DISTILE_CLEAR_BACKGROUND");

    distile_context_options wrong{};
    set_number(wrong.math, 6);
    distile_context *none = nullptr;
    CHECK(distile_context_create(&wrong, &none) == DISTILE_ERROR_BAD_VALUE);
    CHECK(std::string(distile_context_message(nullptr)).find("math is 6; it must be one of DISTILE_MATH_DEFAULT") !=
          std::string::npos);
}

TEST_CASE("pages explain the messages that common mistakes leave", "[messages]") {
    using S = const Session &;
    using T = distile_tensor &;
    const std::vector<std::string> left = {
        message_after([](S, T input, T) { input.channels = input.height; }), message_after([](S session, T, T) {
            const uint8_t byte = 1;
            check(session.context, distile_mask_set_bytes(session.mask.get(), &byte, 1, 1, 1, 1, 1));
        }),
        message_after([](S, T input, T) { input.border_top = input.border_left = 1; }),
        message_after([](S, T input, T output) { input.data = output.data; })};
    size_t explained = 0;
    for (const char *page : {"own_operator.md", "block.md"}) {
        for (const std::string &message : explained_messages(page)) {
            INFO(page << " explains '" << message << "', but the messages are\n"
                      << left[0] << "\n"
                      << left[1] << "\n"
                      << left[2] << "\n"
                      << left[3]);
            CHECK(std::any_of(left.begin(), left.end(), [&](const std::string &whole) {
                return without_numbers(whole).find(without_numbers(message)) == 0;
            }));
            explained++;
        }
    }
    CHECK(explained == left.size());
}
