/// Worlds with one process per rank.
#include "world/processes.hpp"

#include <fmt/format.h>

#include "fabric/host/process_fabric.hpp"
#include "simt/host_accelerator.hpp"
#include "world/parts.hpp"
#include "world/process_ranks.hpp"

namespace tokenyard {

std::unique_ptr<World> World::connect(const Rendezvous& rendezvous, const std::string& device,
                                      const WorldOptions& options) {
  if (options.hosts != 1) {
    throw InvalidArgument("hosts", "1: only worlds in one process simulate hosts",
                          fmt::format("{}", options.hosts));
  }
  if (device == "cuda") return connect_cuda(rendezvous, options);
  if (device != "host") throw InvalidArgument("device", "'host' or 'cuda'", "'" + device + "'");
  auto accelerator = std::make_shared<simt::HostAccelerator>(options.interrupt);
  return join(ProcessRanks::connect(rendezvous, options), std::move(accelerator),
              std::make_shared<ProcessFabric>(), options, std::make_shared<const AbsenceWatch>());
}

}  // namespace tokenyard
