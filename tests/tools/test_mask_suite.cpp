// The suite of masks: the same bits on every machine, and two sets with nothing in common.
#include "autoscheduler/search/mask_set.h"
#include "masks/contact_sheet.h"
#include "masks/mask_suite.h"
#include "plans/operator.h"
#include "tests/support/catch.h"
#include "tests/support/contains.h"
#include "tests/support/temporary_folder.h"
#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

using namespace distile;

namespace {

uint64_t hash_of(const std::vector<SuiteMask> &masks) {
    uint64_t hash = 0xcbf29ce484222325;
    for (const SuiteMask &each : masks) {
        for (const uint8_t byte : each.mask.bytes) {
            hash = (hash ^ byte) * 0x100000001b3;
        }
    }
    return hash;
}

}  // namespace

TEST_CASE("The suite has the same bits everywhere", "[suite]") {
    const MaskSuite suite;
    CHECK(hash_of(suite.draw("train", 1, 40, 40)) == 0x1244c95039af7d41);
    CHECK(hash_of(suite.draw("held-out", 1, 40, 40)) == 0xb91ad5604d30b2c8);
    CHECK(hash_of(suite.draw("train", 2, 17, 31)) == 0x4222b271d3279bc4);
    CHECK(hash_of(suite.draw("held-out", 1, 1, 197)) == 0xf1a1c4e1a38e991c);
}

TEST_CASE("The sets of the suite have no mask in common", "[suite]") {
    const MaskSuite suite;
    for (const auto &[height, width] :
         {std::pair{2, 2}, std::pair{4, 4}, std::pair{20, 20}, std::pair{40, 64}, std::pair{1, 197}, std::pair{1, 3}}) {
        CAPTURE(height, width);
        std::set<std::vector<uint8_t>> train;
        for (const SuiteMask &each : suite.draw("train", 1, height, width)) {
            CHECK(each.mask.bytes.size() == static_cast<size_t>(height) * width);
            train.insert(each.mask.bytes);
        }
        for (const SuiteMask &each : suite.draw("held-out", 1, height, width)) {
            CHECK(train.count(each.mask.bytes) == 0);
        }
    }
}

TEST_CASE("Every family of the suite is drawn at the densities of its recipe", "[suite]") {
    const MaskSuite suite;
    for (const std::string &set : MaskSuite::sets()) {
        CAPTURE(set);
        std::map<std::string, std::vector<double>> densities;
        for (const SuiteMask &each : suite.draw(set, 1, 40, 40)) {
            densities[each.family].push_back(each.mask.density());
            CHECK(std::all_of(each.mask.bytes.begin(), each.mask.bytes.end(), [](uint8_t byte) { return byte <= 1; }));
            if (each.family == "crop" || each.family == "frames") {
                CHECK(each.mask.active_pixels() > 0);
                CHECK(!each.sources.empty());
            }
        }
        CHECK(densities.size() == 6);
        CHECK(densities["blob"].size() == 20);
        // Exactly: 32 of 1600 pixels.
        CHECK(densities["blob"].front() == .02);
        CHECK(densities["blur"].back() == .8);
        CHECK(densities["crop"].size() == 15);
        // The layers of a network have these: .11 is the first.
        CHECK(densities["published"].front() == (set == "train" ? .11 : .58));
    }
    // Images of a batch differ, and a class token stands in front of a square of others.
    const std::vector<SuiteMask> batch = suite.draw("train", 2, 16, 16);
    const std::vector<uint8_t> &bytes = batch.front().mask.bytes;
    CHECK(bytes.size() == 2u * 16 * 16);
    CHECK(!std::equal(bytes.begin(), bytes.begin() + 256, bytes.begin() + 256));
    for (const SuiteMask &each : suite.draw("train", 1, 1, 197)) {
        CHECK(each.mask.bytes.front() == 1);
    }
}

TEST_CASE("A mask of the suite has a name, a seed and the licence of its sources", "[suite]") {
    const MaskSuite suite;
    std::set<std::string> names;
    std::set<uint64_t> seeds;
    for (const std::string &set : MaskSuite::sets()) {
        for (const SuiteMask &each : suite.draw(set, 2, 24, 24)) {
            CAPTURE(set, each.name);
            names.insert(set + each.name);
            CHECK(seeds.insert(each.seed).second);
            CHECK(each.name.rfind(each.family + "-", 0) == 0);
            const bool drawn = each.family == "blob" || each.family == "random";
            CHECK(each.sources.empty() == drawn);
            CHECK(each.licence == (drawn ? "Apache-2.0" : each.family == "published" ? "MIT" : "BSD-2-Clause"));
            // Two images are of two sources at most.
            CHECK(each.sources.size() <= 2);
            for (const std::string &source : each.sources) {
                CHECK(contains(source, each.family == "published" ? "dynconv" : "sige"));
            }
        }
    }
    CHECK(names.size() == seeds.size());
}

TEST_CASE("Pictures of masks show tokens in a square", "[suite]") {
    // A class token and 2 x 2 others.
    CHECK(MaskSuite::picture_of({1, 1, 5, {1, 0, 1, 1, 0}}).bytes == std::vector<uint8_t>{0, 1, 1, 0});
    const ByteMask seven = MaskSuite::picture_of({1, 1, 7, {1, 0, 1, 1, 0, 1, 1}});
    CHECK(seven.height == 4);
    CHECK(seven.width == 2);
    CHECK(seven.bytes == std::vector<uint8_t>{1, 0, 1, 1, 0, 1, 1, 0});
    const ByteMask first = MaskSuite::picture_of({2, 2, 3, {1, 0, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1}});
    CHECK(first.height == 2);
    CHECK(first.bytes == std::vector<uint8_t>{1, 0, 1, 1, 0, 1});
}

TEST_CASE("A contact sheet has a cell for each mask and a line for each group", "[suite]") {
    const TemporaryFolder folder;
    const ByteMask half{1, 1, 2, {1, 0}}, large = blob_mask(1, 200, 100, 1, 1);
    const Photo sheet = read_photo(folder.write(
        "sheet.png", contact_sheet_png({{half, large}, std::vector<ByteMask>(21, checkerboard_mask(1, 64, 64))})));
    CHECK(sheet.width == 20 * 68 + 4);
    REQUIRE(sheet.height == 3 * 68 + 4);
    const auto at = [&](int y, int x) { return int{sheet.rgb[3 * (static_cast<size_t>(y) * sheet.width + x)]}; };
    // Two pixels of 32 x 32 each in the middle of their cell.
    CHECK(at(4 + 16, 4) == 255);
    CHECK(at(4 + 47, 4 + 31) == 255);
    CHECK(at(4 + 16, 4 + 32) == 0);
    const int gray = at(0, 0);
    CHECK((gray > 0 && gray < 255));
    CHECK(at(4 + 15, 4) == gray);
    CHECK(at(4 + 48, 4) == gray);
    // A mask of 200 x 100 pixels in 64 x 32.
    CHECK(at(4, 72 + 16) == 255);
    CHECK(at(4 + 63, 72 + 47) == 255);
    CHECK(at(4, 72 + 15) == gray);
    CHECK(at(4, 72 + 48) == gray);
    // Nothing is behind the first group, and the second fills a line and one cell.
    CHECK(at(4, 2 * 68 + 4) == gray);
    CHECK(at(68 + 4, 19 * 68 + 4) == 255);
    CHECK(at(68 + 4, 19 * 68 + 5) == 0);
    CHECK(at(2 * 68 + 4, 4) == 255);
    CHECK(at(2 * 68 + 4, 68 + 4) == gray);
}

TEST_CASE("Searches take the sets of the suite by name", "[suite]") {
    const Operator op = parse_operator(
        nlohmann::json::parse(R"({"distile_operator": 1, "name": "conv", "generator": "masked_conv2d", "params": {},
                                  "typical": {"batch": 2, "height": 24, "width": 20}})"),
        "here");
    const MaskSet masks = read_mask_set({"suite:train", "blob:0.5:1"}, op);
    CHECK(masks.size() > 60);
    CHECK(masks.batch() == 2);
    CHECK(masks.height() == 24);
    try {
        read_mask_set({"suite:all"}, op);
        FAIL("a set that there is not was drawn");
    } catch (const FileError &error) {
        CHECK(contains(error.what(), "'suite:all'"));
        CHECK(contains(error.what(), "'train' and 'held-out'"));
    }
}

TEST_CASE("Broken recipes of masks are refused", "[suite]") {
    const TemporaryFolder folder;
    const auto refused = [&](const std::string &text, const std::string &word) {
        const std::string path = folder.write("suite.json", text);
        try {
            const MaskSuite suite(path);
            FAIL("this recipe was read: " << text);
        } catch (const std::runtime_error &error) {
            CHECK(contains(error.what(), path));
            CHECK(contains(error.what(), word));
        }
    };
    refused("{}", "no recipe");
    refused(R"({"distile_mask_suite": 1})", "seed");
    refused(R"({"distile_mask_suite": 1, "seeds": 1})", "seeds");
    CHECK_THROWS_AS(MaskSuite(folder.path() + "/none.json"), std::runtime_error);
    const MaskSuite suite;
    CHECK_THROWS_AS(suite.draw("test", 1, 4, 4), std::invalid_argument);
    CHECK_THROWS_AS(suite.draw("train", 0, 4, 4), std::invalid_argument);
}
