#include "forks.hpp"

#include <pthread.h>

namespace tokenyard::python {

namespace {
uint64_t forks = 0;  // Of this process's line; changes only where a process has a single thread.
}

void Forks::count() {
  pthread_atfork(nullptr, nullptr, [] { ++forks; });
}

uint64_t Forks::so_far() {
  return forks;
}

}  // namespace tokenyard::python
