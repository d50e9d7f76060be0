#include "autoscheduler/bound/rank.h"
#include <algorithm>
#include <atomic>
#include <cmath>
#include <iterator>
#include <set>
#include <thread>

namespace distile {

namespace {

/** A point with its bound in one bucket. Ranked by the bound, then by the sum of its terms. */
struct Ranked {
    float us, sum;
    uint32_t point;

    bool operator<(const Ranked &other) const {
        return std::tie(us, sum) < std::tie(other.us, other.sum);
    }
};

/** The best of many points. Among points that the bound cannot tell apart it keeps the first in the space's order, so a
 * ranking repeats. */
class Best {
public:
    explicit Best(size_t room = 0) : room_(room) {
    }
    void offer(const Ranked &ranked) {
        if (room_ == 0 || (points_.size() == room_ && *points_.rbegin() < ranked)) {
            return;
        }
        const auto [place, is_new] = points_.insert(ranked);
        if (!is_new && ranked.point < place->point) {
            points_.insert(points_.erase(place), ranked);
        } else if (points_.size() > room_) {
            points_.erase(std::prev(points_.end()));
        }
    }
    void offer(const Best &other) {
        for (const Ranked &ranked : other.points_) {
            offer(ranked);
        }
    }
    const std::set<Ranked> &points() const {
        return points_;
    }

private:
    size_t room_;
    std::set<Ranked> points_;
};

/** The granularities of a space, and which of them a point has. */
class Granularities {
public:
    explicit Granularities(const Space &space) {
        for (size_t knob = 0; knob < space.knobs.size(); knob++) {
            if (space.knobs[knob].name == "tile_h") {
                height_ = knob;
            } else if (space.knobs[knob].name == "tile_w") {
                width_ = knob;
            }
        }
        heights = space.knobs[height_].values;
        widths = space.knobs[width_].values;
    }
    size_t count() const {
        return heights.size() * widths.size();
    }
    size_t of(const PackedTheta &point) const {
        return point.choices[height_] * widths.size() + point.choices[width_];
    }

    std::vector<int> heights, widths;

private:
    size_t height_ = 0, width_ = 0;
};

/** What is best in one bucket: of all, and of each granularity. */
struct BestOfBucket {
    Best all;
    std::vector<Best> by_granularity;
};

/** The value that a standard normal variable exceeds with a probability, by bisection. */
double normal_quantile(double probability) {
    double low = -10, high = 10;
    for (int i = 0; i < 60; i++) {
        const double middle = (low + high) / 2;
        (std::erfc(middle / std::sqrt(2.0)) / 2 > probability ? low : high) = middle;
    }
    return low;
}

int64_t tiles_of_image(const Workload &workload, int tile_h, int tile_w) {
    const int64_t rows = (workload.height + tile_h - 1) / tile_h, columns = (workload.width + tile_w - 1) / tile_w;
    return workload.batch * rows * columns;
}

/** The points of a space, judged for the tiles of every bucket. */
class JudgedPoints {
public:
    JudgedPoints(const Workload &workload, const Space &space, const std::vector<Bucket> &buckets, BoundForm form)
        : points(legal_points(space, workload.problem)), granularities(space), space_(space),
          bound_of_(workload, space, form), tiles_(buckets.size()) {
        for (size_t b = 0; b < buckets.size(); b++) {
            for (int tile_h : granularities.heights) {
                for (int tile_w : granularities.widths) {
                    tiles_[b].push_back(std::max<int64_t>(1, buckets[b].tiles(tile_h, tile_w)));
                }
            }
        }
    }

    /** Calls visit(bucket, granularity, times) for a point in each bucket. */
    template<typename Visit> void judge(size_t point, const Visit &visit) const {
        const BoundKnobs knobs = bound_of_.read(points[point]);
        const size_t granularity = granularities.of(points[point]);
        for (size_t b = 0; b < tiles_.size(); b++) {
            visit(b, granularity, bound_of_(knobs, tiles_[b][granularity]));
        }
    }
    /** The kept points in the order of the sum over buckets of their times in relation to the least. */
    std::vector<Candidate> sorted(const std::set<uint32_t> &kept, const std::vector<double> &least) const {
        std::vector<std::tuple<float, float, uint32_t>> order;
        std::vector<Candidate> candidates, result;
        for (const uint32_t point : kept) {
            Candidate candidate{unpack(space_, points[point]), {}};
            double ratio = 0, sum = 0;
            judge(point, [&](size_t b, size_t, const BoundOfPoints::Times &times) {
                candidate.us.push_back(times.us);
                ratio += times.us / least[b];
                sum += times.sum / least[b];
            });
            order.emplace_back(static_cast<float>(ratio), static_cast<float>(sum), candidates.size());
            candidates.push_back(std::move(candidate));
        }
        std::sort(order.begin(), order.end());
        for (const auto &[ratio, sum, index] : order) {
            result.push_back(std::move(candidates[index]));
        }
        return result;
    }

    const std::vector<PackedTheta> points;
    const Granularities granularities;

private:
    const Space &space_;
    BoundOfPoints bound_of_;
    std::vector<std::vector<int64_t>> tiles_;  ///< By bucket and granularity.
};

/** The best points of each bucket. Threads take the points in small parts, and each keeps a best of its own. */
std::vector<BestOfBucket> find_best(const JudgedPoints &judged, const BestOfBucket &empty, size_t num_buckets,
                                    const RankOptions &options) {
    const int num_threads =
        options.threads > 0 ? options.threads : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    constexpr size_t part = 4096;
    const size_t count = judged.points.size();
    std::atomic<size_t> next{0};
    std::vector<std::vector<BestOfBucket>> best(num_threads, std::vector<BestOfBucket>(num_buckets, empty));
    const auto work = [&](int thread) {
        for (size_t first = next.fetch_add(part); first < count; first = next.fetch_add(part)) {
            for (size_t i = first; i < std::min(first + part, count); i++) {
                judged.judge(i, [&](size_t b, size_t granularity, const BoundOfPoints::Times &times) {
                    const Ranked ranked{static_cast<float>(times.us), static_cast<float>(times.sum),
                                        static_cast<uint32_t>(i)};
                    best[thread][b].all.offer(ranked);
                    best[thread][b].by_granularity[granularity].offer(ranked);
                });
            }
            if (thread == 0 && options.progress) {
                options.progress("ranking", static_cast<double>(first) / static_cast<double>(count));
            }
        }
    };
    std::vector<std::thread> threads;
    for (int i = 1; i < num_threads; i++) {
        threads.emplace_back(work, i);
    }
    work(0);
    for (std::thread &thread : threads) {
        thread.join();
    }
    for (size_t b = 0; b < num_buckets; b++) {
        for (int i = 1; i < num_threads; i++) {
            best[0][b].all.offer(best[i][b].all);
            for (size_t g = 0; g < judged.granularities.count(); g++) {
                best[0][b].by_granularity[g].offer(best[i][b].by_granularity[g]);
            }
        }
    }
    return std::move(best[0]);
}

}  // namespace

Bucket density_bucket(const Workload &workload, double density) {
    if (!(density > 0 && density <= 1)) {
        throw FileError("the density " + std::to_string(density) + " is not above 0 and at most 1");
    }
    // The chance that a rectangle meets a field's excursions above u is about their expected Euler characteristic in it
    // (Adler and Taylor, Random Fields and Geometry). With the correlation exp(-(d / length)^2) and the sides in
    // lengths times sqrt(2), that is
    //     P(field > u) + (width + height) exp(-u^2 / 2) / (2 pi) + width height u exp(-u^2 / 2) / (2 pi)^(3/2).
    const double quantile = normal_quantile(density), fall = std::exp(-quantile * quantile / 2);
    const double length_h = workload.height / 8.0 / std::sqrt(2.0), length_w = workload.width / 8.0 / std::sqrt(2.0);
    return {density, [=](int tile_h, int tile_w) {
                const double height = (tile_h - 1) / length_h, width = (tile_w - 1) / length_w;
                const double part = density + (width + height) * fall / (2 * M_PI) +
                                    width * height * quantile * fall / std::pow(2 * M_PI, 1.5);
                const int64_t all = tiles_of_image(workload, tile_h, tile_w);
                const double tiles =
                    density < 1 ? std::round(part * static_cast<double>(all)) : static_cast<double>(all);
                return std::clamp<int64_t>(static_cast<int64_t>(tiles), 1, all);
            }};
}

Ranking rank(const Workload &workload, const std::vector<Bucket> &buckets, const RankOptions &options) {
    const Space space = restrict_space(space_of(workload.device.backend, workload.problem), options.held);
    if (options.progress) {
        options.progress("listing the legal points", 0);
    }
    const JudgedPoints judged(workload, space, buckets, options.form);
    const auto num_points = static_cast<double>(judged.points.size());
    const auto num_buckets = static_cast<double>(buckets.size());
    const double wanted = std::max(options.keep * num_points, num_buckets * static_cast<double>(options.per_bucket));
    const double share = std::min(wanted, options.at_most * num_points) / num_buckets;
    const auto of_all = static_cast<size_t>(std::max(1.0, std::ceil(share / 2)));
    const size_t granularities = judged.granularities.count();
    const auto of_each = static_cast<size_t>(share / 2 / static_cast<double>(granularities));

    std::set<uint32_t> kept;
    std::vector<double> least;
    const BestOfBucket empty{Best(of_all), std::vector<Best>(granularities, Best(of_each))};
    for (const BestOfBucket &bucket : find_best(judged, empty, buckets.size(), options)) {
        for (const Ranked &ranked : bucket.all.points()) {
            kept.insert(ranked.point);
        }
        for (const Best &some : bucket.by_granularity) {
            for (const Ranked &ranked : some.points()) {
                kept.insert(ranked.point);
            }
        }
        least.push_back(bucket.all.points().begin()->us);
    }
    Ranking ranking;
    ranking.legal_points = static_cast<int64_t>(judged.points.size());
    ranking.buckets = buckets;
    ranking.kept = judged.sorted(kept, least);
    return ranking;
}

}  // namespace distile
