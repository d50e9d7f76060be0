// Which of several graphs a switch runs: its rules on the host, and its calls on a driver of our own.
#include "runtime/cuda/kernels/switch.h"
#include "tests/cuda/cuda_setup.h"
#include "tests/cuda/fake_session.h"
#include "tests/support/catch.h"
#include <array>
#include <distile/distile.hpp>
#include <functional>

using namespace distile;

namespace {

/** Launches of a switch, whose ways take what a function says. */
struct SwitchRun {
    explicit SwitchRun(int32_t ways, SwitchMode mode = switch_learns) : num_ways(ways) {
        state.mode = mode;
        state.budget = .01f;
    }
    int32_t launch(int32_t density) {
        const int32_t way = choose_way(state, density, num_ways);
        REQUIRE((way >= 0 && way < num_ways));
        add_time(state.times[density][way], us(density, way));
        runs[static_cast<size_t>(way)]++;
        total += static_cast<double>(us(density, way));
        return way;
    }

    SwitchState state{};
    int32_t num_ways;
    std::function<float(int32_t, int32_t)> us;
    std::array<int64_t, most_ways> runs{};
    double total = 0;
};

}  // namespace

TEST_CASE("A share of active pixels has the nearest of 17 places", "[.fake_driver]") {
    CHECK(switch_density(0, 0) == 0);
    CHECK(switch_density(0, 100) == 0);
    CHECK(switch_density(100, 100) == 16);
    CHECK(switch_density(50, 100) == 8);
    CHECK(switch_density(3, 100) == 0);
    CHECK(switch_density(4, 100) == 1);
    const uint64_t many = uint64_t{1} << 45;
    CHECK(switch_density(many, many) == 16);
    CHECK(switch_density(many / 4, many) == 4);
}

TEST_CASE("A switch tries each way first, and then runs the fastest within its budget", "[.fake_driver]") {
    const int32_t ways = GENERATE(2, 3, 8);
    const int32_t fastest = GENERATE(0, 1);
    SwitchRun run(ways);
    run.us = [&](int32_t, int32_t way) { return way == fastest ? 100.f : 130.f + 10 * static_cast<float>(way); };
    for (int32_t way = 0; way < ways; way++) {
        CHECK(run.launch(5) == way);
    }
    constexpr int64_t launches = 20000;
    for (int64_t i = 0; i < launches; i++) {
        run.launch(5);
    }
    const int64_t best = run.runs[static_cast<size_t>(fastest)];
    CHECK(best > launches * 8 / 10);
    CHECK(run.total < 100. * launches * 1.011);
    for (int32_t way = 0; way < ways; way++) {
        CHECK(run.runs[static_cast<size_t>(way)] > 3);
    }
}

TEST_CASE("Each density has its own fastest way, and knows its neighbours' times", "[.fake_driver]") {
    SwitchRun run(2);
    // The first way takes longer the more pixels are active, the second always as long.
    run.us = [](int32_t density, int32_t way) { return way == 0 ? 20.f + 10 * static_cast<float>(density) : 100.f; };
    for (int32_t round = 0; round < 200; round++) {
        for (int32_t density = 0; density < switch_densities; density++) {
            run.launch(density);
        }
    }
    run.state.mode = switch_settled;
    for (int32_t density = 0; density < switch_densities; density++) {
        CHECK(choose_way(run.state, density, 2) == (density < 8 ? 0 : density > 8 ? 1 : choose_way(run.state, 8, 2)));
    }
    // At densities without a time, the nearest counts; ways far behind are not tried there at once.
    SwitchRun other(2);
    other.us = [](int32_t, int32_t way) { return way == 0 ? 10.f : 50.f; };
    other.launch(3);
    other.launch(3);
    for (int32_t launch = 0; launch < 15; launch++) {
        CHECK(other.launch(9) == 0);
    }
}

TEST_CASE("A switch follows ways that become slower or faster", "[.fake_driver]") {
    SwitchRun run(2);
    float first = 50;
    run.us = [&](int32_t, int32_t way) { return way == 0 ? first : 100.f; };
    const auto share_of_first = [&](int32_t launches) {
        const int64_t before = run.runs[0];
        for (int32_t i = 0; i < launches; i++) {
            run.launch(0);
        }
        return static_cast<double>(run.runs[0] - before) / launches;
    };
    CHECK(share_of_first(1000) > .97);
    first = 200;
    share_of_first(40);
    CHECK(share_of_first(1000) < .05);
    first = 50;
    share_of_first(2000);
    CHECK(share_of_first(1000) > .95);
}

TEST_CASE("One slow run counts little, and a cold first run nothing", "[.fake_driver]") {
    WayTimes times{};
    for (const float us : {900.f, 100.f, 104.f}) {
        add_time(times, us);
    }
    CHECK(times.us == 100.f);
    add_time(times, 1e6f);
    CHECK(times.us <= 112.6f);
    times.runs = UINT32_MAX;
    add_time(times, 100);
    CHECK(times.runs == UINT32_MAX);
}

TEST_CASE("A switch runs what it is told, or tries nothing", "[.fake_driver]") {
    SwitchRun run(3);
    run.us = [](int32_t, int32_t way) { return 10.f * static_cast<float>(3 - way); };
    run.state.mode = switch_settled;
    CHECK(run.launch(0) == 0);  // Nothing is known.
    run.state.mode = 1;
    for (int32_t i = 0; i < 100; i++) {
        CHECK(run.launch(0) == 1);
    }
    run.state.mode = switch_settled;
    for (int32_t i = 0; i < 100; i++) {
        CHECK(run.launch(0) == 1);
    }
    run.state.mode = switch_learns;
    for (int32_t i = 0; i < 100; i++) {
        run.launch(0);
    }
    run.state.mode = switch_settled;
    CHECK(run.launch(0) == 2);
}

TEST_CASE("A switch is one launch, which a capture does not take in", "[.fake_driver]") {
    {
        const Context context = make_cuda_context();
        int graph = 0;
        void *graphs[] = {&graph, &graph, &graph};
        distile_cuda_switch_args args{};
        args.graphs = graphs;
        args.num_graphs = 3;
        distile_cuda_switch *made = nullptr;
        const int64_t nodes = count_fake("cuGraphAddNode");
        check(context, distile_cuda_switch_create(context.get(), &args, &made));
        const CudaSwitch chosen(made);
        CHECK(count_fake("cuGraphAddNode") == nodes + 6);
        const int64_t launches = count_fake("cuGraphLaunch"), calls = count_fake("cuStreamSynchronize");
        check(context, distile_cuda_switch_launch(chosen.get()));
        CHECK(count_fake("cuGraphLaunch") == launches + 1);
        CHECK(count_fake("cuStreamSynchronize") == calls);
        distile_cuda_switch_info info{};
        check(context, distile_cuda_switch_get_info(chosen.get(), &info));
        CHECK(info.num_graphs == 3);
        const FakeSetting capturing("capturing", 1, 0);
        CHECK(distile_cuda_switch_launch(chosen.get()) == DISTILE_ERROR_CAPTURING);
        CHECK(contains(distile_context_message(context.get()), "takes in no switch"));
        CHECK(distile_cuda_switch_set(chosen.get(), 0) == DISTILE_ERROR_CAPTURING);
        CHECK(distile_cuda_switch_get_info(chosen.get(), &info) == DISTILE_ERROR_CAPTURING);
        CHECK(distile_cuda_switch_create(context.get(), &args, &made) == DISTILE_ERROR_CAPTURING);
    }
    CHECK(count_fake("alive") == 0);
}
