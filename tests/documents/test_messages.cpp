// What the documents say about messages: common mistakes leave those that the tables of two pages explain.
#include "tests/support/catch.h"
#include "tests/support/session.h"
#include <fstream>
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

}  // namespace

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
