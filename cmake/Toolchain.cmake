# Sets compilers, warnings and sanitizers, and decides whether there is a GPU side.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()
# Release builds keep assertions: a broken invariant is an error, never a wrong result.
foreach(flags CMAKE_CXX_FLAGS_RELWITHDEBINFO CMAKE_CXX_FLAGS_RELEASE CMAKE_CUDA_FLAGS_RELWITHDEBINFO)
  string(REPLACE "-DNDEBUG" "" ${flags} "${${flags}}")
endforeach()
# -g1 keeps line numbers and drops types, which halves link times.
string(REPLACE "-g " "-g1 " CMAKE_CXX_FLAGS_RELWITHDEBINFO "${CMAKE_CXX_FLAGS_RELWITHDEBINFO} ")

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()

add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wall> $<$<COMPILE_LANGUAGE:CXX>:-Wextra>
                    $<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer>)

# CI sets it. Compilers that CI does not run may warn of more, and must still build the library.
option(TOKENYARD_WERROR "A warning fails the build" OFF)
if(TOKENYARD_WERROR)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Werror>
                      $<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings>)
endif()

# addr2line misses inlined calls in clang's DWARF 5; the words of kernels find their lines by them.
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-gdwarf-4>)
endif()

if(TOKENYARD_SANITIZE)
  if(TOKENYARD_SANITIZE STREQUAL "thread" AND NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "ThreadSanitizer and fibers get along only with clang: set CXX=clang++-16")
  endif()
  set(checks ${TOKENYARD_SANITIZE})
  if(TOKENYARD_SANITIZE STREQUAL "fuzzer")
    set(checks address,undefined)
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)
  endif()
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${checks}>)
  if(checks MATCHES "undefined")
    # The vptr check opens a pipe to look up an object's type, which fails in tests that leave no
    # descriptors.
    add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=all;-fno-sanitize=vptr>")
  endif()
  add_link_options(-fsanitize=${checks})
endif()

if(TOKENYARD_COVERAGE)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "llvm-cov reads what clang counts: set CXX=clang++-16")
  endif()
  # Plain counters: atomic ones, which instrumented kernels get otherwise, would count as accesses
  # of the kernel to the simulator.
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fprofile-instr-generate;-fcoverage-mapping;-fprofile-update=single>")
  add_link_options(-fprofile-instr-generate)
endif()

if(TOKENYARD_CUDA STREQUAL "AUTO")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(TOKENYARD_WITH_CUDA ON)
  else()
    set(TOKENYARD_WITH_CUDA OFF)
  endif()
else()
  set(TOKENYARD_WITH_CUDA ${TOKENYARD_CUDA})
endif()
if(TOKENYARD_WITH_CUDA)
  # `a` enables wgmma and setmaxnreg, which plain 90 lacks; `-real` generates machine code only.
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 90a-real)
  endif()
  enable_language(CUDA)
  set(CMAKE_CUDA_STANDARD 20)
  # Debian 12's CMake does not know that nvcc speaks C++20.
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  find_package(CUDAToolkit REQUIRED)
  add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall;--expt-relaxed-constexpr;--extended-lambda;-lineinfo>")
endif()

# Boost, fmt and OpenSSL are inside of all that is linked, so that programs, modules and packages run on
# machines without them.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
add_library(tokenyard_fmt STATIC ${PROJECT_SOURCE_DIR}/cmake/fmt.cpp)
# clang makes one destructor of two, and a caller may want the other one.
set_target_properties(tokenyard_fmt PROPERTIES COMPILE_OPTIONS
  "-fno-inline;$<$<COMPILE_LANG_AND_ID:CXX,Clang>:SHELL:-Xclang -mno-constructor-aliases>")
# As users of fmt's shared library are compiled.
target_compile_definitions(tokenyard_fmt INTERFACE FMT_SHARED)
target_include_directories(tokenyard_fmt PUBLIC $<TARGET_PROPERTY:fmt::fmt,INTERFACE_INCLUDE_DIRECTORIES>)
set(TOKENYARD_FMT tokenyard_fmt)
set(Boost_USE_STATIC_LIBS ON)
find_package(Boost 1.74 REQUIRED COMPONENTS context)
