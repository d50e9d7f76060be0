/** \file
 * NVRTC, NVIDIA's compiler as a library, which comes with PyTorch: it compiles for tensor cores what nvcc does.
 */
#ifndef DISTILE_NVRTC_H
#define DISTILE_NVRTC_H

#include <string>

namespace distile {

/** Whether the library can be loaded: libnvrtc.so, in the folders of the system and of LD_LIBRARY_PATH. */
bool have_nvrtc();

/** Compiles the source in a file, whose includes are paths from a folder, and writes a cubin for an architecture of
 * chips
 * ("sm_90a") or PTX for one of code ("compute_80"). Throws FileError with the compiler's messages. */
void compile_with_nvrtc(const std::string &source, const std::string &architecture, const std::string &folder,
                        const std::string &path);

}  // namespace distile

#endif
