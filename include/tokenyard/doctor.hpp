/// Diagnoses this machine: what works, why the rest does not, and what to do about it.
///
///     tokenyard::Diagnosis found = tokenyard::doctor();
///     found.self_tests = tokenyard::self_test(found);
///     std::puts(found.text().c_str());
///
/// And times the network of a world: `time_peers`.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace tokenyard {

class World;

struct GpuFacts {
  uint32_t index = 0;  ///< among the machine's GPUs, as nvidia-smi counts them
  /// Number by which CUDA knows it in this process; -1: CUDA does not show it to this process.
  int32_t cuda_index = -1;
  std::string name, uuid;
  std::string domain = {};  ///< name of its NVLink network over several hosts; empty: it is in none
  uint64_t memory_bytes = 0;
  std::vector<std::string> links;  ///< [GPUs] "NV18", "PCIe peer", "none"; "-" for the GPU itself
  /// Bytes per second and direction of its active NVLinks together, as the driver states them,
  /// packet headers included; 0: none, or not stated.
  double link_bytes_per_second = 0;
};

struct FabricFacts {
  std::string name;
  bool works = false;
  std::string why;     ///< why it works or does not
  std::string remedy;  ///< command or option for what does not work; empty if all of it does
};

/// The result of a dispatch and a combine among ranks of this machine, checked, then timed.
struct SelfTest {
  std::string device;  ///< "host" or "cuda"
  uint32_t ranks = 0;
  std::string how;  ///< how rank 0 reaches rank 1
  /// Bytes of rows per second that a rank received from other ranks, on the slowest rank; 0 if the
  /// test failed.
  double dispatch_bytes_per_second = 0, combine_bytes_per_second = 0;
  double link_bytes_per_second = 0;  ///< of a rank's GPU; 0: no link between the ranks, or unknown
  std::string error;                 ///< why it failed; empty if it passed
  std::string remedy;                ///< command or option against the error

  /// Returns the share of the link that the faster call achieved, 0 to 1; 0 without a link.
  double link_share() const;
};

struct Diagnosis {
  std::string system;   ///< kernel, cores, memory
  std::string toolkit;  ///< CUDA toolkit that the library was built with
  std::string driver;   ///< NVIDIA's driver, or why there is none
  std::vector<GpuFacts> gpus;
  std::vector<FabricFacts> fabrics;
  std::vector<SelfTest> self_tests = {};  ///< empty: not made

  std::string text() const;  ///< human-readable; ends with what to do
  /// Returns a JSON object whose keys are the names of these fields, and of `version`. Keys are
  /// added in later versions, and none is renamed or removed.
  std::string json() const;
};

/// Inspects the machine without changing anything. Reports missing parts rather than throw.
Diagnosis doctor();

/// Dispatches and combines among threads of this host and, where `found` has GPUs that CUDA shows
/// to this process and this build supports them, among these, each for about `duration`. Reports
/// failures rather than throw.
std::vector<SelfTest> self_test(const Diagnosis& found,
                                std::chrono::nanoseconds duration = std::chrono::seconds(1));

/// How fast this rank's network reaches another rank.
struct PeerTimes {
  uint32_t rank = 0;            ///< the other one
  std::string how;              ///< see PeerReach
  double round_trip_us = 0;     ///< of a put of 8 bytes and its signal, both ways; the median of 64
  double bytes_per_second = 0;  ///< of puts of 1 MiB from this rank
  std::string error;            ///< why it could not be measured; empty if it was
};

/// Collective. Times put and signal to each rank that this one reaches only so: a pair of ranks
/// after the other, as many pairs at a time as there are. `timeout`: of a pair, at most the
/// world's. A rank that does not answer is told in `error`. Takes one of the network's queues and
/// about 2 MiB of the arena meanwhile. Throws, alike on all ranks, if these are missing.
std::vector<PeerTimes> time_peers(World& world, std::chrono::nanoseconds timeout);

}  // namespace tokenyard
