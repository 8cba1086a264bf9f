/// Maps code addresses to source lines.
#pragma once

#include <string>

#include "device/host/machine.hpp"

namespace tokenyard::simt {

/// Returns "dispatch_kernel.hpp:120", the innermost line outside the words of device/, or the
/// address in hex if the program has no line information. Runs addr2line (binutils), so use it only
/// for reports.
std::string source_line(host_body::CodeAddress where);

/// Returns whether two addresses belong to one place in the source, since compilers duplicate code.
/// Returns true if the program has no line information. Caches its look-ups.
bool same_place(host_body::CodeAddress a, host_body::CodeAddress b);

}  // namespace tokenyard::simt
