#include "fabric/nvlink/nvlink_fabric.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "device/cuda/accelerator.hpp"
#include "device/cuda/owners.hpp"
#include "device/cuda/runtime.hpp"
#include "fabric/fd_exchange.hpp"
#include "fabric/host/in_process_fabric.hpp"
#include "fabric/host/process_fabric.hpp"
#include "fabric/nvlink/gpu_link.hpp"
#include "fabric/nvlink/gpu_memory.hpp"
#include "fabric/nvlink_clique.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::nvlink {

namespace {

using Memories = std::vector<std::shared_ptr<MappedMemory>>;

/// Published by each rank before any memory is mapped.
struct Stand {
  std::string uuid;                ///< empty: the rank is absent
  int device = -1;                 ///< number of its GPU in its own process
  size_t bytes = 0;                ///< size of its physical memory
  std::string problem;             ///< why it cannot continue; empty if it can
  std::string fabric_handle = {};  ///< of its memory, in hexadecimal; empty: it has none
};

/// Returns the hexadecimal digits of a handle.
std::string text_of(const CUmemFabricHandle& handle) {
  return fmt::format("{:02x}", fmt::join(handle.data, ""));
}
/// Throws OsError for other text.
CUmemFabricHandle handle_of(const std::string& text) {
  CUmemFabricHandle handle{};
  bool is_right = text.size() == 2 * sizeof handle.data;
  for (size_t at = 0; is_right && at < sizeof handle.data; ++at) {
    const char* const digits = text.data() + 2 * at;
    is_right = std::from_chars(digits, digits + 2, handle.data[at], 16).ptr == digits + 2;
  }
  if (!is_right) throw OsError("a fabric handle", EINVAL, "it has other bytes");
  return handle;
}

void to_json(nlohmann::json& json, const Stand& stand) {
  json = {stand.uuid, stand.device, stand.bytes, stand.problem, stand.fabric_handle};
}
void from_json(const nlohmann::json& json, Stand& stand) {
  json.at(0).get_to(stand.uuid);
  json.at(1).get_to(stand.device);
  json.at(2).get_to(stand.bytes);
  json.at(3).get_to(stand.problem);
  json.at(4).get_to(stand.fabric_handle);
}

std::vector<Stand> gather(Bootstrap& bootstrap, const Stand& mine, const std::string& what,
                          TimePoint until) {
  const std::string text = nlohmann::json(mine).dump();
  std::vector<Stand> stands;
  for (const auto& bytes : bootstrap.all_gather(std::as_bytes(std::span(text)), what, until)) {
    if (!bootstrap.present(static_cast<uint32_t>(stands.size()))) {
      stands.emplace_back();
      continue;
    }
    const auto* begin = reinterpret_cast<const char*>(bytes.data());
    const auto json = nlohmann::json::parse(begin, begin + bytes.size(), nullptr, false);
    try {
      stands.push_back(json.get<Stand>());
    } catch (const nlohmann::json::exception&) {
      throw InvalidArgument("arena", "a description of a GPU's memory", "something else",
                            static_cast<uint32_t>(stands.size()));
    }
  }
  for (uint32_t rank = 0; rank < stands.size(); ++rank) {
    if (stands[rank].problem.empty()) continue;
    throw Unsupported("a world of device 'cuda'",
                      fmt::format("rank {}: {}", rank, stands[rank].problem));
  }
  return stands;
}

/// Throws Unsupported if two processes use one GPU: their kernels would wait for kernels that the
/// GPU runs only after them.
void refuse_shared_gpus(const std::vector<Stand>& stands) {
  for (uint32_t rank = 0; rank < stands.size(); ++rank) {
    for (uint32_t other = 0; other < rank; ++other) {
      // An absent rank has no GPU.
      if (stands[other].uuid != stands[rank].uuid || stands[rank].uuid.empty()) continue;
      throw Unsupported("two processes on one GPU",
                        fmt::format("ranks {} and {} both use {}; ranks that share a GPU must be "
                                    "threads of one process",
                                    other, rank, stands[rank].uuid));
    }
  }
}

void zero(const Accelerator& accelerator, const MappedMemory& memory) {
  const cuda::OnDevice on_device(accelerator.device_index());
  const cuda::OwnedStream stream = cuda::make_stream();
  cuda::check(cudaMemsetAsync(memory.base(), 0, memory.bytes(), stream.get()),
              "cudaMemsetAsync of the arena");
  cuda::check(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
}

/// Returns every rank's memory, where all ranks are threads of this process: each owner maps its
/// own for all GPUs that reach it.
Memories share_in_process(Bootstrap& bootstrap, const PhysicalMemory& physical, int device,
                          const std::vector<Stand>& stands, TimePoint until) {
  std::vector<int> devices{device};
  for (const Stand& stand : stands) {
    if (stand.uuid.empty()) continue;
    const bool known = std::find(devices.begin(), devices.end(), stand.device) != devices.end();
    if (!known && reach_of(stand.device, stands[bootstrap.rank()].uuid).reach == Reach::load_store)
      devices.push_back(stand.device);
  }
  auto mine = std::make_shared<MappedMemory>(physical, devices);
  zero(bootstrap.accelerator(), *mine);
  Memories memories;
  for (const auto& memory : bootstrap.share(mine, "arenas", until))
    memories.push_back(std::static_pointer_cast<MappedMemory>(memory));
  return memories;
}

/// Returns whether two ranks' memory is mapped by handles of the NVLink network.
bool uses_fabric(const Stand& one, const Stand& other) {
  return !one.fabric_handle.empty() && !other.fabric_handle.empty();
}

/// Returns whether a GPU exports memory to an NVLink network.
bool exports_to_fabric(int device) {
  try {
    const cuda::OnDevice on_device(device);
    cuda::check(cudaFree(nullptr), "cudaFree(nullptr)");  // As in `prepare`.
    const PhysicalMemory memory(Driver::load(), device, 1, true);
    (void)memory.export_to_fabric();
    return true;
  } catch (const Error&) {
    return false;  // No such GPU, or this process may not.
  }
}

/// Returns every rank's memory, where each rank is a process; null where mapping failed, with the
/// reason in `peers`.
Memories share_between_processes(Bootstrap& bootstrap, const PhysicalMemory& physical, int device,
                                 const std::vector<Stand>& stands, std::vector<PeerReach>& peers,
                                 const std::vector<bool>& near, const std::vector<bool>& on_machine,
                                 TimePoint until) {
  auto mine = std::make_shared<MappedMemory>(physical, std::vector<int>{device});
  zero(bootstrap.accelerator(), *mine);
  const FileDescriptor exported = physical.export_fd();
  // Descriptors do not pass between machines.
  std::vector<bool> by_descriptor = near;
  for (uint32_t rank = 0; rank < stands.size(); ++rank) {
    const bool by_fabric = uses_fabric(stands[bootstrap.rank()], stands[rank]);
    by_descriptor[rank] = near[rank] && on_machine[rank] && !by_fabric;
    if (!near[rank] || on_machine[rank] || by_fabric) continue;
    peers[rank] = {.reach = Reach::none,
                   .how = "",
                   .why_not =
                       "it is in this domain, but its GPU or this one exports no memory to "
                       "the NVLink network (is /dev/nvidia-caps-imex-channels there?)"};
  }
  const auto descriptors =
      exchange_fds(bootstrap, exported.native(), "arenas", until, by_descriptor);
  Memories memories(stands.size());
  for (uint32_t rank = 0; rank < stands.size(); ++rank) {
    if (rank == bootstrap.rank()) {
      memories[rank] = mine;
    } else if (peers[rank].reach == Reach::load_store) {
      try {
        // The handle may be released once the memory is mapped: a mapping keeps it alive.
        const auto theirs =
            by_descriptor[rank]
                ? std::make_unique<PhysicalMemory>(physical.driver(), descriptors[rank],
                                                   stands[rank].bytes)
                : std::make_unique<PhysicalMemory>(
                      physical.driver(), handle_of(stands[rank].fabric_handle), stands[rank].bytes);
        memories[rank] = std::make_shared<MappedMemory>(*theirs, std::vector<int>{device});
        if (!by_descriptor[rank]) peers[rank].how = "NVLink network of several hosts";
      } catch (const OsError& error) {
        peers[rank] = {.reach = Reach::none,
                       .how = "",
                       .why_not = fmt::format("its memory cannot be mapped: {}", error.what())};
      }
    }
  }
  return memories;
}

}  // namespace

std::vector<uint32_t> NvlinkFabric::hosts(Bootstrap& bootstrap, TimePoint until) {
  if (hosts_ != 1) return hosts_of_equal_size(bootstrap, hosts_);
  const int device = bootstrap.accelerator().device_index();
  if (!can_export_) {
    // NVML takes long to start, and is not asked where no handle could be made.
    can_export_ =
        domain_ != kOwnHost && !bootstrap.mesh()->one_process() && exports_to_fabric(device);
    if (*can_export_ && domain_.empty()) clique_ = clique_of(cuda::gpu_uuid(device));
  }
  const Whereabouts where{.host_name = host_name_, .domain = domain_.empty() ? clique_ : domain_};
  exports_to_fabric_ = *can_export_ && !where.domain.empty();
  HostsFound found = hosts_by_name(bootstrap, where, "device 'cuda'", until, true);
  hosts_are_machines_ = true;
  for (uint32_t rank = 0; rank < found.host_of.size(); ++rank)
    for (uint32_t other = 0; other < rank; ++other)
      if (found.host_of[rank] == found.host_of[other] &&
          found.machine_of[rank] != found.machine_of[other])
        hosts_are_machines_ = false;
  machine_of_ = std::move(found.machine_of);
  return std::move(found.host_of);
}

Ground NvlinkFabric::prepare(Bootstrap& bootstrap, const FabricRequest& request, TimePoint until) {
  const int device = bootstrap.accelerator().device_index();
  const uint32_t rank = bootstrap.rank();
  const cuda::OnDevice on_device(device);
  // Makes the GPU's context current on this thread, as the driver's calls require.
  cuda::check(cudaFree(nullptr), "cudaFree(nullptr)");

  Stand mine{.uuid = "", .device = device, .bytes = 0, .problem = ""};
  std::unique_ptr<PhysicalMemory> physical;
  try {
    mine.uuid = cuda::gpu_uuid(device);
    physical = std::make_unique<PhysicalMemory>(Driver::load(), device, request.arena_bytes,
                                                exports_to_fabric_);
    mine.bytes = physical->bytes();
    if (exports_to_fabric_) mine.fabric_handle = text_of(physical->export_to_fabric());
  } catch (const Error& error) {
    mine.problem = error.what();
  }
  const std::vector<Stand> stands = gather(bootstrap, mine, "GPUs", until);
  const bool one_process = bootstrap.mesh()->one_process();
  if (!one_process) refuse_shared_gpus(stands);

  Ground ground;
  std::vector<bool> near, on_machine;
  for (uint32_t peer = 0; peer < stands.size(); ++peer) {
    near.push_back(request.host_of[peer] == request.host_of[rank]);
    on_machine.push_back(machine_of_.empty() || machine_of_[peer] == machine_of_[rank]);
    if (stands[peer].uuid.empty()) {
      ground.peers.push_back(absent_peer());
    } else if (!near[peer]) {
      ground.peers.push_back({.reach = Reach::put_signal, .how = "", .why_not = kOnAnotherHost});
    } else {
      ground.peers.push_back(reach_of(device, stands[peer].uuid));
    }
  }
  ground.peers[rank] = {.reach = Reach::self, .how = "itself", .why_not = ""};
  const Memories memories = one_process
                                ? share_in_process(bootstrap, *physical, device, stands, until)
                                : share_between_processes(bootstrap, *physical, device, stands,
                                                          ground.peers, near, on_machine, until);
  for (uint32_t peer = 0; peer < stands.size(); ++peer) {
    const Reach reach = ground.peers[peer].reach;
    const bool reached = (reach == Reach::self || reach == Reach::load_store) && memories[peer];
    ground.region.bases.push_back(reached ? memories[peer]->base() : nullptr);
  }
  ground.region.base = ground.region.bases[rank];
  ground.region.bytes = request.arena_bytes;
  ground.region.rank = rank;
  ground.region.memory = std::make_shared<Memories>(memories);
  return ground;
}

}  // namespace tokenyard::nvlink
