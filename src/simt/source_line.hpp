/// From an address in the program's code to the line of source it came from.
#pragma once

#include <string>

#include "device/host/machine.hpp"

namespace tokenyard::simt {

/// "dispatch_kernel.hpp:120" for the innermost line outside the words of device/; the address in
/// hex where the program has no line information. Runs addr2line (binutils), so it is for reports
/// only.
std::string source_line(host_body::CodeAddress where);

/// Whether two addresses stand for one place in the source: compilers copy code. True where the
/// program has no line information to tell. What was asked once is remembered.
bool same_place(host_body::CodeAddress a, host_body::CodeAddress b);

}  // namespace tokenyard::simt
