/** \file
 * How long this process waited for a processor.
 */
#ifndef DISTILE_WAITING_H
#define DISTILE_WAITING_H

#include <cstdint>

namespace distile {

/** The time from its beginning on, in which the process has some threads that work at once. */
class Waiting {
public:
    explicit Waiting(int threads);
    /** The share of the time in which threads could have run, and others ran in their place. 0 where the system does
     * not tell, or the process has more threads than processors, which then wait for each other. */
    double share() const;

private:
    /** Nanoseconds of all threads of the process. */
    struct Times {
        int64_t ran = 0, waited = 0;
    };
    static Times now();

    bool is_known_;
    Times begin_;
};

}  // namespace distile

#endif
