# distile_test_plan(<name> <variable>): the plan of the tests with this name, for the architecture of the build.
#
# The plans in fixtures/ are for AVX2 and AVX-512. For AArch64 they become plans for the two features that CPUs may have
# there, so that one test serves all: those for AVX-512 need fp16 and dotprod, the others only fp16. The register tiles
# shrink to what 32 vectors of four lanes hold.
function(distile_test_plan name variable)
    set(file "${CMAKE_CURRENT_SOURCE_DIR}/fixtures/plans/${name}.json")
    if (DISTILE_ARCHITECTURE STREQUAL "arm_64")
        set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
        file(READ "${file}" json)
        set(target arm-64-linux-arm_fp16)
        if (name MATCHES "avx512$")
            set(target arm-64-linux-arm_dot_prod-arm_fp16)
        endif ()
        string(JSON json SET "${json}" target "\"${target}\"")
        string(JSON count LENGTH "${json}" variants)
        math(EXPR last "${count} - 1")
        foreach (i RANGE ${last})
            string(JSON channels ERROR_VARIABLE other GET "${json}" variants ${i} code halide channels)
            if (other)
                continue()  # Operators that read keys count their register tiles in vectors.
            endif ()
            string(JSON pixels GET "${json}" variants ${i} code halide pixels)
            if (channels GREATER 48)
                set(channels 32)
            endif ()
            # By diagonals, a group of four has four sums of each.
            if (name MATCHES "groups5")
                set(channels 16)
                set(pixels 1)
            endif ()
            # The sums of the pixels, a vector of weights for each of channels, and the input.
            math(EXPR most "31 * 4 / ${channels} - 1")
            if (pixels GREATER most)
                set(pixels ${most})
            endif ()
            string(JSON json SET "${json}" variants ${i} code halide channels ${channels})
            string(JSON json SET "${json}" variants ${i} code halide pixels ${pixels})
        endforeach ()
        # Its times are made up for any code; they name that of the plan.
        if (name STREQUAL "test_point_17_48_avx2")
            string(JSON json SET "${json}" profile plan_hash "\"5504b62f20bd7ad5\"")
        endif ()
        set(file "${CMAKE_CURRENT_BINARY_DIR}/plans/${name}.json")
        file(CONFIGURE OUTPUT "${file}" CONTENT "${json}" @ONLY)
    endif ()
    set(${variable} "${file}" PARENT_SCOPE)
endfunction()
