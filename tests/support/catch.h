/** \file
 * Catch2, whichever of its versions 3 and 2 is installed.
 */
#ifndef DISTILE_TESTS_CATCH_H
#define DISTILE_TESTS_CATCH_H

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif

#endif
