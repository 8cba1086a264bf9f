#include "collectives/engine/operation_queue.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "tokenyard/error.hpp"

namespace tokenyard::collectives {

namespace {

/// An operation that takes longer than this announces that it has begun, so that a rank that runs
/// out of time knows which ranks are late.
constexpr Instant slow = std::chrono::milliseconds(100);

/// Time after a deadline for the other ranks' announcements.
constexpr Instant hearing = std::chrono::milliseconds(50);

/// Minimum time of an operation after its last rank has come: the ranks it then waits for may have
/// waited for that rank too.
constexpr Instant head_start = std::chrono::milliseconds(100);

/// Twice the size of a core's own cache: larger results have left it by the time they are read.
constexpr size_t large_bytes = size_t{4} << 20;

/// After this time, a waiting operation also looks at frames that it does not expect.
constexpr Instant unusual = std::chrono::microseconds(200);

}  // namespace

std::string Operation::choice() const {
  return chosen.text(call.bytes, shape);
}

OperationQueue::OperationQueue(EngineContext& engine_context, GroupIdentity identity,
                               Sequence committed)
    : context_(engine_context),
      identity_(std::move(identity)),
      committed_(committed),
      undo_(engine_context.pool) {
  open_frame_protocol();
}

void OperationQueue::open_frame_protocol() {
  if (talk_) bytes_sent_before_ += talk_->bytes_sent();
  talk_.emplace(
      static_cast<uint32_t>(identity_.slots.size()), identity_.self, [this](uint32_t rank) {
        return context_.transport->channel(identity_.id, Lane::collective, identity_.slots[rank]);
      });
  unusable_ = false;
}

uint64_t OperationQueue::bytes_sent() const {
  return bytes_sent_before_ + (talk_ ? talk_->bytes_sent() : 0);
}

std::string OperationQueue::title(const Operation& operation) const {
  return title(operation, committed_ + 1);
}

std::string OperationQueue::title(const Operation& operation, Sequence sequence) const {
  return fmt::format("{} {} of group \"{}\"", name_of(operation.call.signature.kind), sequence,
                     identity_.name);
}

void OperationQueue::add(std::shared_ptr<Operation> operation) {
  ++context_.counters.operations;
  if (failed_ || broken()) {
    context_.finish(operation, failed_ ? failed_ : refused(*operation, committed_ + 1));
    return;
  }
  queue_.push_back(std::move(operation));
}

bool OperationQueue::poll(Instant now) {
  if (failed_) return false;
  if (queue_.empty() && stage_ == GroupStage::open) {
    if (talk_) talk_->push();  // the last frames of the previous operation
    return false;
  }
  bool moved = false;
  if (!context_.frozen && !unusable_) {
    try {
      if (phase_ == Phase::idle) queue_.empty() ? begin_parting(now) : begin(now);
      const Sequence before = committed_;
      advance();
      moved = run_.take_progress() || committed_ != before;
      moved = talk_->take_moved() || moved;
      const bool waits = phase_ == Phase::running || phase_ == Phase::committing;
      const bool parts = phase_ == Phase::parting && !over_;
      if (!moved && ((waits && now > began_ + unusual) || (parts && now > began_ + slow))) {
        talk_->poll_others(attempt_->team.ranks);
      }
    } catch (const CallsDiffer& differ) {
      refuse(differ.refusal);
    } catch (const BrokenByPeer& broken) {
      break_by_peer(broken.breakage.facts(), now);
    } catch (...) {
      fail_locally(std::current_exception(), now);
    }
  }
  if (!queue_.empty()) poll_clock(now);
  return moved;
}

void OperationQueue::begin(Instant now) {
  Operation& operation = *queue_.front();
  began_ = now;
  here_said_ = lacks_ranks_ = false;
  complete_since_ = {};
  // No rank would wait for a part that this caller's list lacks, nor read one.
  const Call& call = operation.call;
  const size_t ranks_now = identity_.slots.size();
  if (context_.places == Places::kept && call.has_parts(identity_.self) &&
      call.parts() < ranks_now) {
    return finish_head(std::make_exception_ptr(
        OperationAborted(name_of(call.signature.kind), committed_ + 1, context_.view.epoch, {})));
  }
  // Others may have had an operation under way when ranks were lost, and wait for successors.
  if (context_.on_failure == OnFailure::retry &&
      context_.mutant != EngineMutant::successors_not_awaited &&
      identity_.active_ranks(context_.view).size() < identity_.slots.size()) {
    phase_ = Phase::awaiting_ranks;
    return;
  }
  prepare_attempt();
  const Signature& signature = call.signature;
  const std::vector<uint32_t>& ranks = attempt_->team.ranks;
  if (is_rooted(signature.kind) &&
      std::find(ranks.begin(), ranks.end(), signature.root) == ranks.end()) {
    finish_head(std::make_exception_ptr(OperationAborted(name_of(signature.kind), committed_ + 1,
                                                         context_.lost_in(), {signature.root})));
    return;
  }
  if (context_.places == Places::compact && call.has_parts(identity_.self)) {
    place_parts(operation);
    if (phase_ == Phase::refusing) return;
  }
  operation.shape = shape_of(attempt_->team, attempt_->host_of);
  operation.chosen = choose(signature.kind, signature.type, operation.call.bytes, operation.shape,
                            signature.algorithm);
  attempt_->large = operation.call.bytes_written() >= large_bytes;
  talk_->begin(committed_ + 1, signature);
  phase_ = Phase::running;
  run_.begin(operate());
}

Team OperationQueue::team_of_hosts(std::vector<uint32_t>& host_of) const {
  Team team = {.ranks = identity_.active_ranks(context_.view), .me = 0};
  // A host's number is its first rank; ranks of one host become adjacent.
  host_of.assign(identity_.slots.size(), 0);
  std::map<uint64_t, uint32_t> first_of;
  for (const uint32_t rank : team.ranks) {
    const uint64_t host = context_.transport->host_of(identity_.slots[rank]);
    host_of[rank] = first_of.try_emplace(host, rank).first->second;
  }
  std::stable_sort(team.ranks.begin(), team.ranks.end(),
                   [&](uint32_t a, uint32_t b) { return host_of[a] < host_of[b]; });
  team.me = team.place_of(identity_.self);
  return team;
}

void OperationQueue::prepare_attempt() {
  if (attempt_) return;  // as for the previous operation of this epoch
  std::vector<uint32_t> host_of;
  Team team = team_of_hosts(host_of);
  attempt_.emplace(Attempt{.talk = *talk_,
                           .undo = undo_,
                           .team = std::move(team),
                           .host_of = std::move(host_of),
                           .chunk_bytes = context_.chunk_bytes,
                           .large = false});
  team_members_.clear();
  for (const uint32_t rank : attempt_->team.ranks) {
    team_members_.push_back(*context_.view.at(identity_.slots[rank]));
  }
}

std::string OperationQueue::choice(OperationKind kind, size_t bytes) const {
  std::vector<uint32_t> host_of;
  const Team team = team_of_hosts(host_of);
  const Shape shape = shape_of(team, host_of);
  return choose(kind, DataType::float32, bytes, shape, Algorithm::automatic).text(bytes, shape);
}

void OperationQueue::extend(uint32_t slots) {
  while (identity_.slots.size() < slots) {
    identity_.slots.push_back(static_cast<Slot>(identity_.slots.size()));
  }
}

Task OperationQueue::operate() {
  const Operation& operation = *queue_.front();
  Task data = perform(*attempt_, operation.placed_call(), operation.chosen);
  co_await data;
  if (context_.mutant == EngineMutant::round_skipped) co_return;
  phase_ = Phase::committing;
  Task round = commit_round(*attempt_);
  co_await round;
}

void OperationQueue::advance() {
  if (phase_ == Phase::refusing) {
    if (talk_->refused(attempt_->team.ranks)) finish_refusal();
    return;
  }
  if (phase_ != Phase::running && phase_ != Phase::committing && phase_ != Phase::parting) return;
  talk_->push();
  if (over_ || !run_.poll()) return;
  if (phase_ == Phase::parting) {
    over_ = true;
  } else {
    commit();
  }
}

void OperationQueue::commit() {
  undo_.commit();
  settle_results(*queue_.front());
  ++committed_;
  ++context_.counters.committed;
  if (committed_ == 1 && identity_.label != 0) ++context_.founded[identity_.label];
  finish_head(nullptr);
}

void OperationQueue::finish_head(std::exception_ptr error) {
  run_.stop();
  phase_ = Phase::idle;
  expired_.reset();
  const std::shared_ptr<Operation> operation = std::move(queue_.front());
  queue_.pop_front();
  context_.finish(operation, std::move(error));
}

void OperationQueue::take_back() {
  run_.stop();
  context_.mutant == EngineMutant::undo_forgotten ? undo_.commit() : undo_.restore();
  phase_ = Phase::idle;
}

void OperationQueue::poll_clock(Instant now) {
  if (expired_) {
    if (now >= gives_up_) give_up(now);
    return;
  }
  const bool talking =
      (phase_ == Phase::running || phase_ == Phase::committing) && !context_.frozen && !unusable_;
  if (talking && !here_said_ && (now >= speaks_at() || talk_->asked())) {
    talk_->say_here(attempt_->team.ranks);
    here_said_ = lacks_ranks_ = true;
  }
  if (talking && lacks_ranks_ && talk_->absent(attempt_->team.ranks).empty()) {
    lacks_ranks_ = false;
    complete_since_ = now;
  }
  if (now >= judged_at()) expire(now);
}

Instant OperationQueue::speaks_at() const {
  return std::min(began_ + slow, queue_.front()->deadline);
}

Instant OperationQueue::judged_at() const {
  return std::max(queue_.front()->deadline + hearing, complete_since_ + head_start);
}

std::optional<Instant> OperationQueue::next_deadline() const {
  if (queue_.empty() || failed_) return std::nullopt;
  if (expired_) return gives_up_;
  const bool running = phase_ == Phase::running || phase_ == Phase::committing;
  return running && !here_said_ && !context_.frozen ? speaks_at() : judged_at();
}

}  // namespace tokenyard::collectives
