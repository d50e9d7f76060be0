/** \file
 * Checks the PTX of every variant of the CUDA plans, without a GPU: no memory of a thread's own, staging by
 * vectors, and what ptxas says of registers and shared memory. Prints what is wrong and returns 1, or "Success!".
 */
#include "plans/plan.h"
#include "schedules/gpu_token_space.h"
#include <array>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <regex>
#include <sstream>

namespace {

int failures = 0;

void check(bool holds, const std::string &where, const std::string &what) {
    if (!holds) {
        std::cout << where << ": " << what << "\n";
        failures++;
    }
}

std::string read(const std::string &path) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

int count(const std::string &text, const std::string &word) {
    int n = 0;
    for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
        n++;
    }
    return n;
}

/** The loop over the reduction: from its header to its last multiply-add. */
std::string reduction_loop(const std::string &ptx) {
    const size_t begin = ptx.find("Inner Loop Header"), end = ptx.find("bra ", ptx.find("fma.rn.f32", begin));
    return begin == std::string::npos ? "" : ptx.substr(begin, end - begin);
}

#ifdef DISTILE_PTXAS
void check_resources(const std::string &path, const std::string &where, int num_threads) {
    const std::string command = std::string(DISTILE_PTXAS) + " -arch=sm_90 -v '" + path + "' -o /dev/null 2>&1";
    std::string said;
    FILE *pipe = popen(command.c_str(), "r");
    std::array<char, 512> buffer;
    while (pipe && fgets(buffer.data(), buffer.size(), pipe)) {
        said += buffer.data();
    }
    check(pipe && pclose(pipe) == 0, where, "ptxas refuses it: " + said);
    check(!std::regex_search(said, std::regex("[1-9][0-9]* bytes (stack frame|spill)")), where, "it spills: " + said);
    int most = 0;
    const std::regex used("Used ([0-9]+) registers");
    for (std::sregex_iterator it(said.begin(), said.end(), used), end; it != end; ++it) {
        most = std::max(most, std::stoi((*it)[1]));
    }
    check(most > 0 && most <= 255 && most * num_threads <= 65536, where,
          std::to_string(most) + " registers for each of " + std::to_string(num_threads) + " threads");
}
#endif

/** A schedule that stages its input. */
void check_staging(const distile::Plan &plan, const distile::Theta &theta, const std::string &ptx,
                   const std::string &where) {
    const std::string loop = reduction_loop(ptx);
    check(count(ptx, ".visible .entry") == (theta.at("splits") > 1 ? 2 : 1), where, "it has another number of kernels");
    // With a halo, the columns of the kernel are unrolled too.
    const int columns = theta.at("halo") ? plan.op.param("kernel_w") : 1;
    check(count(loop, "fma.rn.f32") ==
              theta.at("thread_pixels") * theta.at("thread_channels") * theta.at("chunk") * columns,
          where, "a thread's part of a step is not unrolled");
    // Windows are staged outside of the innermost loop.
    const std::string &staging = theta.at("halo") ? ptx : loop;
    // Transposing stores the elements of a vector apart.
    const bool stores_vectors = theta.at("weights_staged") != 0 || theta.at("transposed") == 0;
    check(count(staging, "ld.global.nc.v2.b64") > 0 && (!stores_vectors || count(staging, "st.shared.v") > 0), where,
          "it stages no vectors");
    // Two for the look-ups.
    check(theta.at("transposed") || count(ptx, "st.shared.b32") <= 2, where, "it stages single elements");
    check(count(loop, "ld.global.nc.b32") == 0 && count(loop, "ld.shared.b32") == 0, where,
          "it loads single elements in the loop");
}

/** A schedule whose threads read the input direct. */
void check_direct(const distile::Plan &plan, const distile::Theta &theta, const std::string &ptx,
                  const std::string &where) {
    check(count(ptx, ".visible .entry") == 1, where, "it has another number of kernels");
    check(count(ptx, ".shared.") == 0 && count(ptx, "bar.sync") == 0, where, "it stages");
    const int taps = theta.at("unroll") == 2   ? plan.op.param("kernel_h") * plan.op.param("kernel_w")
                     : theta.at("unroll") == 1 ? plan.op.param("kernel_w")
                                               : 1;
    // A tap of a pixel, and its weights, are a vector each.
    check(count(ptx, "ld.global.nc.v2.b64") >= theta.at("thread_pixels") * taps && count(ptx, "st.global.v") > 0, where,
          "it loads or stores single elements");
}

/** Attention: a kernel for the softmax, and one for the output, which both stage keys. */
void check_tokens(const distile::Plan &plan, const distile::Theta &theta, const std::string &ptx,
                  const std::string &where) {
    check(count(ptx, ".visible .entry") == 2, where, "it has another number of kernels");
    const int thread_keys = theta.at("block_keys") / distile::key_threads;
    // A vector of channels of a product.
    check(count(reduction_loop(ptx), "fma.rn.f32") == theta.at("thread_rows") * thread_keys * 4, where,
          "a thread's part of a step is not unrolled");
    check(count(reduction_loop(ptx), "ld.shared.v4") == thread_keys &&
              count(reduction_loop(ptx), "ld.global.nc.v") == theta.at("thread_rows"),
          where, "it loads single elements in the loop");
    check(count(ptx, "st.shared.v") > 0 && count(ptx, "st.global.v") > 0 && plan.op.reads_keys(), where,
          "it stages or stores single elements");
}

int check_plans() {
    int variants = 0;
    for (const auto &entry : std::filesystem::directory_iterator(DISTILE_PLANS)) {
        const std::string file = entry.path().filename();
        if (file.find("_cuda.json") == std::string::npos) {
            continue;
        }
        const distile::Plan plan = distile::read_plan(entry.path());
        // Other code is compiled once, for all plans.
        if (!plan.has(distile::Language::Halide)) {
            continue;
        }
        for (const distile::PlanVariant &variant : plan.variants) {
            const std::string where = plan.name + "." + variant.name;
            const std::string path = std::string(DISTILE_PTX) + "/" + where + ".device_code", ptx = read(path);
            const distile::Theta &theta = variant.theta;
            variants++;
            check(count(ptx, "__local_depot") == 0 && count(ptx, ".local.") == 0, where, "it uses local memory");
            // SiLU and GELU limit an argument, but keep NaN in another factor, and a softmax in its sum.
            const bool tokens = plan.op.reads_keys();
            const std::string epilogue = tokens ? "" : plan.op.params.at("epilogue");
            check(tokens || epilogue == "silu" || epilogue == "gelu" ||
                      (count(ptx, "max.f32") == 0 && count(ptx, "min.f32") == 0),
                  where, "max.f32 or min.f32 turns NaN into a number");
            if (tokens) {
                check_tokens(plan, theta, ptx, where);
            } else if (theta.count("chunk") == 1) {
                check_staging(plan, theta, ptx, where);
            } else {
                check_direct(plan, theta, ptx, where);
            }
#ifdef DISTILE_PTXAS
            const int num_threads = tokens ? distile::token_threads(theta)
                                           : theta.at("block_pixels") / theta.at("thread_pixels") *
                                                 theta.at("block_channels") / theta.at("thread_channels");
            check_resources(path, where, num_threads);
#endif
        }
    }
    check(variants > 0, DISTILE_PLANS, "there are no CUDA plans");
#ifndef DISTILE_PTXAS
    if (failures == 0) {
        std::cout << "[SKIP] There is no ptxas to count registers; all else holds for " << variants << " variants.\n";
    }
#else
    std::cout << (failures == 0 ? "Success! " + std::to_string(variants) + " variants.\n" : "");
#endif
    return failures == 0 ? 0 : 1;
}

}  // namespace

int main() {
    try {
        return check_plans();
    } catch (const std::exception &error) {
        std::printf("FAILED: %s\n", error.what());
        return 1;
    }
}
