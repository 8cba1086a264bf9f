/// Environment variables, which are read here and nowhere else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tokenyard {

/// Variables that a launcher (torchrun, mpirun, a script) sets for this process. An unset or empty
/// variable is nullopt.
struct Environment {
  std::optional<uint32_t> rank;        ///< RANK
  std::optional<uint32_t> world_size;  ///< WORLD_SIZE
  std::optional<uint32_t> local_rank;  ///< LOCAL_RANK
  std::optional<std::string> address;  ///< MASTER_ADDR
  std::optional<uint16_t> port;        ///< MASTER_PORT

  /// Reads the current environment. Throws InvalidArgument, which names the variable, for a value
  /// that is not a number in range.
  static Environment read();
};

/// The variables of a job's secret. An unset one is nullopt; an empty one is a mistake, and kept.
struct SecretEnvironment {
  std::optional<std::string> secret;  ///< TOKENYARD_SECRET
  std::optional<std::string> file;    ///< TOKENYARD_SECRET_FILE

  static SecretEnvironment read();
};

/// The variables of the network between hosts. An unset or empty one is nullopt.
struct NetworkEnvironment {
  std::optional<std::string> transport;   ///< TOKENYARD_NETWORK
  std::optional<std::string> interfaces;  ///< TOKENYARD_NETWORK_INTERFACES
  std::optional<std::string> ports;       ///< TOKENYARD_NETWORK_PORTS
  std::optional<uint32_t> connections;    ///< TOKENYARD_NETWORK_CONNECTIONS
  std::optional<uint32_t> queues;         ///< TOKENYARD_NETWORK_QUEUES
  std::optional<uint32_t> queue_depth;    ///< TOKENYARD_NETWORK_QUEUE_DEPTH
  std::optional<double> timeout_s;        ///< TOKENYARD_NETWORK_TIMEOUT
  std::optional<bool> gpu_memory;         ///< TOKENYARD_NETWORK_GPU_MEMORY
  // Of cards alone.
  std::optional<uint32_t> gid_index;      ///< TOKENYARD_NETWORK_GID_INDEX
  std::optional<uint32_t> traffic_class;  ///< TOKENYARD_NETWORK_TRAFFIC_CLASS
  std::optional<uint32_t> service_level;  ///< TOKENYARD_NETWORK_SERVICE_LEVEL
  std::optional<std::string> pkey;        ///< TOKENYARD_NETWORK_PKEY
  std::optional<uint32_t> mtu;            ///< TOKENYARD_NETWORK_MTU
  std::optional<uint32_t> retry_count;    ///< TOKENYARD_NETWORK_RETRY_COUNT
  std::optional<uint32_t> retry_timeout;  ///< TOKENYARD_NETWORK_RETRY_TIMEOUT

  /// Throws InvalidArgument, which names the variable, for a value that is no number, and for a
  /// variable TOKENYARD_NETWORK_... of another name.
  static NetworkEnvironment read();
};

/// Returns TOKENYARD_HOST_NAME, the name of the host that this process counts as being on.
std::optional<std::string> host_name();

/// Returns TOKENYARD_DOMAIN, the name of the domain whose ranks reach this one by load/store, or
/// "host": no more than its host.
std::optional<std::string> domain_name();

/// Returns CUDA_VISIBLE_DEVICES; a variable that is set to nothing hides every GPU.
std::optional<std::string> cuda_visible_devices();

/// Returns XDG_RUNTIME_DIR, the folder for files of this user's running programs.
std::optional<std::string> runtime_directory();

/// Returns NCCL_GIN_PROXY_QUEUE_SIZE, the operations that a queue of NCCL's holds.
std::optional<std::string> nccl_queue_size();

/// Returns TOKENYARD_LOG, the level of lines about what changes in a job.
std::optional<std::string> log_level();

/// Returns whether a file descriptor is a terminal that understands escape sequences: TERM is set,
/// and not to "dumb".
bool understands_escapes(int descriptor);

}  // namespace tokenyard
