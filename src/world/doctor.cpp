#include "tokenyard/doctor.hpp"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <asio.hpp>
#include <filesystem>
#include <thread>

#include "fabric/host/process_fabric.hpp"
#include "fabric/proxy/network_options.hpp"
#include "gin/gin_options.hpp"
#include "ibgda/driver_plugin.hpp"
#include "ibgda/ibgda_options.hpp"
#include "net/listener.hpp"
#include "tokenyard/error.hpp"
#include "world/doctor_probes.hpp"
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

void listen_on_loopback() {
  asio::io_context io;
  try {
    (void)net::Listener(io.get_executor(), {asio::ip::address_v4::loopback(), 0});
  } catch (const std::system_error& error) {
    throw OsError("listen on 127.0.0.1", error.code().value(), error.code().message());
  }
}

bool runs_in_container() {
  // docker's and podman's marks.
  return std::filesystem::exists("/.dockerenv") || std::filesystem::exists("/run/.containerenv");
}

FabricFacts threads() {
  return {"host, threads", true,
          "one thread per rank; the stacks of simulated CUDA threads end in canaries", ""};
}

FabricFacts processes(const DoctorProbes& ask) {
  const std::string name = "host, processes";
  try {
    ask.share_memory();
  } catch (const std::exception& error) {
    return {name, false, error.what(),
            "free memory, or raise the container's limit (docker run --memory); until then threads "
            "do: tokenyard.launch(..., processes=False)"};
  }
  try {
    ask.listen();
  } catch (const std::exception& error) {
    return {name, false, error.what(), "sudo ip link set lo up"};
  }
  return {name, true, "sealed memfd between processes; ranks meet over TCP", ""};
}

FabricFacts between_hosts(const DoctorProbes& ask) {
  const std::string name = "network";
  try {
    return {name, true, ask.network(), ""};
  } catch (const InvalidArgument& error) {
    return {name, false, error.what(),
            fmt::format("unset {}, or set it to {}", error.argument, error.expected)};
  } catch (const std::exception& error) {
    return {name, false, error.what(), "sudo ip link set dev INTERFACE up"};
  }
}

FabricFacts rdma_facts(const DoctorProbes& ask) {
  const std::string name = "rdma";
  try {
    return {name, true, ask.rdma(), ""};
  } catch (const Unsupported& error) {
    const bool has_plugin = error.what_asked.find("plug-in") == std::string::npos;
    return {name, false, error.why,
            has_plugin ? "bring a port up (ibstat, sudo ip link set dev INTERFACE up); until then "
                         "hosts are connected over TCP"
                       : "on a machine with mlx5 cards: cmake --build TREE --target "
                         "tokenyard_ibgda_plugin (Debian: libibverbs-dev), and put it beside "
                         "Tokenyard's library; hosts are connected over TCP"};
  } catch (const std::exception& error) {
    return {name, false, error.what(), "ibv_devinfo tells more; hosts are connected over TCP"};
  }
}

/// Returns the command that makes NVIDIA's driver answer.
std::string remedy_without_gpu(const NvidiaFacts& nvidia, bool in_container) {
  if (in_container) {
    return "start the container with GPUs (docker run --gpus all); without GPUs use "
           "device=\"host\"";
  }
  switch (nvidia.missing) {
    case NvidiaFacts::Missing::library:
      return "on a machine with NVIDIA GPUs install the driver (sudo apt-get install "
             "nvidia-driver); without GPUs use device=\"host\"";
    case NvidiaFacts::Missing::driver:
      return "sudo modprobe nvidia; after an update of the driver, reboot";
    case NvidiaFacts::Missing::gpu:
    case NvidiaFacts::Missing::nothing:
      break;
  }
  return "see whether the machine has one (lspci -d 10de:); without GPUs use device=\"host\"";
}

/// Returns what makes CUDA show this process all GPUs of the machine.
std::string remedy_of_hidden(const NvidiaFacts& nvidia) {
  if (!nvidia.visible_devices) {
    return "reboot after an update of the driver: libcuda.so.1 and the kernel's module must have "
           "one version";
  }
  return fmt::format("for all GPUs: unset CUDA_VISIBLE_DEVICES (now '{}')",
                     *nvidia.visible_devices);
}

FabricFacts nvlink_facts(const DoctorProbes& ask, const NvidiaFacts& nvidia) {
  FabricFacts facts{"nvlink", false, "", ""};
  if (nvidia.gpus.empty()) {
    facts.why = nvidia.why_not;
    facts.remedy = remedy_without_gpu(nvidia, ask.in_container());
    return facts;
  }
  if (ask.toolkit().empty()) {
    facts.why = "this build has no CUDA support";
    facts.remedy =
        "with nvcc on PATH: pip install . -Ccmake.define.TOKENYARD_CUDA=ON (C++: cmake "
        "-DTOKENYARD_CUDA=ON)";
    return facts;
  }
  const std::vector<const GpuFacts*> usable = visible_gpus(nvidia.gpus);
  if (usable.empty()) {
    facts.why = nvidia.cuda_why_not;
    facts.remedy = remedy_of_hidden(nvidia);
    return facts;
  }
  facts.works = true;
  for (const GpuFacts* gpu : usable) {
    for (const GpuFacts* peer : usable) {
      if (gpu->links[peer->index] != "none") continue;
      facts.why += fmt::format("GPUs {} and {} have no peer access; ", gpu->index, peer->index);
      facts.remedy =
          "use GPUs that reach each other (CUDA_VISIBLE_DEVICES; nvidia-smi topo -p2p r shows "
          "which)";
    }
  }
  if (usable.size() < nvidia.gpus.size()) {
    facts.why += fmt::format("CUDA shows this process {} of the machine's {} GPUs; ", usable.size(),
                             nvidia.gpus.size());
    if (!facts.remedy.empty()) facts.remedy += "; ";
    facts.remedy += remedy_of_hidden(nvidia);
  }
  if (nvidia.descriptors) {
    facts.why += "load/store between GPUs, in one process or several";
    return facts;
  }
  facts.why += "within one process; not between processes: " + nvidia.descriptors_why_not;
  if (!facts.remedy.empty()) facts.remedy += "; ";
  facts.remedy +=
      "all GPUs in one process: tokenyard.launch(..., device=\"cuda\", processes=False)";
  return facts;
}

}  // namespace

std::vector<const GpuFacts*> visible_gpus(const std::vector<GpuFacts>& gpus) {
  std::vector<const GpuFacts*> visible;
  for (const GpuFacts& gpu : gpus)
    if (gpu.cuda_index >= 0) visible.push_back(&gpu);
  std::sort(visible.begin(), visible.end(), [](const GpuFacts* one, const GpuFacts* other) {
    return one->cuda_index < other->cuda_index;
  });
  return visible;
}

DoctorProbes DoctorProbes::of_this_machine() {
  return {.nvidia = ask_nvidia,
          .toolkit = cuda_toolkit,
          .in_container = runs_in_container,
          .share_memory = check_shared_memory,
          .listen = listen_on_loopback,
          .worlds = World::in_process,
          .network =
              [] {
                if (gin::asks_for_gin({})) return gin::gin_options_text();
                return ibgda::asks_for_ibgda({}) ? ibgda::options_text() : network_text();
              },
          .rdma = ibgda::rdma_text};
}

Diagnosis diagnose(const DoctorProbes& ask) {
  const NvidiaFacts nvidia = ask.nvidia();
  const std::string toolkit = ask.toolkit();
  Diagnosis found;
  found.system = system_text();
  found.toolkit = toolkit.empty() ? "none: built without CUDA" : toolkit;
  found.driver = nvidia.driver.empty() ? nvidia.why_not : nvidia.driver;
  found.gpus = nvidia.gpus;
  found.fabrics = {threads(),
                   processes(ask),
                   {"host, simulated", true, "weak memory, faults and virtual time by a seed", ""},
                   nvlink_facts(ask, nvidia),
                   between_hosts(ask),
                   rdma_facts(ask)};
  return found;
}

Diagnosis doctor() {
  return diagnose(DoctorProbes::of_this_machine());
}

std::vector<SelfTest> self_test(const Diagnosis& found, std::chrono::nanoseconds duration) {
  return self_test(DoctorProbes::of_this_machine(), found, duration);
}

}  // namespace tokenyard
