/// Copies data that will not be read soon. Bypasses the caches where the machine can, which saves
/// reading cache lines that are overwritten anyway.
#pragma once

#include <cstddef>

namespace tokenyard::collectives {

void copy_streaming(void* into, const void* from, size_t bytes);
/// Makes this thread's streaming stores visible to other threads, before any later store.
void end_streaming();

}  // namespace tokenyard::collectives
