/// The network of ranks that NCCL's device-side networking (GIN) connects: a kernel plays the card
/// (card.hpp).
///
///   load the driver, allocate         alike on all ranks, or none goes on
///   exchange keys, places, the id     over the job's links; the lowest rank draws the id
///   join a communicator of all ranks  its window is the arena
///   run the card while there is work  keeper thread, unless the driver keeps it running
///
/// A world has a communicator of its own, and a rebuilt one another: docs/decisions/gin.md.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "device/device_memory.hpp"
#include "fabric/abort_flag.hpp"
#include "fabric/arena.hpp"
#include "fabric/bootstrap.hpp"
#include "fabric/network/network.hpp"
#include "fabric/network/network_stream.hpp"
#include "gin/card.hpp"
#include "gin/endpoint.hpp"
#include "gin/gin_options.hpp"

namespace tokenyard::gin {

class GinNetwork final : public Network {
 public:
  /// Collective over the bootstrap. `place` must outlive this. Throws, alike on all ranks,
  /// InvalidArgument, OsError, or Unsupported naming what is missing.
  GinNetwork(const NetworkPlace& place, const GinOptions& options, TimePoint until);
  ~GinNetwork() override;
  GinNetwork(const GinNetwork&) = delete;
  GinNetwork& operator=(const GinNetwork&) = delete;

  NetworkQueues queues() const override;
  uint32_t queues_per_peer() const override { return options_.queues_per_peer; }
  bool reaches(uint32_t rank) const override { return connected_[rank]; }
  std::string way(uint32_t rank) const override;
  std::string why_not(uint32_t rank) const override;
  MemoryKey arena_key(uint32_t rank) const override { return arena_keys_[rank]; }
  bool registers_memory() const override { return false; }
  /// Throws InvalidArgument: NCCL registers memory of all ranks at once, so the arena is all.
  MemoryKey register_memory(std::byte* base, size_t bytes) override;
  void deregister(MemoryKey key) override;
  void check_works(const std::string& phase) const override;
  void check(const std::string& phase) override;
  bool drain(TimePoint until) override;

 private:
  bool is_refused(uint32_t number) override;
  void forget_refusals(const std::vector<bool>& retired) override;
  void open();
  void choose_peers();
  std::vector<Endpoint> exchange(TimePoint until);
  void join(const std::vector<Endpoint>& endpoints, TimePoint until);
  void fill_tables(const std::vector<Endpoint>& endpoints);
  void start();
  void keep_running();
  NetworkFault failed_card(const std::string& phase) const;
  bool has_work() const;
  bool is_settled(const QueuePair& pair) const;
  bool is_gone(uint32_t rank) const;
  bool is_told_gone(size_t index);
  void stop();
  template <class T>
  std::unique_ptr<DeviceMemory> shared_zeros(size_t count);

  const NetworkPlace place_;
  const GinOptions options_;
  Accelerator& accelerator_;
  const NetworkStream stream_;
  AbortFlag stop_;
  ErrorRecord card_record_;
  std::shared_ptr<GinDriver> driver_;
  std::vector<bool> connected_;  ///< [ranks]
  uint32_t stride_ = 1;          ///< see CommunicatorPlace
  ArenaBlock words_;  ///< that peers add to, [ranks][queues_per_peer], and what `get` fetches
  ArenaBlock stage_;
  std::unique_ptr<DeviceMemory> gone_, drains_, run_words_, pairs_memory_, states_, pair_table_,
      peers_, ends_, key_table_;
  std::vector<QueuePair*> pairs_;                            ///< those that exist
  std::vector<std::optional<TimePoint>> unreachable_since_;  ///< of each
  std::vector<MemoryKey> arena_keys_;
  CardParams params_{};
  LaunchShape shape_{};
  std::unique_ptr<GinCommunicator> communicator_;
  std::unique_ptr<Aside> card_;
  std::atomic<bool> stops_ = false;
  std::string keeper_error_;  ///< why the keeper has ended; valid once `keeper_failed_`
  std::atomic<bool> keeper_failed_ = false;
  std::jthread keeper_;
};

/// Returns what makes such networks.
MakeNetwork gin_networks(const GinOptions& options);

}  // namespace tokenyard::gin
