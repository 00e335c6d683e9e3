# The families of device ops: csrc/bindings/cuda/<family>.cpp each define bind_cuda_<family>.
# inferx_cuda_families(<output directory> <family>...) writes bindings/cuda/families.h there.
function(inferx_cuda_families out)
  set(INFERX_FAMILY_DECLARATIONS "")
  set(INFERX_FAMILY_CALLS "")
  foreach(family IN LISTS ARGN)
    string(APPEND INFERX_FAMILY_DECLARATIONS "void bind_cuda_${family}(pybind11::module_& m);\n")
    string(APPEND INFERX_FAMILY_CALLS "  bind_cuda_${family}(m);\n")
  endforeach()
  configure_file(${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../csrc/bindings/cuda/families.h.in
                 ${out}/bindings/cuda/families.h @ONLY)
endfunction()
