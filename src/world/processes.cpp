/// Worlds with one process per rank.
#include "world/processes.hpp"

#include <fmt/format.h>

#include "fabric/host/process_fabric.hpp"
#include "fabric/tcp/mesh.hpp"
#include "simt/host_accelerator.hpp"
#include "world/parts.hpp"

namespace tokenyard {

std::chrono::nanoseconds rendezvous_timeout(const WorldOptions& options) {
  return options.rendezvous_timeout.count() != 0 ? options.rendezvous_timeout : options.timeout;
}

std::unique_ptr<World> World::connect(const Rendezvous& rendezvous, const std::string& device,
                                      const WorldOptions& options) {
  if (options.hosts != 1) {
    throw InvalidArgument("hosts", "1: only worlds in one process simulate hosts",
                          fmt::format("{}", options.hosts));
  }
  if (device == "cuda") return connect_cuda(rendezvous, options);
  if (device != "host") throw InvalidArgument("device", "'host' or 'cuda'", "'" + device + "'");
  auto accelerator = std::make_shared<simt::HostAccelerator>(options.interrupt);
  auto mesh = tcp::TcpMesh::connect(rendezvous, *accelerator,
                                    accelerator->now() + rendezvous_timeout(options));
  return join(std::move(mesh), std::move(accelerator), std::make_shared<ProcessFabric>(), options,
              std::make_shared<const AbsenceWatch>());
}

}  // namespace tokenyard
