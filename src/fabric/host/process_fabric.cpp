#include "fabric/host/process_fabric.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/mapping.hpp"
#include "base/os_failure.hpp"
#include "base/sealed_memory.hpp"
#include "fabric/collective_step.hpp"
#include "fabric/fd_exchange.hpp"
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

}  // namespace

void check_shared_memory() {
  const FileDescriptor memory = make_sealed_memory(kArena, 4096);
  *map_peer(memory, 4096, 0).base() = std::byte{1};
}

std::vector<uint32_t> hosts_by_boot(Bootstrap& bootstrap, const std::string& what,
                                    TimePoint until) {
  const auto boots = collective_step(bootstrap, what, until, boot);
  std::vector<uint32_t> host_of;
  std::vector<std::vector<std::byte>> seen;  // [hosts]
  for (uint32_t rank = 0; rank < boots.size(); ++rank) {
    if (!bootstrap.present(rank)) {
      host_of.push_back(kNoHost);
      continue;
    }
    const auto host = std::ranges::find(seen, boots[rank]) - seen.begin();
    host_of.push_back(static_cast<uint32_t>(host));
    if (host_of.back() == seen.size()) seen.push_back(boots[rank]);
  }
  return host_of;
}

std::optional<uint32_t> first_on_another_host(const std::vector<uint32_t>& host_of) {
  // The first host has number 0.
  for (uint32_t rank = 0; rank < host_of.size(); ++rank) {
    if (host_of[rank] != 0 && host_of[rank] != kNoHost) return rank;
  }
  return std::nullopt;
}

std::vector<uint32_t> ProcessFabric::hosts(Bootstrap& bootstrap, TimePoint until) {
  return hosts_by_boot(bootstrap, "device 'host'", until);
}

Ground ProcessFabric::prepare(Bootstrap& bootstrap, const FabricRequest& request, TimePoint until) {
  if (const auto far = first_on_another_host(request.host_of)) {
    throw Unsupported("a world of device 'host' over several hosts",
                      fmt::format("rank {} is on another host than the ranks before it, and only "
                                  "memory of one host can be shared",
                                  *far));
  }
  FileDescriptor mine;
  collective_step(bootstrap, "memory of arenas", until,
                  [&] { mine = make_sealed_memory(kArena, request.arena_bytes); });
  const auto everybodys = exchange_fds(bootstrap, mine.native(), "arenas", until);
  auto mappings = std::make_shared<std::vector<Mapping>>();
  collective_step(bootstrap, "mappings of arenas", until, [&] {
    for (uint32_t rank = 0; rank < everybodys.size(); ++rank) {
      mappings->push_back(bootstrap.present(rank)
                              ? map_peer(everybodys[rank], request.arena_bytes, rank)
                              : Mapping());
    }
  });

  Ground ground;
  for (const Mapping& mapping : *mappings) {
    ground.region.bases.push_back(mapping.base());
    ground.peers.push_back(
        mapping.base() == nullptr
            ? absent_peer()
            : PeerReach{.reach = Reach::load_store, .how = "shared memory", .why_not = ""});
  }
  ground.peers[bootstrap.rank()] = {.reach = Reach::self, .how = "itself", .why_not = ""};
  ground.region.base = ground.region.bases[bootstrap.rank()];
  ground.region.bytes = request.arena_bytes;
  ground.region.rank = bootstrap.rank();
  ground.region.memory = std::move(mappings);
  return ground;
}

}  // namespace tokenyard
