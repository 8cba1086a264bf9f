// The table of all mutants and what chooses one: TOKENYARD_MUTANT is its number, and where
// TOKENYARD_MUTANTS_REACHED names a file, a byte of it becomes 0 for each mutant whose place is
// reached, by this process or any that it starts. A part of each rewritten tree.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace {

bool recording = false;

const char* variable(const char* name) {
  const size_t length = std::strlen(name);
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry)
    if (std::strncmp(*entry, name, length) == 0 && (*entry)[length] == '=')
      return *entry + length + 1;
  return nullptr;
}

}  // namespace

extern "C" {

__attribute__((visibility("hidden"), aligned(4096))) unsigned char mutants_states[MUTANTS_BYTES];

__attribute__((visibility("hidden"))) bool mutants_hit(const unsigned char* state) {
  if (!recording) return true;
  const_cast<unsigned char*>(state)[0] = 0;
  return false;
}

__attribute__((constructor(101))) static void mutants_choose() {
  if (const char* const path = variable("TOKENYARD_MUTANTS_REACHED");
      path != nullptr && *path != 0) {
    const int file = ::open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return;
    void* const mapped = ::mmap(mutants_states, MUTANTS_BYTES, PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_FIXED, file, 0);
    ::close(file);
    recording = mapped != MAP_FAILED;
  } else if (const char* const number = variable("TOKENYARD_MUTANT");
             number != nullptr && *number != 0) {
    const unsigned long chosen = std::strtoul(number, nullptr, 10);
    if (chosen < MUTANTS_BYTES) mutants_states[chosen] = 1;
  }
}
}
