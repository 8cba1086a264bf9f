/// The doctor's questions to the machine. Tests answer in its place, so that each broken machine
/// can be had.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tokenyard/doctor.hpp"
#include "tokenyard/world.hpp"
#include "world/nvidia.hpp"

namespace tokenyard {

struct DoctorProbes {
  std::function<NvidiaFacts()> nvidia;
  std::function<std::string()> toolkit;  ///< version of the CUDA toolkit; empty: built without
  std::function<bool()> in_container;
  std::function<void()> share_memory;  ///< maps shared memory as processes do; throws if it cannot
  std::function<void()> listen;        ///< listens on the loopback interface; throws if it cannot
  /// World::in_process.
  std::function<std::vector<std::unique_ptr<World>>(uint32_t, const std::string&,
                                                    const WorldOptions&)>
      worlds;
  std::function<std::string()> network;  ///< the network between hosts as text; throws as it does
  std::function<std::string()> rdma;     ///< its cards as text; throws Unsupported, with what is
                                         ///< missing

  static DoctorProbes of_this_machine();
};

/// Returns the GPUs that CUDA shows to this process, in CUDA's order: rank r of a world in this
/// process is on the r-th, if there are as many as ranks.
std::vector<const GpuFacts*> visible_gpus(const std::vector<GpuFacts>& gpus);

/// Returns what `doctor` returns, from these answers.
Diagnosis diagnose(const DoctorProbes& ask);
/// Returns what `self_test` returns, in these worlds.
std::vector<SelfTest> self_test(const DoctorProbes& ask, const Diagnosis& found,
                                std::chrono::nanoseconds duration);

}  // namespace tokenyard
