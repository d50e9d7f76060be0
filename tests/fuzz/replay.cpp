/** \file
 * Runs a fuzz target without libFuzzer: on the files of its corpus, and on mutations of them that are the same in every
 * run.
 *
 * Usage: fuzz_NAME CORPUS_FOLDER_OR_FILE... [-runs=N]
 *
 * Where the target ends the process, the input is kept as crash-fuzz_NAME in the current folder.
 */
#include "tests/fuzz/fuzz.h"
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <unistd.h>
#include <vector>

/** What the sanitizers call before they end the process. */
// NOLINTNEXTLINE(bugprone-reserved-identifier)
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace {

using Input = std::vector<uint8_t>;

const Input *running = nullptr;
std::string crash_path;

void keep_input() {
    const int file = open(crash_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (running && file >= 0 && write(file, running->data(), running->size()) >= 0) {
        close(file);
    }
}

void keep_input_of_signal(int signal) {
    keep_input();
    std::signal(signal, SIG_DFL);
    std::raise(signal);
}

void run(const Input &input) {
    // In memory of its own size, so that a sanitizer sees what is read beyond it.
    const Input exact(input.begin(), input.end());
    running = &exact;
    LLVMFuzzerTestOneInput(exact.data(), exact.size());
    running = nullptr;
}

std::vector<Input> read_corpus(const std::vector<std::string> &paths) {
    namespace fs = std::filesystem;
    std::vector<fs::path> files;
    for (const std::string &path : paths) {
        if (fs::is_directory(path)) {
            for (const fs::directory_entry &entry : fs::directory_iterator(path)) {
                files.push_back(entry.path());
            }
        } else {
            files.emplace_back(path);
        }
    }
    std::sort(files.begin(), files.end());
    std::vector<Input> corpus;
    for (const fs::path &file : files) {
        std::ifstream stream(file, std::ios::binary);
        if (!stream) {
            std::fprintf(stderr, "the file '%s' cannot be opened\n", file.c_str());
            std::exit(2);
        }
        corpus.emplace_back(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
    }
    return corpus;
}

/** Changes a few places of an input. */
class Mutator {
public:
    explicit Mutator(const std::vector<Input> &corpus) : corpus_(corpus) {
    }

    Input next() {
        Input input = corpus_[below(corpus_.size())];
        for (size_t changes = 1 + below(6); changes > 0; changes--) {
            change(input);
        }
        return input;
    }

private:
    size_t below(size_t end) {
        return end == 0 ? 0 : random_() % end;
    }
    static Input::iterator at(Input &input, size_t place) {
        return input.begin() + static_cast<ptrdiff_t>(place);
    }

    void change(Input &input) {
        constexpr size_t longest = 1 << 16;
        const size_t place = below(input.size() + 1), length = below(std::min<size_t>(input.size() - place, 64) + 1);
        switch (below(7)) {
        case 0:
            input.insert(at(input, place), static_cast<uint8_t>(random_()));
            break;
        case 1:
            input.erase(at(input, place), at(input, place + length));
            break;
        case 2:
            if (place < input.size()) {
                input[place] ^= static_cast<uint8_t>(1u << below(8));
            }
            break;
        case 3:
            if (place < input.size()) {
                input[place] = static_cast<uint8_t>(random_());
            }
            break;
        case 4: {
            // A part again, up to many times: deep nests, long lists.
            const Input part(at(input, place), at(input, place + length));
            for (size_t times = size_t{1} << below(12); times > 0 && input.size() < longest; times--) {
                input.insert(at(input, place), part.begin(), part.end());
            }
            break;
        }
        case 5: {
            const Input &other = corpus_[below(corpus_.size())];
            const size_t begin = below(other.size() + 1), end = begin + below(other.size() - begin + 1);
            input.insert(at(input, place), other.begin() + static_cast<ptrdiff_t>(begin),
                         other.begin() + static_cast<ptrdiff_t>(end));
            break;
        }
        default: {
            // Another number in the place of one.
            constexpr const char *numbers[] = {"0",          "-1",    "1e308",      "65536",
                                               "2147483648", "1e-99", "4294967297", "18446744073709551617"};
            const auto is_digit = [](uint8_t byte) { return byte >= '0' && byte <= '9'; };
            const auto first = std::find_if(at(input, place), input.end(), is_digit);
            const auto last = std::find_if_not(first, input.end(), is_digit);
            const std::string number = numbers[below(std::size(numbers))];
            const auto rest = input.erase(first, last);
            input.insert(rest, number.begin(), number.end());
        }
        }
    }

    const std::vector<Input> &corpus_;
    std::mt19937 random_{1};
};

}  // namespace

int main(int argc, char **argv) {
    std::vector<std::string> paths;
    int64_t runs = 0;
    for (int i = 1; i < argc; i++) {
        const std::string word = argv[i];
        if (word.rfind("-runs=", 0) == 0) {
            runs = std::atoll(word.c_str() + 6);
        } else {
            paths.push_back(word);
        }
    }
    crash_path = "crash-" + std::filesystem::path(argv[0]).filename().string();
    if (__sanitizer_set_death_callback) {
        __sanitizer_set_death_callback(keep_input);
    } else {
        for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
            std::signal(signal, keep_input_of_signal);
        }
    }
    std::signal(SIGABRT, keep_input_of_signal);
    const std::vector<Input> corpus = read_corpus(paths);
    if (corpus.empty()) {
        std::fprintf(stderr, "Usage: %s CORPUS_FOLDER_OR_FILE... [-runs=N]\n", argv[0]);
        return 2;
    }
    for (const Input &input : corpus) {
        run(input);
    }
    Mutator mutator(corpus);
    for (int64_t i = 0; i < runs; i++) {
        run(mutator.next());
    }
    std::printf("%zu files and %lld mutations of them\n", corpus.size(), static_cast<long long>(runs));
    return 0;
}
