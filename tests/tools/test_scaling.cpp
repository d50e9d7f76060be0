// The model of time for groups of devices: what it must say where that is known.
#include "autoscheduler/scaling/scaling.h"
#include "masks/mask_families.h"
#include "plans/json_file.h"
#include "tests/support/catch.h"
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

using namespace distile;

namespace {

/** 3x3 convolutions of 2 products a pixel, whose output has 10 bytes a pixel. */
std::vector<PlannedLayer> layers_of(size_t count) {
    PlannedLayer layer{};
    layer.rows = layer.columns = {3, 1, 1, 1, 1};
    layer.residual = -1;
    layer.work = 2;
    layer.pixel_bytes = 10;
    return std::vector<PlannedLayer>(count, layer);
}

Cluster cluster_of(int32_t devices, double launch_us, LinkTime inside) {
    Cluster cluster;
    cluster.devices = devices;
    cluster.device.launch_us = launch_us;
    cluster.device.products_per_us = 4;
    cluster.inside = inside;
    cluster.between = {7, 1};
    cluster.overlaps = false;
    return cluster;
}

Scaling predict(size_t count, const ByteMask &mask, const Cluster &cluster) {
    BitImage bits({mask.batch, mask.height, mask.width});
    pack_bitmask(mask.bytes.data(), int64_t{mask.height} * mask.width, mask.width, mask.batch, mask.height, mask.width,
                 bits.words.data());
    const std::vector<const BitImage *> masks(count, &bits);
    return predict_scaling(layers_of(count), bits.shape, masks, cluster);
}

// ---- Rows of two H200s ----

nlohmann::json rows_of(const char *name) {
    return read_json(std::string(DISTILE_RESULTS_FOLDER) + "/groups/" + name + ".json").at("rows");
}

int64_t active_pixels(const nlohmann::json &row) {
    const int64_t size = row.at("size");
    return std::llround(row.at("density").get<double>() * static_cast<double>(size * size));
}

constexpr int32_t recorded_layers = 12;

/** What a layer takes on one GPU by active pixels, as its rows of single images say. Below the fewest, along the line
 * through the first two. */
std::vector<TimePoint> recorded_times(const std::string &type) {
    std::vector<TimePoint> points;
    for (const nlohmann::json &row : rows_of("h200")) {
        if (row.at("type") == type && row.at("devices") == 2 && row.at("batch") == 1) {
            points.push_back({active_pixels(row), row.at("t_one_us").get<double>() / recorded_layers});
        }
    }
    std::sort(points.begin(), points.end(), [](const TimePoint &a, const TimePoint &b) { return a.tiles < b.tiles; });
    REQUIRE(points.size() > 2);
    const double slope =
        (points[1].microseconds - points[0].microseconds) / static_cast<double>(points[1].tiles - points[0].tiles);
    points.insert(points.begin(), {1, points[0].microseconds - slope * static_cast<double>(points[0].tiles - 1)});
    return points;
}

/** The chain of these rows on two GPUs, of one process or of two. */
double predict_recorded(const nlohmann::json &row, bool ranks) {
    const std::string type = row.at("type");
    const int32_t size = row.at("size");
    PlannedLayer layer = layers_of(1).front();
    layer.work = 256.0 * 256 * 9;
    layer.pixel_bytes = type == "tf32" ? 1024 : 512;
    Cluster cluster;
    cluster.devices = 2;
    cluster.device.points = recorded_times(type);
    cluster.overlaps = false;
    // docs/several_devices.md has these numbers, which bench/tables/groups.py takes from the rows.
    cluster.group = {2.4, .23};
    if (ranks) {
        cluster.devices_per_rank = 1;
        cluster.rank = {830, 220};
    }
    const ByteMask mask = blob_mask(1, size, size, row.at("density"), 1);
    BitImage bits({1, size, size});
    pack_bitmask(mask.bytes.data(), int64_t{size} * size, size, 1, size, size, bits.words.data());
    const std::vector<PlannedLayer> layers(recorded_layers, layer);
    return predict_scaling(layers, bits.shape, std::vector<const BitImage *>(layers.size(), &bits), cluster).us;
}

}  // namespace

TEST_CASE("The model of several devices is near what two GPUs took", "[scaling]") {
    constexpr double tolerance = .25;
    int32_t checked = 0;
    for (const auto &[name, ranks] : {std::pair{"h200", false}, std::pair{"h200-ranks", true}}) {
        for (const nlohmann::json &row : rows_of(name)) {
            if (row.value("devices", 2) != 2 || row.value("batch", 1) != 1) {
                continue;
            }
            const double measured = row.at("t_kept_us"), predicted = predict_recorded(row, ranks);
            INFO(row.at("row").get<std::string>() << ": measured " << measured << ", predicted " << predicted);
            CHECK(predicted > measured * (1 - tolerance));
            CHECK(predicted < measured * (1 + tolerance));
            checked++;
        }
    }
    CHECK(checked == 16);
}

TEST_CASE("The model of several devices adds what groups and ranks take", "[scaling]") {
    const ByteMask full = random_mask(1, 64, 64, 1, 1);
    Cluster cluster = cluster_of(2, 5, {1, 100});
    const double without = predict(3, full, cluster).us;
    // Two devices have 64 x 32 pixels of 10 bytes.
    const double mb = 64 * 32 * 10 / 1e6;
    cluster.group = {1000, 100};
    const double grouped = predict(3, full, cluster).us;
    CHECK(grouped == Approx(without + mb * (1000 + 3 * 100)));
    // Devices of one process do not meet.
    cluster.rank = {40, 2};
    CHECK(predict(3, full, cluster).us == Approx(grouped));
    cluster.devices_per_rank = 2;
    CHECK(predict(3, full, cluster).us == Approx(grouped));
    // Messages are made while devices compute.
    cluster.devices_per_rank = 1;
    CHECK(predict(3, full, cluster).us == Approx(grouped + 2 * 40));
    // Unless that takes longer: the last layer follows the second exchange.
    cluster.group = {};
    cluster.rank = {0, 1e5};
    const double last = 5 + 64 * 32 / 2.0;
    CHECK(predict(3, full, cluster).us == Approx(2 * 1e5 + 1 + 640 / 100.0 + last));
}

TEST_CASE("The model of several devices adds up what is known", "[scaling]") {
    const ByteMask full = random_mask(1, 64, 64, 1, 1);
    // One device: each layer is launched, and computes half a microsecond a pixel.
    const Scaling one = predict(3, full, cluster_of(1, 5, {1, 100}));
    CHECK(one.us == Approx(3 * (5 + 64 * 64 / 2.0)));
    CHECK(one.us == Approx(one.one_us));
    CHECK((one.communication == 0 && one.halo_bytes == 0 && one.hosts == 1));
    // Two: half of the pixels each, and a column of 64 pixels from each to the other between layers.
    Cluster cluster = cluster_of(2, 5, {1, 100});
    const Scaling two = predict(3, full, cluster);
    CHECK(two.halo_bytes == 2 * 2 * 64 * 10);
    CHECK(two.row_bytes == two.halo_bytes);
    const double compute = 3 * (5 + 64 * 32 / 2.0), copies = 2 * (1 + 640 / 100.0);
    CHECK(two.us == Approx(compute + copies));
    CHECK(two.communication == Approx(copies / (compute + copies)));
    CHECK(two.imbalance == Approx(0).margin(1e-9));
    CHECK((two.host_bytes == 0 && two.hosts == 1));
    // On two hosts, copies take the other link.
    cluster.devices_per_host = 1;
    const Scaling apart = predict(3, full, cluster);
    CHECK(apart.us == Approx(compute + 2 * (7 + 640 / 1.0)));
    CHECK(apart.host_bytes == apart.halo_bytes);
    CHECK(apart.hosts == 2);
    // Rims first: the copies travel while the rest is computed.
    cluster.devices_per_host = 2;
    cluster.overlaps = true;
    cluster.device.launch_us = 0;
    CHECK(predict(3, full, cluster).us == Approx(3 * 64 * 32 / 2.0));
}

TEST_CASE("The model of several devices takes measured times", "[scaling]") {
    const ByteMask full = random_mask(1, 32, 32, 1, 1);
    Cluster cluster = cluster_of(2, 1e9, {0, 1e12});
    cluster.device.points = {{256, 10}, {512, 16}, {1024, 30}};
    const Scaling found = predict(2, full, cluster);
    CHECK(found.one_us == Approx(60));
    CHECK(found.us == Approx(32));
    CHECK(found.speed_up() == Approx(60.0 / 32));
}

TEST_CASE("The model of several devices behaves as devices must", "[scaling]") {
    for (const double density : {0.0, .02, .3, 1.0}) {
        const ByteMask mask = blob_mask(2, 90, 70, density, 3);
        double slowest_link = 0;
        for (const int32_t devices : {1, 2, 4, 8, 16}) {
            INFO("density " << density << ", " << devices << " devices");
            Cluster cluster = cluster_of(devices, 0, {0, 1e15});
            cluster.between = cluster.inside;
            const Scaling free = predict(4, mask, cluster);
            if (density > 0) {
                CHECK(free.speed_up() <= devices + 1e-9);
                CHECK(free.speed_up() >= devices / (1.031 + free.imbalance));
            } else {
                CHECK((free.us == 0 && free.speed_up() == 1 && free.halo_bytes == 0));
            }
            double before = free.us;
            for (const double bandwidth : {1e3, 1e2, 10.0}) {
                cluster.inside = {2, bandwidth};
                cluster.between = {3, bandwidth / 2};
                cluster.devices_per_host = 4;
                const Scaling costly = predict(4, mask, cluster);
                CHECK(costly.us >= before - 1e-9);
                CHECK((costly.communication >= 0 && costly.communication < 1));
                before = costly.us;
            }
            slowest_link = std::max(slowest_link, before);
        }
        CHECK(std::isfinite(slowest_link));
    }
}
