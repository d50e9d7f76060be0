// The C API's choice of a variant: time tables, traces, and dense candidates of the application's.
#include "tests/support/api_call.h"
#include "tests/support/catch.h"
#include "tests/support/cpu_features_of.h"
#include "tests/support/descriptors.h"
#include "tests/support/temporary_folder.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <distile/distile.hpp>
#include <distile/polykernel.h>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

using namespace distile;

namespace {

/** A dense candidate that fills the output with ones, and the calls that it got. */
struct Ones {
    int calls = 0, code = 0;
    bool overlapped = false;

    static int run(void *user, void *stream, const distile_run_args *args) {
        const distile_tensor *const output = args->output;
        auto *self = static_cast<Ones *>(user);
        if (stream) {
            return 77;  // A CPU has none.
        }
        self->calls++;
        self->overlapped = self->overlapped || (args->residual && args->residual->data == output->data);
        if (self->code != 0) {
            return self->code;
        }
        for (int32_t n = 0; n < output->batch; n++) {
            for (int32_t y = 0; y < output->height; y++) {
                for (int32_t x = 0; x < output->width; x++) {
                    std::fill_n(static_cast<float *>(output->data) + n * output->stride_n + y * output->stride_h +
                                    x * output->stride_w,
                                output->channels, 1.0f);
                }
            }
        }
        return 0;
    }
};

}  // namespace

TEST_CASE("Without times the variant that computes the fewest pixels is chosen", "[api]") {
    Call call;
    REQUIRE(plain_kernel.num_times == 0);
    activate_first(call, 1);
    const distile_choice one = choose(call);
    CHECK(std::string(one.kernel) == plain_kernel.name);
    CHECK(std::string(one.variant) == "t1x1_p6c16_o0");
    CHECK(one.variant_index == 0);
    CHECK(one.dense == 0);
    CHECK(one.tiles == 1);
    CHECK(one.active_pixels == 1);
    CHECK(one.predicted_us == 0);
    CHECK(one.elapsed_us == 0);
    // Where all of them compute every pixel, the one that needs no list.
    activate_first(call, call.reference.mask.size());
    CHECK(choose(call).dense == 1);
    activate_first(call, call.reference.mask.size() - 1);
    CHECK(choose(call).dense == 0);
}

TEST_CASE("The built-in times decide, by the number of threads", "[api]") {
    // By the plan, with n + 1 tiles and one thread: t1x1 takes 1 + n, t1x2 50 + n / 2, and dense, whose tiles are 2 x 2
    // and of which 100 cover this image, 200 + n / 4. With four threads all is four times as fast; other numbers have
    // no times.
    for (int32_t threads : {1, 2, 3, 4, 64}) {
        distile_context_options options{};
        options.threads = threads;
        Call call(timed_kernel, options, 1, 20, 20);
        const double faster = std::min(threads, 4);
        CAPTURE(threads);
        activate_first(call, 10);
        distile_choice choice = choose(call);
        CHECK(std::string(choice.variant) == "t1x1_p6c16_o0");
        CHECK(choice.predicted_us == Approx(10 / faster));
        call.accept();
        activate_first(call, 300);
        choice = choose(call);
        CHECK(std::string(choice.variant) == "t1x2_p1c48_o1");
        CHECK(choice.tiles == 150);
        CHECK(choice.tile_w == 2);
        CHECK(choice.predicted_us == Approx((50 + 149 * 0.5) / faster));
        call.accept();
        REQUIRE(distile_kernel_add_time(call.kernel.get(), "t1x2_p1c48_o1", 1, 1e6) == DISTILE_OK);
        choice = choose(call);
        CHECK(choice.dense == 1);
        CHECK(choice.tiles == 100);
        CHECK(choice.active_pixels == 300);
        CHECK(choice.predicted_us == Approx((200 + 99 * 0.25) / faster));
        call.accept();
    }
}

TEST_CASE("The dispatcher takes the first of the plan's variants with equal times", "[api]") {
    const TemporaryFolder folder;
    distile_context_options options{};
    options.threads = 3;
    Call call(timed_kernel, options, 1, 20, 20);
    const auto run_nothing = [](void *, void *, const distile_run_args *) { return 0; };
    const distile_dense_candidate own{"own", run_nothing, nullptr};
    REQUIRE(distile_kernel_add_dense(call.kernel.get(), &own) == DISTILE_OK);
    // From the last to the first, so that the order of the rows decides nothing.
    std::string rows;
    for (int32_t i = distile_kernel_num_variants(call.kernel.get()); i-- > 0;) {
        const std::string row =
            std::string(R"({"variant": ")") + distile_kernel_variant_name(call.kernel.get(), i) + R"(", "threads": )";
        rows += row + R"(4, "tiles": 1000, "us": 9}, )" + row + R"(2, "tiles": 1000, "us": 5})" + (i > 0 ? ", " : "");
    }
    const std::string table = folder.write("times.json", time_table(timed_kernel, rows));
    REQUIRE(distile_kernel_load_times(call.kernel.get(), table.c_str()) == DISTILE_OK);
    for (size_t pixels : {1, 100, 400}) {
        activate_first(call, pixels);
        CHECK(choose(call).variant_index == 0);
        // A third of the way from 1/4 to 1/2.
        CHECK(choose(call).predicted_us == Approx(9 - 4. / 3));
    }
}

TEST_CASE("A time table that is loaded decides from then on", "[api]") {
    const TemporaryFolder folder;
    Call call(timed_kernel, {}, 1, 20, 20);
    activate_first(call, 10);
    CHECK(std::string(choose(call).variant) == "t1x1_p6c16_o0");
    const std::string table = folder.write("times.json", time_table(timed_kernel, R"(
            {"variant": "t1x1_p6c16_o0", "threads": 1, "tiles": 1, "us": 500},
            {"variant": "t8x8_p14c8_o0", "threads": 1, "tiles": 2, "us": 7.5},
            {"variant": "t8x8_p14c8_o0", "threads": 1, "tiles": 4, "us": 11.5},
            {"variant": "of_another_machine", "threads": 1, "tiles": 1, "us": 1})"));
    REQUIRE(distile_kernel_load_times(call.kernel.get(), table.c_str()) == DISTILE_OK);
    // 10 pixels of the first row lie in two tiles of 8 x 8, 30 in the three of the first row of tiles.
    CHECK(std::string(choose(call).variant) == "t8x8_p14c8_o0");
    CHECK(choose(call).predicted_us == Approx(7.5));
    call.accept();
    activate_first(call, 30);
    CHECK(choose(call).predicted_us == Approx(9.5));
    // Below the first point a table knows no less than its time; beyond the last, time grows with the tiles.
    activate_first(call, 1);
    CHECK(choose(call).predicted_us == Approx(7.5));
    activate_first(call, 400);
    CHECK(choose(call).tiles == 9);
    CHECK(choose(call).predicted_us == Approx(11.5 * 9 / 4));
}

TEST_CASE("Time tables that are wrong are refused, and the old one stays", "[api]") {
    const TemporaryFolder folder;
    Call call(timed_kernel);
    const std::string name = timed_kernel.name;
    const std::string row = R"({"variant": "dense", "threads": 1, "tiles": 1, "us": 0.5})";
    const std::string hash = hash_of(timed_kernel);
    const auto hashed = [&](const std::string &plan_hash) {
        return "{\"distile_times\": 2, \"kernel\": \"" + name + "\"" + plan_hash + ", \"times\": [" + row + "]}";
    };
    const auto table = [&](const std::string &version, const std::string &kernel, const std::string &rows) {
        return "{\"distile_times\": " + version + ", \"kernel\": " + kernel + ", \"plan_hash\": \"" + hash +
               "\", \"times\": " + rows + "}";
    };
    std::string other_hash = hash;
    other_hash.back() = other_hash.back() == '0' ? '1' : '0';
    const auto rows = [&](const std::string &variant, const std::string &threads, const std::string &tiles,
                          const std::string &us) {
        return table("2", '"' + name + '"',
                     "[" + row + ", {\"variant\": " + variant + ", \"threads\": " + threads + ", \"tiles\": " + tiles +
                         ", \"us\": " + us + "}]");
    };
    struct Case {
        distile_status status;
        std::string text, word;
    };
    const Case cases[] = {
        {DISTILE_ERROR_BAD_FILE, "", "JSON"},
        {DISTILE_ERROR_BAD_FILE, "{\"distile_times\": 2,", "JSON"},
        {DISTILE_ERROR_BAD_FILE, "[1]", "JSON"},
        {DISTILE_ERROR_BAD_FILE, "{}", "distile_times"},
        {DISTILE_ERROR_BAD_FILE, std::string(1000000, '['), "nested deeper"},
        {DISTILE_ERROR_BAD_FILE, R"({"distile_times": 2, "distile_times": 2})", "\"distile_times\" twice"},
        {DISTILE_ERROR_BAD_FILE, table("\"2\"", '"' + name + '"', "[" + row + "]"), "distile_times"},
        {DISTILE_ERROR_VERSION, table("3", '"' + name + '"', "[" + row + "]"), "version 3"},
        {DISTILE_ERROR_VERSION, table("1", '"' + name + '"', "[" + row + "]"), "version 1"},
        {DISTILE_ERROR_VERSION, table("-2", '"' + name + '"', "[" + row + "]"), "version -2"},
        {DISTILE_ERROR_BAD_FILE, hashed(", \"plan_hsh\": \"" + hash + "\""),
         "\"plan_hsh\"; the nearest known one is \"plan_hash\""},
        {DISTILE_ERROR_BAD_FILE, rows("\"dense\"", "1, \"thread\": 1", "1", "1"),
         "\"thread\"; the nearest known one is \"threads\""},
        {DISTILE_ERROR_VERSION, "{\"version\": 3, \"distile_times\": 3}", "version 3"},
        {DISTILE_ERROR_OTHER_OPERATOR, hashed(""), hash},
        {DISTILE_ERROR_OTHER_OPERATOR, hashed(", \"plan_hash\": \"" + other_hash + "\""), other_hash},
        {DISTILE_ERROR_OTHER_OPERATOR, hashed(", \"plan_hash\": \"" + hash + "0\""), "distile profile"},
        {DISTILE_ERROR_OTHER_OPERATOR, hashed(", \"plan_hash\": \"" + hash.substr(1) + "\""), "plan_hash"},
        {DISTILE_ERROR_OTHER_OPERATOR, hashed(", \"plan_hash\": " + std::to_string(timed_kernel.plan_hash)),
         "plan_hash"},
        {DISTILE_ERROR_OTHER_OPERATOR, table("2", "\"other\"", "[" + row + "]"), "other"},
        {DISTILE_ERROR_OTHER_OPERATOR, table("2", "3", "[" + row + "]"), "3"},
        {DISTILE_ERROR_OTHER_OPERATOR, "{\"distile_times\": 2, \"times\": [" + row + "]}", "none"},
        {DISTILE_ERROR_BAD_FILE, table("2", '"' + name + '"', "{}"), "times"},
        {DISTILE_ERROR_BAD_FILE, table("2", '"' + name + '"', "[]"), "times"},
        {DISTILE_ERROR_BAD_FILE, table("2", '"' + name + '"', "[4]"), "4"},
        {DISTILE_ERROR_BAD_FILE, table("2", '"' + name + '"', "[[" + row + "]]"), "[...]"},
        {DISTILE_ERROR_BAD_FILE, table("2", '"' + name + '"', R"([{"times": [)" + row + "]}]"), "no member \"times\""},
        {DISTILE_ERROR_BAD_FILE, table("2", '"' + name + '"', "[{}]"), "null"},
        {DISTILE_ERROR_BAD_FILE, rows("\"dense\"", "[1]", "1", "1"), "\"threads\":[...]"},
        {DISTILE_ERROR_OTHER_OPERATOR,
         table("2", '"' + name + '"', R"([{"variant": "unknown", "threads": 1, "tiles": 1, "us": 1}])"), "variant"},
        {DISTILE_ERROR_BAD_FILE, rows("7", "1", "1", "1"), "7"},
        {DISTILE_ERROR_BAD_FILE, rows("\"dense\"", "0", "1", "1"), "\"threads\":0"},
        {DISTILE_ERROR_BAD_FILE, rows("\"dense\"", "-2", "1", "1"), "-2"},
        {DISTILE_ERROR_BAD_FILE, rows("\"dense\"", "1.5", "1", "1"), "1.5"},
        {DISTILE_ERROR_BAD_FILE, rows("\"dense\"", "1", "-3", "1"), "-3"},
        {DISTILE_ERROR_BAD_FILE, rows("\"dense\"", "1", "1e99", "1"), "1e99"},
        {DISTILE_ERROR_BAD_FILE, rows("\"dense\"", "1", "1", "0"), "\"us\":0"},
        {DISTILE_ERROR_BAD_FILE, rows("\"dense\"", "1", "1", "-4.5"), "-4.5"},
        {DISTILE_ERROR_BAD_FILE, rows("\"dense\"", "1", "1", "NaN"), "JSON"},
        {DISTILE_ERROR_BAD_FILE, rows("\"dense\"", "1", "1", "1e999"), "JSON"},
        {DISTILE_ERROR_BAD_FILE, rows("\"dense\"", "1", "1", "\"fast\""), "fast"},
    };
    const auto refuse = [&](distile_status status, const std::string &path, const std::string &word) {
        CHECK(std::string(distile_status_name(distile_kernel_load_times(call.kernel.get(), path.c_str()))) ==
              distile_status_name(status));
        INFO("the message is: " << call.message());
        CHECK(contains(call.message(), path));
        CHECK(contains(call.message(), word));
        CHECK(choose(call).predicted_us > 0.5);
    };
    for (const Case &bad : cases) {
        CAPTURE(bad.text);
        refuse(bad.status, folder.write("bad.json", bad.text), bad.word);
    }
    refuse(DISTILE_ERROR_BAD_FILE, folder.path() + "/missing.json", "cannot be read");
    refuse(DISTILE_ERROR_BAD_FILE, folder.path(), "");
    REQUIRE(distile_kernel_load_times(
                call.kernel.get(), folder.write("good.json", rows("\"dense\"", "1", "2", "9")).c_str()) == DISTILE_OK);
}

TEST_CASE("Times that are added are checked and replace older ones", "[api]") {
    Call call(timed_kernel, {}, 1, 20, 20);
    distile_kernel *kernel = call.kernel.get();
    CHECK(distile_kernel_add_time(kernel, "unknown", 1, 1) == DISTILE_ERROR_BAD_VALUE);
    CHECK(contains(call.message(), "'unknown'"));
    for (int64_t tiles : {int64_t{0}, int64_t{-1}}) {
        CHECK(distile_kernel_add_time(kernel, "dense", tiles, 1) == DISTILE_ERROR_BAD_VALUE);
        CHECK(contains(call.message(), std::to_string(tiles)));
    }
    for (double time : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
        CHECK(distile_kernel_add_time(kernel, "dense", 1, time) == DISTILE_ERROR_BAD_VALUE);
        CHECK(contains(call.message(), "microseconds"));
    }
    activate_first(call, 64);
    for (double time : {0.25, 0.125}) {
        REQUIRE(distile_kernel_add_time(kernel, "dense", 100, time) == DISTILE_OK);
        CHECK(choose(call).dense == 1);
        CHECK(choose(call).predicted_us == Approx(time));
    }
}

TEST_CASE("A first time for a number of threads keeps the curve of others", "[api]") {
    distile_context_options options{};
    options.threads = 64;
    double predicted = 0;
    options.trace = [](void *user, const distile_choice *choice) {
        *static_cast<double *>(user) = choice->predicted_us;
    };
    options.trace_user = &predicted;
    Call call(timed_kernel, options, 1, 20, 20);
    call.args.variant = "t1x2_p1c48_o1";
    const auto predict = [&](size_t tiles) {
        activate_first(call, 2 * tiles);
        REQUIRE(distile_run(call.kernel.get(), &call.args) == DISTILE_OK);
        return predicted;
    };
    const auto add = [&](int64_t tiles, double microseconds) {
        REQUIRE(distile_kernel_add_time(call.kernel.get(), call.args.variant, tiles, microseconds) == DISTILE_OK);
    };
    // By the plan (50 + n / 2) / 4 with n + 1 tiles, for 4 threads.
    REQUIRE(predict(150) == Approx((50 + 149 * 0.5) / 4));
    add(150, 249);
    CHECK(predict(150) == Approx(249));
    CHECK(predict(50) == Approx(2 * (50 + 49 * 0.5)));
    CHECK(predict(1) == Approx(2 * 50));
    // From then on the points are the variant's own.
    add(50, 7);
    CHECK(predict(50) == Approx(7));
    CHECK(predict(150) == Approx(249));
    add(150, 20);
    CHECK(predict(150) == Approx(20));
    CHECK(predict(50) == Approx(7));
}

TEST_CASE("A trace tells what ran, and only when it ran", "[api]") {
    struct Traced {
        int calls = 0;
        distile_choice choice{};
        std::thread::id thread;
    } traced;
    distile_context_options options{};
    options.trace = [](void *user, const distile_choice *choice) {
        auto *to = static_cast<Traced *>(user);
        to->calls++;
        to->choice = *choice;
        to->thread = std::this_thread::get_id();
    };
    options.trace_user = &traced;
    Call call(timed_kernel, options, 1, 20, 20);
    activate_first(call, 10);
    choose(call);
    CHECK(traced.calls == 0);
    call.args.variant = "no_such_variant";
    call.refuse(DISTILE_ERROR_BAD_VALUE, {});
    CHECK(traced.calls == 0);
    call.args.variant = nullptr;
    call.accept();
    CHECK(traced.calls == 1);
    CHECK(traced.thread == std::this_thread::get_id());
    CHECK(traced.choice.elapsed_us > 0);
    CHECK(traced.choice.predicted_us == choose(call).predicted_us);
    for (int32_t i = 0; i < timed_kernel.num_variants; i++) {
        const distile_variant &variant = timed_kernel.variants[i];
        call.args.variant = variant.name;
        REQUIRE(distile_run(call.kernel.get(), &call.args) == DISTILE_OK);
        CHECK(traced.calls == 2 + i);
        CHECK(std::string(traced.choice.kernel) == timed_kernel.name);
        CHECK(std::string(traced.choice.variant) == variant.name);
        CHECK(traced.choice.variant_index == i);
        CHECK(traced.choice.tile_h == variant.tile_h);
        CHECK(traced.choice.tile_w == variant.tile_w);
        CHECK(traced.choice.dense == variant.dense);
        CHECK(traced.choice.active_pixels == 10);
        const std::vector<uint8_t> &bytes = call.reference.mask, every(bytes.size(), 1);
        CHECK(traced.choice.tiles ==
              reference_active_tiles(variant.dense ? every : bytes, 1, 20, 20, variant.tile_h, variant.tile_w));
    }
}

TEST_CASE("The mask alone decides, so that a choice holds for every mode", "[api]") {
    distile_choice traced{};
    distile_context_options options{};
    options.threads = 1;
    options.trace = [](void *user, const distile_choice *choice) { *static_cast<distile_choice *>(user) = *choice; };
    options.trace_user = &traced;
    Call call(timed_kernel, options, 1, 20, 20);
    REQUIRE(distile_kernel_add_time(call.kernel.get(), "dense", 100, 100) == DISTILE_OK);
    std::set<int32_t> chosen;
    for (size_t pixels : {10, 200, 400}) {
        activate_first(call, pixels);
        const distile_choice choice = choose(call);
        chosen.insert(choice.variant_index);
        for (distile_inactive inactive : {DISTILE_KEEP, DISTILE_ZERO}) {
            for (distile_store store : {DISTILE_STORE_EXACT, DISTILE_STORE_TILES}) {
                CAPTURE(pixels, inactive, store);
                call.args.inactive = inactive;
                call.args.store = store;
                call.accept();
                CHECK(traced.variant_index == choice.variant_index);
                CHECK(traced.predicted_us == choice.predicted_us);
            }
        }
    }
    CHECK(chosen.size() == 3);
}

TEST_CASE("A dense candidate of the application's changes exactly the pixels that are due", "[api]") {
    for (const distile_polykernel *polykernel : {&plain_kernel, &residual_kernel}) {
        for (int options = 0; options < 16; options++) {
            const bool full = options & 1, aliased = (options & 2) && convolution_of(*polykernel).residual;
            // Some so large that several threads copy and zero.
            const int32_t extent = options % 4 == 0 ? 60 : 7;
            CAPTURE(polykernel->name, options, extent);
            distile_context_options three{};
            three.threads = 3;
            Call call(*polykernel, three, 2, extent, extent);
            Ones ones;
            const distile_dense_candidate candidate{"vendor", &Ones::run, &ones};
            REQUIRE(distile_kernel_add_dense(call.kernel.get(), &candidate) == DISTILE_OK);
            CHECK(distile_kernel_num_variants(call.kernel.get()) == polykernel->num_variants + 1);
            CHECK(std::string(distile_kernel_variant_name(call.kernel.get(), polykernel->num_variants)) == "vendor");
            if (full) {
                activate_first(call, call.reference.mask.size());
            }
            call.output.draw(Values::Integers, call.random);
            call.args.residual = aliased ? &call.output_view : call.args.residual;
            call.args.inactive = options & 4 ? DISTILE_ZERO : DISTILE_KEEP;
            call.args.store = options & 8 ? DISTILE_STORE_TILES : DISTILE_STORE_EXACT;
            call.args.variant = "vendor";
            call.reference.residual = call.args.residual;
            call.reference.inactive = call.args.inactive;
            call.reference.store = call.args.store;
            call.reference.dense = true;
            ReferenceOutput expected = reference_masked_conv2d(call.reference);
            for (size_t pixel = 0; pixel < expected.states.size(); pixel++) {
                if (expected.states[pixel] == PixelState::Computed) {
                    std::fill_n(&expected.values[pixel * call.conv.out_channels], call.conv.out_channels, 1.0f);
                }
            }
            const auto before = call.output.snapshot();
            const distile_status status = distile_run(call.kernel.get(), &call.args);
            INFO("the message is: " << call.message());
            REQUIRE(status == DISTILE_OK);
            CHECK(call.output.difference(before, expected, 0) == "");
            CHECK(ones.calls == 1);
            CHECK_FALSE(ones.overlapped);
        }
    }
}

TEST_CASE("A dense candidate of the application's is chosen by its times", "[api]") {
    const TemporaryFolder folder;
    Call call(timed_kernel, {}, 1, 20, 20);
    Ones ones;
    std::string name = "vendor";
    const distile_dense_candidate candidate{name.c_str(), &Ones::run, &ones};
    REQUIRE(distile_kernel_add_dense(call.kernel.get(), &candidate) == DISTILE_OK);
    name = "gone!!";
    activate_first(call, 400);
    CHECK(std::string(choose(call).variant) != "vendor");
    REQUIRE(distile_kernel_add_time(call.kernel.get(), "vendor", 400, 2) == DISTILE_OK);
    const distile_choice choice = choose(call);
    CHECK(std::string(choice.variant) == "vendor");
    CHECK(choice.dense == 1);
    CHECK(choice.tiles == 400);
    CHECK(choice.tile_h == 1);
    CHECK(choice.predicted_us == Approx(2));
    REQUIRE(distile_run(call.kernel.get(), &call.args) == DISTILE_OK);
    CHECK(ones.calls == 1);
    activate_first(call, 1);
    CHECK(std::string(choose(call).variant) == "t1x1_p6c16_o0");
    // A time table may name it, too.
    const std::string table = folder.write(
        "times.json", time_table(timed_kernel, R"({"variant": "vendor", "threads": 1, "tiles": 400, "us": 3})"));
    REQUIRE(distile_kernel_load_times(call.kernel.get(), table.c_str()) == DISTILE_OK);
    CHECK(std::string(choose(call).variant) == "vendor");

    for (const char *taken : {"vendor", "dense"}) {
        const distile_dense_candidate twice{taken, &Ones::run, &ones};
        CHECK(distile_kernel_add_dense(call.kernel.get(), &twice) == DISTILE_ERROR_BAD_VALUE);
        CHECK(contains(call.message(), std::string("'") + taken + "'"));
    }
    ones.code = 42;
    call.refuse(DISTILE_ERROR_KERNEL, {"'vendor'", "42"});
}
