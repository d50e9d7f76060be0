/** \file
 * A folder for the files of one test.
 */
#ifndef DISTILE_TESTS_TEMPORARY_FOLDER_H
#define DISTILE_TESTS_TEMPORARY_FOLDER_H

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <system_error>

namespace distile {

/** Is removed with all its files at the end of the test. */
class TemporaryFolder {
public:
    TemporaryFolder() {
        std::string pattern = (std::filesystem::temp_directory_path() / "distile-test-XXXXXX").string();
        if (!mkdtemp(pattern.data())) {
            throw std::runtime_error("no folder can be made like " + pattern);
        }
        path_ = pattern;
    }
    ~TemporaryFolder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    TemporaryFolder(const TemporaryFolder &) = delete;
    TemporaryFolder &operator=(const TemporaryFolder &) = delete;

    std::string path() const {
        return path_.string();
    }
    /** Writes a file and returns its path. */
    std::string write(const std::string &name, const std::string &text) const {
        std::ofstream(path_ / name) << text;
        return (path_ / name).string();
    }

private:
    std::filesystem::path path_;
};

}  // namespace distile

#endif
