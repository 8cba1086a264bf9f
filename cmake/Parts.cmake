# One target per folder of src/, which states the folders it uses. A part uses only parts that come
# before it, so dependencies point one way, and its files include only headers of these and its own
# (tokenyard_include_only).
#
#   tokenyard_part(NAME USES part... [LINKS library...])
#
# takes every .cpp below the current folder. Files called *_host.cpp hold kernels: they are compiled
# twice, plain, and "checked": instrumented by the compiler's ThreadSanitizer pass, whose calls
# simulation/ answers instead of the sanitizer's own library. Files called *_gpu.cu are their GPU
# side; other .cu files and cuda/*.cpp are built only with CUDA.
#
#   tokenyard_kernels(NAME kernel... [FROM header] [CODE line...])
#
# writes both sides of a part's kernels into the build tree. `kernel` is a path without its ending,
# from the current folder: `folder/x` makes folder/x_host.cpp and folder/x_gpu.cu, which include
# folder/x_kernel.hpp. With FROM they include that header of the current folder instead, and CODE
# follows it, for instance a macro of that header that defines the kernel. Both sides are the same
# text, compiled as files of these names are.
#
# Whatever links `tokenyard` gets plain kernels; whatever links `tokenyard_checked` gets checked ones.
# Both are one link group, searched until settled, since some references do not point the way includes
# do. A part refers to its kernels, plain or checked as the program chooses; `World` of the public API
# is defined in src/world, after the parts that take one; and a kernel that reports its accesses calls
# src/simulation.

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
# lets the files of a target include headers of these folders of src/ and of no other: a folder that
# comes first on the include path holds, for each header of every other folder, one of the same name
# that is an #error. Headers themselves stay where they are, so debug information, compiler caches
# and batches see the paths of src/. The folder's name lists what it lets through: a target whose
# parts change is compiled anew.
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
  # The part of a header is the nearest folder above it that has a list of its own.
  get_filename_component(folder ${header} DIRECTORY)
  while(NOT EXISTS ${PROJECT_SOURCE_DIR}/src/${folder}/CMakeLists.txt)
    get_filename_component(folder ${folder} DIRECTORY)
  endwhile()
  list(APPEND TOKENYARD_FOLDERS ${folder})
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/closed/${header}
       CONTENT "#error \"this part does not use src/${folder}: see USES in the part's CMakeLists.txt\"\n")
endforeach()
list(REMOVE_DUPLICATES TOKENYARD_FOLDERS)

# Batches of files of one folder, where TOKENYARD_UNITY asks for them: names that two files keep to
# themselves must differ within a folder.
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
    # A coroutine's frame holds types of its own file, which g++ takes for a header's in a batch.
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

# Adds *_host.cpp files to the kernels of a part's target, plain and checked.
function(tokenyard_compile_kernels target)
  if(NOT TARGET ${target}_kernels)
    get_target_property(only ${target} INCLUDE_DIRECTORIES)
    add_library(${target}_kernels STATIC)
    target_link_libraries(${target}_kernels PUBLIC ${target})
    target_include_directories(${target}_kernels BEFORE PRIVATE ${only})
    set_property(GLOBAL APPEND PROPERTY TOKENYARD_KERNELS ${target}_kernels)
    # Only the simulator's program links it, and a build may go without that program.
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
    # As its own part's files say it, so that the text is the same in every clone.
    file(RELATIVE_PATH header ${PROJECT_SOURCE_DIR}/src ${CMAKE_CURRENT_SOURCE_DIR}/${header})
    list(JOIN KERNELS_CODE "\n" code)
    if(code)
      string(PREPEND code "\n")
      string(APPEND code "\n")
    endif()
    set(host_side ${CMAKE_CURRENT_BINARY_DIR}/${kernel}_host.cpp)
    set(gpu_side ${CMAKE_CURRENT_BINARY_DIR}/${kernel}_gpu.cu)
    # Written only where the text differs: nothing is compiled anew by configuring.
    file(CONFIGURE OUTPUT ${host_side} CONTENT "#include \"${header}\"\n${code}" @ONLY)
    tokenyard_compile_kernels(tokenyard_${name} ${host_side})
    if(TOKENYARD_WITH_CUDA)
      file(CONFIGURE OUTPUT ${gpu_side} CONTENT "#include \"${header}\"\n${code}" @ONLY)
      target_sources(tokenyard_${name} PRIVATE ${gpu_side})
    endif()
  endforeach()
endfunction()
