/** \file
 * Ranks of one process, each in a thread, and a transport between them that keeps messages in memory. It can fail.
 */
#ifndef DISTILE_TESTS_RANK_TRANSPORT_H
#define DISTILE_TESTS_RANK_TRANSPORT_H

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <distile/group.h>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace distile {

/** What shall go wrong with messages. */
struct TransportFault {
    enum class Kind {
        None,
        Breaks,  ///< One rank's exchange fails, and the others' too from then on.
        Dies     ///< One rank's exchange fails, and others hear nothing of it.
    };
    Kind kind = Kind::None;
    int32_t rank = 0;
    int32_t exchange = 0;  ///< The number of the rank's exchange, from 0 on.
};

/** Messages between ranks. */
class RankHub {
public:
    explicit RankHub(int32_t ranks, TransportFault fault = {}) : fault_(fault), numbers_(static_cast<size_t>(ranks)) {
        for (int32_t rank = 0; rank < ranks; rank++) {
            ends_.push_back({this, rank});
        }
    }
    RankHub(const RankHub &) = delete;
    RankHub &operator=(const RankHub &) = delete;

    distile_transport transport(int32_t rank) {
        distile_transport made{};
        made.rank = rank;
        made.ranks = static_cast<int32_t>(ends_.size());
        made.exchange = [](void *user, const distile_messages *messages) {
            const End &end = *static_cast<End *>(user);
            return end.hub->exchange(end.rank, *messages);
        };
        made.user = &ends_[static_cast<size_t>(rank)];
        return made;
    }
    /** How many exchanges a rank has made. */
    int32_t num_exchanges(int32_t rank) {
        const std::lock_guard<std::mutex> lock(mutex_);
        return numbers_[static_cast<size_t>(rank)];
    }
    /** Lets exchanges take up to this long, each as drawn. */
    void delay(std::chrono::microseconds most) {
        longest_ = most;
    }
    /** What is left of messages that nobody has received. */
    size_t num_left() {
        const std::lock_guard<std::mutex> lock(mutex_);
        size_t left = 0;
        for (const auto &[ends, messages] : queues_) {
            left += messages.size();
        }
        return left;
    }

private:
    struct End {
        RankHub *hub;
        int32_t rank;
    };

    distile_status exchange(int32_t rank, const distile_messages &messages) {
        std::unique_lock<std::mutex> lock(mutex_);
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(messages.timeout_ms);
        const int32_t number = numbers_[static_cast<size_t>(rank)]++;
        if (fault_.kind != TransportFault::Kind::None && rank == fault_.rank && number >= fault_.exchange) {
            broken_ = fault_.kind == TransportFault::Kind::Breaks;
            changed_.notify_all();
            return fail(messages, "the test breaks it \xF0\x9F");
        }
        if (longest_.count() > 0) {
            const auto wait =
                std::chrono::microseconds(std::uniform_int_distribution<int64_t>(0, longest_.count())(random_));
            lock.unlock();
            std::this_thread::sleep_for(wait);
            lock.lock();
        }
        if (messages.on_device != 0 || messages.stream || messages.timeout_ms < 1 || messages.cause_bytes < 256 ||
            messages.cause[0] != '\0') {
            return fail(messages, "these are no messages of CPUs");
        }
        for (int32_t i = 0; i < messages.num_sends; i++) {
            const distile_message &message = messages.sends[i];
            const auto *const bytes = static_cast<const char *>(message.data);
            queues_[{rank, message.peer}].emplace_back(bytes, bytes + message.bytes);
        }
        changed_.notify_all();
        for (int32_t i = 0; i < messages.num_receives; i++) {
            const distile_message &message = messages.receives[i];
            std::deque<std::vector<char>> &queue = queues_[{message.peer, rank}];
            if (!changed_.wait_until(lock, deadline, [&] { return broken_ || !queue.empty(); })) {
                return fail(messages, "nothing came in time");
            }
            if (broken_) {
                return fail(messages, "another rank has gone");
            }
            if (static_cast<int64_t>(queue.front().size()) != message.bytes) {
                return fail(messages, "a message has another length");
            }
            std::copy(queue.front().begin(), queue.front().end(), static_cast<char *>(message.data));
            queue.pop_front();
        }
        return DISTILE_OK;
    }

    static distile_status fail(const distile_messages &messages, const char *why) {
        std::snprintf(messages.cause, static_cast<size_t>(messages.cause_bytes), "%s", why);
        return DISTILE_ERROR_INTERNAL;
    }

    TransportFault fault_;
    std::deque<End> ends_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<int32_t> numbers_;
    std::map<std::pair<int32_t, int32_t>, std::deque<std::vector<char>>> queues_;
    bool broken_ = false;
    std::chrono::microseconds longest_{0};
    std::mt19937 random_{1};
};

/** Calls body(rank) in a thread for each rank. Throws what the first one throws. */
inline void on_ranks(int32_t ranks, const std::function<void(int32_t)> &body) {
    std::vector<std::exception_ptr> thrown(static_cast<size_t>(ranks));
    std::vector<std::thread> threads;
    for (int32_t rank = 0; rank < ranks; rank++) {
        threads.emplace_back([&, rank] {
            try {
                body(rank);
            } catch (...) {
                thrown[static_cast<size_t>(rank)] = std::current_exception();
            }
        });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    for (const std::exception_ptr &one : thrown) {
        if (one) {
            std::rethrow_exception(one);
        }
    }
}

}  // namespace distile

#endif
