/** \file
 * The backend of a program that was built without what it takes to measure there.
 */
#ifndef DISTILE_MISSING_BACKEND_H
#define DISTILE_MISSING_BACKEND_H

#include "autoscheduler/measure/measure_backend.h"

namespace distile {

[[noreturn]] inline void refuse_to_measure(const std::string &without) {
    throw FileError("this program was built without " + without);
}

/** `without()` ends the sentence of every error. */
template<const char *(*without)()> MeasureBackend missing_backend(const Backend &backend) {
    return {backend,
            [](int, const Progress &) -> DeviceProfile { refuse_to_measure(without()); },
            [](const std::string &, const std::string &) { refuse_to_measure(without()); },
            [](const Plan &, const SharedObject &, const ProfileOptions &, const Progress &) -> Profile {
                refuse_to_measure(without());
            },
            [](int) -> std::unique_ptr<TrialDevice> { refuse_to_measure(without()); },
            false,
            "0, for all",
            0};
}

}  // namespace distile

#endif
