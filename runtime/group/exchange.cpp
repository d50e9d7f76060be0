#include "runtime/group/exchange.h"

namespace distile {

const Exchange *find_exchange(const Device &from, const Device &to) {
    // The fastest first.
    for (const Exchange *exchange : {&process_exchange}) {
        if (exchange->serves(from, to) && exchange->serves(to, from)) {
            return exchange;
        }
    }
    return nullptr;
}

}  // namespace distile
