/// Copies of what will not be read soon: past the caches where the machine can do that, which saves
/// reading the lines that are overwritten anyway.
#pragma once

#include <cstddef>

namespace tokenyard::collectives {

void copy_streaming(void* into, const void* from, size_t bytes);
/// Streaming stores of this thread are seen by others after this.
void end_streaming();

}  // namespace tokenyard::collectives
