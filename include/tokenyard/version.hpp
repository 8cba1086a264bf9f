/// The version, and the only place that states it: CMake, the Python package, tokenyardConfig.cmake
/// and tokenyard.pc read it here. Semantic versioning: before 1.0 a minor version may change calls,
/// and a program is built against the minor version that it runs with.
#pragma once

#define TOKENYARD_VERSION_MAJOR 0
#define TOKENYARD_VERSION_MINOR 1
#define TOKENYARD_VERSION_PATCH 0

/// One number for #if: TOKENYARD_VERSION >= TOKENYARD_MAKE_VERSION(0, 1, 0).
#define TOKENYARD_MAKE_VERSION(major, minor, patch) ((major)*10000 + (minor)*100 + (patch))
#define TOKENYARD_VERSION \
  TOKENYARD_MAKE_VERSION(TOKENYARD_VERSION_MAJOR, TOKENYARD_VERSION_MINOR, TOKENYARD_VERSION_PATCH)

#define TOKENYARD_QUOTE_(text) #text
#define TOKENYARD_DOTTED_(major, minor, patch) \
  TOKENYARD_QUOTE_(major) "." TOKENYARD_QUOTE_(minor) "." TOKENYARD_QUOTE_(patch)
/// "0.1.0"
#define TOKENYARD_VERSION_STRING \
  TOKENYARD_DOTTED_(TOKENYARD_VERSION_MAJOR, TOKENYARD_VERSION_MINOR, TOKENYARD_VERSION_PATCH)
