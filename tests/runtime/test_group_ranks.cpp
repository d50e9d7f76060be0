// Groups whose devices are of several ranks, here threads with a transport in memory: the bits of one device, ranks
// that differ, fail, are slow, have nothing to do or do not answer, and transports that fail at any call.
#include "test_conv3_16_48_avx2.h"
#include "test_conv3_48_16_residual_avx2.h"
#include "tests/support/catch.h"
#include "tests/support/chain_tests.h"
#include "tests/support/rank_transport.h"
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <set>

using namespace distile;

namespace {

using Shapes = std::vector<LayerShape>;

/** The number of devices of each rank. */
using Layout = std::vector<int32_t>;

int32_t num_ranks(const Layout &layout) {
    return static_cast<int32_t>(layout.size());
}

std::string name_of(const Layout &layout) {
    std::string name;
    for (const int32_t devices : layout) {
        name += (name.empty() ? "" : " + ") + std::to_string(devices);
    }
    return name + " devices";
}

/** A result of a call, which a rank's thread keeps for the test's. */
struct Answer {
    distile_status status = DISTILE_OK;
    std::string message;

    bool operator==(const Answer &other) const {
        return status == other.status;
    }
};

/** What a rank has. Each has layers of its own, as processes do; they are equal. */
class Rank {
public:
    Rank(RankHub &hub, int32_t rank, const distile_group_options &options, const distile_context_options &last = {},
         int32_t devices = 1)
        : rank_(rank) {
        distile_transport transport = hub.transport(rank);
        distile_group_options chosen = options;
        chosen.transport = &transport;
        std::vector<distile_context *> pointers;
        for (int32_t i = 0; i < devices; i++) {
            contexts_.push_back(one_thread(i + 1 == devices ? last : distile_context_options{}));
            pointers.push_back(contexts_.back().get());
        }
        distile_group *made = nullptr;
        made_.status = distile_group_create(pointers.data(), devices, &chosen, &made);
        made_.message = distile_context_message(nullptr);
        group_.reset(made);
    }

    const Answer &made() const {
        return made_;
    }
    int32_t rank() const {
        return rank_;
    }
    const Group &group() const {
        return group_;
    }
    Answer answer(distile_status status) const {
        return {status, distile_group_message(group_.get())};
    }
    void set_layers(TestLayers &layers) {
        layers_ = &layers;
    }
    Answer make_chain(TestLayers &layers) {
        layers_ = &layers;
        return answer(layers.make_chain(group_, contexts_.size(), chain));
    }
    /** Images that have the same numbers on every rank. */
    void make_images(int32_t batch, int32_t height, int32_t width) {
        images = std::make_unique<TestImages>(*layers_, contexts_[0], batch, height, width);
    }
    /** Runs on the whole input or the first rank's, for an output or none. */
    Answer run(distile_inactive inactive, std::vector<float> &result, bool has_input = true, bool wants_output = true,
               bool takes_kept = false, bool keeps = false, bool has_masks = true) const {
        return answer(images->run(chain, inactive, result, takes_kept, keeps, has_input, wants_output, has_masks));
    }
    Answer collect(std::vector<float> *images_kept) {
        if (!images_kept) {
            return answer(distile_chain_collect(chain.get(), nullptr));
        }
        images_kept->assign(images->input.size(), -7);
        const distile_tensor view = images->view(*images_kept, images->shape, layers_->convs[0].in_channels);
        return answer(distile_chain_collect(chain.get(), &view));
    }

private:
    int32_t rank_;
    std::vector<Context> contexts_;
    Answer made_;
    Group group_;
    TestLayers *layers_ = nullptr;

public:
    Chain chain;
    std::unique_ptr<TestImages> images;
};

/** Ends a rank's thread. */
void require_ok(const Answer &answer) {
    if (answer.status != DISTILE_OK) {
        throw Error(answer.status, answer.message);
    }
}

void require_that(bool holds, const std::string &what) {
    if (!holds) {
        throw std::runtime_error(what);
    }
}

/** Runs chains on masks of all kinds on some ranks, and compares their bits with those of one device. */
void compare_ranks(const std::function<std::unique_ptr<TestLayers>()> &make_layers, const Layout &layout,
                   distile_overlap overlap, int32_t batch, int32_t height, int32_t width) {
    const int32_t ranks = num_ranks(layout);
    INFO(name_of(layout) << ", overlap " << overlap << ", " << batch << " x " << height << " x " << width);
    RankHub hub(ranks);
    on_ranks(ranks, [&](int32_t number) {
        distile_group_options options{};
        options.overlap = overlap;
        options.any_order = ranks % 2 == 0 ? 1 : 0;
        Rank rank(hub, number, options, {}, layout[static_cast<size_t>(number)]);
        require_ok(rank.made());
        const std::unique_ptr<TestLayers> layers = make_layers();
        require_ok(rank.make_chain(*layers));
        rank.make_images(batch, height, width);
        int32_t turn = 0;
        for (const double density : {0.0, .07, .5, 1.0}) {
            for (const bool rectangle : {false, true}) {
                rank.images->draw_masks(density, rectangle);
                for (const distile_inactive inactive : {DISTILE_KEEP, DISTILE_ZERO}) {
                    // All have the input or the first alone, and want the output, or one does. Others than the first
                    // may lack the masks, all of them or some, once or twice.
                    turn++;
                    const bool has_input = number == 0 || turn % 3 != 0,
                               wants = turn % 2 == 0 || turn % ranks == number,
                               has_masks = number == 0 || turn % 5 == 0 || (turn % 3 == 1 && number % 2 == 1);
                    std::vector<float> result;
                    require_ok(rank.run(inactive, result, has_input, wants, false, false, has_masks));
                    const std::vector<float> expected = wants ? rank.images->expected(inactive) : rank.images->before;
                    require_that(same_floats(result, expected),
                                 "rank " + std::to_string(number) + " differs in turn " + std::to_string(turn));
                }
            }
        }
        distile_chain_info info{};
        distile_chain_get_info(rank.chain.get(), &info);
        require_that(info.devices == std::accumulate(layout.begin(), layout.end(), 0), "the number of devices");
    });
    CHECK(hub.num_left() == 0);
}

/** Memory that runs out while somebody wants it to. */
struct Failing {
    static void *allocate(void *user, size_t bytes, size_t alignment) {
        auto &self = *static_cast<Failing *>(user);
        return self.left >= 0 && self.left-- == 0 ? nullptr : aligned_alloc(alignment, (bytes + 63) / 64 * 64);
    }
    static void deallocate(void *, void *memory) {
        std::free(memory);
    }
    distile_context_options options() {
        distile_context_options made{};
        made.allocate = allocate;
        made.deallocate = deallocate;
        made.allocator_user = this;
        return made;
    }
    std::atomic<int32_t> left{-1};  ///< The allocations that succeed before one fails; below 0: all do.
};

/** Answers of all ranks to something that they do. */
std::vector<Answer> answers_of(int32_t ranks, const std::function<Answer(int32_t)> &call) {
    std::vector<Answer> answers(static_cast<size_t>(ranks));
    on_ranks(ranks, [&](int32_t number) { answers[static_cast<size_t>(number)] = call(number); });
    return answers;
}

void check_all(const std::vector<Answer> &answers, distile_status status, const char *part) {
    for (const Answer &answer : answers) {
        INFO(answer.message);
        CHECK(std::string(distile_status_name(answer.status)) == distile_status_name(status));
        CHECK(answer.message.find(part) != std::string::npos);
    }
}

/** Ranks with a chain of equal layers and an image each. */
struct EqualRanks {
    EqualRanks(RankHub &hub, int32_t count, const distile_group_options &options,
               const Shapes &shapes = Shapes(3, {4, 3, 1, 1, 1, false})) {
        for (int32_t i = 0; i < count; i++) {
            layers.push_back(std::make_unique<TestLayers>(4, shapes, 6));
            ranks.emplace_back();
        }
        on_ranks(count, [&](int32_t number) {
            std::unique_ptr<Rank> &rank = ranks[static_cast<size_t>(number)];
            rank = std::make_unique<Rank>(hub, number, options);
            require_ok(rank->made());
            require_ok(rank->make_chain(*layers[static_cast<size_t>(number)]));
            rank->make_images(1, 40, 30);
            rank->images->draw_masks(.6, false);
        });
    }

    std::vector<Answer> call(const std::function<Answer(Rank &)> &body) {
        return answers_of(static_cast<int32_t>(ranks.size()),
                          [&](int32_t number) { return body(*ranks[static_cast<size_t>(number)]); });
    }
    /** A run that shall be right. */
    void run() {
        const std::vector<Answer> answers = call([](Rank &rank) {
            std::vector<float> result;
            const Answer answer = rank.run(DISTILE_KEEP, result);
            require_that(answer.status != DISTILE_OK || same_floats(result, rank.images->expected(DISTILE_KEEP)),
                         "another result");
            return answer;
        });
        check_all(answers, DISTILE_OK, "");
    }

    std::vector<std::unique_ptr<TestLayers>> layers;
    std::vector<std::unique_ptr<Rank>> ranks;
};

}  // namespace

TEST_CASE("Chains on several ranks have the bits of one device", "[group_ranks]") {
    const std::vector<Shapes> chains = chains_of_all_shapes();
    for (size_t c = 0; c < chains.size(); c++) {
        INFO("chain " << c);
        const auto make = [&] { return std::make_unique<TestLayers>(3, chains[c], static_cast<uint32_t>(c)); };
        for (const Layout &layout :
             std::vector<Layout>{{1}, {1, 1}, {1, 1, 1}, {1, 1, 1, 1, 1}, {2, 2}, {3}, {1, 3}, {2, 1, 3}}) {
            const distile_overlap overlap = layout.size() % 2 == 0 ? DISTILE_OVERLAP_NEVER : DISTILE_OVERLAP_ALWAYS;
            compare_ranks(make, layout, overlap, 1, 29, 67);
            compare_ranks(make, layout, overlap, 3, 13, 18);
        }
        compare_ranks(make, {1, 1, 1, 1}, DISTILE_OVERLAP_ALWAYS, 2, 3, 4);
        compare_ranks(make, {2, 3}, DISTILE_OVERLAP_ALWAYS, 2, 3, 4);
        compare_ranks(make, {4, 4}, DISTILE_OVERLAP_ALWAYS, 1, 50, 61);
    }
    compare_ranks(
        [] {
            return std::make_unique<TestLayers>(
                std::vector<const distile_polykernel *>{&test_conv3_16_48_avx2, &test_conv3_48_16_residual_avx2,
                                                        &test_conv3_16_48_avx2, &test_conv3_48_16_residual_avx2});
        },
        {1, 2, 1}, DISTILE_OVERLAP_WHERE_ASYNCHRONOUS, 1, 57, 70);
}

TEST_CASE("Images that ranks keep are those of one device, run after run", "[group_ranks]") {
    for (const Layout &layout :
         std::vector<Layout>{{1}, {1, 1}, {1, 1, 1}, {1, 1, 1, 1, 1}, {2, 2}, {1, 3}, {3, 1, 2}}) {
        const int32_t ranks = num_ranks(layout);
        RankHub hub(ranks);
        INFO(name_of(layout));
        std::atomic<int64_t> partitions{0};
        on_ranks(ranks, [&](int32_t number) {
            distile_group_options options{};
            options.overlap = ranks % 2 == 0 ? DISTILE_OVERLAP_ALWAYS : DISTILE_OVERLAP_NEVER;
            Rank rank(hub, number, options, {}, layout[static_cast<size_t>(number)]);
            require_ok(rank.made());
            TestLayers layers(4, {{6, 3, 1, 1, 1, false}, {6, 5, 1, 1, 2, false}, {4, 3, 1, 1, 1, true}}, 10);
            require_ok(rank.make_chain(layers));
            rank.make_images(2, 40, 33);
            TestImages &images = *rank.images;
            std::vector<float> state = images.input, collected;
            for (int32_t step = 0; step < 12; step++) {
                const std::string where = "rank " + std::to_string(number) + ", step " + std::to_string(step);
                images.draw_masks(step == 7 ? 0 : .6, step % 3 == 2);
                images.input = state;
                images.before = state;
                std::vector<float> result;
                if (step % 5 == 4) {
                    require_ok(rank.run(DISTILE_ZERO, result, true, true, true, false, number == 0 || step == 4));
                    require_that(same_floats(result, images.expected(DISTILE_ZERO)), where);
                } else {
                    state = images.expected(DISTILE_KEEP);
                    // The first rank alone has the images, and sometimes the masks.
                    const bool has_masks = number == 0 || step % 4 < 2;
                    require_ok(rank.run(DISTILE_KEEP, result, number == 0, true, step != 0, true, has_masks));
                }
                const bool wants = step % 2 == 0 || step % ranks == number;
                require_ok(rank.collect(wants ? &collected : nullptr));
                require_that(!wants || same_floats(collected, state), where + ", collected");
            }
            distile_chain_info info{};
            distile_chain_get_info(rank.chain.get(), &info);
            partitions = info.partitions;
        });
        CHECK((std::accumulate(layout.begin(), layout.end(), 0) <= 2 || partitions > 1));
        CHECK(hub.num_left() == 0);
    }
}

TEST_CASE("Ranks of unequal speed, slow messages, and ranks without a part", "[group_ranks]") {
    RankHub hub(4);
    hub.delay(std::chrono::microseconds(2000));
    std::vector<distile_chain_info> infos(4);
    on_ranks(4, [&](int32_t number) {
        const distile_group_speed speeds[] = {{1, 1000}, {0, 3000}, {1e9, 1000}, {0, 2000}};
        distile_group_options options{};
        options.speeds = &speeds[number];
        Rank rank(hub, number, options);
        require_ok(rank.made());
        TestLayers layers(4, Shapes(3, {4, 3, 1, 1, 1, false}), 5);
        require_ok(rank.make_chain(layers));
        rank.make_images(1, 64, 64);
        for (const double density : {1.0, .97, .1}) {
            rank.images->draw_masks(density, density < .5);
            std::vector<float> result;
            require_ok(rank.run(DISTILE_KEEP, result));
            require_that(same_floats(result, rank.images->expected(DISTILE_KEEP)), "another result");
            require_ok(rank.run(DISTILE_KEEP, result, true, true, false, true));
            require_ok(rank.collect(&result));
            require_that(same_floats(result, rank.images->input) || density > 0, "images");
            std::vector<float> last = rank.images->before;
            rank.images->before = rank.images->input;
            require_that(same_floats(result, rank.images->expected(DISTILE_KEEP)), "other images");
            rank.images->before = last;
        }
        distile_chain_get_info(rank.chain.get(), &infos[static_cast<size_t>(number)]);
    });
    CHECK(hub.num_left() == 0);
    for (const distile_chain_info &info : infos) {
        CHECK(info.devices == 4);
        CHECK(info.busy_devices == 3);
        CHECK(info.plans == infos[0].plans);
        CHECK(info.halo_bytes == infos[0].halo_bytes);
    }
}

TEST_CASE("Several devices of a rank may have unequal speeds, and nothing to do", "[group_ranks]") {
    // Whichever device has no part, the first of a rank among them.
    for (int32_t slow = 0; slow < 5; slow++) {
        RankHub hub(2);
        const Layout layout{2, 3};
        std::vector<distile_chain_info> infos(2);
        INFO("device " << slow);
        on_ranks(2, [&](int32_t number) {
            std::vector<distile_group_speed> speeds(5, {0, 1000});
            speeds[static_cast<size_t>(slow)].fixed_us = 1e9;
            distile_group_options options{};
            options.speeds = &speeds[number == 0 ? 0 : 2];
            Rank rank(hub, number, options, {}, layout[static_cast<size_t>(number)]);
            require_ok(rank.made());
            TestLayers layers(4, Shapes(3, {4, 3, 1, 1, 1, false}), 5);
            require_ok(rank.make_chain(layers));
            rank.make_images(1, 64, 64);
            for (const double density : {1.0, .5, .1}) {
                rank.images->draw_masks(density, density < .5);
                std::vector<float> result;
                require_ok(rank.run(DISTILE_KEEP, result, number == 0, true));
                require_that(same_floats(result, rank.images->expected(DISTILE_KEEP)), "another result");
                require_ok(rank.run(DISTILE_KEEP, result, number == 0, true, false, true));
                require_ok(rank.run(DISTILE_KEEP, result, true, number == 1, true));
                require_ok(rank.collect(number == 1 ? &result : nullptr));
                std::vector<float> last = rank.images->before;
                rank.images->before = rank.images->input;
                require_that(number == 0 || same_floats(result, rank.images->expected(DISTILE_KEEP)), "other images");
                rank.images->before = last;
            }
            distile_chain_get_info(rank.chain.get(), &infos[static_cast<size_t>(number)]);
        });
        CHECK(hub.num_left() == 0);
        for (const distile_chain_info &info : infos) {
            CHECK(info.devices == 5);
            CHECK(info.busy_devices == 4);
        }
    }
}

TEST_CASE("Ranks that differ make a call fail on all, and the group goes on", "[group_ranks]") {
    RankHub hub(3);
    distile_group_options options{};
    options.timeout_ms = 20000;
    EqualRanks all(hub, 3, options);
    all.run();
    std::vector<float> results[3];
    const auto result_of = [&](const Rank &rank) -> std::vector<float> & {
        return results[static_cast<size_t>(rank.rank())];
    };
    const auto with_masks = [&](Rank &rank, double density) {
        // All draw as often.
        rank.images->draw_masks(density, false);
        return rank.run(DISTILE_KEEP, result_of(rank));
    };
    check_all(all.call([&](Rank &rank) { return with_masks(rank, rank.rank() == 2 ? .61 : .6); }),
              DISTILE_ERROR_BAD_VALUE, "ranks 0 and 2 have different masks");
    check_all(all.call([&](Rank &rank) { return with_masks(rank, .6); }), DISTILE_OK, "");
    all.run();
    check_all(
        all.call([&](Rank &rank) { return rank.run(rank.rank() == 1 ? DISTILE_ZERO : DISTILE_KEEP, result_of(rank)); }),
        DISTILE_ERROR_BAD_VALUE, "ranks 0 and 1 have different arguments");
    check_all(all.call([&](Rank &rank) { return rank.run(DISTILE_KEEP, result_of(rank), true, false); }),
              DISTILE_ERROR_BAD_VALUE, "no rank wants the output");
    check_all(all.call([&](Rank &rank) { return rank.run(DISTILE_KEEP, result_of(rank), false); }),
              DISTILE_ERROR_BAD_VALUE, "rank 0: the first rank has no input");
    check_all(all.call([&](Rank &rank) {
        return rank.run(DISTILE_KEEP, result_of(rank), true, true, false, rank.rank() == 2);
    }),
              DISTILE_ERROR_BAD_VALUE, "ranks 0 and 2 have different arguments");
    all.run();
    // A rank refuses what it is given, or runs while others collect.
    check_all(all.call([&](Rank &rank) { return rank.run(DISTILE_KEEP, result_of(rank), true, true, true); }),
              DISTILE_ERROR_BAD_VALUE, "the devices keep no images");
    check_all(all.call([](Rank &rank) { return rank.collect(nullptr); }), DISTILE_ERROR_BAD_VALUE,
              "the devices keep no images");
    check_all(all.call([&](Rank &rank) { return rank.run(DISTILE_KEEP, result_of(rank), true, true, false, true); }),
              DISTILE_OK, "");
    check_all(all.call([](Rank &rank) { return rank.collect(nullptr); }), DISTILE_ERROR_BAD_VALUE,
              "no rank wants the images");
    check_all(all.call([&](Rank &rank) {
        return rank.rank() == 1 ? rank.collect(nullptr) : rank.run(DISTILE_KEEP, result_of(rank));
    }),
              DISTILE_ERROR_BAD_VALUE,
              "rank 1 is in distile_chain_collect, but rank 0 in distile_chain_run: ranks make the same calls");
    check_all(all.call([&](Rank &rank) {
        rank.images->before.resize(rank.images->before.size() + 1);
        const distile_tensor wrong = distile_tensor_make(rank.images->before.data(), 1, 40, 29, 4);
        return rank.answer(distile_chain_collect(rank.chain.get(), rank.rank() == 2 ? &wrong : nullptr));
    }),
              DISTILE_ERROR_BAD_SHAPE, "rank 2: ");
    for (const std::unique_ptr<Rank> &rank : all.ranks) {
        rank->images->before.pop_back();
    }
    all.run();
    // The first rank has masks, and others that have some have the same.
    check_all(all.call([&](Rank &rank) {
        return rank.run(DISTILE_KEEP, result_of(rank), true, true, false, false, rank.rank() != 0);
    }),
              DISTILE_ERROR_NULL_POINTER, "rank 0: the array of masks is null");
    check_all(all.call([&](Rank &rank) {
        rank.images->draw_masks(rank.rank() == 2 ? .31 : .3, false);
        return rank.run(DISTILE_KEEP, result_of(rank), true, true, false, false, rank.rank() != 1);
    }),
              DISTILE_ERROR_BAD_VALUE, "ranks 0 and 2 have different masks");
    check_all(all.call([&](Rank &rank) {
        rank.images->draw_masks(.4, false);
        return rank.run(DISTILE_KEEP, result_of(rank), true, true, false, false, rank.rank() != 1);
    }),
              DISTILE_OK, "");
    all.run();
    // Their images are still there.
    check_all(all.call([&](Rank &rank) { return rank.collect(&result_of(rank)); }), DISTILE_OK, "");
    CHECK(same_floats(results[0], results[2]));
    // Other layers, and other weights.
    const auto other_chain = [&](Rank &rank, int32_t differs, const Shapes &other, uint32_t seed) {
        TestLayers layers(4, rank.rank() == differs ? other : Shapes(2, {4, 3, 1, 1, 1, false}),
                          rank.rank() == differs ? seed : 1);
        Chain made;
        return rank.answer(layers.make_chain(rank.group(), 1, made));
    };
    check_all(all.call([&](Rank &rank) {
        return other_chain(rank, 1, {{4, 5, 1, 1, 2, false}}, 1);
    }),
              DISTILE_ERROR_BAD_VALUE, "ranks 0 and 1 have different layers");
    check_all(all.call([&](Rank &rank) {
        return other_chain(rank, 2, Shapes(2, {4, 3, 1, 1, 1, false}), 2);
    }),
              DISTILE_ERROR_BAD_VALUE, "ranks 0 and 2 have different weights");
    check_all(all.call([&](Rank &rank) { return other_chain(rank, -1, {}, 2); }), DISTILE_OK, "");
    check_all(all.call([&](Rank &rank) {
        const distile_chain_layer none{};
        distile_chain *made = nullptr;
        return rank.rank() == 0 ? rank.answer(distile_chain_create(rank.group().get(), &none, -1, &made))
                                : other_chain(rank, -1, {}, 2);
    }),
              DISTILE_ERROR_BAD_VALUE, "rank 0: a chain of -1 layers");
    check_all(all.call([&](Rank &rank) { return other_chain(rank, -1, {}, 2); }), DISTILE_OK, "");
    check_all(all.call([&](Rank &rank) {
        distile_chain *made = nullptr;
        return rank.rank() == 2 ? rank.answer(distile_chain_create(rank.group().get(), nullptr, 1, &made))
                                : other_chain(rank, -1, {}, 2);
    }),
              DISTILE_ERROR_NULL_POINTER, "rank 2: the array of layers is null");
    check_all(all.call([&](Rank &rank) {
        return rank.rank() == 1 ? rank.answer(distile_chain_run(rank.chain.get(), nullptr))
                                : rank.run(DISTILE_KEEP, result_of(rank));
    }),
              DISTILE_ERROR_NULL_POINTER, "rank 1: the pointer to the arguments is null");
    all.run();
    CHECK(hub.num_left() == 0);
}

TEST_CASE("Ranks make a group only of what fits", "[group_ranks]") {
    const auto make = [](const std::function<distile_group_options(int32_t)> &options) {
        RankHub hub(3);
        return answers_of(3, [&](int32_t number) { return Rank(hub, number, options(number)).made(); });
    };
    const distile_group_speed speed{0, 5};
    check_all(make([](int32_t number) {
                  distile_group_options options{};
                  options.imbalance = number == 1 ? .2 : .1;
                  return options;
              }),
              DISTILE_ERROR_BAD_VALUE, "ranks 0 and 1 have different settings of imbalance");
    check_all(make([](int32_t number) {
                  distile_group_options options{};
                  options.any_order = number == 2 ? 1 : 0;
                  return options;
              }),
              DISTILE_ERROR_BAD_VALUE, "ranks 0 and 2 have different settings of any_order");
    check_all(make([&](int32_t number) {
                  distile_group_options options{};
                  options.speeds = number == 0 ? &speed : nullptr;
                  return options;
              }),
              DISTILE_ERROR_BAD_VALUE, "settings of speeds");
    check_all(make([](int32_t number) {
                  distile_group_options options{};
                  options.overlap = static_cast<distile_overlap>(number == 2 ? 5 : 0);
                  return options;
              }),
              DISTILE_ERROR_BAD_VALUE, "rank 2: overlap is 5");
    check_all(make([](int32_t) { return distile_group_options{}; }), DISTILE_OK, "");

    // Nobody else hears of a transport that is wrong.
    RankHub hub(1);
    const Context context = one_thread(), other = one_thread();
    distile_context *pointers[] = {context.get(), other.get()};
    const auto refuse = [&](distile_status status, int32_t count, const auto &change) {
        distile_transport transport = hub.transport(0);
        change(transport);
        distile_group_options options{};
        options.transport = &transport;
        distile_group *made = nullptr;
        CHECK(std::string(distile_status_name(distile_group_create(pointers, count, &options, &made))) ==
              distile_status_name(status));
        CHECK((made != nullptr) == (status == DISTILE_OK));
        distile_group_destroy(made);
    };
    refuse(DISTILE_OK, 1, [](distile_transport &) {});
    refuse(DISTILE_OK, 2, [](distile_transport &) {});
    refuse(DISTILE_ERROR_BAD_VALUE, 0, [](distile_transport &) {});
    refuse(DISTILE_ERROR_NULL_POINTER, 1, [](distile_transport &transport) { transport.exchange = nullptr; });
    refuse(DISTILE_ERROR_BAD_VALUE, 1, [](distile_transport &transport) { transport.rank = 1; });
    refuse(DISTILE_ERROR_BAD_VALUE, 1, [](distile_transport &transport) { transport.rank = -1; });
    refuse(DISTILE_ERROR_BAD_VALUE, 1, [](distile_transport &transport) { transport.ranks = 0; });
    refuse(DISTILE_ERROR_BAD_VALUE, 1, [](distile_transport &transport) { transport.ranks = 1025; });
    refuse(DISTILE_ERROR_BAD_VALUE, 1, [](distile_transport &transport) { transport.asynchronous = 1; });
    refuse(DISTILE_ERROR_BAD_VALUE, 1, [](distile_transport &transport) { transport.asynchronous = 2; });
    refuse(DISTILE_ERROR_BAD_VALUE, 1, [](distile_transport &transport) { transport.reserved32 = 1; });
    refuse(DISTILE_ERROR_BAD_VALUE, 1, [](distile_transport &transport) { transport.reserved[3] = 1; });
}

TEST_CASE("A rank of another version of the library is refused", "[group_ranks]") {
    RankHub hub(2);
    std::vector<Answer> answers(1);
    on_ranks(2, [&](int32_t number) {
        if (number == 0) {
            answers[0] = Rank(hub, 0, {}).made();
            return;
        }
        // What the other rank sends is no record of this version.
        std::vector<char> record(4096, 1), received(record.size());
        distile_transport transport = hub.transport(1);
        for (int64_t bytes = 64; bytes < 4096; bytes += 8) {
            // It has to have the length that the first rank expects.
            char cause[256] = "";
            distile_message send{0, 0, record.data(), bytes}, receive{0, 0, received.data(), bytes};
            distile_messages messages{};
            messages.sends = &send;
            messages.receives = &receive;
            messages.num_receives = 1;
            messages.timeout_ms = 10000;
            messages.cause = cause;
            messages.cause_bytes = sizeof(cause);
            if (transport.exchange(transport.user, &messages) == DISTILE_OK) {
                messages.num_sends = 1;
                messages.num_receives = 0;
                transport.exchange(transport.user, &messages);
                return;
            }
        }
    });
    check_all(answers, DISTILE_ERROR_VERSION, "rank 1 has another version of this library");
}

TEST_CASE("A rank that fails ends the run of all, and the group goes on", "[group_ranks]") {
    for (int32_t turn = 0; turn < 6; turn++) {
        const int32_t which = turn % 3, devices = turn < 3 ? 1 : 2;  // The last device of a rank fails.
        RankHub hub(3);
        Failing failing;
        std::vector<int32_t> failures(3);
        on_ranks(3, [&](int32_t number) {
            distile_group_options options{};
            options.timeout_ms = 20000;
            Rank rank(hub, number, options, number == which ? failing.options() : distile_context_options{}, devices);
            require_ok(rank.made());
            TestLayers layers(4, Shapes(3, {4, 3, 1, 1, 1, false}), 6);
            require_ok(rank.make_chain(layers));
            rank.make_images(1, 70, 50);
            // One allocation after another of a run of new masks, whether it keeps the result or not.
            for (const bool keeps : {false, true}) {
                for (int32_t first = 0; first < 200; first++) {
                    rank.images->draw_masks(.8, false);
                    if (number == which) {
                        failing.left = first;
                    }
                    std::vector<float> result;
                    const Answer answer = rank.run(DISTILE_KEEP, result, number == 0, true, false, keeps, number != 1);
                    if (number == which) {
                        failing.left = -1;
                    }
                    if (answer.status == DISTILE_OK) {
                        require_that(keeps || same_floats(result, rank.images->expected(DISTILE_KEEP)), "the result");
                        break;
                    }
                    failures[static_cast<size_t>(number)]++;
                    require_that(answer.status == DISTILE_ERROR_OUT_OF_MEMORY, answer.message);
                    require_that(answer.message.find("distile_chain_run: rank " + std::to_string(which)) == 0,
                                 answer.message);
                    require_ok(rank.run(DISTILE_ZERO, result));
                    require_that(same_floats(result, rank.images->expected(DISTILE_ZERO)), "the next result");
                }
            }
        });
        CHECK(failures[0] > 0);
        CHECK((failures[0] == failures[1] && failures[0] == failures[2]));
        CHECK(hub.num_left() == 0);
    }
}

TEST_CASE("Whichever exchange of a transport fails, all ranks end in time", "[group_ranks]") {
    /** Everything that a rank does with others. */
    const auto work = [](RankHub &hub, int32_t number, TestLayers &layers, bool dies, int32_t devices) {
        distile_group_options options{};
        options.timeout_ms = dies ? 400 : 20000;
        auto rank = std::make_unique<Rank>(hub, number, options, distile_context_options{}, devices);
        if (rank->made().status != DISTILE_OK) {
            return rank->made();
        }
        Answer answer = rank->make_chain(layers);
        if (answer.status != DISTILE_OK) {
            return answer;
        }
        rank->make_images(1, 24, 30);
        rank->images->draw_masks(.6, false);
        std::vector<float> result, images;
        answer = rank->run(DISTILE_KEEP, result, number == 0, true, false, false, number != 1);
        if (answer.status == DISTILE_OK) {
            answer = rank->run(DISTILE_KEEP, result, number == 0, true, false, true);
        }
        if (answer.status == DISTILE_OK) {
            answer = rank->collect(&images);
        }
        if (answer.status == DISTILE_ERROR_DEVICE_LOST) {
            // The group stays so, and can be freed.
            const Answer again = rank->run(DISTILE_KEEP, result);
            require_that(again.status == DISTILE_ERROR_DEVICE_LOST, "the group lives on: " + again.message);
        }
        return answer;
    };
    constexpr int32_t count = 3;
    std::vector<std::unique_ptr<TestLayers>> layers;
    for (int32_t i = 0; i < count; i++) {
        layers.push_back(std::make_unique<TestLayers>(4, Shapes(3, {4, 3, 1, 1, 1, false}), 6));
    }
    const Layout layout = GENERATE(Layout{1, 1, 1}, Layout{2, 1, 3});
    INFO(name_of(layout));
    const auto work_of_all = [&](RankHub &hub, bool dies) {
        for (const std::unique_ptr<TestLayers> &own : layers) {
            own->random.seed(3);
        }
        return answers_of(count, [&](int32_t number) {
            const auto place = static_cast<size_t>(number);
            return work(hub, number, *layers[place], dies, layout[place]);
        });
    };
    RankHub well(count);
    check_all(work_of_all(well, false), DISTILE_OK, "");
    for (int32_t rank = 0; rank < count; rank++) {
        const int32_t exchanges = well.num_exchanges(rank);
        REQUIRE(exchanges > 10);
        for (int32_t number = 0; number < exchanges; number++) {
            for (const bool dies : {false, true}) {
                if (dies && number % 6 != rank) {
                    continue;
                }
                INFO("rank " << rank << ", exchange " << number << (dies ? ", dies" : ", breaks"));
                using Kind = TransportFault::Kind;
                RankHub hub(count, {dies ? Kind::Dies : Kind::Breaks, rank, number});
                const auto begin = std::chrono::steady_clock::now();
                const std::vector<Answer> answers = work_of_all(hub, dies);
                CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
                CHECK(answers[static_cast<size_t>(rank)].message.find("the test breaks it ??") != std::string::npos);
                // The last exchanges of others may have ended before.
                int32_t lost = 0;
                for (const Answer &answer : answers) {
                    CHECK((answer.status == DISTILE_ERROR_DEVICE_LOST || answer.status == DISTILE_OK));
                    lost += answer.status == DISTILE_ERROR_DEVICE_LOST ? 1 : 0;
                }
                CHECK((number + 1 == exchanges || lost == count));
            }
        }
    }
}

TEST_CASE("A rank that does not take part makes the others return in time", "[group_ranks]") {
    RankHub hub(3);
    distile_group_options options{};
    options.timeout_ms = 1000;
    EqualRanks all(hub, 3, options);
    all.run();
    const auto begin = std::chrono::steady_clock::now();
    std::vector<Answer> answers = all.call([](Rank &rank) {
        std::vector<float> result;
        return rank.rank() == 1 ? Answer{DISTILE_ERROR_DEVICE_LOST, "nothing came in time"}
                                : rank.run(DISTILE_KEEP, result);
    });
    check_all(answers, DISTILE_ERROR_DEVICE_LOST, "nothing came in time");
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(8));
}

TEST_CASE("A device of a rank that is slow or hangs makes all ranks return in time", "[group_ranks]") {
    // It ends within as long again, or does not.
    for (const int32_t sleeps_ms : {900, 2500}) {
        INFO("sleeps for " << sleeps_ms << " ms");
        static std::atomic<int32_t> sleeps{0};  // The function has no other way to it.
        distile_context_options last{};
        last.allocate = [](void *, size_t bytes, size_t alignment) -> void * {
            std::this_thread::sleep_for(std::chrono::milliseconds(sleeps.exchange(0)));
            return aligned_alloc(alignment, (bytes + 63) / 64 * 64);
        };
        last.deallocate = [](void *, void *memory) { std::free(memory); };
        RankHub hub(2);
        std::vector<std::unique_ptr<TestLayers>> layers;
        for (int32_t i = 0; i < 2; i++) {
            layers.push_back(std::make_unique<TestLayers>(4, Shapes(3, {4, 3, 1, 1, 1, false}), 6));
        }
        const auto begin = std::chrono::steady_clock::now();
        const std::vector<Answer> answers = answers_of(2, [&](int32_t number) {
            distile_group_options options{};
            options.timeout_ms = 600;
            Rank rank(hub, number, options, number == 1 ? last : distile_context_options{}, 2);
            require_ok(rank.made());
            require_ok(rank.make_chain(*layers[static_cast<size_t>(number)]));
            rank.make_images(1, 70, 50);
            rank.images->draw_masks(.8, false);
            sleeps = number == 1 ? sleeps_ms : sleeps.load();
            std::vector<float> result;
            const Answer answer = rank.run(DISTILE_KEEP, result);
            const Answer again = rank.run(DISTILE_KEEP, result);
            require_that(again.status == DISTILE_ERROR_DEVICE_LOST, "the group lives on: " + again.message);
            require_that(std::chrono::steady_clock::now() - begin < std::chrono::seconds(8), "too late");
            // The device still uses its context.
            std::this_thread::sleep_for(std::chrono::milliseconds(sleeps_ms));
            return answer;
        });
        check_all(answers, DISTILE_ERROR_DEVICE_LOST, "");
    }
}
