# Removes the folder of this machine's Halide from the programs that load it, in a folder that leaves this machine.
# `folder` names it; the programs are in a folder of that.
file(GLOB programs "${folder}/*/distile_generators" "${folder}/*/libautoschedule_polykernel.so")
foreach (program IN LISTS programs)
    file(RPATH_SET FILE "${program}" NEW_RPATH "$ORIGIN/..")
endforeach ()
