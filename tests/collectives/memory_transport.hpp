/// Channels between ranks of one process: rings of any size, so that a test can make messages
/// arrive in pieces of any length.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <tuple>
#include <vector>

#include "collectives/interfaces/channel.hpp"

namespace tokenyard::collectives::testing {

/// One writer, one reader.
class MemoryPipe {
 public:
  explicit MemoryPipe(size_t capacity) : bytes_(capacity) {}

  size_t write(std::span<const std::byte> from) {
    const uint64_t written = written_.load(std::memory_order_relaxed);
    const uint64_t read = read_.load(std::memory_order_acquire);
    const size_t count = std::min<size_t>(from.size(), bytes_.size() - (written - read));
    const size_t at = written % bytes_.size();
    const size_t to_end = std::min(count, bytes_.size() - at);
    if (count > 0) {
      std::memcpy(bytes_.data() + at, from.data(), to_end);
      std::memcpy(bytes_.data(), from.data() + to_end, count - to_end);
    }
    written_.store(written + count, std::memory_order_release);
    return count;
  }
  std::span<const std::byte> readable(size_t wanted) const {
    const uint64_t read = read_.load(std::memory_order_relaxed);
    const uint64_t written = written_.load(std::memory_order_acquire);
    const size_t at = read % bytes_.size();
    const size_t count = std::min({wanted, size_t(written - read), bytes_.size() - at});
    return {bytes_.data() + at, count};
  }
  void consume(size_t count) {
    read_.store(read_.load(std::memory_order_relaxed) + count, std::memory_order_release);
  }

 private:
  std::vector<std::byte> bytes_;
  std::atomic<uint64_t> written_ = 0, read_ = 0;
};

class MemoryChannel final : public Channel {
 public:
  MemoryChannel(std::shared_ptr<MemoryPipe> out, std::shared_ptr<MemoryPipe> in,
                std::shared_ptr<std::atomic<bool>> over)
      : out_(std::move(out)), in_(std::move(in)), over_(std::move(over)) {}

  size_t send_some(std::span<const std::byte> bytes) override {
    if (over_->load()) return 0;
    const size_t taken = out_->write(bytes);
    sent_ += taken;
    return taken;
  }
  size_t receive_some(std::span<std::byte> into) override {
    const std::span<const std::byte> piece = arrived(into.size());
    std::copy(piece.begin(), piece.end(), into.begin());
    consume(piece.size());
    return piece.size();
  }
  std::span<const std::byte> arrived(size_t wanted) override {
    return over_->load() ? std::span<const std::byte>() : in_->readable(wanted);
  }
  void consume(size_t bytes) override { in_->consume(bytes); }
  uint64_t bytes_sent() const override { return sent_; }

 private:
  std::shared_ptr<MemoryPipe> out_, in_;
  std::shared_ptr<std::atomic<bool>> over_;
  uint64_t sent_ = 0;
};

/// The network that connects the ranks.
class MemoryNetwork {
 public:
  explicit MemoryNetwork(size_t capacity) : capacity_(capacity) {}

  std::shared_ptr<MemoryPipe> pipe(Epoch epoch, GroupId group, Lane lane, Slot from, Slot to) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<MemoryPipe>& pipe = pipes_[{epoch, group, lane, from, to}];
    if (!pipe) pipe = std::make_shared<MemoryPipe>(capacity_);
    return pipe;
  }
  std::map<Slot, uint64_t> hosts;  ///< all 0 unless set

 private:
  const size_t capacity_;
  std::mutex mutex_;
  std::map<std::tuple<Epoch, GroupId, Lane, Slot, Slot>, std::shared_ptr<MemoryPipe>> pipes_;
};

class MemoryTransport final : public Transport {
 public:
  MemoryTransport(MemoryNetwork& network, Slot self) : network_(network), self_(self) {}

  Contact contact() const override { return {}; }
  void begin_epoch(const View& view, const Contacts&) override {
    epoch_ = view.epoch;
    over_->store(true);
    over_ = std::make_shared<std::atomic<bool>>(false);
    channels_.clear();
  }
  std::shared_ptr<Channel> channel(GroupId group, Lane lane, Slot peer) override {
    std::shared_ptr<Channel>& channel = channels_[{group, lane, peer}];
    if (!channel) {
      channel =
          std::make_shared<MemoryChannel>(network_.pipe(epoch_, group, lane, self_, peer),
                                          network_.pipe(epoch_, group, lane, peer, self_), over_);
    }
    return channel;
  }
  bool same_host(Slot peer) const override { return host_of(peer) == host_of(self_); }
  uint64_t host_of(Slot slot) const override {
    const auto at = network_.hosts.find(slot);
    return at != network_.hosts.end() ? at->second : 0;
  }

  void poll() override {}
  void prepare_to_sleep() override {}
  void sleep(std::chrono::nanoseconds at_most) override {
    // No peer rings: looks again after a millisecond.
    std::unique_lock lock(mutex_);
    const auto nap = std::min<std::chrono::nanoseconds>(at_most, std::chrono::milliseconds(1));
    awake_.wait_for(lock, nap, [&] { return woken_; });
    woken_ = false;
  }
  void wake() override {
    const std::lock_guard lock(mutex_);
    woken_ = true;
    awake_.notify_all();
  }

 private:
  MemoryNetwork& network_;
  const Slot self_;
  Epoch epoch_ = 0;
  std::shared_ptr<std::atomic<bool>> over_ = std::make_shared<std::atomic<bool>>(false);
  std::map<std::tuple<GroupId, Lane, Slot>, std::shared_ptr<Channel>> channels_;
  std::mutex mutex_;
  std::condition_variable awake_;
  bool woken_ = false;
};

}  // namespace tokenyard::collectives::testing
