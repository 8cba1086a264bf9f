// The kernel of tasks/builtin.hpp, instrumented (see CMakeLists.txt) so that hosts can check its
// accesses. Everything included is in a namespace of its own; otherwise the linker would merge
// functions of this kernel with those of the plain one.
#define tokenyard tokenyard_watched
#include "megakernel/tasks/builtin_list.hpp"

namespace tokenyard::megakernel {

TOKENYARD_DEFINE_HOST_MEGAKERNEL(builtin_kernel, BuiltinTasks)

}  // namespace tokenyard::megakernel
#undef tokenyard

namespace tokenyard::host_body {
class Machine;
Machine& machine();
}  // namespace tokenyard::host_body

namespace tokenyard_watched::host_body {

/// Returns the same class under the other name: only its table of functions is used.
Machine& machine() {
  return reinterpret_cast<Machine&>(tokenyard::host_body::machine());
}
CodeAddress here() {
  return __builtin_extract_return_addr(__builtin_return_address(0));
}

}  // namespace tokenyard_watched::host_body

extern "C" void tokenyard_watched_builtin(const void* params) {
  tokenyard_watched::megakernel::builtin_kernel.entry.on_host(params);
}
