/// Runs a measurement on every rank of a world, a thread each.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tokenyard/world.hpp"

namespace tokenyard::bench {

/// Returns when all have; throws what was thrown first.
inline void on_each_rank(const std::vector<std::unique_ptr<World>>& worlds,
                         const std::function<void(World&)>& body) {
  std::mutex mutex;
  std::exception_ptr failure;
  std::vector<std::thread> threads;
  for (const auto& world : worlds)
    threads.emplace_back([&] {
      try {
        body(*world);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace tokenyard::bench
