/// Runs a measurement on every rank of a world, on one thread per rank.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "bench/harness/report.hpp"
#include "device/accelerator.hpp"
#include "fabric/world_access.hpp"
#include "tokenyard/doctor.hpp"
#include "tokenyard/error.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard::bench {

/// Calls World::in_process. Its error tells only whether the build supports CUDA; this one adds
/// whether there is a GPU, and what to do without one.
inline std::vector<std::unique_ptr<World>> worlds_on(uint32_t ranks, const std::string& device,
                                                     const WorldOptions& options = {}) {
  try {
    return World::in_process(ranks, device, options);
  } catch (const Unsupported& error) {
    const Diagnosis here = doctor();
    throw Unsupported(
        error.what_asked,
        fmt::format("{}; --device host measures on the CPU, --smoke a little of it",
                    here.gpus.empty() ? "no GPU is found here (" + here.driver + ")" : error.why));
  }
}

/// Makes worlds, on "cuda" with one GPU per rank: times of ranks that share a GPU say nothing about
/// links or GPUs.
inline std::vector<std::unique_ptr<World>> worlds_apart(uint32_t ranks, const std::string& device,
                                                        WorldOptions options = {}) {
  if (device == "host") options.network = {};  // It is simulated, and has no options.
  auto worlds = worlds_on(ranks, device, options);
  if (accelerator_of(*worlds[0]).capacity().one_grid)
    throw InvalidArgument("ranks", "a GPU for each", fmt::format("{} on fewer", ranks));
  return worlds;
}

/// Returns whether --smoke is given. It sets defaults before the options are parsed, so that each
/// option may override its own.
inline bool asks_for_smoke(int count, char** arguments) {
  return std::find(arguments, arguments + count, std::string("--smoke")) != arguments + count;
}

/// Returns when all ranks have; rethrows the first exception.
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

/// Returns the slowest rank's time of each measurement. Collective.
inline Spread over_ranks(World& world, const std::vector<double>& mine) {
  const auto all = world.all_gather(std::as_bytes(std::span(mine)), "bench: times");
  std::vector<double> slowest(mine.size());
  for (const auto& bytes : all)
    for (size_t i = 0; i < mine.size(); ++i) {
      double us;
      std::memcpy(&us, bytes.data() + i * sizeof us, sizeof us);
      slowest[i] = std::max(slowest[i], us);
    }
  return spread_of(slowest);
}

}  // namespace tokenyard::bench
