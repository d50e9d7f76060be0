/** \file
 * Compares what schedules depend on, as it is known from files and from pipelines.
 */
#ifndef DISTILE_TESTS_CHECK_FACTS_H
#define DISTILE_TESTS_CHECK_FACTS_H

#include "schedules/space.h"
#include "tests/support/catch.h"

namespace distile {

inline void check_facts(const OperatorFacts &found, const OperatorFacts &expected) {
    CHECK(found.in_channels == expected.in_channels);
    CHECK(found.out_channels == expected.out_channels);
    CHECK(found.groups == expected.groups);
    CHECK(found.depthwise == expected.depthwise);
    CHECK(found.kernel_h == expected.kernel_h);
    CHECK(found.kernel_w == expected.kernel_w);
    CHECK(found.stride_h == expected.stride_h);
    CHECK(found.stride_w == expected.stride_w);
    CHECK(found.dilation_h == expected.dilation_h);
    CHECK(found.dilation_w == expected.dilation_w);
    CHECK(found.scale_h == expected.scale_h);
    CHECK(found.scale_w == expected.scale_w);
    CHECK(found.channel_block == expected.channel_block);
    CHECK(found.bytes_per_element == expected.bytes_per_element);
    CHECK(found.bytes_per_weight == expected.bytes_per_weight);
}

}  // namespace distile

#endif
