/// The header for authors of tasks: the context that a task runs in, lists of tasks, and the macros
/// that make a kernel of a list. docs/megakernel.md begins with an example.
///
/// Only a file that holds kernels includes it. It includes headers below tokenyard/internal (in the
/// tree: src/device and src/megakernel/kernels), which may change with any version.
#pragma once

#include "megakernel/kernels/worker_kernel.hpp"
#include "tokenyard/megakernel/megakernel.hpp"
