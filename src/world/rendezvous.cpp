#include "base/environment.hpp"
#include "control/host_secret.hpp"
#include "tokenyard/world.hpp"

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

}  // namespace tokenyard
