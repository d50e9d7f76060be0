// What a search reads and writes: masks, and the log of its measurements.
#include "autoscheduler/search/mask_set.h"
#include "autoscheduler/search/weight_file.h"
#include "masks/mask_files.h"
#include "schedules/tensor_core_space.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"
#include "tests/tools/search_cases.h"

#include <algorithm>
#include <csignal>
#include <distile/distile.hpp>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

using namespace distile;

namespace {

/** A NumPy file. */
std::string npy(const std::string &type, const std::string &fortran_order, const std::string &shape,
                const std::string &data) {
    std::string header = "{'descr': '" + type + "', 'fortran_order': " + fortran_order + ", 'shape': " + shape + ", }";
    header.resize((header.size() + 11 + 63) / 64 * 64 - 10, ' ');
    header.back() = '\n';
    std::string file = "\x93NUMPY\x01";
    file += '\0';
    file += static_cast<char>(header.size() & 0xff);
    file += static_cast<char>(header.size() >> 8);
    return file + header + data;
}

/** The masks of some_masks(), one after the other, as bytes. */
std::vector<ByteMask> bytes_of_some_masks() {
    const auto draw = [](const char *family, double density, uint64_t seed) {
        const Operator op = small_operator();
        return draw_mask(family, 1, op.typical_output().height, op.typical_output().width, density, seed);
    };
    return {draw("blob", .05, 1), draw("blob", .1, 2),   draw("blob", .2, 3),
            draw("blob", .4, 4),  draw("random", .3, 5), draw("random", .05, 6)};
}

}  // namespace

TEST_CASE("Masks are counted as the runtime counts them, and measured where they lie", "[search]") {
    const MaskSet masks = some_masks();
    CHECK(masks.size() == 6);
    const Context context = make_context();
    const Mask mask = make_mask(context);
    const std::vector<ByteMask> bytes = bytes_of_some_masks();
    for (const auto &granularity : {std::pair{1, 1}, {2, 3}, {5, 7}, {8, 16}}) {
        for (size_t i = 0; i < masks.size(); i++) {
            CAPTURE(granularity.first, granularity.second, i);
            const ByteMask &of = bytes[i];
            check(context, distile_mask_set_bytes(mask.get(), of.bytes.data(), of.batch, of.height, of.width,
                                                  int64_t{of.height} * of.width, of.width));
            int64_t count = 0;
            check(context, distile_mask_count_tiles(mask.get(), granularity.first, granularity.second, &count));
            CHECK(masks.tiles(granularity)[i] == count);
            CHECK(count <= masks.all_tiles(granularity));
        }
        const MaskSet two = masks.subset({3, 1});
        CHECK(two.tiles(granularity) == std::vector<int64_t>{masks.tiles(granularity)[3], masks.tiles(granularity)[1]});
    }
    CHECK(masks.all_tiles({5, 16}) == 5 * 2);
    CHECK(masks.tiles({24, 24}) == std::vector<int64_t>(6, 1));
    const std::vector<int64_t> counts = tile_counts(masks, {1, 1}, 5);
    CHECK(counts.front() == 29);
    CHECK(counts.back() == *std::max_element(masks.tiles({1, 1}).begin(), masks.tiles({1, 1}).end()));
    CHECK(counts.size() == 5);
    CHECK(std::is_sorted(counts.begin(), counts.end()));
    CHECK(tile_counts(masks, {24, 24}, 5) == std::vector<int64_t>{1});
}

TEST_CASE("Masks are written so that they are read again", "[search]") {
    const TemporaryFolder folder;
    const ByteMask first = draw_named_mask("blob:0.3:7", 1, 5, 70), second = draw_named_mask("checkerboard", 2, 5, 70);
    CHECK(first.bytes == blob_mask(1, 5, 70, 0.3, 7).bytes);
    const std::string file = npy_of_masks({first});
    // The elements begin where NumPy puts them, at a multiple of 64 bytes.
    CHECK((file.size() - first.bytes.size()) % 64 == 0);
    CHECK(file.find("{'descr': '|b1', 'fortran_order': False, 'shape': (5, 70), }") == 10);
    const std::vector<MaskImage> one = read_npy_masks(folder.write("one.npy", file));
    REQUIRE(one.size() == 1);
    CHECK(one[0].bytes == first.bytes);
    const std::vector<MaskImage> three = read_npy_masks(folder.write("three.npy", npy_of_masks({first, second})));
    REQUIRE(three.size() == 3);
    CHECK(three[0].bytes == first.bytes);
    CHECK(three[1].bytes == std::vector<uint8_t>(second.bytes.begin(), second.bytes.begin() + 350));
    CHECK(three[2].height == 5);
    const MaskImage picture = read_png_mask(folder.write("one.png", png_of_mask(first)));
    CHECK(picture.height == 5);
    CHECK(picture.width == 70);
    for (size_t i = 0; i < first.bytes.size(); i++) {
        REQUIRE(picture.bytes[i] == 255 * first.bytes[i]);
    }
}

TEST_CASE("Masks are read from NumPy's files", "[search]") {
    const TemporaryFolder folder;
    const std::vector<MaskImage> one =
        read_npy_masks(folder.write("one.npy", npy("|b1", "False", "(2, 3)", std::string("\1\0\0\0\0\1", 6))));
    REQUIRE(one.size() == 1);
    CHECK(one[0].height == 2);
    CHECK(one[0].width == 3);
    CHECK(one[0].bytes == std::vector<uint8_t>{1, 0, 0, 0, 0, 1});
    const std::vector<MaskImage> two =
        read_npy_masks(folder.write("two.npy", npy("|u1", "False", "(2, 1, 2)", std::string("\0\7\0\0", 4))));
    REQUIRE(two.size() == 2);
    CHECK(two[0].bytes == std::vector<uint8_t>{0, 7});
    CHECK(two[1].name.find("two.npy[1]") != std::string::npos);
    const std::vector<MaskImage> columns_first =
        read_npy_masks(folder.write("fortran.npy", npy("|u1", "True", "(2, 3)", "\1\2\3\4\5\6")));
    REQUIRE(columns_first.size() == 1);
    CHECK(columns_first[0].bytes == std::vector<uint8_t>{1, 3, 5, 2, 4, 6});

    const std::pair<std::string, const char *> wrong[] = {
        {"", "not a NumPy array"},
        {"nonsense that is long enough", "not a NumPy array"},
        {npy("<f4", "False", "(1, 1)", "1234"),
         "of the type <f4, not bool or uint8: save which pixels are active, as numpy"},
        {npy("\x1b[2J", "False", "(1, 1)", "1234"), "of the type another, not bool"},
        {npy("|b1", "False", "(2,)", "12"), "shape (2)"},
        {npy("|b1", "False", "(0, 2)", ""), "shape (0, 2)"},
        {npy("|b1", "False", "(70000, 2)", std::string(140000, '1')), "shape (70000, 2)"},
        {npy("|b1", "False", "(2, 2)", "123"), "not a NumPy array"},
        // 2^64 and some elements, which are few where products wrap.
        {npy("|b1", "False", "(170804740106741571, 9, 12)", std::string(216, '\1')), "shorter than its shape"},
        {npy("|b1", "False", "(18446744073709551617, 1, 1)", "1"), "malformed shape"},
        {npy("|b1", "False", "(-1, 1)", "1"), "malformed shape"},
        {npy("|b1", "False", "(1, 1, 1, 1, 1, 1, 1, 1, 1)", "1"), "malformed shape"},
        {npy("|b1", "False", "(1, 1", "1"), "no shape"},
        {std::string("\x93NUMPY\2\0\xff\xff\xff\xff{}", 14), "inside its header"}};
    for (const auto &[file, word] : wrong) {
        const std::string path = folder.write("wrong.npy", file);
        const std::string message = message_of([&] { read_npy_masks(path); });
        CAPTURE(word, message);
        CHECK(message.find(path) != std::string::npos);
        CHECK(message.find(word) != std::string::npos);
    }
}

namespace {

/** A convolution of 4 to 2 channels in 2 groups, with a kernel of 1 x 3. */
Operator grouped_operator(const std::string &type = "float32") {
    const nlohmann::json params = {{"dtype", type}, {"in_channels", 4}, {"out_channels", 2},
                                   {"kernel_h", 1}, {"kernel_w", 3},    {"groups", 2}};
    return parse_operator(
        {{"distile_operator", 1}, {"name", "grouped"}, {"generator", "masked_conv2d"}, {"params", params}}, "here");
}

template<typename Element> std::string bytes_of(const std::vector<Element> &values) {
    return {reinterpret_cast<const char *>(values.data()), values.size() * sizeof(Element)};
}

}  // namespace

TEST_CASE("Weights are read from NumPy's files", "[search]") {
    const TemporaryFolder folder;
    const Operator op = grouped_operator();
    const std::vector<float> values = {0, 1, 2, 3, 0, 5, 6, 7, 0, 9, 10, 11};
    // [output channel][kernel column][input channel].
    const std::vector<float> expected = {0, 3, 1, 0, 2, 5, 6, 9, 7, 10, 0, 11};
    const auto read = [&](const std::string &file) { return read_weights(folder.write("w.npy", file), op); };
    CHECK(read(npy("<f4", "False", "(2, 2, 1, 3)", bytes_of(values))) == expected);
    CHECK(read(npy("<f4", "False", "(2, 6)", bytes_of(values))) == expected);
    CHECK(read(npy("<f8", "False", "(2, 6)", bytes_of(std::vector<double>(values.begin(), values.end())))) == expected);
    std::vector<float> columns;
    for (size_t i = 0; i < 12; i++) {
        columns.push_back(values[i % 2 * 6 + i / 2]);
    }
    CHECK(read(npy("<f4", "True", "(2, 6)", bytes_of(columns))) == expected);
    CHECK(share_of_zeros(op, expected, "w") == .25);
    // A group has two input channels, which lie in one quad.
    const Operator quantized = grouped_operator("uint8");
    CHECK(share_of_zeros(quantized, expected, "w") == 0);
    CHECK(share_of_zeros(quantized, {0, 0, -0.0f, 1, 2, 0, 0, 0, 0, 0, 3, 4}, "w") == .5);
    const Operator large = parse_operator({{"distile_operator", 1},
                                           {"name", "large"},
                                           {"generator", "masked_linear"},
                                           {"params", {{"in_channels", 1000}, {"out_channels", 100}}}},
                                          "here");
    std::vector<float> nearly(100000);
    nearly[5] = 1;
    CHECK(share_of_zeros(large, nearly, "w") < 1);
    const std::string none = message_of([&] { share_of_zeros(op, std::vector<float>(12), "w.npy"); });
    CHECK(none.find("the weights 'w.npy' are all 0") != std::string::npos);
}

TEST_CASE("Weights that cannot be used are refused with a reason", "[search]") {
    const TemporaryFolder folder;
    const auto refuse = [&](const std::string &file, const char *word, const Operator &op = grouped_operator()) {
        const std::string path = folder.write("wrong.npy", file), message = message_of([&] { read_weights(path, op); });
        CAPTURE(word, message);
        CHECK(message.find(path) != std::string::npos);
        CHECK(message.find(word) != std::string::npos);
    };
    std::vector<float> values(12, 1);
    const std::string right = bytes_of(values), good = npy("<f4", "False", "(2, 6)", right);
    values[7] = std::numeric_limits<float>::quiet_NaN();
    const std::string not_finite = "no finite number of float32, for output channel 1 and input channel 0";
    refuse(npy("<f4", "False", "(2, 6)", bytes_of(values)), not_finite.c_str());
    values[7] = std::numeric_limits<float>::infinity();
    refuse(npy("<f4", "False", "(2, 6)", bytes_of(values)), not_finite.c_str());
    // As a double it is finite, as a weight not.
    std::vector<double> wide(12, 1);
    wide[7] = 1e300;
    refuse(npy("<f8", "False", "(2, 6)", bytes_of(wide)), not_finite.c_str());
    refuse(npy("<f4", "False", "(6, 2)", right),
           "have the shape (6, 2), but the operator's are (2, 2, 1, 3) or (2, 6)");
    refuse(npy("<f4", "False", "()", right), "have the shape ()");
    refuse(npy("<f4", "False", "(2, 6)", right.substr(4)), "shorter than its shape");
    refuse(npy("<f4", "False", "()", ""), "shorter than its shape");
    refuse(npy("<f2", "False", "(2, 6)", right), "of the type <f2, not float32 or float64");
    refuse(npy(">f4", "False", "(2, 6)", right), "of the type >f4, not float32 or float64");
    refuse("PK\3\4 and so on: an archive",
           "are not a NumPy array (there is no NumPy header); `python -m distile weights`");
    refuse(good, "there is no code for nonzero weights for this operator",
           parse_operator({{"distile_operator", 1},
                           {"name", "depthwise"},
                           {"generator", "masked_depthwise_conv2d"},
                           {"params", {{"dtype", "uint8"}, {"channels", 4}}}},
                          "here"));
    CHECK(message_of([&] { read_weights(folder.path() + "/none.npy", grouped_operator()); }).find("cannot be opened") !=
          std::string::npos);
}

TEST_CASE("Masks that cannot be used are refused with a reason", "[search]") {
    const TemporaryFolder folder;
    const Operator op = small_operator();
    const auto refusal = [&](const std::vector<std::string> &sources) {
        return message_of([&] { read_mask_set(sources, op); });
    };
    CHECK(refusal({}).find("there are no masks") != std::string::npos);
    CHECK(refusal({"blob:0:1"}).find("no mask has an active pixel") != std::string::npos);
    CHECK(refusal({"cloud:0.1:1"}).find("no mask family 'cloud'") != std::string::npos);
    for (const char *source : {"blob", "blob:0.1", "blob:x:1", "blob:0.1:y", "blob:2:1", "checkerboard:0.1:1", ""}) {
        INFO(source);
        CHECK(refusal({source}).find("neither a .npy nor a .png file") != std::string::npos);
    }
    CHECK(refusal({folder.path() + "/none.npy"}).find("cannot be opened") != std::string::npos);
    CHECK(refusal({folder.write("text.png", "text")}).find("PNG file (Image not of any known type, or corrupt)") !=
          std::string::npos);
    // A chunk of an unknown type, whose bytes steer a terminal or end the text.
    for (const std::string &type : {std::string("\0\0\0\0", 4), std::string("\x1b[2J")}) {
        const std::string header("\0\0\0\rIHDR\0\0\0\1\0\0\0\1\b\0\0\0\0????", 25), none(4, '\0');
        const std::string file = "\x89PNG\r\n\x1a\n" + header + none + type + none;
        const std::string message = refusal({folder.write("chunk.png", file)});
        CAPTURE(message);
        CHECK(message.find("unknown PNG chunk type") != std::string::npos);
        CHECK(message.find(type) == std::string::npos);
    }
    const std::string path = folder.write("small.npy", npy("|b1", "False", "(2, 3, 4)", std::string(24, '\1')));
    CHECK(refusal({path}).find("have 3 x 4 pixels, but the output of 'conv' for its typical input has 24 x 24") !=
          std::string::npos);
    Operator fitting = op;
    fitting.typical_height = 3;
    fitting.typical_width = 4;
    int empty = -1;
    CHECK(read_mask_set({path, "blob:0:1"}, fitting, &empty).size() == 2);
    CHECK(empty == 1);
    fitting.typical_batch = 2;
    CHECK(read_mask_set({path}, fitting).size() == 1);
    fitting.typical_batch = 3;
    CHECK(message_of([&] { read_mask_set({path}, fitting); }).find("no whole batches of 3") != std::string::npos);
}

TEST_CASE("A log gives back what was put in", "[search]") {
    const TemporaryFolder folder;
    const std::string path = folder.path() + "/a.log";
    Measurement failed;
    failed.theta = a_theta(2, 2);
    failed.outcome = Outcome::TimedOut;
    failed.message = "slow \"\n";
    {
        SearchLog log(path, some_header());
        log.append(measured(a_theta(1, 2), true, {{4, 1.5}, {8, 2.25}}));
        log.append(failed);
        // Another reader may look at it meanwhile.
        CHECK(read_search_log(path).measured.size() == 2);
    }
    SearchLog again(path, some_header());
    REQUIRE(again.measured().size() == 2);
    CHECK(again.warning().empty());
    CHECK(again.measured()[0].theta == a_theta(1, 2));
    CHECK(again.measured()[0].dense);
    CHECK(again.measured()[0].at(6) == Approx(1.875));
    CHECK(again.measured()[0].compile_s == 2);
    CHECK(again.measured()[1].outcome == Outcome::TimedOut);
    CHECK(again.measured()[1].message == failed.message);
    CHECK(to_json(read_search_log(path).header) == to_json(some_header()));
}

TEST_CASE("A log belongs to one search at a time, and to one operator, device and space", "[search]") {
    const TemporaryFolder folder;
    const std::string path = folder.path() + "/a.log";
    const auto refusal = [&](const LogHeader &header) { return message_of([&] { SearchLog(path, header); }); };
    {
        const SearchLog log(path, some_header());
        CHECK(refusal(some_header()).find("is in use by another search") != std::string::npos);
    }
    const std::string before = contents(path);
    LogHeader other = some_header();
    other.op = small_operator("another");
    CHECK(refusal(other).find("is of the operator 'conv'") != std::string::npos);
    other = some_header();
    other.weights = "w.npy";
    CHECK(refusal(other).find("is of random weights, but this search is of the weights \"w.npy\"") !=
          std::string::npos);
    other = some_header();
    other.op.typical_height = 25;
    CHECK(refusal(other).find("is of the operator") != std::string::npos);
    other = some_header();
    other.device.cores = 77;
    CHECK(refusal(other).find("77 cores") != std::string::npos);
    other = some_header();
    other.threads = 1;
    CHECK(refusal(other).find("is of 2 threads") != std::string::npos);
    other = some_header();
    other.knobs = "tile_h tile_w";
    CHECK(refusal(other).find("knobs tile_h tile_w") != std::string::npos);
    other = some_header();
    other.target += "-avx512";
    CHECK(refusal(other).find("target") != std::string::npos);
    other = some_header();
    other.math = Math::TF32;
    CHECK(refusal(other).find("in TF32") != std::string::npos);
    CHECK(contents(path) == before);
    // What does not change what a measurement means may differ.
    other = some_header();
    other.seed = 8;
    other.masks = {"checkerboard"};
    CHECK(refusal(other).empty());
    CHECK(message_of([&] { SearchLog(folder.path() + "/none/a.log", some_header()); }).find("cannot be opened") !=
          std::string::npos);
    CHECK(message_of([&] { read_search_log(folder.path() + "/none.log"); }).find("cannot be opened") !=
          std::string::npos);
    CHECK(message_of([&] {
              read_search_log(folder.write("plan.json", "{\"distile_plan\": 1}\n"));
          }).find("not the log of a search") != std::string::npos);
}

TEST_CASE("A line that a kill left broken is skipped and cut off", "[search]") {
    const TemporaryFolder folder;
    const std::string path = folder.path() + "/a.log";
    {
        SearchLog log(path, some_header());
        log.append(measured(a_theta(1, 1), false, {{1, 1}}));
        log.append(measured(a_theta(2, 1), false, {{1, 1}}));
    }
    const std::string whole = contents(path);
    // Killed at any byte of the last line, its end included.
    const size_t last = whole.rfind('\n', whole.size() - 2) + 1;
    for (size_t size : {last + 1, last + 20, whole.size() - 1}) {
        folder.write("a.log", whole.substr(0, size));
        CHECK(read_search_log(path).warning.find("line 3 is broken") != std::string::npos);
        CHECK(contents(path).size() == size);
        SearchLog log(path, some_header());
        CHECK(log.measured().size() == 1);
        CHECK(log.warning().find("line 3 is broken") != std::string::npos);
        log.append(measured(a_theta(2, 1), false, {{1, 1}}));
        CHECK(contents(path) == whole);
    }
    for (size_t size : {size_t{0}, size_t{30}, whole.find('\n')}) {
        folder.write("a.log", whole.substr(0, size));
        CHECK(SearchLog(path, some_header()).measured().empty());
        CHECK(read_search_log(path).measured.empty());
    }
    // In the midst of the log nobody's kill does that.
    std::string broken = whole;
    broken[last - 4] = '"';
    folder.write("a.log", broken);
    CHECK(message_of([&] { SearchLog(path, some_header()); }).find("line 2 is not JSON") != std::string::npos);
    CHECK(contents(path) == broken);
}

TEST_CASE("A file that is no log is refused and left as it is", "[search]") {
    const TemporaryFolder folder;
    for (const char *text : {"a note", "a note\n", "a note\nanother\n", "{\"a\":", "[1, 2]", "\n"}) {
        INFO(text);
        const std::string path = folder.write("notes.txt", text);
        CHECK(message_of([&] { SearchLog(path, some_header()); }).find("it is not the log of a search") !=
              std::string::npos);
        CHECK(message_of([&] { read_search_log(path); }).find("it is not the log of a search") != std::string::npos);
        CHECK(contents(path) == text);
    }
}

TEST_CASE("Schedules and headers that no search writes are refused", "[search]") {
    const TemporaryFolder folder;
    const auto refusal = [&](const LogHeader &header, const Theta &theta) {
        const std::string path = folder.write("a.log", to_json(header).dump() + "\n" +
                                                           to_json(measured(theta, false, {{1, 1}})).dump() + "\n{}\n");
        return message_of([&] { read_search_log(path); });
    };
    LogHeader gpu = some_header();
    gpu.backend = "cuda";
    gpu.device = generic_device_profile("generic_cuda");
    const Theta gpu_theta =
        unpack(space_of("cuda"), legal_points(space_of("cuda"), workload_of(gpu.op, gpu.device).problem).at(0));
    // In TF32 the same log has another space.
    LogHeader tensor_cores = gpu;
    tensor_cores.target = "x86-64-linux-cuda-cuda_capability_90a";
    tensor_cores.op.params["in_channels"] = tensor_cores.op.params["out_channels"] = "64";
    tensor_cores.math = Math::TF32;
    const Space &tensor_core_points = tensor_core_space(TensorCores::Sm90);
    const Theta tensor_core_theta =
        unpack(tensor_core_points, legal_points(tensor_core_points, workload_of(tensor_cores).problem).at(0));
    CHECK(refusal(tensor_cores, tensor_core_theta).find("line 3: this is not a measurement") != std::string::npos);
    CHECK(refusal(tensor_cores, gpu_theta).find("line 2: its schedule is not legal") != std::string::npos);
    CHECK(refusal(gpu, tensor_core_theta).find("line 2: its schedule is not legal") != std::string::npos);
    // The next line shows that a legal one is taken.
    CHECK(refusal(some_header(), a_theta(1, 1)).find("line 3: this is not a measurement") != std::string::npos);
    CHECK(refusal(gpu, gpu_theta).find("line 3: this is not a measurement") != std::string::npos);
    for (const char *knob : {"pixels", "channels", "group", "channel_splits", "unroll"}) {
        Theta theta = a_theta(1, 1);
        theta[knob] = 0;
        CHECK(refusal(some_header(), theta).find(std::string("the knob '") + knob + "' is 0") != std::string::npos);
        theta.erase(knob);
        CHECK(refusal(some_header(), theta).find("line 2: its schedule is not legal") != std::string::npos);
    }
    for (const char *knob : {"thread_channels", "thread_pixels", "block_pixels", "chunk", "splits"}) {
        Theta theta = gpu_theta;
        theta[knob] = 0;
        CHECK(refusal(gpu, theta).find(std::string("the knob '") + knob + "' is 0") != std::string::npos);
    }
    LogHeader mixed = some_header();
    mixed.backend = "cuda";
    CHECK(refusal(mixed, gpu_theta).find("its \"backend\" is not that of its \"device\"") != std::string::npos);

    // Illegal thetas are not appended either, as the results of another machine might be.
    const std::string path = folder.path() + "/b.log";
    SearchLog log(path, some_header());
    const std::string before = contents(path);
    CHECK(message_of([&] {
              log.append(measured(a_theta(1, 1, 99), false, {{1, 1}}));
          }).find("not legal") != std::string::npos);
    CHECK(contents(path) == before);
    CHECK(log.measured().empty());

    nlohmann::json header = to_json(some_header());
    header["thread"] = 2;
    CHECK(message_of([&] {
              read_search_log(folder.write("c.log", header.dump() + "\n"));
          }).find("c.log': there is no member \"thread\"; the nearest known one is \"threads\"") != std::string::npos);

    nlohmann::json device = to_json(gpu.device);
    device["memory"][1]["transaction_bytes"] = 3;
    CHECK(message_of([&] { parse_device_profile(device, "it"); }).find("not an integer from 4") != std::string::npos);
}

TEST_CASE("A full disk leaves the log as it was", "[search]") {
    const TemporaryFolder folder;
    const std::string path = folder.path() + "/a.log";
    SearchLog log(path, some_header());
    log.append(measured(a_theta(1, 1), false, {{1, 1}}));
    const std::string before = contents(path);
    std::signal(SIGXFSZ, SIG_IGN);
    rlimit old{};
    getrlimit(RLIMIT_FSIZE, &old);
    const rlimit limit{before.size() + 10, old.rlim_max};
    REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    const std::string message = message_of([&] { log.append(measured(a_theta(2, 1), false, {{1, 1}})); });
    setrlimit(RLIMIT_FSIZE, &old);
    std::signal(SIGXFSZ, SIG_DFL);
    CHECK(message.find("cannot be written") != std::string::npos);
    CHECK(message.find("The 1 measurements before are kept") != std::string::npos);
    CHECK(contents(path) == before);
    log.append(measured(a_theta(2, 1), false, {{1, 1}}));
    CHECK(read_search_log(path).measured.size() == 2);
}

TEST_CASE("What is no measurement is refused", "[search]") {
    const nlohmann::json good = to_json(measured(a_theta(1, 1), false, {{1, 1}, {2, 3}}));
    CHECK(parse_measurement(good, "it").times.size() == 2);
    const auto refused = [&](const char *member, const nlohmann::json &value) {
        nlohmann::json bad = good;
        bad[member] = value;
        return !message_of([&] { parse_measurement(bad, "it"); }).empty();
    };
    CHECK(refused("outcome", "good"));
    CHECK(refused("reference", 3));
    CHECK(refused("theta", 3));
    CHECK(refused("theta", {{"tile_h", 1}}));
    CHECK(refused("theta", {{"tile_h", 1}, {"tile_w", 1}, {"pixels", 1e300}}));
    CHECK(refused("theta", {{"tile_h", 1}, {"tile_w", 1}, {"pixels", int64_t{1} << 40}}));
    CHECK(refused("times", {{1.5, 1, 1, 1}}));
    CHECK(refused("times", {{1e300, 1, 1, 1}}));
    CHECK(refused("times", nlohmann::json::array()));
    CHECK(refused("times", {{1, 0, 1, 1}}));
    CHECK(refused("times", {{2, 1, 1, 1}, {1, 1, 1, 1}}));
    CHECK(refused("times", {{1, 1}}));
}

TEST_CASE("Trials that failed for want of a tool do not count", "[search]") {
    const std::string generators = "distile: error: '/opt/distile/distile_generators' failed; it printed:\n";
    const char *const tools[] = {
        "/opt/distile/distile_generators: error while loading shared libraries: libHalide.so.19: cannot open shared "
        "object file: No such file or directory\nName the folder of Halide's library in LD_LIBRARY_PATH.",
        "Error: Failed to load: libautoschedule_polykernel.so: cannot open shared object file",
        "LLVM ERROR: IO failure on output stream: No space left on device"};
    for (const char *text : tools) {
        CHECK(blames_tools(generators + text));
    }
    for (const char *text : {"distile: error: the program 'cc' cannot be started: No such file or directory.",
                             "distile: error: '/a/b.so' is missing; it is needed to compile plans. Run the `distile` "
                             "of a complete installation or build.",
                             "distile: error: 'cc' failed; it printed:\n/usr/bin/ld: cannot find -lstdc++\n.",
                             "/bin/sh: 1: exec: env: not found: No such file or directory"}) {
        CHECK(blames_tools(text));
    }
    for (const std::string &text : {std::string(), std::string("compiling it took more than 60 seconds"),
                                    generators + "Internal Error at Schedule.cpp:12: the loop cannot be unrolled",
                                    generators + "terminate called after throwing an instance of 'std::bad_alloc'"}) {
        CHECK_FALSE(blames_tools(text));
    }

    const TemporaryFolder folder;
    const std::string path = folder.path() + "/a.log";
    Measurement poisoned;
    poisoned.theta = a_theta(2, 2);
    poisoned.outcome = Outcome::NotCompiled;
    poisoned.message = generators + tools[0];
    Measurement refused = poisoned;
    refused.theta = a_theta(1, 2);
    refused.message = generators + "Internal Error";
    {
        SearchLog log(path, some_header());
        for (const Measurement &measurement : {poisoned, refused, poisoned}) {
            log.append(measurement);
        }
    }
    const std::string before = contents(path);
    {
        SearchLog log(path, some_header());
        REQUIRE(log.measured().size() == 1);
        CHECK(log.measured()[0].message == refused.message);
        CHECK(log.warning().find("has 2 trials that did not compile because a program or a library was missing") !=
              std::string::npos);
        // Nothing is cut off, and what is tried again stands behind it.
        CHECK(contents(path) == before);
        log.append(measured(poisoned.theta, false, {{1, 1}}));
    }
    CHECK(read_search_log(path).measured.size() == 2);
    // Beside a line that a kill left broken.
    folder.write("a.log", contents(path) + "{\"theta\"");
    const LogContents both = read_search_log(path);
    CHECK(both.measured.size() == 2);
    CHECK(both.warning.find("line 6 is broken") != std::string::npos);
    CHECK(both.warning.find("; the log '" + path + "' has 2 trials") != std::string::npos);
}
