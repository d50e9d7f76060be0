/** \file
 * Products of tiles of float16 by AMX-BF16, for CPUs that lack AMX-FP16. Linked into every PolyKernel that has such
 * variants. The runtime asks the system for the tiles before it calls them.
 */
#include "kernels/cpu/amx_bf16_tiles.h"
#include "kernels/cpu/split_float16.h"
#include "kernels/dot_products.h"

namespace {

/** Tells this file's functions apart from those of other files. */
struct OfAmxSplitFp16;

struct AmxSplitFp16 : distile::dot_product::AmxBf16Tiles<OfAmxSplitFp16> {
    using Types = distile::dot_product::SplitFloat16<AmxSplitFp16>;

    [[gnu::always_inline]] static void widen(const distile::dot_product::Stored16 &stored,
                                             distile::dot_product::Epilogue<AmxSplitFp16>::Floats &values) {
        __m256i halves;
        std::memcpy(&halves, &stored, sizeof(halves));
        // GCC 12 warns of _mm512_cvtph_ps's own code.
        const __m512 floats = _mm512_maskz_cvtph_ps(0xffff, halves);
        std::memcpy(&values, &floats, sizeof(values));
    }
};

}  // namespace

extern "C" int distile_call_amx_split_fp16(const distile_dot_product_code *code, const distile_kernel_call *call) {
    return distile::dot_product::Product<distile::dot_product::Steps<distile::dot_product::TileSet<AmxSplitFp16>>>(
               *code, *call)
        .run();
}
