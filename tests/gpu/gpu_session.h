/** \file
 * The session of the kind of GPU for which a program of tests is compiled.
 */
#ifndef DISTILE_TESTS_GPU_SESSION_H
#define DISTILE_TESTS_GPU_SESSION_H

#ifdef DISTILE_TESTS_OPENCL
#include "tests/opencl/gpu_session.h"
#else
#include "tests/cuda/gpu_session.h"
#endif

#endif
