/** \file
 * Threads that work for a group, one for each context, and how they tell each other how far they are.
 */
#ifndef DISTILE_CREW_H
#define DISTILE_CREW_H

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace distile {

using Deadline = std::chrono::steady_clock::time_point;

/** Threads that run a job at once, each a part. They start with the first job. */
class Crew {
public:
    explicit Crew(int32_t members);
    ~Crew();
    Crew(const Crew &) = delete;
    Crew &operator=(const Crew &) = delete;

    /** What members run: part(i), of which each has its number. */
    using Part = std::shared_ptr<const std::function<void(int32_t)>>;

    /** Starts the threads, so that a job need not. Throws std::system_error if one cannot start. */
    void start();
    /** Runs part(i) for each member, which may not throw. After the deadline calls `stop` and gives members as long
     * again to end. Returns the members that did not; the crew can then do nothing more, and what their parts use must
     * stay. The caller keeps `part` alive by what it captures. Throws std::system_error if a thread cannot start. */
    std::vector<int32_t> run(const Part &part, Deadline deadline, const std::function<void()> &stop);
    /** Whether no part runs. */
    bool is_idle() const;
    /** Whether the threads are those of this process, or there are none yet. */
    bool is_ours() const;

private:
    struct Shared;
    std::shared_ptr<Shared> shared_;
};

/** How many tensors of a chain each part has made, of which others may copy, and whether all shall stop. */
class Progress {
public:
    explicit Progress(size_t parts);
    ~Progress();
    Progress(const Progress &) = delete;
    Progress &operator=(const Progress &) = delete;

    /** Begins a run, before the parts do. */
    void reset(Deadline deadline);
    /** A part has made its first `tensors` tensors. */
    void advance(size_t part, int32_t tensors);
    /** Waits for that. False if all shall stop, because a part failed or the time is over. */
    bool wait(size_t part, int32_t tensors);
    /** Makes all stop. */
    void stop();
    bool is_stopped() const;

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace distile

#endif
