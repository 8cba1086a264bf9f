/// Runs a function for every rank on its own thread, and collects the exceptions.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

namespace tokenyard {

/// Returns [ranks] the exception of each rank's function, or null.
inline std::vector<std::exception_ptr> run_ranks(uint32_t ranks,
                                                 const std::function<void(uint32_t)>& body) {
  std::vector<std::exception_ptr> failures(ranks);
  {
    std::vector<std::jthread> threads;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          body(rank);
        } catch (...) {
          failures[rank] = std::current_exception();
        }
      });
    }
  }
  return failures;
}

/// Calls run_ranks with a function that should not throw.
inline void on_every_rank(uint32_t ranks, const std::function<void(uint32_t)>& body) {
  for (const std::exception_ptr& failure : run_ranks(ranks, body)) {
    if (failure) std::rethrow_exception(failure);
  }
}

/// Returns the error of type E in `failure`, or null if it holds another.
template <class E, class Inspect>
bool holds(const std::exception_ptr& failure, Inspect inspect) {
  if (!failure) return false;
  try {
    std::rethrow_exception(failure);
  } catch (const E& error) {
    inspect(error);
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace tokenyard
