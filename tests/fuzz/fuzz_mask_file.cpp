// Mask files. The first byte of an input says which kind: NumPy or PNG.
#include "autoscheduler/search/mask_set.h"
#include "tests/fuzz/fuzz.h"
#include <nlohmann/json.hpp>

using namespace distile;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const InputFile files[] = {InputFile(".npy"), InputFile(".png")};
    // With a kernel of 3 x 3 and its padding, the output is as large as the input.
    static const Operator op = parse_operator({{"distile_operator", 1},
                                               {"name", "fuzzed"},
                                               {"generator", "masked_conv2d"},
                                               {"params", nlohmann::json::object()},
                                               {"typical", {{"batch", 2}, {"height", 9}, {"width", 12}}}},
                                              "here");
    if (size == 0) {
        return 0;
    }
    const InputFile &file = files[data[0] % 2];
    file.write(data + 1, size - 1);
    try {
        // A set of NumPy masks, or the same image for both of a batch.
        std::vector<std::string> sources = {file.path()};
        Operator wanted = op;
        wanted.typical_batch = data[0] % 2 == 0 ? 2 : 1;
        const MaskSet masks = read_mask_set(sources, wanted);
        require(masks.size() > 0 && masks.height() == 9 && masks.width() == 12, "a mask has another shape");
        for (size_t i = 0; i < masks.size(); i++) {
            require(masks.work(i) > 0 && masks.work(i) <= 1, "a mask has no density");
            require(masks.tiles({2, 3})[i] >= 1 && masks.tiles({2, 3})[i] <= masks.all_tiles({2, 3}),
                    "a mask has more tiles than its image");
        }
    } catch (const FileError &) {}
    return 0;
}
