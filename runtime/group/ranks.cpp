#include "runtime/group/ranks.h"
#include "runtime/group/group.h"
#include <algorithm>
#include <cstdio>
#include <iterator>

namespace distile {

namespace {

/** Changes with whatever ranks exchange. The first byte tells the order of bytes. */
constexpr uint64_t record_format = 0x6469737400000002;

constexpr std::array<const char *, 10> meeting_names = {
    "distile_group_create",  "distile_group_create", "distile_chain_create", "distile_chain_run",
    "distile_chain_run",     "distile_chain_run",    "distile_chain_run",    "distile_chain_collect",
    "distile_chain_collect", "distile_chain_collect"};

const char *name_of_meeting(Meeting meeting) {
    const auto number = static_cast<size_t>(meeting);
    return number < meeting_names.size() ? meeting_names[number] : "another call";
}

}  // namespace

void Outcome::set(distile_status given, const char *text) {
    status = given;
    std::snprintf(message, sizeof(message), "%s", text);
}

void Hash::add_bytes(const void *data, size_t bytes) {
    const auto *at = static_cast<const char *>(data);
    add(bytes);
    for (; bytes > 0;) {
        uint64_t word = 0;
        const size_t some = std::min(bytes, sizeof(word));
        std::memcpy(&word, at, some);
        add(word);
        at += some;
        bytes -= some;
    }
}

RankDevices::RankDevices(const std::vector<int32_t> &counts) {
    for (const int32_t count : counts) {
        first_.push_back(first_.back() + count);
    }
}

int32_t RankDevices::rank_of(int32_t device) const {
    return static_cast<int32_t>(std::upper_bound(first_.begin(), first_.end(), device) - first_.begin()) - 1;
}

Ranks::Ranks(const distile_transport &transport)
    : transport_(transport), records_(static_cast<size_t>(transport.ranks)) {
    for (int32_t i = 0; i < count(); i++) {
        if (i != rank()) {
            const auto own = static_cast<size_t>(rank()), other = static_cast<size_t>(i);
            sends_.push_back({i, 0, &records_[own], sizeof(RankRecord)});
            receives_.push_back({i, 0, &records_[other], sizeof(RankRecord)});
        }
        if (rank() == 0 ? i > 0 : i == 0) {
            down_.push_back({i, 0, nullptr, 0});
        }
    }
}

const std::vector<RankRecord> &Ranks::meet(Meeting meeting, const Outcome &own, std::initializer_list<Fact> facts,
                                           const std::array<uint64_t, RankRecord::num_words> &words) {
    RankRecord &mine = records_[static_cast<size_t>(rank())];
    mine = {};
    mine.format = record_format;
    mine.meeting = meeting;
    mine.status = own.status;
    std::memcpy(mine.message, own.message, sizeof(mine.message) - 1);
    std::copy(words.begin(), words.end(), mine.words);
    size_t number = 0;
    for (const Fact &fact : facts) {
        mine.unknown |= uint64_t{fact.is_known ? 0U : 1U} << number;
        mine.facts[number++] = fact.value;
    }
    exchange(sends_, receives_, false, nullptr);
    const RankRecord &first = records_[0];
    for (const RankRecord &other : records_) {
        const auto place = static_cast<int>(&other - records_.data());
        if (other.format != first.format || other.format != record_format) {
            fail_group(DISTILE_ERROR_VERSION, "rank %d has another version of this library",
                       first.format == record_format ? place : 0);
        }
        if (other.meeting != first.meeting) {
            fail_group(DISTILE_ERROR_BAD_VALUE, "rank %d is in %s, but rank 0 in %s: ranks make the same calls", place,
                       name_of_meeting(other.meeting), name_of_meeting(first.meeting));
        }
    }
    for (RankRecord &other : records_) {
        if (other.status != DISTILE_OK) {
            other.message[sizeof(other.message) - 1] = '\0';
            fail_group(static_cast<distile_status>(other.status), "rank %d: %s",
                       static_cast<int>(&other - records_.data()), other.message);
        }
    }
    for (const RankRecord &other : records_) {
        number = 0;
        for (const Fact &fact : facts) {
            if (other.facts[number] != first.facts[number] && (other.unknown >> number & 1) == 0) {
                fail_group(DISTILE_ERROR_BAD_VALUE, "ranks 0 and %d have different %s",
                           static_cast<int>(&other - records_.data()), fact.what);
            }
            number++;
        }
    }
    return records_;
}

void Ranks::exchange(const std::vector<distile_message> &sends, const std::vector<distile_message> &receives,
                     bool on_device, void *stream) {
    if (sends.empty() && receives.empty()) {
        return;
    }
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - std::chrono::steady_clock::now());
    char text[256] = "";
    distile_messages messages{};
    messages.sends = sends.data();
    messages.num_sends = static_cast<int32_t>(sends.size());
    messages.receives = receives.data();
    messages.num_receives = static_cast<int32_t>(receives.size());
    messages.on_device = on_device ? 1 : 0;
    messages.stream = stream;
    messages.timeout_ms = static_cast<int32_t>(std::clamp<int64_t>(left.count(), 1, INT32_MAX));
    messages.cause = text;
    messages.cause_bytes = sizeof(text);
    // Until all of them have arrived.
    is_lost_ = true;
    const distile_status status = transport_.exchange(transport_.user, &messages);
    if (status != DISTILE_OK) {
        text[sizeof(text) - 1] = '\0';
        // Callers may cut characters of several bytes apart, which is no text then.
        std::replace_if(
            std::begin(text), std::end(text), [](char byte) { return (byte & 0x80) != 0; }, '?');
        fail_group(DISTILE_ERROR_DEVICE_LOST, "rank %d lost others, and the group is unusable: %s", rank(),
                   text[0] != '\0' ? text : distile_status_name(status));
    }
    is_lost_ = false;
}

void Ranks::broadcast(void *data, size_t bytes) {
    if (count() == 1 || bytes == 0) {
        return;
    }
    for (distile_message &message : down_) {
        message.data = data;
        message.bytes = static_cast<int64_t>(bytes);
    }
    exchange(rank() == 0 ? down_ : none_, rank() == 0 ? none_ : down_, false, nullptr);
}

}  // namespace distile
