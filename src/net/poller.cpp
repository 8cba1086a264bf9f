#include "net/poller.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/os_failure.hpp"

namespace tokenyard::net {

Poller::Poller()
    : set_(epoll_create1(EPOLL_CLOEXEC)), waker_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!set_) os_failed("epoll_create1");
  if (!waker_) os_failed("eventfd");
  watch_arrivals(waker_.native());
}

void Poller::watch_arrivals(int descriptor) {
  watch(descriptor, EPOLLIN | EPOLLRDHUP);
}

void Poller::watch_arrivals_and_room(int descriptor) {
  watch(descriptor, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
}

void Poller::watch(int descriptor, uint32_t events) {
  epoll_event event{};
  event.events = events | EPOLLET;
  event.data.fd = descriptor;
  if (epoll_ctl(set_.native(), EPOLL_CTL_ADD, descriptor, &event) != 0) os_failed("epoll_ctl");
}

void Poller::sleep(std::chrono::nanoseconds at_most) {
  using std::chrono::milliseconds;
  const auto time = std::clamp(std::chrono::ceil<milliseconds>(at_most), milliseconds(0),
                               milliseconds(std::chrono::hours(1)));
  std::array<epoll_event, 64> events;  // polling finds out which descriptors are ready
  // A signal ends the sleep early, which is harmless: callers poll after each sleep.
  (void)epoll_wait(set_.native(), events.data(), static_cast<int>(events.size()),
                   static_cast<int>(time.count()));
}

void Poller::wake() {
  // The counter is never read: each write is a new edge, and 64 bits cannot overflow.
  const uint64_t one = 1;
  (void)!::write(waker_.native(), &one, sizeof one);
}

}  // namespace tokenyard::net
