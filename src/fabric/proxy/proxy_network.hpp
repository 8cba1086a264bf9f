/// The network of ranks that a CPU thread per rank connects (proxy.hpp), over TCP or a plug-in.
/// Queues, and the memory that it may touch, lie in memory that host and kernels share.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fabric/abort_flag.hpp"
#include "fabric/arena.hpp"
#include "fabric/bootstrap.hpp"
#include "fabric/network/gpu_export.hpp"
#include "fabric/network/network.hpp"
#include "fabric/network/network_stream.hpp"
#include "fabric/proxy/proxy.hpp"
#include "fabric/proxy/proxy_card.hpp"
#include "fabric/proxy/tcp_connector.hpp"
#include "fabric/proxy/transport_plugin.hpp"

namespace tokenyard {

inline constexpr uint32_t kQueuesPerPeerMax = 1024;

struct ProxyNetworkOptions {
  TcpOptions tcp = {};
  PluginOptions plugin = {};     ///< with a library: takes the place of TCP
  uint32_t queues_per_peer = 4;  ///< alike on all ranks
  ProxyOptions proxy = {};
  /// The GPU that runs the kernels; null: the host does.
  std::shared_ptr<const GpuExport> gpu = {};
  /// Whether peers put into its memory; by default where the transport takes it.
  std::optional<bool> gpu_memory = {};
};

class ProxyNetwork final : public Network {
 public:
  /// Collective over the bootstrap. `place` must outlive this. Throws, alike on all ranks,
  /// InvalidArgument, OsError, or Unsupported naming ranks that cannot be connected.
  ProxyNetwork(const NetworkPlace& place, const ProxyNetworkOptions& options, TimePoint until);
  ~ProxyNetwork() override;
  ProxyNetwork(const ProxyNetwork&) = delete;
  ProxyNetwork& operator=(const ProxyNetwork&) = delete;

  NetworkQueues queues() const override;
  uint32_t queues_per_peer() const override { return options_.queues_per_peer; }
  bool reaches(uint32_t rank) const override { return place_.far[rank]; }
  std::string way(uint32_t rank) const override;
  std::vector<NetworkPath> paths() const override;
  MemoryKey arena_key(uint32_t rank) const override { return arena_keys_[rank]; }
  bool reaches_arena() const override;
  bool takes_gpu_memory() const override { return takes_gpu_memory_; }
  MemoryKey register_gpu_memory(std::byte* base, size_t bytes) override;
  /// Throws InvalidArgument, too, for memory that this process cannot read: that of a GPU.
  MemoryKey register_memory(std::byte* base, size_t bytes) override;
  void deregister(MemoryKey key) override;
  void check_works(const std::string& phase) const override;
  void check(const std::string& phase) override;
  bool drain(TimePoint until) override;

  Proxy& proxy() { return *proxy_; }

 private:
  void on_claims(size_t claimed) override;
  bool is_refused(uint32_t number) override;
  void forget_refusals(const std::vector<bool>& retired) override;
  template <class T>
  T* array(size_t count);
  std::vector<ProxyCard> exchange(const ProxyCard& mine, TimePoint until);
  void connect(TransportMaker& maker, TimePoint until);
  void start(TransportMaker& maker);
  void try_gpu_memory(const TransportMaker& maker);
  void agree_on_gpu_memory(TimePoint until);
  uint32_t free_region() const;
  std::chrono::nanoseconds grace() const;
  MemoryKey draw_key(uint32_t region) const;
  Proxy::Wait wait() const;
  bool is_told_gone(const QueuePair& pair) const;

  const NetworkPlace place_;
  const ProxyNetworkOptions options_;
  Accelerator& accelerator_;
  const NetworkStream stream_;
  std::vector<std::shared_ptr<void>> kept_;
  AbortWord* gone_ = nullptr;      ///< [ranks] see AbortFlag::watch
  std::vector<QueuePair*> pairs_;  ///< [ranks][queues_per_peer] null where there is none
  /// [ranks][queues_per_peer], and [ranks]
  std::unique_ptr<DeviceMemory> ends_, key_table_;
  std::vector<MemoryKey> arena_keys_;
  std::vector<std::string> ways_;                  ///< [ranks]
  bool takes_gpu_memory_ = false;                  ///< on all ranks
  std::string why_no_gpu_memory_;                  ///< on this rank
  std::array<MemoryKey, kNetworkRegions> keys_{};  ///< of this rank's regions; 0: not in use
  std::unique_ptr<Proxy> proxy_;
};

/// Returns what makes such networks.
MakeNetwork proxy_networks(const ProxyNetworkOptions& options = {});

}  // namespace tokenyard
