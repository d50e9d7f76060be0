# distile_list_linked_polykernels(<file> <polykernel>...): writes a header that declares PolyKernels and lists them as
# linked_polykernels, by name and without a leading "distile_".
function(distile_list_linked_polykernels file)
    set(includes "")
    set(polykernels "")
    foreach (polykernel IN LISTS ARGN)
        string(REGEX REPLACE "^distile_" "" name "${polykernel}")
        string(APPEND includes "#include \"${polykernel}.h\"\n")
        string(APPEND polykernels "    {\"${name}\", &${polykernel}},\n")
    endforeach ()
    file(CONFIGURE OUTPUT "${file}" CONTENT [=[
/* The PolyKernels that this program was built with, by name. */
@includes@
static const struct {
    const char *name;
    const distile_polykernel *polykernel;
} linked_polykernels[] = {
@polykernels@};
]=] @ONLY)
endfunction()
