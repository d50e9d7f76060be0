#!/usr/bin/env bash
# Installs the project, moves what was installed, and looks at what it is: the tree in which the consumers' tests work.
# Usage: test_install.sh <cmake> <source folder> <build folder> <folder to move the installation to> <folder of libHalide>
#                        [shared] [cuda] [opencl]
# $CC compiles programs for the machine that the build is for, and the words of $EMULATOR start them.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../support/shell_test.sh"
cmake=$1
source_folder=$2
build_folder=$3
moved=$4
halide=$5
kinds=" ${*:6} "
read -ra emulator <<<"${EMULATOR:-}"

rm -rf "$moved" "$moved.first"
"$cmake" --install "$build_folder" --prefix "$moved.first" >/dev/null
mv "$moved.first" "$moved"

# Nothing knows where it was built or installed first, but the tools of Halide's find the Halide that they were built
# with. A path counts where it is not the end of a longer one.
for path in "$source_folder" "$build_folder" "$moved.first"; do
    pattern=$(sed 's/[^[:alnum:]/_-]/\\&/g' <<<"$path")
    found=$(grep -raoE "(^|[^[:alnum:]_./}-])$pattern(/[^:[:cntrl:]]*|[^[:alnum:]_.-]|$)" "$moved" |
        tr -d '\0' | grep -avE "/(distile_generators|libautoschedule_polykernel.so)::$halide\$" || true)
    [[ -z $found ]] || fail "the path $path stands in:" "$found"
done
for file in $(find "$moved" -type l); do
    [[ -e $file && $(readlink "$file") != /* ]] || fail "the link $file leads nowhere, or out of the tree"
done

# The notices name everybody whose code is compiled in: whoever has a namespace or a prefix among the symbols.
notices=$(find "$moved" -name THIRD_PARTY_NOTICES)
for name in $(find "$moved" -type f \( -name '*.a' -o -name '*.o' -o -name '*.so*' -o -perm /100 \) \
    -exec nm -C --defined-only {} + 2>/dev/null | cut -d' ' -f3- |
    grep -oE '(^|[^[:alnum:]_:>])([[:alpha:]_][[:alnum:]_]*::|stbi_)' | tr -dc '[:alnum:]_\n' | sort -u); do
    case $name in
    distile* | halide_* | _[0-9]* | const | main) continue ;;
    std | __gnu* | __cxxabiv1) owner='libstdc\+\+ and libgcc' ;;
    nlohmann) owner=nlohmann-json ;;
    CLI) owner=CLI11 ;;
    stbi_*) owner=stb_image ;; # and stb_image_write
    *) owner=$name ;;
    esac
    grep -qE "^$owner [0-9.]*$" "$notices" || fail "$notices does not name $owner, of whom $name is"
    owners+=("$owner")
done
[[ " ${owners[*]} " == *" Halide "* && " ${owners[*]} " == *" stb_image "* ]] || fail "found the code of ${owners[*]} only"

# What compiles kernels for tensor cores lies beside the command.
if [[ $kinds == *" cuda "* ]]; then
    tools=$(dirname "$(readlink -f "$moved/bin/distile")")
    for file in distile_tensor_core.o {runtime/choice/choice,facts/activations,kernels/tensor_core/arguments}.h \
        kernels/tensor_core/sm90.cuh; do
        [[ -e $tools/$file ]] || fail "$tools has no $file"
    done
fi

# The shared library shows the functions of the API, and only those.
if [[ $kinds == *" shared "* ]]; then
    library=$(find "$moved" -name libdistile.so)
    headers=$(ls "$moved"/include/distile/*.h | { [[ $kinds == *" cuda "* ]] && cat || grep -v cuda; } |
        { [[ $kinds == *" opencl "* ]] && cat || grep -v opencl; })
    nm -D --defined-only "$library" | awk '{print $3}' | sort >"$moved.symbols"
    sed -n 's/^DISTILE_API .*\b\(distile_[a-z0-9_]*\)(.*/\1/p' $headers | sort >"$moved.api"
    [[ $(wc -l <"$moved.api") -gt 40 ]] || fail "the headers declare few functions: $(cat "$moved.api")"
    diff "$moved.api" "$moved.symbols" || fail "$library shows something else than the functions of the headers"
    [[ $(readlink "$library") == libdistile.so.* ]] || fail "$library is no link to a library with a version"
fi

# A part can be installed alone.
"$cmake" --install "$build_folder" --prefix "$moved.runtime" --component distile_runtime >/dev/null
files=$(find "$moved.runtime" ! -type d ! -name LICENSE ! -name THIRD_PARTY_NOTICES ! -name 'libdistile.so.*')
rm -rf "$moved.runtime"
[[ -z $files ]] || fail "the component distile_runtime holds $files"

# Without CMake.
if command -v pkg-config >/dev/null; then
    export PKG_CONFIG_PATH
    PKG_CONFIG_PATH=$(dirname "$(find "$moved" -name distile.pc)")
    # The PolyKernel comes before the library that it needs.
    "${cc[@]}" -std=c11 "$source_folder/tests/install/consumer/kernel/main.c" -o "$moved.program" \
        $(pkg-config --cflags --libs-only-L distile) -ldistile_conv3x3_256 $(pkg-config --libs-only-l --libs-only-other distile)
    LD_LIBRARY_PATH=$(pkg-config --variable=libdir distile) "${emulator[@]}" "$moved.program" | has right || fail "the program of pkg-config"
    # A static program, and one that links our static library only, which needs no folder of ours to run.
    for static in "-static " "-Wl,-Bstatic -Wl,-Bdynamic"; do
        # Static programs are warned of dlopen.
        "${cc[@]}" -std=c11 "$source_folder/tests/install/consumer/kernel/main.c" -o "$moved.program" \
            $(pkg-config --cflags --libs-only-L distile) ${static% *} -ldistile_conv3x3_256 \
            $(pkg-config --static --libs-only-l --libs-only-other distile) ${static#* } 2>"$moved.warnings" ||
            fail "linking with '$static':" "$(cat "$moved.warnings")"
        "${emulator[@]}" "$moved.program" | has right || fail "the program of pkg-config --static, linked with '$static'"
    done
fi
echo "all right"
