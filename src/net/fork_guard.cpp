#include "net/fork_guard.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <mutex>
#include <utility>

namespace tokenyard::net {

namespace {

/// [descriptor]: inode of the socket opened there; 0: none. An inode is unique to a socket, so a
/// closed socket is never mistaken for the descriptor's next user.
std::array<ino_t, size_t{1} << 16> sockets;
size_t used = 0;  ///< entries in use
/// Held while a socket is opened and recorded, and across fork(), so that no fork comes in between.
std::mutex making;

ino_t number_of(int descriptor) {
  struct stat about {};
  return fstat(descriptor, &about) == 0 && S_ISSOCK(about.st_mode) ? about.st_ino : 0;
}

/// Runs in the child, which has one thread and may call async-signal-safe functions only.
void release_sockets() {
  const int before = errno;
  const int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (size_t index = 0; index < used; ++index) {
    const ino_t number = std::exchange(sockets[index], 0);
    const int descriptor = static_cast<int>(index);
    if (number == 0 || number_of(descriptor) != number) continue;
    if (nowhere < 0 || dup3(nowhere, descriptor, O_CLOEXEC) < 0) (void)close(descriptor);
  }
  if (nowhere >= 0) (void)close(nowhere);
  errno = before;
}

/// Prevents forks until the lock is released.
std::unique_lock<std::mutex> no_fork() {
  [[maybe_unused]] static const int asked =
      pthread_atfork([] { making.lock(); }, [] { making.unlock(); },
                     [] {
                       release_sockets();
                       making.unlock();
                     });
  return std::unique_lock(making);
}

FileDescriptor noted(int socket) {
  const auto index = static_cast<size_t>(socket);
  if (socket >= 0 && index < sockets.size()) {
    sockets[index] = number_of(socket);
    used = std::max(used, index + 1);
  }
  return FileDescriptor(socket);
}

}  // namespace

FileDescriptor open_socket(int family, int type) {
  const auto lock = no_fork();
  return noted(socket(family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

FileDescriptor accept_socket(int listener) {
  const auto lock = no_fork();
  return noted(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
}

}  // namespace tokenyard::net
