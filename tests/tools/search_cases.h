/** \file
 * A small search: its operator, masks, schedules and log.
 */
#ifndef DISTILE_TESTS_SEARCH_CASES_H
#define DISTILE_TESTS_SEARCH_CASES_H

#include "autoscheduler/search/mask_set.h"
#include "autoscheduler/search/search_log.h"
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace distile {

Operator small_operator(const std::string &name = "conv", int out_channels = 64);

MaskSet some_masks();

Theta a_theta(int tile_h, int tile_w, int pixels = 4);

/** A measurement of a schedule, with microseconds by tiles. */
Measurement measured(const Theta &theta, bool dense, const std::vector<std::pair<int64_t, double>> &times);

LogHeader some_header();

/** What is in a file. */
std::string contents(const std::string &path);

/** The message of what a function throws; "" if nothing. */
std::string message_of(const std::function<void()> &call);

}  // namespace distile

#endif
