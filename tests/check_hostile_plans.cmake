# What distile_add_polykernel makes of files that try to become more than words of a command line. Run as
#
#     cmake -DMODULE=cmake/DistilePolykernel.cmake -DOPERATOR=<good file> -DPLAN=<good file> -DFOLDER=<scratch folder> -P <this>
#
# Without the build around it a good plan gets as far as its first library, which is an unknown command here.
if (HOSTILE_OPERATOR)
    include("${MODULE}")
    distile_add_polykernel(hostile OPERATOR "${HOSTILE_OPERATOR}" PLAN "${HOSTILE_PLAN}")
    return()
endif ()

function(expect message operator plan)
    file(WRITE "${FOLDER}/operator.json" "${operator}")
    file(WRITE "${FOLDER}/plan.json" "${plan}")
    execute_process(
        COMMAND "${CMAKE_COMMAND}" -DMODULE=${MODULE} -DHOSTILE_OPERATOR=${FOLDER}/operator.json
                -DHOSTILE_PLAN=${FOLDER}/plan.json -P "${CMAKE_CURRENT_FUNCTION_LIST_FILE}"
        ERROR_VARIABLE error RESULT_VARIABLE result)
    string(REGEX REPLACE "[ \n]+" " " error "${error}")  # CMake breaks its lines.
    if (result EQUAL 0 OR NOT error MATCHES "${message}")
        message(SEND_ERROR "expected '${message}' of\n${operator}\n${plan}\nand got ${result}: ${error}")
    endif ()
endfunction()

file(READ "${OPERATOR}" good_operator)
file(READ "${PLAN}" good_plan)
expect("Unknown CMake command \"add_halide_library\"" "${good_operator}" "${good_plan}")

foreach (word IN ITEMS "a b" "a;PLUGINS;evil" "../../../etc/a" "$(touch a)" "`touch a`" "$<SEMICOLON>" "a\\nb" "a\\\"b" "\${CMAKE}")
    string(JSON hostile SET "${good_operator}" generator "\"${word}\"")
    expect("has a generator that cannot be" "${hostile}" "${good_plan}")
    string(JSON hostile SET "${good_operator}" params epilogue "\"${word}\"")
    expect("has a parameter that cannot be" "${hostile}" "${good_plan}")
    string(JSON hostile SET "${good_plan}" target "\"${word}\"")
    expect("has a target that cannot be" "${good_operator}" "${hostile}")
    string(JSON hostile SET "${good_plan}" target "\"x86-64-linux-${word}\"")
    expect("has a target that cannot be" "${good_operator}" "${hostile}")
    string(JSON hostile SET "${good_plan}" variants 0 name "\"${word}\"")
    expect("has a variant's name that cannot be" "${good_operator}" "${hostile}")
    string(JSON hostile SET "${good_plan}" variants 0 theta tile_h "\"${word}\"")
    expect("has a tile that cannot be" "${good_operator}" "${hostile}")
endforeach ()
foreach (value IN ITEMS "[1, 2]" "{\"a\": 1}" "-1" "1.5")
    string(JSON hostile SET "${good_plan}" variants 0 theta tile_w "${value}")
    expect("has a tile that cannot be" "${good_operator}" "${hostile}")
endforeach ()
set(many "[]")
foreach (i RANGE 64)
    string(JSON many SET "${many}" ${i} "{\"name\": \"v${i}\", \"theta\": {\"tile_h\": 1, \"tile_w\": 1}}")
endforeach ()
string(JSON hostile SET "${good_plan}" variants "${many}")
expect("has 65 variants, not 1 to 64" "${good_operator}" "${hostile}")
