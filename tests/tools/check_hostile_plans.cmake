# What distile_add_polykernel's builder makes of files that try to become more than words of a command line. Run as
#
#     cmake -DBUILDER=<distile_builder> -DOPERATOR=<good file> -DPLAN=<good file> -DFOLDER=<scratch folder> -P <this>
#
# Bad files are refused before anything is run or written.
set(scratch "${FOLDER}/scratch")

function(expect message operator plan)
    file(REMOVE_RECURSE "${FOLDER}")
    file(MAKE_DIRECTORY "${scratch}")
    file(WRITE "${FOLDER}/operator.json" "${operator}")
    file(WRITE "${FOLDER}/plan.json" "${plan}")
    execute_process(
        COMMAND "${BUILDER}" build --operator "${FOLDER}/operator.json" --plan "${FOLDER}/plan.json" --symbol hostile
                --object hostile.o --header hostile.h --folder parts --no-portable --linker "${LINKER}"
        WORKING_DIRECTORY "${scratch}" OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE result)
    file(GLOB left RELATIVE "${scratch}" "${scratch}/*")
    if (result EQUAL 0 OR NOT output MATCHES "${message}" OR NOT left STREQUAL "${LEFT}")
        message(SEND_ERROR "expected '${message}' of\n${operator}\n${plan}\nand got ${result}: ${output}\nleft: ${left}")
    endif ()
endfunction()

file(READ "${OPERATOR}" good_operator)
file(READ "${PLAN}" good_plan)
# Good files get as far as the linker, which is none here.
set(LINKER /none/ld)
set(LEFT parts)
expect("/none/ld" "${good_operator}" "${good_plan}")
set(LEFT "")

# Both files hold the operator.
function(expect_of_operator message)
    string(JSON operator SET "${good_operator}" ${ARGN})
    expect("${message}" "${operator}" "${good_plan}")
    string(JSON plan SET "${good_plan}" operator ${ARGN})
    expect("${message}" "${good_operator}" "${plan}")
endfunction()
function(expect_of_plan message)
    string(JSON plan SET "${good_plan}" ${ARGN})
    expect("${message}" "${good_operator}" "${plan}")
endfunction()

foreach (word IN ITEMS "a b" "a\;PLUGINS\;evil" "../../../etc/a" "$(touch a)" "`touch a`" "a\\nb" "a\\\"b" "\${CMAKE}")
    expect_of_operator("generator" generator "\"${word}\"")
    expect_of_operator("name" name "\"${word}\"")
    expect_of_operator("epilogue" params epilogue "\"${word}\"")
    expect_of_operator("dtype" params dtype "\"${word}\"")
    expect_of_operator("no parameter" params "${word}" 1)
    expect_of_plan("target|control" target "\"${word}\"")
    expect_of_plan("target|control" target "\"x86-64-linux-${word}\"")
    expect_of_plan("layout|control" layout "\"${word}\"")
    expect_of_plan("name" name "\"${word}\"")
    expect_of_plan("name" variants 0 name "\"${word}\"")
    expect_of_plan("tile_h" variants 0 code halide tile_h "\"${word}\"")
    expect_of_plan("knob" variants 0 code halide "${word}" 1)
    expect_of_plan("one member|knob|tensor cores" variants 0 code
        "{\"tensor_core\": {\"tile_h\": 1, \"tile_w\": 1, \"${word}\": 1}}")
    expect_of_plan("math" math "\"${word}\"")
endforeach ()
# For the machine that runs this, plans of other architectures are no good.
expect_of_plan("arm-64-linux, but the build is for x86-64-linux" target "\"arm-64-linux\"")
foreach (value IN ITEMS "[1, 2]" "{\"a\": 1}" "-1" "1.5")
    expect_of_plan("tile_w" variants 0 code halide tile_w "${value}")
endforeach ()
set(many "[]")
foreach (i RANGE 64)
    string(JSON many SET "${many}" ${i}
        "{\"name\": \"v${i}\", \"code\": {\"halide\": {\"tile_h\": 1, \"tile_w\": 1}}}")
endforeach ()
expect_of_plan("65 variants" variants "${many}")
