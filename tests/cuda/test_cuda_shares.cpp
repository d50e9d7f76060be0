// How the blocks of a kernel for tensor cores share items: each part of an item has one block, and whoever adds the
// sums of an item finds those of all others.
#include "kernels/tensor_core/shares.h"
#include "tests/support/catch.h"
#include <algorithm>
#include <vector>

using namespace distile::tensor_core;

namespace {

constexpr uint32_t nobody = ~0u;

/** Who does what. */
class Workers {
public:
    /** `lengths` are those of the items, or those that the shares take for them. */
    explicit Workers(const std::vector<uint32_t> &lengths) {
        for (const uint32_t length : lengths) {
            owners_.emplace_back(length, nobody);
        }
    }
    void take(uint32_t worker, uint32_t item, uint32_t begin, uint32_t end) {
        INFO("worker " << worker << ", item " << item << ": " << begin << " to " << end);
        REQUIRE(item < owners_.size());
        REQUIRE(begin < end);
        REQUIRE(end <= owners_[item].size());
        const auto first = owners_[item].begin() + begin, last = owners_[item].begin() + end;
        REQUIRE(std::count(first, last, nobody) == last - first);
        std::fill(first, last, worker);
    }
    bool are_all_taken() const {
        return std::all_of(owners_.begin(), owners_.end(), [](const std::vector<uint32_t> &owners) {
            return std::count(owners.begin(), owners.end(), nobody) == 0;
        });
    }
    /** The workers that have a part of an item, the first part first. */
    std::vector<uint32_t> of(uint32_t item) const {
        std::vector<uint32_t> workers = owners_[item];
        workers.erase(std::unique(workers.begin(), workers.end()), workers.end());
        return workers;
    }

private:
    std::vector<std::vector<uint32_t>> owners_;
};

template<class Items, uint32_t SumSteps, uint32_t ShareSteps> void check_shares(const Items &items, uint32_t blocks) {
    INFO(items.count << " items of up to " << items.steps() << " steps, " << blocks << " blocks");
    const Shares<Items, SumSteps, ShareSteps> shares(items, blocks);
    REQUIRE(shares.count() <= blocks);
    REQUIRE(shares.whole() <= items.count);
    REQUIRE((shares.count() == 0) == (shares.whole() == items.count));
    std::vector<uint32_t> lengths(items.count);
    for (uint32_t item = 0; item < items.count; item++) {
        lengths[item] = shares.length(item);
    }
    Workers workers(lengths);
    for (uint32_t item = 0; item < shares.whole(); item++) {
        workers.take(item % blocks, item, 0, lengths[item]);
    }
    uint32_t shortest = nobody, longest = 0;
    for (uint32_t share = 0; share < shares.count(); share++) {
        const auto begin = shares.begin(share), end = shares.end(share);
        uint32_t length = 0;
        for (uint32_t item = begin.item; item <= end.item; item++) {
            const uint32_t from = item == begin.item ? begin.at : 0, to = item == end.item ? end.at : lengths[item];
            workers.take(share, item, from, to);
            length += to - from;
        }
        shortest = std::min(shortest, length);
        longest = std::max(longest, length);
    }
    REQUIRE(workers.are_all_taken());
    REQUIRE((shares.count() == 0 || longest - shortest <= 1));
    // Whoever has the end of an item goes back to the share that has its beginning.
    for (uint32_t item = shares.whole(); item < items.count; item++) {
        const std::vector<uint32_t> all = workers.of(item);
        REQUIRE(shares.has_begin(all.front(), item));
        for (size_t i = 1; i < all.size(); i++) {
            REQUIRE(all[i] == all[i - 1] + 1);
            REQUIRE(!shares.has_begin(all[i], item));
        }
    }
}

}  // namespace

TEST_CASE("Blocks share even items", "[cuda]") {
    for (uint32_t count = 0; count < 300; count += count < 20 ? 1 : 7) {
        for (const uint32_t blocks : {1, 2, 5, 48, 132}) {
            check_shares<EvenItems<1>, 12, 4>({count}, blocks);
            check_shares<EvenItems<24>, 12, 4>({count}, blocks);
            check_shares<EvenItems<96>, 12, 4>({count}, blocks);
            check_shares<RaggedItems, 3, 2>({count, 1, 17, 10, 10}, blocks);
        }
    }
}

TEST_CASE("Blocks share items of which the last of each row are shorter", "[cuda]") {
    for (const uint32_t columns : {1, 2, 3, 7, 22}) {
        for (const uint32_t rows : {0, 1, 2, 6, 24, 96}) {
            for (const uint32_t blocks : {1, 3, 132, 264}) {
                for (const uint32_t steps : {1, 2, 4, 32}) {
                    for (const uint32_t last : {4, 7, 10}) {
                        check_shares<RaggedItems, 3, 2>({rows * columns, columns, steps, 10, last}, blocks);
                    }
                }
            }
        }
    }
}

TEST_CASE("Short items count less", "[cuda]") {
    // Seven groups of rows a head: three, three and one.
    const RaggedItems items{72, 3, 32, 10, 4};
    const Shares<RaggedItems, 3, 2> shares(items, 132);
    REQUIRE(shares.count() == 132);
    CHECK(shares.length(1) == 320);
    CHECK(shares.length(2) == 128);
    // Heads have 768 each, so the 11 shares of two heads have 1536.
    CHECK(shares.begin(11).item == 6);
    CHECK(shares.begin(11).at == 0);
    // Twice as many blocks as items would have nothing to do, but sums cost more than they save.
    CHECK(Shares<RaggedItems, 3, 2>({72, 3, 4, 10, 4}, 132).count() == 0);
    // Many rounds are taken as if they were even.
    CHECK(Shares<RaggedItems, 3, 2>({7 * 132 + 3, 7, 32, 10, 4}, 132).length(6) == 320);
}
