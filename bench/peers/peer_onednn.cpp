#include "bench/peers/peer_onednn.h"
#include "bench/peers/onednn/onednn_conv2d.h"
#include <algorithm>
#include <fmt/core.h>
#include <utility>

namespace distile::bench {

namespace {

/** One engine for all peers, because making one takes a fraction of a second, and its threads should exist once. */
const OneDnnEngine &shared_engine() {
    static const OneDnnEngine engine;
    return engine;
}

class OneDnnPeer : public Peer {
public:
    OneDnnPeer(Problem &problem, OneDnnMath math, AlignedFloats output)
        : problem_(problem), math_(math),
          conv_(shared_engine(), problem.op().conv, problem.weights(), math, problem.op().kind),
          memory_(std::move(output)), output_(problem.output(memory_.data())) {
    }

    std::string description() const override {
        return onednn_description();
    }
    std::string implementation(bool bordered) override {
        return conv_.implementation(input(bordered), problem_.residual(), output_);
    }
    void run(bool bordered) override {
        conv_.run(input(bordered), problem_.residual(), output_);
    }
    const float *result() const override {
        return memory_.data();
    }
    distile_dense_candidate candidate() override {
        return {"onednn", &OneDnnPeer::run_candidate, &conv_};
    }
    double tolerance() const override {
        return math_ == OneDnnMath::any ? 2e-2 : 1e-4;
    }

private:
    /** Transposed and upsampling operators read no border. Without one, rows are contiguous, as oneDNN prefers. */
    const distile_tensor &input(bool bordered) const {
        return problem_.input(bordered && problem_.op().kind == DISTILE_MASKED_CONV2D);
    }

    /** No exception may pass through the runtime, a C library. */
    static int run_candidate(void *conv, void *, const distile_run_args *args) {
        try {
            static_cast<OneDnnConv2d *>(conv)->run(*args->input, args->residual, *args->output);
            return 0;
        } catch (const std::exception &) {
            return 1;
        }
    }

    Problem &problem_;
    OneDnnMath math_;
    OneDnnConv2d conv_;
    AlignedFloats memory_;
    distile_tensor output_;
};

std::unique_ptr<Peer> make(Problem &problem, OneDnnMath math, AlignedFloats output) {
    try {
        return std::make_unique<OneDnnPeer>(problem, math, std::move(output));
    } catch (const std::runtime_error &error) {
        throw PeerMissing(error.what());
    }
}

}  // namespace

std::unique_ptr<Peer> make_onednn_peer(Problem &problem, AlignedFloats output) {
    return make(problem, OneDnnMath::strict, std::move(output));
}

std::unique_ptr<Peer> make_onednn_any_peer(Problem &problem, AlignedFloats output) {
    std::unique_ptr<Peer> any = make(problem, OneDnnMath::any, std::move(output));
    std::unique_ptr<Peer> strict = make(problem, OneDnnMath::strict, AlignedFloats(problem.output_size()));
    const std::string name = any->implementation(true);
    any->run(true);
    strict->run(true);
    // Equal names alone would not prove that nothing was rounded.
    if (name == strict->implementation(true) &&
        std::equal(any->result(), any->result() + problem.output_size(), strict->result())) {
        throw PeerMissing(fmt::format("on this CPU oneDNN runs the same code ('{}') in strict mode", name));
    }
    return any;
}

std::string onednn_description() {
    return "oneDNN " + OneDnnEngine::version();
}

}  // namespace distile::bench
