/// Batches of a rank of whose peers one may stop: what must be exact then, and what may be missing.
/// Without such a peer everything must be exact.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "expert_parallel/low_latency/checks.hpp"

namespace tokenyard::test {

/// Something that a batch left is wrong.
class WrongBatch : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What a rank is told of ids that are no experts.
class Complaints {
 public:
  /// Of the dispatch that was just called, as each is: what is to be said of it, its first pick
  /// that is no expert. Returns whether there is one. (They are counted here, since an exchange
  /// that is asked waits for its calls.)
  bool expect(uint32_t topk, const Tokens& given, const Tokens& meant) {
    ++dispatches_;
    const auto wrong = std::mismatch(given.ids.begin(), given.ids.end(), meant.ids.begin()).first;
    if (wrong == given.ids.end()) return false;
    const auto choice = wrong - given.ids.begin();
    possible_.insert(fmt::format("expert {} in token {}, choice {}, of dispatch {}", *wrong,
                                 choice / topk, choice % topk, dispatches_));
    return true;
  }
  /// Makes a call that may have something to say of dispatches before. Returns whether it has.
  bool listen(const std::function<void()>& call) {
    try {
      call();
    } catch (const InvalidArgument& error) {
      if (error.argument != "topk_idx" || !possible_.contains(error.seen)) throw;
      ++heard_;
      return true;
    }
    return false;
  }
  uint32_t heard() const { return heard_; }

 private:
  std::set<std::string> possible_;
  uint32_t dispatches_ = 0, heard_ = 0;
};

struct Survivor {
  Survivor(LowLatency& exchange, std::optional<uint32_t> stopped)
      : exchange(exchange), stopped(stopped) {}

  void require_none(const std::string& difference, const char* after) const {
    if (!difference.empty())
      throw WrongBatch(
          fmt::format("rank {} after {}: {}", exchange.world().rank(), after, difference));
  }
  void require_only_the_stopped_masked() const {
    for (const FailedRank& masked : exchange.failed_ranks())
      if (masked.rank != stopped)
        throw WrongBatch(fmt::format("rank {} masks rank {}, which is alive: {}",
                                     exchange.world().rank(), masked.rank, masked.phase));
  }
  bool masks_the_stopped() const {
    for (const FailedRank& masked : exchange.failed_ranks())
      if (masked.rank == stopped) return true;
    return false;
  }

  LowLatency& exchange;
  const std::optional<uint32_t> stopped;
  Complaints complaints;
};

/// One batch, step by step. Every step checks what it brought.
class SurvivorBatch {
 public:
  SurvivorBatch(Survivor& survivor, const LowLatencyCase& of, bool all_ones)
      : survivor_(survivor),
        exchange_(survivor.exchange),
        of_(of),
        all_(of.draw()),
        mine_(all_[rank()]) {
    if (all_ones) fill_with_ones();
    given_ = of_.given(mine_, rank());
    tokens_.emplace(exchange_.world(), of_, given_);
    combined_.emplace(exchange_, of_, mine_);
    call.sms = of_.sms;
  }

  void dispatch(bool hook) {
    call.hook = hook;
    const LowLatencyInput input = tokens_->input();
    Complaints& complaints = survivor_.complaints;
    if (before_dispatch) before_dispatch(input.x.data, mine_.x.size() * sizeof(uint16_t));
    heard_before_ = complaints.heard();
    received_ = exchange_.dispatch(input, call);
    is_to_be_told_ = complaints.expect(of_.shape.topk, given_, mine_);
    if (!hook) check_dispatch();
  }
  void receive_dispatch() {
    receive();
    check_dispatch();
  }
  void combine(bool hook) {
    const TensorView y = exchange_.combine_buffer(received_.handle);
    run_experts(exchange_, of_, all_, y, absent_);
    if (before_combine) before_combine(y.data, bytes_of_experts());
    call.hook = hook;
    exchange_.combine(combined_->what(y, *tokens_), received_.handle, call);
    if (!hook) check_combine();
  }
  void receive_combine() {
    receive();
    check_combine();
  }

  LowLatencyCall call;
  /// Told what a call is about to read.
  std::function<void(const void* from, size_t bytes)> before_dispatch, before_combine;

 private:
  uint32_t rank() const { return exchange_.world().rank(); }
  Accelerator& accelerator() const { return exchange_.world().accelerator(); }

  size_t bytes_of_experts() const {
    return size_t{of_.shape.local_experts(rank())} * of_.shape.ranks *
           exchange_.options().tokens_max * of_.shape.hidden * sizeof(uint16_t);
  }

  void receive() {
    survivor_.complaints.listen([&] { exchange_.receive(received_.handle); });
  }
  /// A dispatch says what is wrong with its ids unless another's complaint stands where it would.
  void wait() {
    while (survivor_.complaints.listen([&] { exchange_.wait(); })) continue;
    if (is_to_be_told_ && survivor_.complaints.heard() == heard_before_)
      throw WrongBatch(fmt::format("rank {}: nothing was said of ids that are no experts", rank()));
    is_to_be_told_ = false;
  }

  /// Payload that looks like empty staging, in places.
  void fill_with_ones() {
    for (Tokens& tokens : all_)
      for (size_t i = 0; i < tokens.x.size(); ++i)
        if (i / 8 % 3 == 0) tokens.x[i] = 0xffff;
  }

  /// The stopped rank's tokens are all there, or it counts as absent; of its rows, which nobody
  /// asks for any more, some may be missing. All others' must be exact.
  void check_dispatch() {
    wait();
    const bool may_lack = survivor_.stopped && survivor_.masks_the_stopped();
    if (may_lack) {
      const size_t ranges = size_t{of_.shape.local_experts(rank())} * of_.shape.ranks * 2;
      const std::vector<int32_t> seen =
          read_back(accelerator(), received_.ranges.as<int32_t>(), ranges);
      if (seen != expected_batch(of_.shape, all_, rank()).ranges) absent_ = {*survivor_.stopped};
    }
    const std::set<uint32_t> unchecked =
        may_lack ? std::set<uint32_t>{*survivor_.stopped} : std::set<uint32_t>{};
    survivor_.require_none(
        difference_after_dispatch(exchange_, of_, all_, received_, absent_, unchecked),
        "a dispatch");
  }

  /// A token lacks all of the stopped rank's picks, or none.
  void check_combine() {
    wait();
    const std::vector<int32_t> lost = combined_->lost.read();
    const std::vector<uint16_t> out = combined_->out.read();
    for (uint32_t token = 0; token < mine_.count; ++token) {
      std::set<uint32_t> without;
      if (lost[token] != 0 && survivor_.masks_the_stopped()) without = {*survivor_.stopped};
      survivor_.require_none(
          difference_of_token(of_, mine_, rank(), token, lost[token], out, without), "a combine");
    }
  }

  Survivor& survivor_;
  LowLatency& exchange_;
  const LowLatencyCase of_;
  std::vector<Tokens> all_;
  const Tokens& mine_;
  Tokens given_;  ///< mine_ with ids that are no experts
  bool is_to_be_told_ = false;
  uint32_t heard_before_ = 0;
  std::optional<LowLatencyTokens> tokens_;
  std::optional<CombineOnDevice> combined_;
  LowLatencyReceived received_;
  std::set<uint32_t> absent_;
};

/// One batch's sends fill the time of the other's way, in dispatches and in combines.
inline void overlap(SurvivorBatch& one, SurvivorBatch& other) {
  one.dispatch(true);
  other.dispatch(true);
  one.receive_dispatch();
  one.combine(true);
  other.receive_dispatch();
  other.combine(true);
  one.receive_combine();
  other.receive_combine();
}

}  // namespace tokenyard::test
