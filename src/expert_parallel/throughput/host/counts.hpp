/// The answer of a dispatch to its host: how many rows arrive, or why none do.
#pragma once

#include <vector>

#include "device/device_memory.hpp"
#include "expert_parallel/throughput/host/setup.hpp"
#include "expert_parallel/throughput/kernels/record.hpp"

namespace tokenyard::throughput {

/// The host's view of a CountsRecord. Other words may be read once the record's epoch has been
/// seen.
class Counts {
 public:
  explicit Counts(const Setup& setup);

  /// Returns the record that kernels write.
  CountsRecord* record() const { return memory_.as<CountsRecord>(); }

  uint32_t epoch() const { return read(record()->epoch); }
  bool refused() const { return refusal() != RefusalKind::none; }
  RefusalKind refusal() const { return static_cast<RefusalKind>(read(record()->refusal)); }
  uint32_t rank() const { return read(record()->rank); }
  uint32_t token() const { return read(record()->token); }
  uint32_t id_low() const { return read(record()->id_low); }
  uint32_t id_high() const { return read(record()->id_high); }
  std::vector<uint32_t> rows_from() const;          ///< [ranks]
  std::vector<uint32_t> tokens_per_expert() const;  ///< [local experts]

 private:
  uint32_t read(const uint32_t& word) const { return accelerator_.read_flag(&word); }
  std::vector<uint32_t> read(const uint32_t* words, uint32_t count) const;

  Accelerator& accelerator_;
  const uint32_t ranks_, local_experts_;
  const DeviceMemory memory_;
};

}  // namespace tokenyard::throughput
