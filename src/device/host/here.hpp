/// The code address at which a kernel calls a word.
#pragma once

#include "device/host/machine.hpp"

namespace tokenyard::host_body {

/// Returns its own return address. Words are inlined into the kernel, so the address lies in the
/// kernel's code, and its line information leads to the kernel's source.
CodeAddress here();

}  // namespace tokenyard::host_body
