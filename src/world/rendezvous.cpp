/// Calls that stay for one version.
#include "base/environment.hpp"
#include "control/host_secret.hpp"
#include "fabric/meeting_place.hpp"
#include "tokenyard/world.hpp"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace tokenyard {

namespace {

template <class Value>
Value required(const std::optional<Value>& value, const char* name) {
  if (!value) throw InvalidArgument(name, "a value set by the launcher of the ranks", "nothing");
  return *value;
}

}  // namespace

Rendezvous Rendezvous::from_environment() {
  const Environment environment = Environment::read();
  Rendezvous where;
  where.rank = required(environment.rank, "RANK");
  where.size = required(environment.world_size, "WORLD_SIZE");
  where.port = required(environment.port, "MASTER_PORT");
  where.host = environment.address.value_or(where.host);
  where.local_rank = environment.local_rank.value_or(where.rank);
  where.secret = control::secret_in_environment().value_or("");
  return where;
}

std::unique_ptr<World> World::connect(const Rendezvous& rendezvous, const std::string& device,
                                      const WorldOptions& options) {
  return connect_world({.host = rendezvous.host,
                        .port = rendezvous.port,
                        .rank = rendezvous.rank,
                        .size = rendezvous.size,
                        .local_rank = rendezvous.local_rank,
                        .job = rendezvous.job,
                        .secret = rendezvous.secret,
                        .host_name = rendezvous.host_name},
                       device, options);
}

}  // namespace tokenyard
