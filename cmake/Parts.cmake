# Defines one target (a part) per folder of src/, which states the parts it uses. A part uses only
# parts that come before it, so dependencies point one way, and its files include only headers of
# these parts and its own (tokenyard_include_only).
#
#   tokenyard_part(NAME USES part... [LINKS library...])
#
# compiles every .cpp below the current folder. Files called *_host.cpp hold kernels and are
# compiled twice: "plain", and "checked", which the compiler's ThreadSanitizer pass instruments and
# which links simulation/ instead of the sanitizer's library. Files called *_gpu.cu are their GPU
# side. All .cu files, cuda/*.cpp and nvlink/*.cpp are built only with CUDA.
#
#   tokenyard_kernels(NAME kernel... [FROM header] [CODE line...])
#
# generates both sides of a part's kernels in the build tree. `kernel` is a path relative to the
# current folder, without its ending: `folder/x` generates folder/x_host.cpp and folder/x_gpu.cu,
# which include folder/x_kernel.hpp. With FROM they include that header of the current folder
# instead, followed by CODE, for instance a macro of that header that defines the kernel. Both sides
# have the same text; each is compiled as its name demands.
#
# Programs that link `tokenyard` get plain kernels; those that link `tokenyard_checked` get checked
# ones. Both are one RESCAN link group, since some references run against the direction of the
# includes: a part refers to its kernels, plain or checked as the program chooses; `World` of the
# public API is defined in src/world, after the parts that take one; and a checked kernel reports
# its accesses to src/simulation.

set(TOKENYARD_INSTRUMENT -fsanitize=thread)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND TOKENYARD_INSTRUMENT --param=tsan-instrument-func-entry-exit=0)
else()
  list(APPEND TOKENYARD_INSTRUMENT -mllvm -tsan-instrument-func-entry-exit=0)
endif()

add_library(tokenyard_settings INTERFACE)
target_include_directories(tokenyard_settings INTERFACE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
target_compile_definitions(tokenyard_settings INTERFACE TOKENYARD_WITH_CUDA=$<BOOL:${TOKENYARD_WITH_CUDA}>)
target_link_libraries(tokenyard_settings INTERFACE ${TOKENYARD_FMT} Threads::Threads)

#   tokenyard_include_only(TARGET part...)
#
# lets the files of a target include headers of these parts and of no others: a folder that comes
# first on the include path holds, for each header of every other part, a header of the same name
# that is an #error. Real headers stay in place, so debug information, compiler caches and unity
# batches see the paths of src/. The folder's name lists the allowed parts, so a target whose parts
# change is recompiled.
function(tokenyard_include_only target)
  list(SORT ARGN)
  list(JOIN ARGN "-" name)
  set(closed ${PROJECT_BINARY_DIR}/include_only/${name})
  file(MAKE_DIRECTORY ${closed})
  foreach(folder ${TOKENYARD_FOLDERS})
    string(REPLACE "/" "_" part ${folder})
    if(NOT part IN_LIST ARGN)
      get_filename_component(above ${closed}/${folder} DIRECTORY)
      file(MAKE_DIRECTORY ${above})
      file(CREATE_LINK ${PROJECT_BINARY_DIR}/closed/${folder} ${closed}/${folder} SYMBOLIC)
    endif()
  endforeach()
  target_include_directories(${target} BEFORE PRIVATE ${closed})
endfunction()

file(REMOVE_RECURSE ${PROJECT_BINARY_DIR}/include_only)
file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/src/*.hpp)
set(TOKENYARD_FOLDERS "")
foreach(header ${headers})
  # A header belongs to the part of the nearest folder above it that has a CMakeLists.txt.
  get_filename_component(folder ${header} DIRECTORY)
  while(NOT EXISTS ${PROJECT_SOURCE_DIR}/src/${folder}/CMakeLists.txt)
    get_filename_component(folder ${folder} DIRECTORY)
  endwhile()
  list(APPEND TOKENYARD_FOLDERS ${folder})
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/closed/${header}
       CONTENT "#error \"this part does not use src/${folder}: see USES in the part's CMakeLists.txt\"\n")
endforeach()
list(REMOVE_DUPLICATES TOKENYARD_FOLDERS)

# With TOKENYARD_UNITY, compiles the files of a folder in batches: file-local names must then be
# unique within a folder.
function(tokenyard_compile_in_batches target)
  if(NOT TOKENYARD_UNITY)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  get_target_property(sources ${target} SOURCES)
  set(count 0)
  set(previous "")
  foreach(source ${sources})
    get_filename_component(folder ${source} DIRECTORY)
    if(NOT folder STREQUAL previous)
      set(count 0)
    endif()
    set(previous ${folder})
    math(EXPR batch "${count} / 8")
    math(EXPR count "${count} + 1")
    file(RELATIVE_PATH name ${CMAKE_CURRENT_SOURCE_DIR} ${folder}/batch)
    string(MAKE_C_IDENTIFIER ${name} name)
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${name}_${batch})
  endforeach()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # A coroutine's frame holds file-local types; in a batch, g++ takes that file for a header.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
  endif()
endfunction()

function(tokenyard_part name)
  cmake_parse_arguments(PART "" "" "USES;LINKS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cu)
  set(kernels ${sources})
  list(FILTER kernels INCLUDE REGEX "_host\\.cpp$")
  list(FILTER sources EXCLUDE REGEX "_host\\.cpp$")
  set(cuda_only ${sources})
  list(FILTER cuda_only INCLUDE REGEX "/(cuda|nvlink)/")
  if(NOT TOKENYARD_WITH_CUDA)
    list(FILTER sources EXCLUDE REGEX "/(cuda|nvlink)/")
    set(cuda_sources "")
  endif()

  set(target tokenyard_${name})
  add_library(${target} STATIC ${sources} ${cuda_sources} ${PROJECT_SOURCE_DIR}/cmake/empty.cpp)
  target_link_libraries(${target} PUBLIC tokenyard_settings ${PART_LINKS})
  tokenyard_include_only(${target} ${name} ${PART_USES})
  foreach(part ${PART_USES})
    if(NOT TARGET tokenyard_${part})
      message(FATAL_ERROR "${name} uses ${part}, which is no part or comes after it")
    endif()
    target_link_libraries(${target} PUBLIC tokenyard_${part})
  endforeach()
  tokenyard_compile_in_batches(${target})
  if(TOKENYARD_WITH_CUDA)
    target_link_libraries(${target} PUBLIC CUDA::cudart_static)
  endif()
  if(kernels)
    tokenyard_compile_kernels(${target} ${kernels})
  endif()
  set_property(GLOBAL APPEND PROPERTY TOKENYARD_PARTS ${target})
endfunction()

# Adds *_host.cpp files to a part's plain and checked kernels.
function(tokenyard_compile_kernels target)
  if(NOT TARGET ${target}_kernels)
    get_target_property(only ${target} INCLUDE_DIRECTORIES)
    add_library(${target}_kernels STATIC)
    target_link_libraries(${target}_kernels PUBLIC ${target})
    target_include_directories(${target}_kernels BEFORE PRIVATE ${only})
    set_property(GLOBAL APPEND PROPERTY TOKENYARD_KERNELS ${target}_kernels)
    # Only the simulator's program links this, and a build may omit that program.
    add_library(${target}_kernels_checked STATIC EXCLUDE_FROM_ALL)
    target_link_libraries(${target}_kernels_checked PUBLIC ${target})
    target_include_directories(${target}_kernels_checked BEFORE PRIVATE ${only})
    target_compile_options(${target}_kernels_checked PRIVATE ${TOKENYARD_INSTRUMENT})
    set_property(GLOBAL APPEND PROPERTY TOKENYARD_KERNELS_CHECKED ${target}_kernels_checked)
  endif()
  target_sources(${target}_kernels PRIVATE ${ARGN})
  target_sources(${target}_kernels_checked PRIVATE ${ARGN})
endfunction()

function(tokenyard_kernels name)
  cmake_parse_arguments(PARSE_ARGV 1 KERNELS "" "FROM" "CODE")
  foreach(kernel ${KERNELS_UNPARSED_ARGUMENTS})
    set(header ${kernel}_kernel.hpp)
    if(KERNELS_FROM)
      set(header ${KERNELS_FROM})
    endif()
    if(NOT EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${header})
      message(FATAL_ERROR "tokenyard_kernels: ${kernel} needs ${CMAKE_CURRENT_SOURCE_DIR}/${header}")
    endif()
    # Relative to src/, as the part's own files include it, so that the text is equal in all clones.
    file(RELATIVE_PATH header ${PROJECT_SOURCE_DIR}/src ${CMAKE_CURRENT_SOURCE_DIR}/${header})
    list(JOIN KERNELS_CODE "\n" code)
    if(code)
      string(PREPEND code "\n")
      string(APPEND code "\n")
    endif()
    set(host_side ${CMAKE_CURRENT_BINARY_DIR}/${kernel}_host.cpp)
    set(gpu_side ${CMAKE_CURRENT_BINARY_DIR}/${kernel}_gpu.cu)
    # Written only if the text differs, so that configuring causes no recompilation.
    file(CONFIGURE OUTPUT ${host_side} CONTENT "#include \"${header}\"\n${code}" @ONLY)
    tokenyard_compile_kernels(tokenyard_${name} ${host_side})
    if(TOKENYARD_WITH_CUDA)
      file(CONFIGURE OUTPUT ${gpu_side} CONTENT "#include \"${header}\"\n${code}" @ONLY)
      target_sources(tokenyard_${name} PRIVATE ${gpu_side})
    endif()
  endforeach()
endfunction()
