#include "collectives/control/kept_from_forks.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>

namespace tokenyard::collectives {

namespace {

/// [descriptor]: the number of the socket that it had; 0: none. Sockets have numbers of their own,
/// so one that has been closed is never taken for whatever has its descriptor now.
std::array<std::atomic<ino_t>, size_t{1} << 16> sockets;
std::atomic<size_t> used = 0;  ///< of those

ino_t number_of(int descriptor) {
  struct stat about {};
  return fstat(descriptor, &about) == 0 && S_ISSOCK(about.st_mode) ? about.st_ino : 0;
}

/// In a child, which has one thread, and may only do what handlers of signals may.
void let_go() {
  const int before = errno;
  const int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (size_t index = 0; index < used; ++index) {
    const ino_t number = sockets[index].exchange(0);
    const int descriptor = static_cast<int>(index);
    if (number == 0 || number_of(descriptor) != number) continue;
    if (nowhere < 0 || dup3(nowhere, descriptor, O_CLOEXEC) < 0) (void)close(descriptor);
  }
  if (nowhere >= 0) (void)close(nowhere);
  errno = before;
}

}  // namespace

void keep_from_forks(int socket) {
  [[maybe_unused]] static const int asked = pthread_atfork(nullptr, nullptr, let_go);
  const auto index = static_cast<size_t>(socket);
  if (socket < 0 || index >= sockets.size()) return;
  sockets[index] = number_of(socket);
  size_t seen = used;
  while (seen <= index && !used.compare_exchange_weak(seen, index + 1)) {
  }
}

}  // namespace tokenyard::collectives
