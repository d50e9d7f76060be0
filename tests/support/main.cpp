// The main function of the tests: Catch2's own. Version 3 has it in its library.
#if !__has_include(<catch2/catch_all.hpp>)
#define CATCH_CONFIG_MAIN
#endif
#include "tests/support/catch.h"
