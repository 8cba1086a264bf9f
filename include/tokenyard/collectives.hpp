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
#include "tokenyard/tensor.hpp"

namespace tokenyard {

namespace control {
class Store;
}

/// float16 and bfloat16 are reduced in float32 and rounded once. For booleans, sum and max mean
/// "or", product and min mean "and". Bitwise operations need integers or booleans; min and max need
/// an ordered type.
enum class ReduceOp : uint8_t { sum, average, product, min, max, bit_and, bit_or, bit_xor };
std::string name_of(ReduceOp op);

/// How an operation reacts to the loss of ranks.
enum class OnFailure : uint8_t {
  raise,    ///< throws OperationAborted on every survivor, as do all later operations until
            ///< `recover`, `shrink` or `replace`
  retry,    ///< waits until new processes hold the lost ranks' slots, then runs again
  exclude,  ///< runs again among the survivors
};

/// The layout of lists with one part per rank, once ranks are lost (all_gather, gather, scatter,
/// reduce_scatter, all_to_all).
enum class Places : uint8_t {
  kept,     ///< size() parts. A lost rank's part is not read in inputs and is zero in results
  compact,  ///< one part per active rank, ascending by rank. A call with another number of parts,
            ///< as from a rank that has not heard of a loss, fails with InvalidArgument on all
            ///< ranks
};

/// How an operation moves its bytes; `automatic` chooses by size, number of ranks and hosts.
enum class Algorithm : uint8_t { automatic, doubling, halving_doubling, ring, tree, direct };
std::string name_of(Algorithm algorithm);

struct CallOptions {
  std::optional<std::chrono::nanoseconds> timeout;  ///< of this call; unset: the group's
  Algorithm algorithm = Algorithm::automatic;       ///< the same on all ranks
};

struct CollectivesOptions {
  /// Where the ranks find one another: "file:/a/directory/all/ranks/see", or "tcp://host:port", a
  /// store run by `serve_store` or `python -m tokenyard store` (rank 0 runs it itself if nobody
  /// listens there and `host_store` is set).
  std::string store;
  bool host_store = true;
  /// The caller's own store, used instead of `store`; torch's, for example (src/control/store.hpp).
  std::shared_ptr<control::Store> own_store;
  std::string job = "tokenyard";
  std::string secret;  ///< processes that do not know it are rejected
  uint32_t rank = 0, size = 1;
  uint32_t size_max = 0;  ///< largest size that `grow` may reach; 0: `size`
  std::string address;  ///< where others reach this rank; empty: found automatically, else loopback
  std::string host;     ///< ranks with equal names share memory; empty: found automatically
  /// A plug-in that carries data in place of TCP, such as "libtokenyard_ucx.so"; empty: none. The
  /// same on all ranks.
  std::string interconnect = {};
  std::chrono::nanoseconds timeout = std::chrono::seconds(30);  ///< of each operation, unless set
  std::chrono::nanoseconds silence = std::chrono::seconds(5);   ///< a silent rank counts as lost
  OnFailure on_failure = OnFailure::raise;
  Places places = Places::kept;  ///< the same on all ranks
  /// Whether exactly half of the ranks may go on, with the store as a witness. Otherwise that half
  /// waits for others to come back and fails at its deadline.
  bool witness = true;
  /// Called periodically by every wait; may throw to end the wait (Python's Ctrl-C).
  std::function<void()> interrupt = [] {};
};

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

/// One rank's membership of a job. Any thread may call anything.
class Collectives {
 public:
  /// Founds a job. Blocks until all ranks have come. Throws PeerTimeout naming a missing rank.
  static std::unique_ptr<Collectives> connect(const CollectivesOptions& options);
  /// Joins a running job, in the slot `options.rank` of a lost rank or in one that `grow` has
  /// added. Blocks until the members admit it (by `recover`, `replace`, `grow` or
  /// OnFailure::retry).
  static std::unique_ptr<Collectives> join(const CollectivesOptions& options);
  /// Begins a job whose other slots are empty; for a process that computes alone before it joins
  /// another job. Needs no store.
  static std::unique_ptr<Collectives> alone(const CollectivesOptions& options);
  /// Leaves as `leave` does, but waits at most a second and throws nothing. Joins all threads.
  ~Collectives();

  uint32_t rank() const;
  uint32_t size() const;  ///< number of slots
  Group world() const;
  /// Founds a group. Collective among `ranks` (ranks of the world in any order; a rank's position
  /// becomes its rank in the group); others need not call. `name` must be the same on all, and is
  /// free again once this rank has closed the group that had it. A newcomer enters the groups of
  /// its slot that were open when it was admitted. Throws what a barrier throws; all its ranks may
  /// then try again.
  Group group(std::span<const uint32_t> ranks, const std::string& name,
              std::optional<std::chrono::nanoseconds> timeout = std::nullopt);

  /// Returns the active ranks, ascending; empty once this rank has been fenced.
  std::vector<uint32_t> active_ranks() const;
  /// Returns the ranks whose new processes have asked to join and wait. Sends nothing.
  std::vector<uint32_t> waiting_ranks() const;
  uint64_t epoch() const;
  /// Registers a function that a library thread calls after each change of the membership, until
  /// the returned object is destroyed. It must not wait for operations.
  std::shared_ptr<void> on_change(std::function<void()> call);

  /// Goes on without the lost ranks. Waits until every survivor has called it; then all groups work
  /// again. All failures so far, on any rank, are behind all survivors: no operation called
  /// afterwards fails because of them. (An operation called before, with a lost root, may still
  /// fail with an OperationAborted of an epoch below `epoch()`; it needs no other shrink.) Returns
  /// the ranks that go on, alike on all; throws PeerTimeout naming a rank that has not called it.
  std::vector<uint32_t> shrink();
  /// Goes on with the ranks that are active now, or waits first until every slot is held. All
  /// groups work again. Returns the active ranks, at once if the others have recovered already, by
  /// whichever call. Needs no other rank's call, except after a PeerTimeout, of which some ranks
  /// may not know: then it waits for all of them as `shrink` does. Throws PeerTimeout naming a rank
  /// that has not come, or has not called it.
  std::vector<uint32_t> recover(bool wait_for_replacements = false,
                                std::optional<std::chrono::nanoseconds> timeout = std::nullopt);
  /// Waits until a new process holds the slot of a lost rank; returns at once if one has come since
  /// the loss, whichever call admitted it. If nobody has lost that slot since this rank came, waits
  /// for the next process, which takes the slot over. Every survivor calls it for each lost rank,
  /// in any order; a group works again once all its lost ranks are replaced.
  void replace(uint32_t rank, std::optional<std::chrono::nanoseconds> timeout = std::nullopt);
  /// Waits until `ranks` more ranks have come than this rank's earlier calls asked for; returns at
  /// once if they have. Every member calls it. A newcomer counts from the size it found, its own
  /// slot included.
  void grow(uint32_t ranks, std::optional<std::chrono::nanoseconds> timeout = std::nullopt);
  /// Evicts a live rank: it is Fenced, and lost to all others, which go on by the calls above. One
  /// rank's call suffices. Throws InvalidArgument for this rank itself, or if too few would remain.
  void evict(uint32_t rank, std::optional<std::chrono::nanoseconds> timeout = std::nullopt);
  /// Leaves in good order, once all messages sent by this rank have been received. If one is not
  /// received in time, leaves all the same and throws PeerTimeout naming its rank. Other operations
  /// under way fail with Cancelled. The others go on without an error as soon as they `shrink`, or
  /// at once under OnFailure::exclude.
  void leave();
  /// Ends all waits of this rank with Cancelled.
  void cancel();

  CollectivesCounters counters() const;

  struct Impl;
  explicit Collectives(std::unique_ptr<Impl> parts);

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace tokenyard
