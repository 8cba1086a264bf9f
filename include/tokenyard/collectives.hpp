/// Collectives among ranks that may die, hang, leave and join.
///
/// Each rank has a slot, a number that stays its own whatever happens to others. An operation runs
/// among the active ranks of its group. Lists with one part per rank have size() parts; the parts
/// of inactive ranks are not read, and are zero in results (or see Places).
///
/// Invariant: after any failure, all survivors agree. An operation is done on every survivor, with
/// the same membership, or on none, and then inputs are unchanged.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tokenyard/error.hpp"
#include "tokenyard/job.hpp"
#include "tokenyard/tensor.hpp"

namespace tokenyard {

/// float16 and bfloat16 are reduced in float32 and rounded once. For booleans, sum and max mean
/// "or", product and min mean "and". Bitwise operations need integers or booleans; min and max need
/// an ordered type.
enum class ReduceOp : uint8_t { sum, average, product, min, max, bit_and, bit_or, bit_xor };
std::string name_of(ReduceOp op);

/// How an operation moves its bytes; `automatic` chooses by size, number of ranks and hosts.
enum class Algorithm : uint8_t { automatic, doubling, halving_doubling, ring, tree, direct };
std::string name_of(Algorithm algorithm);

struct CallOptions {
  std::optional<std::chrono::nanoseconds> timeout;  ///< of this call; unset: the group's
  Algorithm algorithm = Algorithm::automatic;       ///< the same on all ranks
};

using CollectivesOptions = JobOptions;

/// An operation under way. Copies refer to the same operation, which goes on after the last copy is
/// destroyed.
class Work {
 public:
  /// Waits until the operation is done. Throws its error: OperationAborted, PeerTimeout,
  /// InvalidArgument (also if ranks made different calls), QuorumLost, Fenced or Cancelled.
  void wait();
  /// Waits at most `time`. Returns whether the operation is done.
  bool wait_for(std::chrono::nanoseconds time);
  bool done() const;
  /// Returns the error; null while the operation is under way or if it succeeded.
  std::exception_ptr error() const;
  /// Registers a function called once by the thread that finishes the operation, or at once if it
  /// is done.
  void when_done(std::function<void()> call);
  /// Returns the sender of a message received from any rank.
  uint32_t source() const;
  /// Returns the ranks of the group that took no part, ascending: they were lost before. Empty
  /// while the operation is under way or if it failed; then the error names them.
  std::vector<uint32_t> failed_ranks() const;
  /// Returns the algorithm chosen and why: "direct: 4194304 bytes, 4 ranks on 1 host (> 16 KiB
  /// within a host)".
  std::string choice() const;

  struct State;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;
};

/// Ranks that run operations together. All ranks of a group must call its operations in the same
/// order. Any thread may call; groups do not wait for one another. Ranks count within the group.
///
/// Copies refer to the same group. `close`, or the end of the last copy, closes it; operations
/// under way go on. Once all its active ranks have closed it, each releases what the group used:
/// memory, mappings, descriptors. Closing is local and waits for nobody, and ranks may found a
/// group of the same name at once.
///
/// Invariant: nothing sent in a closed group is accepted by another group of its name.
class Group {
 public:
  uint32_t rank() const;
  uint32_t size() const;
  std::vector<uint32_t> active_ranks() const;
  /// Returns the number of parts in lists: size(), or the number of active ranks (Places::compact).
  uint32_t parts() const;
  const std::string& name() const;
  /// Closes all copies: later calls throw InvalidArgument, as do calls of other ranks once one has
  /// closed it. The world cannot be closed. May be called again.
  void close();
  bool closed() const;

  // Arrays are contiguous and in host memory, and stay valid until their operation is done.

  Work all_reduce(TensorView in_out, ReduceOp op, CallOptions options = {});
  /// Reduces several arrays, one after the other, in one operation; their types may differ.
  Work all_reduce(std::span<const TensorView> in_out, ReduceOp op, CallOptions options = {});
  Work reduce(TensorView in_out, ReduceOp op, uint32_t root, CallOptions options = {});
  Work broadcast(TensorView in_out, uint32_t root, CallOptions options = {});
  /// `out`: [size()]; lengths may differ, and out[r] is as long as rank r's `in`.
  Work all_gather(ConstTensorView in, std::span<const TensorView> out, CallOptions options = {});
  /// `out`: [size()] on the root, empty elsewhere.
  Work gather(ConstTensorView in, std::span<const TensorView> out, uint32_t root,
              CallOptions options = {});
  /// `in`: [size()] on the root, empty elsewhere.
  Work scatter(std::span<const ConstTensorView> in, TensorView out, uint32_t root,
               CallOptions options = {});
  /// `in`: [size()]; in[r] is this rank's contribution to rank r's `out`.
  Work reduce_scatter(std::span<const ConstTensorView> in, TensorView out, ReduceOp op,
                      CallOptions options = {});
  /// `in`, `out`: [size()]; in[r] goes to rank r, whose out[this rank] must be as long.
  Work all_to_all(std::span<const ConstTensorView> in, std::span<const TensorView> out,
                  CallOptions options = {});
  Work barrier(CallOptions options = {});
  /// A barrier whose error names, on every rank that has come, all ranks that have not by the
  /// deadline.
  Work monitored_barrier(CallOptions options = {});

  /// The work of a send of up to the group's eager limit (JobOptions::eager_limit) is done once the
  /// array is copied, that of a longer one once its receiver has it.
  Work send(ConstTensorView array, uint32_t to, uint64_t tag = 0, CallOptions options = {});
  /// `from`: the sender; nothing: any rank.
  Work receive(TensorView array, std::optional<uint32_t> from, uint64_t tag = 0,
               CallOptions options = {});

  /// Returns the algorithm that an operation of `bytes` bytes would use, and why.
  std::string choice(const std::string& operation, size_t bytes) const;

  struct State;
  explicit Group(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;
};

/// Counts since the start.
struct CollectivesCounters {
  uint64_t operations = 0, committed = 0, aborted = 0, retried = 0;
  uint64_t bytes_sent = 0;  ///< payload and headers of operations
  /// Rejected connections and messages: of strangers, other jobs and older epochs.
  uint64_t refused = 0;
  uint64_t epochs = 0;
};

/// The groups and operations of a job, and its calls. Any thread may call anything.
class Collectives {
 public:
  /// Makes a job (tokenyard/job.hpp), which ends with these Collectives unless something else
  /// stands on it.
  static std::unique_ptr<Collectives> connect(const CollectivesOptions& options);
  static std::unique_ptr<Collectives> join(const CollectivesOptions& options);
  static std::unique_ptr<Collectives> alone(const CollectivesOptions& options);

  uint32_t rank() const { return job_->rank(); }
  uint32_t size() const { return job_->size(); }  ///< number of slots
  Group world() const;
  /// Founds a group. Collective among `ranks` (ranks of the world in any order; a rank's position
  /// becomes its rank in the group); others need not call. `name` must be the same on all, and is
  /// free again once this rank has closed the group that had it. A newcomer enters the groups of
  /// its slot that were open when it was admitted. Throws what a barrier throws; all its ranks may
  /// then try again. `eager_limit`: of this rank's sends in the group; unset: the job's.
  Group group(std::span<const uint32_t> ranks, const std::string& name,
              std::optional<std::chrono::nanoseconds> timeout = std::nullopt,
              std::optional<size_t> eager_limit = std::nullopt);

  /// Returns the job, whose membership the following calls are about; see tokenyard/job.hpp.
  const std::shared_ptr<Job>& job() const { return job_; }
  std::vector<uint32_t> active_ranks() const { return job_->active_ranks(); }
  std::vector<uint32_t> waiting_ranks() const { return job_->waiting(); }
  uint64_t epoch() const { return job_->epoch(); }
  std::shared_ptr<void> on_change(std::function<void()> call) {
    return job_->on_change(std::move(call));
  }
  std::vector<uint32_t> shrink() { return job_->shrink(); }
  std::vector<uint32_t> recover(bool wait_for_replacements = false,
                                std::optional<std::chrono::nanoseconds> timeout = std::nullopt) {
    return job_->recover(wait_for_replacements, timeout);
  }
  void replace(uint32_t rank, std::optional<std::chrono::nanoseconds> timeout = std::nullopt) {
    job_->replace(rank, timeout);
  }
  void grow(uint32_t ranks, std::optional<std::chrono::nanoseconds> timeout = std::nullopt) {
    job_->grow(ranks, timeout);
  }
  void evict(uint32_t rank, std::optional<std::chrono::nanoseconds> timeout = std::nullopt) {
    job_->evict(rank, timeout);
  }
  void leave() { job_->leave(); }
  void cancel() { job_->cancel(); }

  CollectivesCounters counters() const;

  explicit Collectives(std::shared_ptr<Job> job) : job_(std::move(job)) {}

 private:
  std::shared_ptr<Job> job_;
};

}  // namespace tokenyard
