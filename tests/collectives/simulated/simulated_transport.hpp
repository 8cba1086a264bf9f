/// Channels over the virtual network, which cuts messages into pieces and takes few bytes at a
/// time.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "collectives/interfaces/channel.hpp"

namespace tokenyard::collectives::simulated {

/// A channel of a pair, in an epoch.
struct Line {
  Epoch epoch = 0;
  GroupId group = 0;
  Lane lane = Lane::collective;
  auto operator<=>(const Line&) const = default;
};

/// Bytes under way or, if empty, the news that bytes have been read.
struct Parcel {
  Line line;
  std::vector<std::byte> bytes = {};
  size_t read = 0;
};

class SimulatedTransport final : public Transport {
 public:
  using Post = std::function<void(Slot to, Parcel parcel)>;
  static constexpr size_t kWindow = 600;  ///< bytes under way; small, so that senders must wait

  /// `accepts_stale`: a deliberate bug that accepts bytes of an older epoch.
  explicit SimulatedTransport(Post post, bool accepts_stale = false)
      : post_(std::move(post)), accepts_stale_(accepts_stale) {}

  void arrive(Slot from, Parcel parcel) {
    if (parcel.line.epoch < epoch_) {
      if (!accepts_stale_) return;
      parcel.line.epoch = epoch_;
      parcel.read = 0;
    }
    Pipe& pipe = pipes_[{parcel.line, from}];
    pipe.inbox.insert(pipe.inbox.end(), parcel.bytes.begin(), parcel.bytes.end());
    pipe.under_way -= parcel.read;
  }

  Contact contact() const override { return {}; }
  void begin_epoch(const View& view, const Contacts&) override {
    epoch_ = view.epoch;
    pipes_.erase(pipes_.begin(), pipes_.lower_bound({Line{.epoch = epoch_}, 0}));
  }
  std::shared_ptr<Channel> channel(GroupId group, Lane lane, Slot peer) override {
    return std::make_shared<PipeChannel>(*this, Line{epoch_, group, lane}, peer);
  }
  bool same_host(Slot) const override { return true; }
  void poll() override {}
  void prepare_to_sleep() override {}
  void sleep(std::chrono::nanoseconds) override {}
  void wake() override {}

 private:
  struct Pipe {
    std::vector<std::byte> inbox;
    size_t under_way = 0;
    uint64_t sent = 0;
  };

  class PipeChannel final : public Channel {
   public:
    PipeChannel(SimulatedTransport& transport, Line line, Slot peer)
        : transport_(transport), line_(line), peer_(peer), pipe_(&transport.pipes_[{line, peer}]) {}

    size_t send_some(std::span<const std::byte> bytes) override {
      if (line_.epoch != transport_.epoch_) return 0;
      const size_t taken = std::min(bytes.size(), kWindow - pipe_->under_way);
      if (taken == 0) return 0;
      transport_.post_(peer_,
                       {line_, {bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(taken)}});
      pipe_->under_way += taken;
      pipe_->sent += taken;
      return taken;
    }
    size_t receive_some(std::span<std::byte> into) override {
      const std::span<const std::byte> piece = arrived(into.size());
      std::copy(piece.begin(), piece.end(), into.begin());
      consume(piece.size());
      return piece.size();
    }
    std::span<const std::byte> arrived(size_t wanted) override {
      if (line_.epoch != transport_.epoch_) return {};
      const std::vector<std::byte>& inbox = pipe_->inbox;
      return std::span(inbox).first(std::min(wanted, inbox.size()));
    }
    void consume(size_t bytes) override {
      if (bytes == 0 || line_.epoch != transport_.epoch_) return;
      std::vector<std::byte>& inbox = pipe_->inbox;
      inbox.erase(inbox.begin(), inbox.begin() + static_cast<ptrdiff_t>(bytes));
      transport_.post_(peer_, {.line = line_, .read = bytes});
    }
    uint64_t bytes_sent() const override {
      const auto found = transport_.pipes_.find({line_, peer_});
      return found == transport_.pipes_.end() ? 0 : found->second.sent;
    }

   private:
    SimulatedTransport& transport_;
    const Line line_;
    const Slot peer_;
    Pipe* const pipe_;  ///< valid while its epoch lasts
  };

  const Post post_;
  const bool accepts_stale_;
  Epoch epoch_ = 0;
  std::map<std::pair<Line, Slot>, Pipe> pipes_;
};

}  // namespace tokenyard::collectives::simulated
