/// The commands that make keys and queue pairs and bring queue pairs into service. Functions of
/// their arguments alone.
#pragma once

#include <cstdint>

#include "ibgda/prm.hpp"
#include "ibgda/rdma_driver.hpp"

namespace tokenyard::ibgda {

/// An entry of an indirect key has at most so many bytes.
inline constexpr uint64_t kKlmBytesMax = uint64_t{1} << 31;

/// A key whose address 0 is the first byte of registered memory.
struct KeyPlan {
  uint32_t domain;
  uint8_t low_byte;  ///< of the key
  RegisteredMemory memory;
  uint64_t address;  ///< of the first byte, as `memory` knows it
  uint64_t bytes;
};
prm::Command create_key(const KeyPlan& plan);
/// Returns the entries of such a key.
uint64_t klms_of(uint64_t bytes);

/// A queue pair and its collapsed completion queue, in one piece of memory: offsets in bytes.
struct QueuePlan {
  uint32_t domain;
  uint32_t registers;    ///< number of their page
  uint32_t event_queue;  ///< unused, as nothing asks for events, but a command must name one
  uint32_t memory;       ///< number
  uint32_t log_slots;
  uint64_t blocks, completions, pair_record, completion_record;  ///< offsets
};
prm::Command create_completion_queue(const QueuePlan& plan);
prm::Command create_queue_pair(const QueuePlan& plan, uint32_t completion_queue);

/// A queue pair has three bits for the logarithm of the reads under way.
inline constexpr uint8_t kLogReadsMax = 7;

/// The settings of a site and of its port.
struct PathPlan {
  uint8_t port;
  uint16_t pkey_index;
  uint8_t gid_index, traffic_class, service_level;
  uint8_t mtu;               ///< as in PortFacts
  uint8_t retries;           ///< 0 to 7
  uint8_t ack_timeout;       ///< a request is sent again after 4.096 us * 2^this
  uint8_t log_reads_asked;   ///< reads and atomics of this end under way
  uint8_t log_reads_served;  ///< of the other end
  bool ethernet;
};
/// The other end.
struct PeerPlan {
  uint32_t queue_pair;
  uint16_t lid;
  bool is_global;  ///< InfiniBand: it is in another subnet, or has no LID
  Gid gid;
  EthernetRoute route;  ///< RoCE
};
prm::Command to_init(uint32_t queue_pair, const PathPlan& path);
prm::Command to_receive(uint32_t queue_pair, const PathPlan& path, const PeerPlan& peer);
prm::Command to_send(uint32_t queue_pair, const PathPlan& path);
prm::Command to_error(uint32_t queue_pair);

}  // namespace tokenyard::ibgda
