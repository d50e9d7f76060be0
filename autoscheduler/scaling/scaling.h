/** \file
 * A model of time for groups of devices: how long a chain of layers takes on some devices of some hosts.
 *
 * It cuts the image and plans the chain as a group does, and then follows each device from layer to layer: its products
 * take as long as one device takes for as many active pixels, and before a layer it waits for what it fetches from
 * others. A device sends to and fetches from others over its own link, one after the other, and devices of one host
 * share the link to other hosts. The process of a rank makes messages one after the other while its devices compute.
 */
#ifndef DISTILE_SCALING_H
#define DISTILE_SCALING_H

#include "runtime/choice/choose_variant.h"
#include "runtime/group/chain_plan.h"
#include <vector>

namespace distile {

/** What a device takes for a layer. */
struct LayerTime {
    /** The time by active pixels of one layer of the chain, as in time tables; empty: by the two numbers below. */
    std::vector<TimePoint> points;
    double launch_us = 5;          ///< What a layer takes however few pixels it has.
    double products_per_us = 1e8;  ///< Multiply-adds.

    double of(const PlannedLayer &layer, int64_t pixels) const;
};

/** What copies take: a latency each, and bytes over a bandwidth. */
struct LinkTime {
    double latency_us, bytes_per_us;
};

/** What a group adds to the layers of a device, by the bytes of the pixels that it computes. */
struct GroupTime {
    double run_us_per_mb = 0;    ///< For the images, which a run copies into the first tensor and back.
    double layer_us_per_mb = 0;  ///< For the output of each layer.
};

/** What ranks add. */
struct RankTime {
    double meeting_us = 0;  ///< Before a run and after it, ranks compare what they have.
    double message_us = 0;  ///< Before a layer, a rank makes, sends and unpacks its message to another.
};

/** Devices and what connects them. */
struct Cluster {
    int32_t devices = 1, devices_per_host = 8;
    int32_t devices_per_rank = 0;  ///< 0: one process has all devices.
    LayerTime device;
    GroupTime group;
    RankTime rank;
    LinkTime inside{5, 3e5};    ///< Between devices of a host.
    LinkTime between{15, 5e4};  ///< Between hosts.
    bool overlaps = true;       ///< Devices compute while copies travel.
};

/** What the model says. */
struct Scaling {
    int32_t devices, hosts;
    double us;             ///< The time of a run, its input on the devices and its result left there.
    double one_us;         ///< The time of one device.
    double communication;  ///< The part of all devices' time in which they wait for copies and messages.
    double imbalance;      ///< What the slowest device computes above the mean of all, as a part of it.
    int64_t halo_bytes, host_bytes, row_bytes;  ///< Exchanged, those between hosts, and by bands of rows.

    double speed_up() const {
        return us > 0 ? one_us / us : 1;
    }
};

/** Predicts a chain whose layers' outputs have these masks. */
Scaling predict_scaling(const std::vector<PlannedLayer> &layers, const MaskShape &input,
                        const std::vector<const BitImage *> &masks, const Cluster &cluster);

}  // namespace distile

#endif
