// Mask files. The first byte of an input says which kind: NumPy or PNG.
#include "fuzz.h"
#include "mask_set.h"

using namespace distile;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const InputFile files[] = {InputFile(".npy"), InputFile(".png")};
    static const Operator op = [] {
        Operator made;
        made.name = "fuzzed";
        made.params = {{"kernel_h", "1"},   {"kernel_w", "1"}, {"pad_top", "0"},
                       {"pad_bottom", "0"}, {"pad_left", "0"}, {"pad_right", "0"}};
        made.typical_batch = 2;
        made.typical_height = 9;
        made.typical_width = 12;
        return made;
    }();
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
