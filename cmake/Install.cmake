# The C++ package: one shared library, its public headers, and the files by which CMake and pkg-config
# find them. docs/decisions/one_shared_library.md says why it is made like this.
#
# Parts are linked as objects, with all they need (fmt, Asio, Boost.Context, OpenSSL's libcrypto)
# inside. The decoder stays out: it is an application of the engine, with no public header.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# ---- symbols --------------------------------------------------------------------------------------

# Writes the linker's list of exported symbols: what public headers declare, and the words that
# kernels of a task's author call. All other symbols are hidden.
function(tokenyard_write_exports map)
  file(GLOB headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/tokenyard/*.hpp
       ${PROJECT_SOURCE_DIR}/include/tokenyard/megakernel/*.hpp)
  set(patterns tokenyard::host_body::[!A-Z]*)
  foreach(header ${headers})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${header})
    set(space tokenyard)
    if(header MATCHES "/megakernel/[a-z_]*\\.hpp$")
      set(space tokenyard::megakernel)
    endif()
    file(READ ${header} text)
    # Brackets and semicolons mean something in CMake's lists.
    string(REGEX REPLACE "[][;]" "%" text "${text}")
    string(REGEX MATCHALL "\n(class|struct) [A-Za-z0-9]+( :[^%\n]*)? {" classes "${text}")
    foreach(class ${classes})
      string(REGEX REPLACE "^\n(class|struct) ([A-Za-z0-9]+).*$" "\\2" name "${class}")
      # Members begin with a lower case letter or "~", but for constructors; Impl and State do not.
      list(APPEND patterns "${space}::${name}::[!A-Z]*" "${space}::${name}::${name}*"
           "\"typeinfo for ${space}::${name}\"" "\"typeinfo name for ${space}::${name}\""
           "\"vtable for ${space}::${name}\"")
    endforeach()
    string(REGEX MATCHALL "\n[A-Za-z][A-Za-z0-9_:<>&*]*[A-Za-z0-9_:<>&* ]* [a-z_0-9]+\\(" functions "${text}")
    foreach(function ${functions})
      if(NOT function MATCHES "\n(template|using|static|inline|constexpr) ")
        string(REGEX REPLACE "^.* ([a-z_0-9]+)\\($" "\\1" name "${function}")
        list(APPEND patterns "${space}::${name}[!a-z_]*")
      endif()
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES patterns)
  list(JOIN patterns ";\n    " patterns)
  file(CONFIGURE OUTPUT ${map} CONTENT "{\n  global:\n  extern \"C++\" {\n    @patterns@;\n  };\n  local: *;\n};\n" @ONLY)
endfunction()

# ---- the library ----------------------------------------------------------------------------------

get_property(parts GLOBAL PROPERTY TOKENYARD_PARTS)
get_property(kernels GLOBAL PROPERTY TOKENYARD_KERNELS)
add_library(tokenyard_shared SHARED cmake/empty.cpp)
foreach(part ${TOKENYARD_FMT} ${parts} ${kernels})
  if(NOT part MATCHES "^tokenyard_decoder")
    target_sources(tokenyard_shared PRIVATE $<TARGET_OBJECTS:${part}>)
  endif()
endforeach()
set(OPENSSL_USE_STATIC_LIBS ON)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
set(hidden Boost::context OpenSSL::Crypto Threads::Threads ${CMAKE_DL_LIBS})
if(TOKENYARD_WITH_CUDA)
  # Shared, since a task's author has kernels of their own, and one runtime must know them all.
  list(APPEND hidden CUDA::cudart)
endif()
target_link_libraries(tokenyard_shared PRIVATE "$<BUILD_INTERFACE:${hidden}>")
set(map ${PROJECT_BINARY_DIR}/tokenyard.map)
tokenyard_write_exports(${map})
target_link_options(tokenyard_shared PRIVATE -Wl,--version-script=${map} -Wl,-Bsymbolic-functions
                    -Wl,--gc-sections -Wl,-z,defs)
set_target_properties(tokenyard_shared PROPERTIES
  OUTPUT_NAME tokenyard EXPORT_NAME tokenyard LINK_DEPENDS ${map}
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
target_compile_features(tokenyard_shared INTERFACE cxx_std_20)
target_compile_definitions(tokenyard_shared INTERFACE TOKENYARD_WITH_CUDA=$<BOOL:${TOKENYARD_WITH_CUDA}>)
target_include_directories(tokenyard_shared INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)

# ---- headers --------------------------------------------------------------------------------------

# Headers of kernels keep their places below tokenyard/internal, and so do their include lines: a
# folder called `device` on a user's include path would meet others of that name.
function(tokenyard_install_kernel_headers header)
  set(ahead ${header})
  set(seen "")
  while(ahead)
    list(POP_FRONT ahead name)
    list(APPEND seen ${name})
    set(root src)
    set(to internal/)
    if(name MATCHES "^tokenyard/")
      set(root include)
      set(to "")
    endif()
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${root}/${name})
    file(STRINGS ${PROJECT_SOURCE_DIR}/${root}/${name} lines REGEX "^#include \"[^\"]*\"")
    foreach(line ${lines})
      string(REGEX REPLACE "^#include \"(.*)\".*$" "\\1" included "${line}")
      if(NOT included MATCHES "^tokenyard/" AND NOT included IN_LIST seen AND NOT included IN_LIST ahead)
        list(APPEND ahead ${included})
      endif()
    endforeach()
    string(REGEX REPLACE "^tokenyard/" "" place ${name})
    set(copy ${PROJECT_BINARY_DIR}/installed_headers/${to}${place})
    file(READ ${PROJECT_SOURCE_DIR}/${root}/${name} text)
    string(REGEX REPLACE "#include \"([^\"]*)\"" "#include \"tokenyard/internal/\\1\"" text "${text}")
    string(REPLACE "\"tokenyard/internal/tokenyard/" "\"tokenyard/" text "${text}")
    file(GENERATE OUTPUT ${copy} CONTENT "${text}")
  endwhile()
  install(DIRECTORY ${PROJECT_BINARY_DIR}/installed_headers/ COMPONENT cpp
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tokenyard)
endfunction()

set(task_header tokenyard/megakernel/task.hpp)
install(DIRECTORY include/tokenyard DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT cpp
        FILES_MATCHING PATTERN "*.hpp" PATTERN task.hpp EXCLUDE)
tokenyard_install_kernel_headers(${task_header})

# ---- what finds them ------------------------------------------------------------------------------

set(places ${CMAKE_INSTALL_LIBDIR}/cmake/tokenyard)
install(TARGETS tokenyard_shared EXPORT tokenyardTargets COMPONENT cpp LIBRARY
        DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cpp NAMELINK_COMPONENT cpp)
install(EXPORT tokenyardTargets NAMESPACE tokenyard:: DESTINATION ${places} COMPONENT cpp)
configure_package_config_file(cmake/tokenyardConfig.cmake.in ${PROJECT_BINARY_DIR}/tokenyardConfig.cmake
                              INSTALL_DESTINATION ${places} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tokenyardConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tokenyardConfig.cmake ${PROJECT_BINARY_DIR}/tokenyardConfigVersion.cmake
        cmake/tokenyard_add_kernel.cmake DESTINATION ${places} COMPONENT cpp)

# Where a prefix moves after installing, pkg-config finds it from the file's own place.
file(RELATIVE_PATH up "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
if(TOKENYARD_WITH_CUDA)
  set(with_cuda 1)
else()
  set(with_cuda 0)
endif()
configure_file(cmake/tokenyard.pc.in ${PROJECT_BINARY_DIR}/tokenyard.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tokenyard.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT cpp)
install(FILES LICENSE packaging/third_party.txt DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT cpp)
