/// The address of a word's call in its kernel.
#pragma once

#include "device/host/machine.hpp"

namespace tokenyard::host_body {

/// The address of the call itself. Words are inlined into their kernel, so it lies in the kernel's
/// code and its line information leads to the kernel's source.
CodeAddress here();

}  // namespace tokenyard::host_body
