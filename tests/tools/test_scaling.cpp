// The model of time for groups of devices: what it must say where that is known.
#include "autoscheduler/scaling/scaling.h"
#include "masks/mask_families.h"
#include "tests/support/catch.h"
#include <cmath>

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

}  // namespace

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
