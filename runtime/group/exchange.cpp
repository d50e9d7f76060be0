#include "runtime/group/exchange.h"

namespace distile {

const Exchange *find_exchange(const Device &from, const Device &to) {
    for (const Exchange *exchange : {from.exchange(), to.exchange()}) {
        if (exchange && exchange->serves(from, to) && exchange->serves(to, from)) {
            return exchange;
        }
    }
    return nullptr;
}

}  // namespace distile
