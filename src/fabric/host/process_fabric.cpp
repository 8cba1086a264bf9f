#include "fabric/host/process_fabric.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>
#include <tuple>
#include <utility>

#include "base/mapping.hpp"
#include "base/os_failure.hpp"
#include "base/sealed_memory.hpp"
#include "fabric/collective_step.hpp"
#include "fabric/fd_exchange.hpp"
#include "fabric/gather.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {

namespace {

constexpr const char* kArena = "tokenyard-arena";

Mapping map_peer(const FileDescriptor& memory, size_t expected, uint32_t rank) {
  const auto bytes = sealed_bytes(memory);
  if (!bytes) throw InvalidArgument("arena", "memory of a sealed size", "another file", rank);
  // Kernels take a peer's arena for as large as their own.
  if (*bytes != expected) {
    throw InvalidArgument("arena_bytes", fmt::format("{}, as on this rank", expected),
                          fmt::format("{}", *bytes), rank);
  }
  return Mapping::shared(memory.native(), *bytes);
}

/// Returns the id of this machine's boot; empty on a system without boot ids, which must be a
/// sandbox of one host. Throws OsError if the id exists but cannot be read.
std::vector<std::byte> boot() {
  const FileDescriptor file(open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  if (!file && errno == ENOENT) return {};
  if (!file) os_failed("open of /proc/sys/kernel/random/boot_id");
  std::vector<std::byte> id(64);
  const ssize_t bytes = read(file.native(), id.data(), id.size());
  if (bytes < 0) os_failed("read of /proc/sys/kernel/random/boot_id");
  id.resize(static_cast<size_t>(bytes));
  return id;
}

/// Returns the number of this process's network namespace; 0 on a system without them. Descriptors
/// do not pass from one to another.
uint64_t network_namespace() {
  struct stat space {};
  return stat("/proc/self/ns/net", &space) == 0 ? space.st_ino : 0;
}

constexpr size_t kNameMax = 255;

/// The marks by which hosts are told apart. A plain value.
struct Identity {
  std::array<char, kNameMax + 1> name{}, domain{};
  std::array<std::byte, 64> boot{};
  uint64_t network = 0;
};

Identity own_identity(const Whereabouts& where) {
  Identity mine{.network = network_namespace()};
  const auto write = [](const char* argument, const std::string& name, auto& into) {
    if (name.size() > kNameMax)
      throw InvalidArgument(argument, fmt::format("at most {} bytes", kNameMax),
                            fmt::format("{}", name.size()));
    std::ranges::copy(name, into.begin());
  };
  write("host_name", where.host_name, mine.name);
  if (where.domain != kOwnHost) write("domain", where.domain, mine.domain);
  std::ranges::copy(boot(), mine.boot.begin());
  return mine;
}

/// Kernels take a peer's arena for as large as their own, and so it is checked where it is mapped.
void require_equal_arenas(Bootstrap& bootstrap, uint64_t mine, TimePoint until) {
  const auto sizes = gather(bootstrap, mine, "sizes of arenas", until);
  for (uint32_t rank = 0; rank < sizes.size(); ++rank) {
    if (!bootstrap.present(rank) || sizes[rank] == mine) continue;
    throw InvalidArgument("arena_bytes", fmt::format("{}, as on this rank", mine),
                          fmt::format("{}", sizes[rank]), rank);
  }
}

}  // namespace

void check_shared_memory() {
  const FileDescriptor memory = make_sealed_memory(kArena, 4096);
  *map_peer(memory, 4096, 0).base() = std::byte{1};
}

HostsFound hosts_by_name(Bootstrap& bootstrap, const Whereabouts& where, const std::string& what,
                         TimePoint until, bool crosses_machines) {
  const auto bytes = collective_step(bootstrap, what, until, [&] {
    const Identity mine = own_identity(where);
    const auto plain = std::as_bytes(std::span(&mine, 1));
    return std::vector<std::byte>(plain.begin(), plain.end());
  });
  const std::vector<Identity> identities = values_of<Identity>(bootstrap, bytes, what);
  HostsFound found;
  std::vector<Identity> seen;      // [hosts]
  std::vector<Identity> machines;  // [machines]
  const auto on_one_machine = [](const Identity& one, const Identity& other) {
    return std::tie(one.boot, one.network) == std::tie(other.boot, other.network);
  };
  for (uint32_t rank = 0; rank < identities.size(); ++rank) {
    if (!bootstrap.present(rank)) {
      found.host_of.push_back(kNoHost);
      found.machine_of.push_back(kNoHost);
      continue;
    }
    const Identity& theirs = identities[rank];
    const auto host = std::ranges::find_if(seen, [&](const Identity& each) {
      if (theirs.domain != each.domain) return false;
      if (theirs.domain[0] != 0) return true;
      if (theirs.name != each.name) return false;
      return theirs.name[0] != 0 || on_one_machine(theirs, each);
    });
    found.host_of.push_back(static_cast<uint32_t>(host - seen.begin()));
    const auto machine = std::ranges::find_if(
        machines, [&](const Identity& each) { return on_one_machine(theirs, each); });
    found.machine_of.push_back(static_cast<uint32_t>(machine - machines.begin()));
    if (machine == machines.end()) machines.push_back(theirs);
    if (host == seen.end()) {
      seen.push_back(theirs);
    } else if (theirs.domain[0] != 0) {
      if (!crosses_machines && !on_one_machine(theirs, *host))
        throw InvalidArgument("domain", "a name that the ranks of one machine alone have",
                              fmt::format("'{}', which a rank has whose memory cannot be mapped",
                                          theirs.domain.data()),
                              rank);
    } else if (host->boot != theirs.boot) {
      throw InvalidArgument(
          "host_name", "a name that the ranks of one machine alone have",
          fmt::format("'{}', which a rank of another machine has", theirs.name.data()), rank);
    }
  }
  return found;
}

std::optional<uint32_t> first_on_another_host(const std::vector<uint32_t>& host_of) {
  // The first host has number 0.
  for (uint32_t rank = 0; rank < host_of.size(); ++rank) {
    if (host_of[rank] != 0 && host_of[rank] != kNoHost) return rank;
  }
  return std::nullopt;
}

std::vector<uint32_t> ProcessFabric::hosts(Bootstrap& bootstrap, TimePoint until) {
  return hosts_by_name(bootstrap, where_, "device 'host'", until).host_of;
}

Ground ProcessFabric::prepare(Bootstrap& bootstrap, const FabricRequest& request, TimePoint until) {
  std::vector<bool> near;
  for (const uint32_t host : request.host_of)
    near.push_back(host == request.host_of[bootstrap.rank()]);
  FileDescriptor mine;
  collective_step(bootstrap, "memory of arenas", until,
                  [&] { mine = make_sealed_memory(kArena, request.arena_bytes); });
  const auto everybodys = exchange_fds(bootstrap, mine.native(), "arenas", until, near);
  auto mappings = std::make_shared<std::vector<Mapping>>();
  collective_step(bootstrap, "mappings of arenas", until, [&] {
    for (uint32_t rank = 0; rank < everybodys.size(); ++rank) {
      mappings->push_back(bootstrap.present(rank) && near[rank]
                              ? map_peer(everybodys[rank], request.arena_bytes, rank)
                              : Mapping());
    }
  });

  if (first_on_another_host(request.host_of))
    require_equal_arenas(bootstrap, request.arena_bytes, until);

  Ground ground;
  for (uint32_t rank = 0; rank < mappings->size(); ++rank) {
    ground.region.bases.push_back((*mappings)[rank].base());
    if (!bootstrap.present(rank)) {
      ground.peers.push_back(absent_peer());
    } else if (near[rank]) {
      ground.peers.push_back({.reach = Reach::load_store, .how = "shared memory", .why_not = ""});
    } else {
      ground.peers.push_back({.reach = Reach::put_signal, .how = "", .why_not = kOnAnotherHost});
    }
  }
  ground.peers[bootstrap.rank()] = {.reach = Reach::self, .how = "itself", .why_not = ""};
  ground.region.base = ground.region.bases[bootstrap.rank()];
  ground.region.bytes = request.arena_bytes;
  ground.region.rank = bootstrap.rank();
  ground.region.memory = std::move(mappings);
  return ground;
}

}  // namespace tokenyard
