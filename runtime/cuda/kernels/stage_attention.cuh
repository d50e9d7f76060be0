/** \file
 * How the eight warps that multiply compute attention: scores, softmax and values of a block of query rows of an image
 * and a head, without storing scores.
 */
#ifndef DISTILE_CUDA_KERNELS_STAGE_ATTENTION_CUH
#define DISTILE_CUDA_KERNELS_STAGE_ATTENTION_CUH

#include "kernels/tensor_core/attention_factors.cuh"
#include "kernels/tensor_core/softmax.cuh"
#include "runtime/cuda/kernels/stage_queries.cuh"

namespace distile {

/** A block of query rows and their keys, which pass by 64 at a time. Each warp has 16 rows and a part of each 64 keys;
 * those with the same rows unite what they have in the end. A head has `Slots` slots of a step's channels. */
template<class Element, uint32_t Rows, uint32_t Slots> class AttentionTile {
public:
    __device__ AttentionTile(const StageStep &step, const Shared &shared, RingUses &uses)
        : step_(step), shared_(shared), rows_(shared.block.rows[uses.items % listed_items]), uses_(uses),
          group_(threadIdx.x / 32 % groups), part_(threadIdx.x / 32 / groups) {
    }

    __device__ void compute() {
        load_queries();
        const uint32_t keys = rows_.keys;
#pragma unroll 1
        for (uint32_t begin = 0; begin < keys; begin += keys_at_once) {
            add_keys(begin, keys);
        }
        float factors[2] = {1, 1};
        if constexpr (parts > 1) {
            unite();
        }
        if (part_ == 0) {
            softmax_.finish(factors);
            store(factors);
        }
        __syncwarp();
    }

private:
    static constexpr uint32_t groups = Rows / 16, parts = multiply_warps / groups;
    static constexpr uint32_t own_keys = keys_at_once / parts;
    static constexpr uint32_t turn_keys = own_keys < 32 ? own_keys : 32;  ///< How many registers have scores of.
    /** The softmax takes scores of as many keys. */
    static constexpr uint32_t scored_keys = 32;
    static constexpr uint32_t eights = step_channels<Element> / 8;   ///< Groups of 8 channels in a slot.
    static constexpr bool has_pairs = piece_channels<Element> == 8;  ///< Registers have two factors each.
    static_assert(groups * parts == multiply_warps && own_keys % 16 == 0);

    __device__ uint32_t slot_of(uint32_t use) const {
        return shared_.pixels + use % pixel_slots * pixel_slot;
    }
    __device__ void take(uint32_t first, uint32_t count) {
        for (uint32_t i = 0; i < count; i++) {
            wait_for_use(shared_.block.pixels_full, first + i);
        }
        __syncwarp();
    }
    /** Leaves the next slots, which all warps have to. */
    __device__ void leave(uint32_t count) {
        __syncwarp();
        if (lane() == 0) {
            for (uint32_t i = 0; i < count; i++) {
                arrive_at_use(shared_.block.pixels_empty, uses_.pixels + i);
            }
        }
        uses_.pixels += count;
    }

    __device__ static void multiply(float (&sums)[4], const uint32_t (&rows)[4], const uint32_t *columns) {
        tc::multiply_add(Element{}, sums, rows, columns);
    }

    __device__ void load_queries() {
        constexpr uint32_t halves = Rows > 64 ? Rows / 64 : 1;
        const uint32_t half = group_ * 16 / 64, row = group_ * 16 % 64 + lane() % 16;
        take(uses_.pixels, halves * Slots);
#pragma unroll
        for (uint32_t slot = 0; slot < Slots; slot++) {
            const uint32_t from = slot_of(uses_.pixels + half * Slots + slot) + row * row_bytes;
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                tc::load_matrices(queries_[slot * 4 + i], from + ((2 * i + lane() / 16) ^ row % 8) * 16);
                tc::round_factors<Element>(queries_[slot * 4 + i]);
            }
        }
        leave(halves * Slots);
    }

    /** Adds 64 keys with their values, or those that there are. */
    __device__ void add_keys(uint32_t begin, uint32_t keys) {
        const uint32_t first = part_ * own_keys;
        take(uses_.pixels, Slots);
        bool has_values = false;
#pragma unroll 1
        for (uint32_t own = first; own < first + own_keys && begin + own < keys; own += turn_keys) {
            float scores[scored_keys / 2];
            find_scores(own, scores);
            hide(scores, begin + own, keys);
            float factors[2];
            if (softmax_.template add<scored_keys / 2>(scores, step_.number, factors)) {
#pragma unroll
                for (auto &sums : sums_) {
                    sums[0] *= factors[0];
                    sums[1] *= factors[0];
                    sums[2] *= factors[1];
                    sums[3] *= factors[1];
                }
            }
            if (!has_values) {
                take(uses_.pixels + Slots, Slots);
                has_values = true;
            }
            if constexpr (has_pairs) {
                add_values(own, scores);
            } else {
                add_single_values(own, scores);
            }
        }
        if (!has_values) {
            take(uses_.pixels + Slots, Slots);  // A slot's phase must not be missed.
        }
        leave(2 * Slots);
    }

    /** The scores of some keys of a slot. Element 4 j + i is of key 8 j + 2 (lane % 4) + i % 2, and of row lane / 4 or
     * 8 below. */
    __device__ void find_scores(uint32_t own, float (&scores)[scored_keys / 2]) const {
        float sums[turn_keys / 8][4] = {};
        const uint32_t line = lane() / 16 * 8 + lane() % 8, half = lane() / 8 % 2;
#pragma unroll
        for (uint32_t slot = 0; slot < Slots; slot++) {
            const uint32_t from = slot_of(uses_.pixels + slot) + (own + line) * row_bytes;
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                const uint32_t piece = ((2 * i + half) ^ line % 8) * 16;
#pragma unroll
                for (uint32_t j = 0; j < turn_keys / 16; j++) {
                    uint32_t keys[4];
                    tc::load_matrices(keys, from + j * 16 * row_bytes + piece);
                    tc::round_factors<Element>(keys);
                    multiply(sums[2 * j], queries_[slot * 4 + i], keys);
                    multiply(sums[2 * j + 1], queries_[slot * 4 + i], keys + 2);
                }
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < scored_keys / 2; i++) {
            scores[i] = i < turn_keys / 2 ? sums[i / 4 % (turn_keys / 8)][i % 4] : tc::no_score;
        }
    }

    /** Takes out what is behind the last key. */
    __device__ void hide(float (&scores)[scored_keys / 2], uint32_t first, uint32_t keys) const {
        if (first + turn_keys > keys) {
#pragma unroll
            for (uint32_t i = 0; i < turn_keys / 2; i++) {
                const uint32_t key = first + i / 4 * 8 + lane() % 4 * 2 + i % 2;
                scores[i] = key < keys ? scores[i] : tc::no_score;
            }
        }
    }

    __device__ void add_values(uint32_t own, const float (&scores)[scored_keys / 2]) {
        const uint32_t line = lane() % 16, half = lane() / 16;
#pragma unroll
        for (uint32_t j = 0; j < turn_keys / 16; j++) {
            uint32_t weights[4];
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                weights[i] = tc::Storage<Element>::pack(scores[8 * j + 2 * i], scores[8 * j + 2 * i + 1]);
            }
#pragma unroll
            for (uint32_t slot = 0; slot < Slots; slot++) {
                const uint32_t from = slot_of(uses_.pixels + Slots + slot) + (own + j * 16 + line) * row_bytes;
#pragma unroll
                for (uint32_t i = 0; i < eights / 2; i++) {
                    uint32_t values[4];
                    tc::load_transposed(values, from + ((2 * i + half) ^ line % 8) * 16);
                    multiply(sums_[slot * eights + 2 * i], weights, values);
                    multiply(sums_[slot * eights + 2 * i + 1], weights, values + 2);
                }
            }
        }
    }

    /** add_values() of factors of 32 bits, which instructions cannot transpose. They multiply eight keys in any order:
     * a lane gives the weights of two neighbouring ones, which it has, and loads a piece of both. So element i of sums
     * 4 s
     * + j is of channel 4 c + j of slot s, with c = 2 (lane % 4) + i % 2. */
    __device__ void add_single_values(uint32_t own, const float (&scores)[scored_keys / 2]) {
        const uint32_t line = lane() % 4 * 2, piece = lane() / 4;
#pragma unroll
        for (uint32_t j = 0; j < turn_keys / 8; j++) {
            const uint32_t weights[4] = {tc::round_to_tf32(scores[4 * j]), tc::round_to_tf32(scores[4 * j + 2]),
                                         tc::round_to_tf32(scores[4 * j + 1]), tc::round_to_tf32(scores[4 * j + 3])};
#pragma unroll
            for (uint32_t slot = 0; slot < Slots; slot++) {
                const uint32_t from = slot_of(uses_.pixels + Slots + slot) + (own + j * 8 + line) * row_bytes;
                uint32_t values[2][4];
#pragma unroll
                for (uint32_t i = 0; i < 2; i++) {
                    tc::load_words(values[i], from + i * row_bytes + (piece ^ (line + i)) * 16);
                    tc::round_factors<Element>(values[i]);
                }
#pragma unroll
                for (uint32_t i = 0; i < eights; i++) {
                    const uint32_t pair[2] = {values[0][i], values[1][i]};
                    multiply(sums_[slot * eights + i], weights, pair);
                }
            }
        }
    }

    /** Unites the parts of the keys, always in the same order. */
    __device__ void unite() {
        sync_multipliers();  // The sums of the item before have been read.
        const auto state_of = [&](uint32_t part) { return shared_.sums + (part * groups + group_) * 32 + lane(); };
        *state_of(part_) = make_float4(softmax_.max[0], softmax_.max[1], softmax_.sum[0], softmax_.sum[1]);
        sync_multipliers();
        tc::Softmax all = softmax_;
        float own[2] = {1, 1};
        for (uint32_t i = 1; i < parts; i++) {
            const float4 state = *state_of((part_ + i) % parts);
            const tc::Softmax other{{state.x, state.y}, {state.z, state.w}};
            float factors[2], others[2];
            all.unite(other, step_.number, factors, others);
            own[0] *= factors[0];
            own[1] *= factors[1];
        }
        softmax_ = all;
#pragma unroll
        for (auto &sums : sums_) {
            sums[0] *= own[0];
            sums[1] *= own[0];
            sums[2] *= own[1];
            sums[3] *= own[1];
        }
#pragma unroll
        for (uint32_t slot = 0; slot < Slots; slot++) {
#pragma unroll
            for (uint32_t left = parts / 2; left > 0; left /= 2) {
                sync_multipliers();  // What was there has been read.
                const auto place = [&](uint32_t part) {
                    return shared_.sums + (part * groups + group_) * (eights * 32) + lane();
                };
                if (part_ >= left && part_ < 2 * left) {
#pragma unroll
                    for (uint32_t i = 0; i < eights; i++) {
                        const float *const sums = sums_[slot * eights + i];
                        place(part_ - left)[i * 32] = make_float4(sums[0], sums[1], sums[2], sums[3]);
                    }
                }
                sync_multipliers();
                if (part_ < left) {
#pragma unroll
                    for (uint32_t i = 0; i < eights; i++) {
                        const float4 more = place(part_)[i * 32];
                        float *const sums = sums_[slot * eights + i];
                        sums[0] += more.x;
                        sums[1] += more.y;
                        sums[2] += more.z;
                        sums[3] += more.w;
                    }
                }
            }
        }
    }

    __device__ void store(const float (&factors)[2]) const {
#pragma unroll
        for (uint32_t below = 0; below < 2; below++) {
            const int32_t output = rows_.output[group_ * 16 + below * 8 + lane() / 4];
            if (output == ItemRows::none) {
                continue;
            }
            const int64_t first = int64_t{output} + rows_.slice * step_.head_channels;
            if constexpr (has_pairs) {
                store_pairs(first + lane() % 4 * 2, below, factors[below]);
            } else {
                store_pieces(first, below, factors[below]);
            }
        }
    }

    __device__ void store_pairs(int64_t first, uint32_t below, float factor) const {
#pragma unroll
        for (uint32_t i = 0; i < Slots * eights; i++) {
            if (i * 8 < step_.head_channels) {
                const float *const sums = sums_[i] + 2 * below;
                const uint32_t packed = tc::Storage<Element>::pack(sums[0] * factor, sums[1] * factor);
                __stcg(reinterpret_cast<uint32_t *>(step_.output.data + (first + i * 8) * element_bytes<Element>),
                       packed);
            }
        }
    }

    /** Stores what add_single_values() has added up. */
    __device__ void store_pieces(int64_t first, uint32_t below, float factor) const {
#pragma unroll
        for (uint32_t i = 0; i < 2 * Slots; i++) {
            const uint32_t channel = i / 2 * step_channels<Element> + (lane() % 4 * 2 + i % 2) * eights;
            if (channel < step_.head_channels) {
                float values[eights];
#pragma unroll
                for (uint32_t j = 0; j < eights; j++) {
                    values[j] = sums_[i / 2 * eights + j][2 * below + i % 2] * factor;
                }
                __stcg(piece_at<Element>(step_.output.data, first + channel), pack_channels<Element>(values));
            }
        }
    }

    const StageStep &step_;
    const Shared &shared_;
    const ItemRows &rows_;
    RingUses &uses_;
    const uint32_t group_, part_;
    uint32_t queries_[Slots * 4][4];
    float sums_[Slots * eights][4] = {};
    tc::Softmax softmax_;
};

template<class Element, uint32_t Rows, uint32_t Slots> struct AttentionWork {
    __device__ static void compute(const StagePlan &plan, uint32_t, const Shared &shared, RingUses &uses) {
        AttentionTile<Element, Rows, Slots>(plan.step, shared, uses).compute();
    }
};

template<class Element, uint32_t Rows>
__device__ void compute_queries(const StagePlan &plan, uint32_t item, const Shared &shared, RingUses &uses) {
    if (plan.step.head_channels <= step_channels<Element>) {
        compute_item<AttentionWork<Element, Rows, 1>>(plan, item, shared, uses);
    } else {
        compute_item<AttentionWork<Element, Rows, 2>>(plan, item, shared, uses);
    }
}

/** Computes an item of a step with attention. */
template<class Element>
__device__ void compute_attention(const StagePlan &plan, uint32_t item, const Shared &shared, RingUses &uses) {
    const uint32_t rows = tc::uniform(plan.tile_rows);
    if (rows == 32) {
        compute_queries<Element, 32>(plan, item, shared, uses);
    } else if (rows == 64) {
        compute_queries<Element, 64>(plan, item, shared, uses);
    } else {
        compute_queries<Element, 128>(plan, item, shared, uses);
    }
}

}  // namespace distile

#endif
