/// The calls of the one real rank, the world around them and the checks of what they write.
#pragma once

#include <memory>
#include <vector>

#include "bench/across_hosts/one_gpu.hpp"
#include "bench/across_hosts/one_rank.hpp"
#include "bench/harness/workload.hpp"
#include "expert_parallel/throughput/kernels/received_layout.hpp"
#include "tokenyard/expert_parallel.hpp"

namespace tokenyard::bench {

inline constexpr uint32_t kScaleChannels = 128;

/// Throws if a result is not as it should be.
inline void require(bool holds, const std::string& what) {
  if (!holds) throw InternalError("wrong: " + what);
}

/// Rank 0's calls of one shape, and the world around them.
class Exchange {
 public:
  Exchange(OneRankWorld& world, const OneGpuSettings& settings, const Scene& scene);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /// Takes other routes and rows.
  void draw(uint32_t seed) {
    scene_.seed = seed;
    routing_ = std::make_unique<StandIn>(scene_);
    filled_ = nullptr;
  }

  Received dispatch(bool fp8, uint32_t sms);
  void combine(const Received& received, const CombineBuffer& y, uint32_t sms);
  /// Writes all results that this host's ranks have for the sources of rank 0.
  CombineBuffer results(const Received& received);

  void check_dispatch(const Received& received);
  void check_combine();
  /// Overwrites what a call writes outside of rank 0's arena.
  void poison(bool combines) {
    for (uint32_t place = 1; place < scene_.locals; ++place)
      if (blocks_[place] && !combines)
        world_.device().fill(blocks_[place].data(), 0xee, blocks_[place].bytes(), Stream{});
    world_.device().fill(out_, 0xee, size_t{scene_.tokens} * scene_.hidden * 2, Stream{});
    for (uint32_t link = 0; link + 1 < scene_.hosts; ++link)
      world_.device().fill(outbox_[link], 0xee, size_t{scene_.tokens} * (scene_.hidden * 2 + 4096),
                           Stream{});
  }

  // Of the last call.
  double us = 0, wire_us = 0;
  WireOutcome outcome;
  /// From the launch until the first greeting leaves, and from the last slot's coming until the
  /// last credit leaves.
  double greeting_us() const { return outcome.greeted_at_us - launched_at_us_; }
  double credit_us() const { return outcome.last_credit_at_us - outcome.last_slot_at_us; }
  uint32_t capacity = 0, chunk = 0;
  size_t ring_bytes = 0;

 private:
  uint32_t scale_words() const { return std::max(scene_.hidden / kScaleChannels, 1u); }
  template <class Body>
  void each_rail_source(Body body) const {
    for (uint32_t host = 0; host < scene_.hosts; ++host) body(scene_.rail_peer(host));
  }

  void fill_input();
  throughput::ReceivedLayout received_layout(uint32_t place, uint32_t words) const {
    return {.rows = routing_->rows_on(place),
            .row_bytes = row_bytes_,
            .topk = scene_.topk,
            .scale_words = words,
            .scale_order = ScaleOrder::rows};
  }
  /// Makes a rank's memory for the rows of all sources.
  void reserve_rows(uint32_t place, uint32_t, uint32_t words);
  size_t beside_end(uint32_t place) const {
    return besides_[place].offset() + besides_[place].bytes() / 256 * 256;
  }

  void run(const RankLaunch& launch);
  CallTraffic traffic_of(const RankLaunch& launch, const internode::Rails& rails,
                         const throughput::CallParams& call, bool combines);
  void fill_inboxes(const std::vector<internode::Link>& links, const internode::SlotLayout& slot,
                    bool combines);
  const std::vector<uint32_t>& tokens_out(uint32_t host) const {
    return routing_->of(0).tokens_to[host];
  }
  const std::vector<uint32_t>& tokens_in(uint32_t host) const {
    return routing_->of(scene_.rail_peer(host)).tokens_to[0];
  }

  OneRankWorld& world_;
  const Stream stream_;
  const OneGpuSettings& settings_;
  Scene scene_;
  std::unique_ptr<StandIn> routing_;
  std::vector<std::unique_ptr<ExpertParallel>> exchanges_;
  DeviceMemory memory_;
  Card card_;
  std::vector<std::byte*> inbox_, outbox_;  ///< [links]
  std::byte *x_ = nullptr, *out_ = nullptr, *image_ = nullptr, *greetings_ = nullptr;
  uint32_t* scales_ = nullptr;
  int64_t* ids_ = nullptr;
  float* weights_ = nullptr;
  std::vector<ArenaBlock> blocks_, besides_;  ///< [locals] rows, and what lies beside them
  const KernelEntry* filled_ = nullptr;       ///< whose slots are in the inboxes
  std::vector<uint32_t> link_hosts_;          ///< [links] of the last call
  internode::SlotLayout slot_{};
  uint32_t row_bytes_ = 0;
  bool fp8_ = false;
  double launched_at_us_ = 0;
};

}  // namespace tokenyard::bench
