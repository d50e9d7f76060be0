/** \file
 * What networks are: graphs of layers, each in a file of its own.
 */
#ifndef DISTILE_NETWORKS_NETWORK_H
#define DISTILE_NETWORKS_NETWORK_H

#include "engine.h"
#include <memory>
#include <string>
#include <vector>

namespace distile::networks {

/** A network with random weights and the input that it runs on. */
class Network {
public:
    explicit Network(Engine &engine) : engine_(engine) {
    }
    virtual ~Network() = default;
    Network(const Network &) = delete;
    Network &operator=(const Network &) = delete;

    /** Makes what the first masked step needs: thresholds of masks. */
    virtual void start() = 0;
    /** A step of inference in the engine's mode, masks included. A reference step belongs to the last masked one. */
    virtual std::vector<Tensor> step() = 0;
    /** The share of active pixels of each block, or layer, of the last masked step. */
    virtual std::vector<double> densities() const = 0;

protected:
    uint64_t seed() {
        return seeds_++;
    }

    Engine &engine_;

private:
    uint64_t seeds_ = 1;
};

/** Zeros: the network's own value. */
struct Options {
    double density = 0; /**< The mean density of the blocks. */
    int32_t size = 0;   /**< Pixels of a side. */
    int32_t batch = 1;
    bool small = false; /**< Narrow and shallow, for tests. */
};

struct NetworkType {
    const char *name, *summary;
    std::unique_ptr<Network> (*make)(Engine &engine, const Options &options);
};

const std::vector<NetworkType> &network_types();

// Each in a file of its own.
std::unique_ptr<Network> make_avit_t(Engine &engine, const Options &options);
std::unique_ptr<Network> make_avit_s(Engine &engine, const Options &options);
std::unique_ptr<Network> make_dynconv_resnet(Engine &engine, const Options &options);

}  // namespace distile::networks

#endif
