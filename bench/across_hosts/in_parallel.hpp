/// Work of the host that is the same for many tokens.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace tokenyard::bench {

/// Runs `body(i)` for all i below `count`, on the threads of this machine; rethrows an exception.
template <class Body>
void in_parallel(size_t count, Body body) {
  std::exception_ptr thrown;
  std::mutex mutex;
  std::atomic<size_t> next = 0;
  {
    std::vector<std::jthread> threads;
    for (uint32_t i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i)
      threads.emplace_back([&] {
        try {
          for (size_t at; (at = next++) < count;) body(at);
        } catch (...) {
          const std::lock_guard lock(mutex);
          thrown = std::current_exception();
        }
      });
  }
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace tokenyard::bench
