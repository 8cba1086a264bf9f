# tokenyard_add_kernel(TARGET HEADER)
#
# compiles a header that ends in TOKENYARD_DEFINE_MEGAKERNEL for the host and, where the library was built with
# CUDA, for GPUs, and links TARGET to tokenyard::tokenyard. For GPUs the project enables the language
# CUDA itself, and chooses CMAKE_CUDA_ARCHITECTURES (90a-real for H100 and H200).
function(tokenyard_add_kernel target header)
  get_filename_component(path ${header} ABSOLUTE)
  get_filename_component(name ${header} NAME_WE)
  set(side ${CMAKE_CURRENT_BINARY_DIR}/${target}_kernels/${name})
  file(CONFIGURE OUTPUT ${side}_host.cpp CONTENT "#include \"${path}\"\n" @ONLY)
  target_sources(${target} PRIVATE ${side}_host.cpp)
  target_link_libraries(${target} PRIVATE tokenyard::tokenyard)
  if(TOKENYARD_WITH_CUDA)
    if(NOT CMAKE_CUDA_COMPILER)
      message(FATAL_ERROR "tokenyard_add_kernel: this Tokenyard has a GPU side; call enable_language(CUDA) first")
    endif()
    file(CONFIGURE OUTPUT ${side}_gpu.cu CONTENT "#include \"${path}\"\n" @ONLY)
    target_sources(${target} PRIVATE ${side}_gpu.cu)
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;--expt-relaxed-constexpr;--extended-lambda>)
    # One CUDA runtime in the process, the library's: it launches these kernels.
    set_target_properties(${target} PROPERTIES CUDA_RUNTIME_LIBRARY Shared)
  endif()
endfunction()
