/// Batches of a rank one of whose peers may stop: checks what must be exact then, and what may be
/// missing. Without such a peer everything must be exact.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "expert_parallel/low_latency/checks.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::test {

/// Thrown if a result of a batch is wrong.
class WrongBatch : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The errors that a rank is to raise about ids that are no experts.
class ExpectedErrors {
 public:
  explicit ExpectedErrors(uint32_t epoch_before) : dispatches_(epoch_before) {}

  /// Expects an error about the dispatch just made, naming its first choice that is no expert.
  /// Returns whether there is one. Must be called for every dispatch. (Dispatches are counted here,
  /// since asking the exchange would wait for its calls.)
  /// `meant`: the same without such ids.
  bool expect(uint32_t topk, const Tokens& given, const Tokens& meant) {
    ++dispatches_;
    const auto wrong = std::mismatch(given.ids.begin(), given.ids.end(), meant.ids.begin()).first;
    if (wrong == given.ids.end()) return false;
    const auto choice = wrong - given.ids.begin();
    possible_.insert(fmt::format("expert {} in token {}, choice {}, of dispatch {}", *wrong,
                                 choice / topk, choice % topk, dispatches_));
    return true;
  }
  /// Makes a call that may raise an error about an earlier dispatch. Returns whether it has.
  bool collect(const std::function<void()>& call) {
    try {
      call();
    } catch (const InvalidArgument& error) {
      if (error.argument != "topk_idx" || !possible_.contains(error.seen)) throw;
      ++raised_;
      return true;
    }
    return false;
  }
  uint32_t raised() const { return raised_; }

 private:
  std::set<std::string> possible_;
  uint32_t dispatches_, raised_ = 0;
};

struct Survivor {
  Survivor(LowLatency& exchange, std::optional<uint32_t> stopped)
      : exchange(exchange), stopped(stopped), expected_errors(epoch_before(exchange.world())) {}

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
  ExpectedErrors expected_errors;
};

/// One batch, step by step. Every step checks its results.
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
    ExpectedErrors& expected_errors = survivor_.expected_errors;
    if (before_dispatch) before_dispatch(input.x.data, mine_.x.size() * sizeof(uint16_t));
    raised_before_ = expected_errors.raised();
    received_ = exchange_.dispatch(input, call);
    must_raise_ = expected_errors.expect(of_.shape.topk, given_, of_.named(mine_, rank()));
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
  /// Called with the memory that a call is about to read.
  std::function<void(const void* from, size_t bytes)> before_dispatch, before_combine;

 private:
  uint32_t rank() const { return exchange_.world().rank(); }
  Accelerator& accelerator() const { return accelerator_of(exchange_.world()); }

  size_t bytes_of_experts() const {
    return size_t{of_.shape.local_experts(rank())} * of_.shape.ranks *
           exchange_.options().tokens_max * of_.shape.hidden * sizeof(uint16_t);
  }

  void receive() {
    survivor_.expected_errors.collect([&] { exchange_.receive(received_.handle); });
  }
  /// Waits. A dispatch must raise an error about its ids unless another dispatch's error replaced
  /// it.
  void wait() {
    while (survivor_.expected_errors.collect([&] { exchange_.wait(); })) continue;
    if (must_raise_ && survivor_.expected_errors.raised() == raised_before_)
      throw WrongBatch(fmt::format("rank {}: nothing was said of ids that are no experts", rank()));
    must_raise_ = false;
  }

  /// Makes parts of the payload look like empty staging.
  void fill_with_ones() {
    for (Tokens& tokens : all_)
      for (size_t i = 0; i < tokens.x.size(); ++i)
        if (i / 8 % 3 == 0) tokens.x[i] = 0xffff;
  }

  /// Either all tokens of the stopped rank have arrived, or it counts as absent. Some of its rows,
  /// which no rank waits for any more, may be missing. All other ranks' must be exact.
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

  /// Checks that a token lacks all of the stopped rank's choices, or none.
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
  bool must_raise_ = false;
  uint32_t raised_before_ = 0;
  std::optional<LowLatencyTokens> tokens_;
  std::optional<CombineOnDevice> combined_;
  LowLatencyReceived received_;
  std::set<uint32_t> absent_;
};

/// Begins a third batch when the first of two has been combined, while the second's dispatch has
/// not been received: sends are two dispatches ahead of receives.
inline void interleave(SurvivorBatch& one, SurvivorBatch& other, SurvivorBatch& third) {
  one.dispatch(true);
  other.dispatch(true);
  one.receive_dispatch();
  one.combine(false);
  third.dispatch(true);
  other.receive_dispatch();
  other.combine(true);
  third.receive_dispatch();
  third.combine(true);
  other.receive_combine();
  third.receive_combine();
}

/// Overlaps two batches: one's sends fill the other's latency, in dispatches and in combines.
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
