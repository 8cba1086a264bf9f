#include "tokenyard/doctor.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <asio.hpp>
#include <thread>

#include "fabric/host/process_fabric.hpp"
#include "net/listener.hpp"
#include "tokenyard/error.hpp"
#include "world/in_process.hpp"
#include "world/nvidia.hpp"

namespace tokenyard {

namespace {

std::string system_text() {
  utsname names{};
  uname(&names);
  const double bytes =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
  return fmt::format("{} {} {}, {} cores, {:.1f} GiB", names.sysname, names.release, names.machine,
                     std::thread::hardware_concurrency(), bytes / (uint64_t{1} << 30));
}

/// Reports whether a fabric works here: `attempt` throws if not.
template <class Attempt>
FabricFacts tried(std::string name, std::string how, Attempt attempt) {
  try {
    attempt();
    return {std::move(name), true, std::move(how)};
  } catch (const std::exception& error) {
    return {std::move(name), false, error.what()};
  }
}

FabricFacts threads() {
  return {"host, threads", true,
          "one thread per rank; the stacks of simulated CUDA threads end in canaries"};
}

FabricFacts processes() {
  return tried("host, processes", "sealed memfd between processes; ranks meet over TCP", [] {
    check_shared_memory();
    asio::io_context io;
    try {
      (void)net::Listener(io.get_executor(), {asio::ip::address_v4::loopback(), 0});
    } catch (const std::system_error& error) {
      throw OsError("listen on 127.0.0.1", error.code().value(), error.code().message());
    }
  });
}

FabricFacts nvlink_facts(const NvidiaFacts& nvidia) {
  FabricFacts facts{"nvlink", false, ""};
  if (cuda_toolkit().empty()) {
    facts.why = "this build has no CUDA support";
  } else if (nvidia.gpus.empty()) {
    facts.why = nvidia.why_not;
  } else {
    facts.works = true;
    for (const GpuFacts& gpu : nvidia.gpus) {
      for (size_t peer = 0; peer < gpu.links.size(); ++peer) {
        if (gpu.links[peer] != "none") continue;
        facts.why += fmt::format("GPUs {} and {} have no peer access; ", gpu.index, peer);
      }
    }
    facts.why += nvidia.descriptors
                     ? "load/store between GPUs, in one process or several"
                     : "within one process; not between processes: " + nvidia.descriptors_why_not;
  }
  return facts;
}

}  // namespace

Diagnosis doctor() {
  const NvidiaFacts nvidia = ask_nvidia();
  Diagnosis found;
  found.system = system_text();
  found.toolkit = cuda_toolkit().empty() ? "none: built without CUDA" : cuda_toolkit();
  found.driver = nvidia.driver.empty() ? nvidia.why_not : nvidia.driver;
  found.gpus = nvidia.gpus;
  found.fabrics = {threads(),
                   processes(),
                   {"host, simulated", true, "weak memory, faults and virtual time by a seed"},
                   nvlink_facts(nvidia),
                   {"rdma", false, "no fabric connects hosts yet"}};
  return found;
}

std::string Diagnosis::text() const {
  std::string report = fmt::format("system        {}\nCUDA toolkit  {}\nNVIDIA driver {}\n", system,
                                   toolkit, driver);
  for (const GpuFacts& gpu : gpus) {
    report += fmt::format("GPU {:<9} {} {:.0f} GiB, {}; links: {}\n", gpu.index, gpu.name,
                          static_cast<double>(gpu.memory_bytes) / (uint64_t{1} << 30), gpu.uuid,
                          fmt::join(gpu.links, " "));
  }
  report += "\nfabrics\n";
  for (const FabricFacts& fabric : fabrics) {
    report +=
        fmt::format("  {:<3} {:<16} {}\n", fabric.works ? "yes" : "no", fabric.name, fabric.why);
  }
  return report;
}

}  // namespace tokenyard
