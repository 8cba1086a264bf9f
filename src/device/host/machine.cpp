#include "device/host/machine.hpp"

#include "device/host/here.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::host_body {

namespace {
// Thread-local, because a word has no other way to find the machine that runs it.
thread_local Machine* current = nullptr;
}  // namespace

Machine& machine() {
  if (!current) throw InternalError("a word of device/ was called outside a kernel");
  return *current;
}

void set_machine(Machine* machine) {
  current = machine;
}

[[gnu::noinline]] CodeAddress here() {
  return __builtin_extract_return_addr(__builtin_return_address(0));
}

}  // namespace tokenyard::host_body
