/// Jobs and worlds with one process per rank.
#include "world/processes.hpp"

#include <fmt/format.h>

#include <numeric>

#include "base/environment.hpp"
#include "control/host_secret.hpp"
#include "control/memory_store.hpp"
#include "fabric/host/process_fabric.hpp"
#include "fabric/proxy/network_options.hpp"
#include "fabric/replacement.hpp"
#include "gin/gin_network.hpp"
#include "ibgda/ibgda_network.hpp"
#include "job/job_state.hpp"
#include "net/key.hpp"
#include "simt/host_accelerator.hpp"

namespace tokenyard {

namespace {

constexpr size_t kJobMax = 256;
/// Time for the goodbye of a world's own job, after which nobody waits for this process.
constexpr std::chrono::seconds kGoodbyeMax{2};

void check(const MeetingPlace& where) {
  if (where.size == 0) throw InvalidArgument("size", "at least 1", "0");
  if (where.rank >= where.size) {
    throw InvalidArgument("rank", fmt::format("below {}", where.size),
                          fmt::format("{}", where.rank));
  }
  if (where.job.empty() || where.job.size() > kJobMax) {
    throw InvalidArgument("job", fmt::format("a name of 1 to {} bytes", kJobMax),
                          fmt::format("{} bytes", where.job.size()));
  }
  if (where.host.empty()) throw InvalidArgument("host", "a host name or an address", "nothing");
  if (where.size > 1 && where.port == 0) {
    throw InvalidArgument("port", "a port that all ranks know", "0");
  }
}

/// Returns what makes the network that the options ask for. `gpu`: runs the kernels; null: the
/// host.
MakeNetwork network_of(const NetworkOptions& options, const Accelerator* gpu, uint32_t local_rank) {
  if (gin::asks_for_gin(options)) return gin::gin_networks(gin::gin_options_of(options));
  if (!ibgda::asks_for_ibgda(options)) {
    ProxyNetworkOptions chosen = proxy_options_of(options, local_rank);
    if (gpu != nullptr) chosen.gpu = card_registers(*gpu);
    return proxy_networks(chosen);
  }
  ibgda::IbgdaOptions chosen = ibgda::ibgda_options_of(options, local_rank);
  if (gpu != nullptr) chosen.gpu = card_registers(*gpu);
  return ibgda::ibgda_networks(chosen);
}

Hardware hardware_of(const std::string& device, uint32_t local_rank, const std::string& host_name,
                     const WorldOptions& options) {
  check_options(options);
  if (options.hosts != 1) {
    throw InvalidArgument(
        "hosts", "1: only worlds in one process simulate hosts; processes have a host_name",
        fmt::format("{}", options.hosts));
  }
  const Whereabouts where{.host_name = host_name, .domain = domain_name().value_or("")};
  const MakeNetwork network = network_of(options.network, nullptr, local_rank);
  const auto on_gpu = [&](uint32_t number) {
    Hardware hardware = cuda_hardware(number, where, options);
    hardware.network = network_of(options.network, hardware.accelerator.get(), number);
    return hardware;
  };
  // "cuda:1" names the GPU.
  if (const size_t colon = device.find(':'); colon != std::string::npos) {
    const std::string index = device.substr(colon + 1);
    const bool is_number = !index.empty() && index.size() < 6 &&
                           index.find_first_not_of("0123456789") == std::string::npos;
    if (device.substr(0, colon) == "cuda" && is_number)
      return on_gpu(static_cast<uint32_t>(std::stoul(index)));
  }
  if (device == "cuda") return on_gpu(local_rank);
  if (device != "host") throw InvalidArgument("device", "'host' or 'cuda'", "'" + device + "'");
  return {.accelerator = std::make_shared<simt::HostAccelerator>(options.interrupt),
          .fabric = std::make_shared<ProcessFabric>(where.host_name, where.domain),
          .network = network};
}

std::unique_ptr<World> connect_or_join(const MeetingPlace& where, const std::string& device,
                                       const WorldOptions& options, bool joins,
                                       const std::vector<uint32_t>& slots) {
  const std::string host_name =
      where.host_name.empty() ? tokenyard::host_name().value_or("") : where.host_name;
  const Hardware hardware = hardware_of(device, where.local_rank, host_name, options);
  return join_job(connect_job(where, options, joins), hardware, options, {}, slots);
}

}  // namespace

std::shared_ptr<Job> connect_job(const MeetingPlace& where, const WorldOptions& world, bool joins) {
  check(where);
  const bool serves = where.rank == 0 && !joins;
  const bool is_ipv6 = where.host.find(':') != std::string::npos;
  const std::string place =
      fmt::format("{}:{}", is_ipv6 ? "[" + where.host + "]" : where.host, where.port);
  JobOptions options;
  options.store = "tcp://" + place;
  options.host_store = serves;
  options.job = where.job;
  options.host = where.host_name;
  options.rank = where.rank;
  options.size = where.size;
  options.local_rank = where.local_rank;
  options.timeout =
      world.rendezvous_timeout.count() != 0 ? world.rendezvous_timeout : world.timeout;
  options.interrupt = world.interrupt;
  JobTerms terms{.witness_in_memory = true, .sole_host = serves, .farewell = kGoodbyeMax};
  if (joins) terms.entrance = JobTerms::Entrance::join;
  if (where.size == 1 && !joins) {
    options.own_store = std::make_shared<control::MemoryStore>();
    options.address = "127.0.0.1";
    options.secret = fmt::format("{:016x}", net::random_number());
    terms.entrance = JobTerms::Entrance::alone;
  } else {
    options.secret = where.secret;
    if (options.secret.empty()) options.secret = control::secret_in_environment().value_or("");
    if (options.secret.empty()) options.secret = control::host_secret();
  }
  const auto start = std::chrono::steady_clock::now();
  try {
    const auto job = std::make_shared<Job>(std::make_shared<Job::State>(options, terms));
    job->state()->control().await_links();
    return job;
  } catch (const OsError& error) {
    if (serves) throw;
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
    throw PeerTimeout(
        {.rank = 0,
         .phase = fmt::format("rendezvous: connect to rank 0 at {} ({})", place, error.what()),
         .expected = where.size - 1,
         .seen = 0,
         .waited_s = waited.count()});
  }
}

std::unique_ptr<World> connect_world(const MeetingPlace& where, const std::string& device,
                                     const WorldOptions& options) {
  return connect_or_join(where, device, options, false, {});
}

std::unique_ptr<World> connect_as_replacement(const MeetingPlace& where,
                                              const std::vector<uint32_t>& slots,
                                              const std::string& device,
                                              const WorldOptions& options) {
  std::vector<uint32_t> all(where.size);
  std::iota(all.begin(), all.end(), 0u);
  return connect_or_join(where, device, options, true, slots == all ? decltype(all)() : slots);
}

std::unique_ptr<World> Job::world(const std::string& device, const WorldOptions& options) {
  const JobOptions& own = state_->options;
  return join_job(shared_from_this(),
                  hardware_of(device, own.local_rank.value_or(own.rank), own.host, options),
                  options);
}

}  // namespace tokenyard
