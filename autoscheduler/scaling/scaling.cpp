#include "autoscheduler/scaling/scaling.h"
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

namespace distile {

namespace {

/** Follows the devices through the layers of a plan. */
class Timeline {
public:
    Timeline(const std::vector<PlannedLayer> &layers, const ChainPlan &plan, const Cluster &cluster)
        : layers_(layers), plan_(plan), cluster_(cluster), now_(plan.parts.size()), computed_(plan.parts.size()) {
    }

    void run() {
        meet();
        for (size_t i = 0; i < layers_.size(); i++) {
            compute(i);
            if (i + 1 < layers_.size()) {
                fetch(i);
            }
        }
        for (size_t device = 0; device < plan_.parts.size(); device++) {
            now_[device] += output_mb(device, layers_.size() - 1) * cluster_.group.run_us_per_mb;
        }
        meet();
    }
    double end() const {
        return now_.empty() ? 0 : *std::max_element(now_.begin(), now_.end());
    }
    double waited() const {
        return waited_;
    }
    const std::vector<double> &computed() const {
        return computed_;
    }
    int64_t host_bytes() const {
        return host_bytes_;
    }

private:
    int32_t host_of(size_t device) const {
        return static_cast<int32_t>(device) / cluster_.devices_per_host;
    }

    size_t rank_of(size_t device) const {
        return cluster_.devices_per_rank > 0 ? device / static_cast<size_t>(cluster_.devices_per_rank) : 0;
    }
    /** All ranks wait for each other, if there are several. */
    void meet() {
        if (!now_.empty() && rank_of(now_.size() - 1) > 0) {
            const double met = end() + cluster_.rank.meeting_us;
            std::fill(now_.begin(), now_.end(), met);
            launched_.assign(rank_of(now_.size() - 1) + 1, met);
        }
    }
    /** What a device computes of a layer's output. */
    double output_mb(size_t device, size_t layer) const {
        const Part &part = plan_.parts[device];
        constexpr double bytes = 1e6;
        return part.is_empty ? 0 : static_cast<double>(part.layers[layer].pixels * layers_[layer].pixel_bytes) / bytes;
    }

    /** Each device computes a layer: at published_ others may copy its rim, and at now_ it is done. */
    void compute(size_t layer) {
        published_ = now_;
        for (size_t device = 0; device < plan_.parts.size(); device++) {
            const Part &part = plan_.parts[device];
            if (part.is_empty) {
                continue;
            }
            const PartOutput &output = part.layers[layer];
            const int64_t rim = output.rim.count();
            const double whole = cluster_.device.of(layers_[layer], output.pixels);
            const bool in_parts = cluster_.overlaps && rim > 0 && rim < output.pixels;
            const double first = in_parts ? cluster_.device.of(layers_[layer], rim) : whole;
            // Two launches take longer than one.
            const double rest = in_parts ? cluster_.device.of(layers_[layer], output.pixels - rim) : 0;
            const double beside = output_mb(device, layer) * cluster_.group.layer_us_per_mb;
            published_[device] = now_[device] + first + beside;
            now_[device] += first + rest + beside;
            computed_[device] += first + rest;
        }
    }

    /** Each device fetches what the next layer reads. */
    void fetch(size_t layer) {
        // The time that each link is busy with this tensor.
        std::vector<double> sending(plan_.parts.size());
        std::map<int32_t, double> leaving, entering;
        struct Copy {
            size_t from, to;
            double us;
            bool crosses;
        };
        std::vector<Copy> copies;
        std::set<std::pair<size_t, size_t>> messages;  // Between two ranks.
        for (size_t to = 0; to < plan_.parts.size(); to++) {
            if (plan_.parts[to].is_empty) {
                continue;
            }
            for (const Fetch &fetch : plan_.parts[to].fetches[layer]) {
                const auto from = static_cast<size_t>(fetch.from);
                const bool crosses = host_of(from) != host_of(to);
                const LinkTime &link = crosses ? cluster_.between : cluster_.inside;
                const int64_t bytes = fetch.pixels * layers_[layer].pixel_bytes;
                host_bytes_ += crosses ? bytes : 0;
                copies.push_back({from, to, static_cast<double>(bytes) / link.bytes_per_us, crosses});
                if (rank_of(from) != rank_of(to)) {
                    messages.insert(std::minmax(rank_of(from), rank_of(to)));
                }
            }
        }
        for (const auto &[one, other] : messages) {
            launched_[one] += cluster_.rank.message_us;
            launched_[other] += cluster_.rank.message_us;
        }
        std::vector<double> arrived = now_, receiving(plan_.parts.size());
        std::vector<double> own = now_;
        for (const Copy &copy : copies) {
            // One after the other over the links of the sender, the receiver, and their hosts.
            double busy = std::max(sending[copy.from] += copy.us, receiving[copy.to] += copy.us);
            if (copy.crosses) {
                busy = std::max({busy, leaving[host_of(copy.from)] += copy.us, entering[host_of(copy.to)] += copy.us});
            }
            const double latency = copy.crosses ? cluster_.between.latency_us : cluster_.inside.latency_us;
            arrived[copy.to] = std::max(arrived[copy.to], published_[copy.from] + latency + busy);
            if (rank_of(copy.from) != rank_of(copy.to)) {
                // Both ranks take part in a message.
                const double made = std::max(launched_[rank_of(copy.from)], launched_[rank_of(copy.to)]);
                arrived[copy.to] = std::max(arrived[copy.to], made + latency + busy);
            }
            // Until the others have computed, a device waits for them and not for copies.
            own[copy.to] = std::max(own[copy.to], published_[copy.from]);
        }
        for (size_t device = 0; device < plan_.parts.size(); device++) {
            waited_ += arrived[device] - own[device];
            now_[device] = arrived[device];
        }
    }

    const std::vector<PlannedLayer> &layers_;
    const ChainPlan &plan_;
    const Cluster &cluster_;
    std::vector<double> now_, computed_, published_;
    std::vector<double> launched_;  // When the process of each rank is done with what it launched; none without ranks.
    double waited_ = 0;
    int64_t host_bytes_ = 0;
};

/** The devices as a partition sees them: a line through the times of a layer. */
DeviceTime device_time_of(const std::vector<PlannedLayer> &layers, const LayerTime &time) {
    double fixed = time.launch_us, per_product = 1 / time.products_per_us;
    const std::vector<TimePoint> &points = time.points;
    if (!points.empty()) {
        const TimePoint &low = points.front(), &high = points.back();
        const double products = layers.front().work;
        const auto pixels = static_cast<double>(std::max<int64_t>(high.tiles, 1));
        per_product =
            points.size() > 1 && high.tiles > low.tiles && high.microseconds > low.microseconds
                ? (high.microseconds - low.microseconds) / (static_cast<double>(high.tiles - low.tiles) * products)
                : high.microseconds / (pixels * products);
        fixed = std::max(0.0, high.microseconds - per_product * products * pixels);
    }
    return {fixed * static_cast<double>(layers.size()), per_product};
}

}  // namespace

double LayerTime::of(const PlannedLayer &layer, int64_t pixels) const {
    if (pixels == 0) {
        return 0;
    }
    return points.empty() ? launch_us + layer.work * static_cast<double>(pixels) / products_per_us
                          : predict_time(points.data(), static_cast<int32_t>(points.size()), pixels);
}

Scaling predict_scaling(const std::vector<PlannedLayer> &layers, const MaskShape &input,
                        const std::vector<const BitImage *> &masks, const Cluster &cluster) {
    const std::vector<DeviceTime> times(static_cast<size_t>(cluster.devices), device_time_of(layers, cluster.device));
    const Partition partition = partition_chain(layers, input, masks, times);
    const ChainPlan plan = plan_chain(layers, input, masks, partition, cluster.devices);
    Timeline timeline(layers, plan, cluster);
    timeline.run();
    Scaling result{};
    result.devices = cluster.devices;
    result.hosts = (cluster.devices - 1) / cluster.devices_per_host + 1;
    result.us = timeline.end();
    for (size_t i = 0; i < layers.size(); i++) {
        result.one_us += cluster.device.of(layers[i], masks[i]->count());
    }
    double sum = 0, longest = 0;
    for (const double us : timeline.computed()) {
        sum += us;
        longest = std::max(longest, us);
    }
    result.communication = result.us > 0 ? timeline.waited() / (result.us * cluster.devices) : 0;
    result.imbalance = sum > 0 ? longest * cluster.devices / sum - 1 : 0;
    result.halo_bytes = plan.halo_bytes;
    result.host_bytes = timeline.host_bytes();
    const Partition rows = partition_rows(costs_of(layers, masks), input, times, row_scale(layers, layers.size()));
    result.row_bytes = halo_bytes_of(layers, input, masks, rows, cluster.devices);
    return result;
}

}  // namespace distile
