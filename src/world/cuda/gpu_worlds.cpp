/// Worlds whose kernels run on GPUs.
#include <fmt/format.h>

#include <algorithm>

#include "device/cuda/accelerator.hpp"
#include "device/cuda/shared_gpu.hpp"
#include "fabric/nvlink/nvlink_fabric.hpp"
#include "fabric/proxy/network_options.hpp"
#include "gin/gin_options.hpp"
#include "ibgda/ibgda_options.hpp"
#include "tokenyard/doctor.hpp"
#include "world/in_process.hpp"
#include "world/parts.hpp"
#include "world/processes.hpp"

namespace tokenyard {

namespace {

/// Throws Unsupported with the doctor's reason and remedy if there is no GPU.
int require_gpus() {
  const int gpus = cuda::gpu_count();
  if (gpus != 0) return gpus;
  for (const FabricFacts& fabric : doctor().fabrics)
    if (fabric.name == "nvlink" && !fabric.works)
      throw Unsupported("device 'cuda'", fmt::format("{}; {}", fabric.why, fabric.remedy));
  throw Unsupported("device 'cuda'",
                    "CUDA finds no GPU that it can use; see whether another program "
                    "holds it (nvidia-smi)");
}

}  // namespace

std::vector<std::unique_ptr<World>> in_process_cuda(const std::vector<uint32_t>& absent,
                                                    uint32_t ranks, const WorldOptions& options) {
  const auto gpus = static_cast<uint32_t>(require_gpus());
  if (options.hosts == 0 || ranks % options.hosts != 0)
    throw InvalidArgument("hosts", fmt::format("a divisor of the {} ranks", ranks),
                          fmt::format("{}", options.hosts));
  const bool by_nccl = gin::asks_for_gin(options.network);
  const bool by_card = by_nccl || ibgda::asks_for_ibgda(options.network);
  if (by_card && options.hosts > 1)
    throw Unsupported(by_nccl ? "network \"gin\"" : "network \"ibgda\"",
                      "ranks that are threads of one process use TCP");
  ProxyNetworkOptions network = by_card ? ProxyNetworkOptions{} : proxy_options_of(options.network);
  if (network.tcp.interfaces.empty()) network.tcp.address = "127.0.0.1";
  std::vector<std::shared_ptr<Accelerator>> accelerators(ranks);
  const auto is_absent = [&](uint32_t rank) { return std::ranges::count(absent, rank) != 0; };
  if (ranks == 1 || ranks <= gpus) {
    for (uint32_t rank = 0; rank < ranks; ++rank)
      if (!is_absent(rank))
        accelerators[rank] =
            std::make_shared<cuda::CudaAccelerator>(static_cast<int>(rank), options.interrupt);
  } else {
    // Half of the timeout: a rank that misses a launch can still be named, before its own deadline.
    const auto gpu = std::make_shared<cuda::SharedGpu>(0, options.timeout / 2);
    for (uint32_t rank = 0; rank < ranks; ++rank)
      if (!is_absent(rank))
        accelerators[rank] =
            std::make_shared<cuda::SharedGpuAccelerator>(gpu, rank, options.interrupt);
  }
  return join_all(accelerators, std::make_shared<nvlink::NvlinkFabric>(options.hosts), options, {},
                  proxy_networks(network));
}

Hardware cuda_hardware(uint32_t local_rank, const Whereabouts& where, const WorldOptions& options) {
  const int gpus = require_gpus();
  // A launcher that shows each process one GPU leaves no choice.
  const uint32_t device = gpus == 1 ? 0 : local_rank;
  if (device >= static_cast<uint32_t>(gpus)) {
    throw InvalidArgument("local_rank", fmt::format("less than the {} GPUs of this process", gpus),
                          fmt::format("{}", local_rank));
  }
  return {.accelerator =
              std::make_shared<cuda::CudaAccelerator>(static_cast<int>(device), options.interrupt),
          .fabric = std::make_shared<nvlink::NvlinkFabric>(where.host_name, where.domain),
          .network = {}};
}

}  // namespace tokenyard
