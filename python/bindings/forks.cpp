#include "forks.hpp"

#include <pthread.h>

namespace tokenyard::python {

namespace {
uint64_t forks = 0;  // Depth in the tree of forks; written only when a child has one thread.
}

void Forks::count() {
  pthread_atfork(nullptr, nullptr, [] { ++forks; });
}

uint64_t Forks::so_far() {
  return forks;
}

}  // namespace tokenyard::python
