/// Collectives: operations among ranks that may die, hang, leave and join.
///
/// Every rank has a slot, a number that stays its own whatever happens to the others. An operation
/// runs among the active ranks of its group. Lists with a part for each rank have size() parts:
/// those of inactive ranks are not read, and hold zeros in results (or see Places).
///
/// After any failure all survivors agree: an operation is done on every one of them, with the same
/// membership, or it has not happened on any, and inputs are as they were.
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

/// float16 and bfloat16 are reduced in float32 and rounded once. Booleans: sum and max are "or",
/// product and min are "and". Bitwise operations need integers or booleans, min and max something
/// that has an order.
enum class ReduceOp : uint8_t { sum, average, product, min, max, bit_and, bit_or, bit_xor };
std::string name_of(ReduceOp op);

/// What an operation does when it was aborted because ranks are gone.
enum class OnFailure : uint8_t {
  raise,    ///< throws OperationAborted on every survivor; so do all later ones until `recover`,
            ///< `shrink` or `replace`
  retry,    ///< waits until somebody has taken the lost ranks' places, and runs again
  exclude,  ///< runs again among the survivors
};

/// What lists with a part for each rank look like once ranks are lost (all_gather, gather, scatter,
/// reduce_scatter, all_to_all).
enum class Places : uint8_t {
  kept,     ///< size() parts. A lost rank's part of an input is not read, its part of a result is
            ///< zeros
  compact,  ///< a part for each active rank, ascending by rank. Calls with another number of parts,
            ///< as of somebody who has not heard of a loss, fail with InvalidArgument on all ranks
};

/// How an operation moves its bytes; `automatic` chooses by size, ranks and hosts.
enum class Algorithm : uint8_t { automatic, doubling, halving_doubling, ring, tree, direct };
std::string name_of(Algorithm algorithm);

struct CallOptions {
  std::optional<std::chrono::nanoseconds> timeout;  ///< of this call; else the group's
  Algorithm algorithm = Algorithm::automatic;       ///< the same on all ranks
};

struct CollectivesOptions {
  /// Where the ranks find one another: "file:/a/directory/all/ranks/see", or "tcp://host:port", a
  /// store that `serve_store` or `python -m tokenyard store` runs (rank 0 runs it itself if nobody
  /// listens there and `host_store` is set).
  std::string store;
  bool host_store = true;
  /// A store of the caller's own, instead: torch's, for one (src/control/store.hpp).
  std::shared_ptr<control::Store> own_store;
  std::string job = "tokenyard";
  std::string secret;  ///< who does not know it is turned away
  uint32_t rank = 0, size = 1;
  uint32_t size_max = 0;  ///< how far `grow` may go; 0: `size`
  std::string address;    ///< where others reach this rank; empty: found out, else loopback
  std::string host;       ///< ranks with equal names share memory; empty: found out
  /// A plug-in that carries what would go over TCP, "libtokenyard_ucx.so" for one; empty: none. The
  /// same on all ranks.
  std::string interconnect = {};
  std::chrono::nanoseconds timeout = std::chrono::seconds(30);  ///< of every operation, unless told
  std::chrono::nanoseconds silence = std::chrono::seconds(5);   ///< a rank silent so long is gone
  OnFailure on_failure = OnFailure::raise;
  Places places = Places::kept;  ///< the same on all ranks
  /// For an exact half of the ranks to go on, the store decides as a witness; without, it waits
  /// until others come back, and fails at its deadline.
  bool witness = true;
  /// Called now and then by everything that waits; may throw to end the wait (Python's Ctrl-C).
  std::function<void()> interrupt = [] {};
};

/// An operation under way. Copies are the same operation. If the last one is dropped the operation
/// goes on.
class Work {
 public:
  /// Until it is done. Throws what went wrong: OperationAborted, PeerTimeout, InvalidArgument (also
  /// where ranks called different things), QuorumLost, Fenced, Cancelled.
  void wait();
  /// False if it is not done by then.
  bool wait_for(std::chrono::nanoseconds time);
  bool done() const;
  /// Null while it is under way, and if all went well.
  std::exception_ptr error() const;
  /// Called once, by the thread that finishes the operation, or at once if it is done.
  void when_done(std::function<void()> call);
  /// Of a receive from any rank: from whom it was.
  uint32_t source() const;
  /// Returns the ranks of the group that are missing from what was done, ascending: they were lost
  /// before. Empty while the operation is under way, and if it failed: then the error names them.
  std::vector<uint32_t> failed_ranks() const;
  /// The algorithm that was chosen, and why:
  /// "direct: 4194304 bytes, 4 ranks on 1 host (> 16 KiB within a host)".
  std::string choice() const;

  struct State;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;
};

/// Ranks that operate together. Calls of one group happen in the same order on all its ranks; any
/// thread may call, and different groups do not wait for one another. Ranks are counted within the
/// group.
///
/// Copies are the same group. It is closed by `close`, and by the end of the last copy; what is
/// under way goes on. Once all its active ranks have closed it, it gives back on all of them what
/// it used: memory, mappings, descriptors. Closing is local and waits for nobody, and any rank may
/// found a group of the same name at once, together with the others.
///
/// Invariant: nothing of a group that is closed is accepted by another one of its name.
class Group {
 public:
  uint32_t rank() const;
  uint32_t size() const;
  std::vector<uint32_t> active_ranks() const;
  /// Returns how many parts lists have now: size(), or one for each active rank (Places::compact).
  uint32_t parts() const;
  const std::string& name() const;
  /// Ends all copies: later calls throw InvalidArgument, as do calls of ranks that have not closed
  /// it where others have. The world is never closed. May be called again.
  void close();
  bool closed() const;

  // Arrays are contiguous and in host memory, and stay valid until their operation is done.

  Work all_reduce(TensorView in_out, ReduceOp op, CallOptions options = {});
  /// One after the other in one operation; types may differ.
  Work all_reduce(std::span<const TensorView> in_out, ReduceOp op, CallOptions options = {});
  Work reduce(TensorView in_out, ReduceOp op, uint32_t root, CallOptions options = {});
  Work broadcast(TensorView in_out, uint32_t root, CallOptions options = {});
  /// `out` [size()]: lengths may differ, out[r] is as long as rank r's `in`.
  Work all_gather(ConstTensorView in, std::span<const TensorView> out, CallOptions options = {});
  /// `out` is empty but on the root.
  Work gather(ConstTensorView in, std::span<const TensorView> out, uint32_t root,
              CallOptions options = {});
  /// `in` is empty but on the root.
  Work scatter(std::span<const ConstTensorView> in, TensorView out, uint32_t root,
               CallOptions options = {});
  /// in[r] is what this rank adds to rank r's `out`.
  Work reduce_scatter(std::span<const ConstTensorView> in, TensorView out, ReduceOp op,
                      CallOptions options = {});
  /// in[r] goes to rank r, whose out[this rank] is as long.
  Work all_to_all(std::span<const ConstTensorView> in, std::span<const TensorView> out,
                  CallOptions options = {});
  Work barrier(CallOptions options = {});
  /// Names every rank that has not come by the deadline, on every rank that has.
  Work monitored_barrier(CallOptions options = {});

  Work send(ConstTensorView array, uint32_t to, uint64_t tag = 0, CallOptions options = {});
  /// `from`: nothing means anybody.
  Work receive(TensorView array, std::optional<uint32_t> from, uint64_t tag = 0,
               CallOptions options = {});

  /// The algorithm an operation of this many bytes would use, and why.
  std::string choice(const std::string& operation, size_t bytes) const;

  struct State;
  explicit Group(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;
};

/// What was counted since the start.
struct CollectivesCounters {
  uint64_t operations = 0, committed = 0, aborted = 0, retried = 0;
  uint64_t bytes_sent = 0;  ///< payload and headers, of operations
  uint64_t refused = 0;     ///< connections and messages of strangers, other jobs, old epochs
  uint64_t epochs = 0;
};

/// One rank's part in a job. Any thread may call anything.
class Collectives {
 public:
  /// Blocks until every rank has come. Throws PeerTimeout naming one that did not.
  static std::unique_ptr<Collectives> connect(const CollectivesOptions& options);
  /// A new process takes the place `options.rank` of a lost rank, or a new one that `grow` has
  /// opened. Blocks until the members admit it (their `recover`, `replace`, `grow`, or
  /// OnFailure::retry).
  static std::unique_ptr<Collectives> join(const CollectivesOptions& options);
  /// Begins a job in which every other place is empty, and meets nobody: for a process that wants
  /// to compute before it joins another one. Needs no store.
  static std::unique_ptr<Collectives> alone(const CollectivesOptions& options);
  /// As `leave`, but waits for a second at most and says nothing. Joins all threads, closes
  /// everything.
  ~Collectives();

  uint32_t rank() const;
  uint32_t size() const;  ///< slots
  Group world() const;
  /// Collective among `ranks` (of the world, any order; group ranks are in that order). Ranks that
  /// are not among them need not call. The same name on all; it may be used again once this rank
  /// has closed the group that had it. A newcomer enters the groups of its ranks that the others
  /// had open when they let it in. Throws what a barrier throws; then all its ranks may try again.
  Group group(std::span<const uint32_t> ranks, const std::string& name,
              std::optional<std::chrono::nanoseconds> timeout = std::nullopt);

  /// None once this rank has been fenced.
  std::vector<uint32_t> active_ranks() const;
  /// Ranks whose new process has asked this rank to be let in, and waits. Asks nobody.
  std::vector<uint32_t> waiting_ranks() const;
  uint64_t epoch() const;
  /// Called by a thread of the library after every change; must not wait for operations. Until the
  /// returned object is dropped.
  std::shared_ptr<void> on_change(std::function<void()> call);

  /// Goes on among the survivors, together: waits until every one of them has called it, and lets
  /// all groups work again. What failed before, on whichever of them, is behind them all: no
  /// operation that is called afterwards fails for it. (One that was called before, and whose root
  /// is lost, may still fail: with an OperationAborted of an epoch before `epoch()`, which asks for
  /// no other shrink.) Returns the ranks that have gone on, alike on all; throws PeerTimeout naming
  /// a rank that has not called it.
  std::vector<uint32_t> shrink();
  /// Goes on with the ranks that are there now, and lets all groups work again. Waits until every
  /// slot is held if so asked. Returns the active ranks, at once where the others have recovered
  /// already, by whichever call. Needs no other rank's call, but for one case: after a PeerTimeout,
  /// of which not every rank may have been told, it waits as `shrink` does for all of them. Throws
  /// PeerTimeout naming a rank that has not come, or not called it.
  std::vector<uint32_t> recover(bool wait_for_replacements = false,
                                std::optional<std::chrono::nanoseconds> timeout = std::nullopt);
  /// Waits until a new process holds the slot of a lost rank; done at once if one has come since
  /// the loss, whoever has called for it. Of a slot that nobody has lost since this rank came it
  /// waits for the next process, which takes it over. Every survivor calls it, for each lost rank,
  /// in any order: a group works again once all ranks that it has lost are replaced.
  void replace(uint32_t rank, std::optional<std::chrono::nanoseconds> timeout = std::nullopt);
  /// Waits until `ranks` more ranks have come than this rank's calls before have asked for; done at
  /// once if they have. Every member calls it. A newcomer counts from what there was before it, its
  /// own slot included.
  void grow(uint32_t ranks, std::optional<std::chrono::nanoseconds> timeout = std::nullopt);
  /// Puts a rank out that lives: it is Fenced, and lost to all the others, who go on by the calls
  /// above. One rank's call will do. Throws InvalidArgument for this rank itself, and where too few
  /// would remain.
  void evict(uint32_t rank, std::optional<std::chrono::nanoseconds> timeout = std::nullopt);
  /// Leaves in good order, once all messages it has sent have been received: throws PeerTimeout
  /// naming a rank that has not taken one in time, having left all the same. What else is under way
  /// fails with Cancelled. The others go on without an error as soon as they `shrink`, or at once
  /// under OnFailure::exclude.
  void leave();
  /// Ends everything that waits, on this rank, with Cancelled.
  void cancel();

  CollectivesCounters counters() const;

  struct Impl;
  explicit Collectives(std::unique_ptr<Impl> parts);

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace tokenyard
