/// A Job: processes that work together, may die, hang, leave and join, and agree on who is in.
///
/// Each rank has a slot, a number that stays its own whatever happens to others; the slot of a lost
/// rank is empty until another process takes it over. Worlds (tokens, memory) and Collectives stand
/// on one job: a death is learned once, by all of them, and a call below goes on for all of them.
///
///     auto job = Job::connect({.store = "tcp://host:29500", .secret = secret, .rank = rank,
///                              .size = size});
///     auto world = job->world("host");
///     auto collectives = job->collectives();
///     // After a failure of either, on every survivor:
///     job->recover();
///     world = job->world("host");
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tokenyard/error.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard {

class Collectives;
namespace control {
class Store;
}

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

inline constexpr size_t eager_limit_max = 8 << 10;  ///< largest JobOptions::eager_limit, in bytes

struct JobOptions {
  /// Where the ranks find one another: "file:/a/directory/all/ranks/see", or "tcp://host:port", a
  /// store run by `python -m tokenyard store` (rank 0 runs it itself if nobody listens there and
  /// `host_store` is set).
  std::string store;
  bool host_store = true;
  /// The caller's own store, used instead of `store`; torch's, for example (src/control/store.hpp).
  std::shared_ptr<control::Store> own_store;
  std::string job = "tokenyard";
  std::string secret;  ///< processes that do not know it are rejected; empty: the environment's
  uint32_t rank = 0, size = 1;
  std::optional<uint32_t> local_rank = {};  ///< of its host: selects its GPU; unset: `rank`
  uint32_t size_max = 0;                    ///< largest size that `grow` may reach; 0: `size`
  std::string address;  ///< where others reach this rank; empty: found automatically, else loopback
  /// Ranks with equal names share memory. Empty: that of TOKENYARD_HOST_NAME, or else found
  /// automatically.
  std::string host;
  std::chrono::nanoseconds timeout = std::chrono::seconds(30);  ///< of each call, unless set
  std::chrono::nanoseconds silence = std::chrono::seconds(5);   ///< a silent rank counts as lost
  OnFailure on_failure = OnFailure::raise;
  Places places = Places::kept;  ///< the same on all ranks
  /// Bytes up to which a message is sent eagerly: its send ends once the message is copied, and has
  /// success even if the receiver is lost before it gets the message. The send of a longer one ends
  /// once a receive has got it, and fails if the receiver is lost before. 0: no message is eager,
  /// not even an empty one. At most `eager_limit_max`; of this rank's sends, so ranks may differ.
  size_t eager_limit = eager_limit_max;
  /// Whether exactly half of the ranks may go on, with the store as a witness. Otherwise that half
  /// waits for others to come back and fails at its deadline.
  bool witness = true;
  /// Called periodically by every wait; may throw to end the wait (Python's Ctrl-C).
  std::function<void()> interrupt = [] {};
};

/// Counts of a job since its start.
struct JobMetrics {
  uint64_t epoch = 0;  ///< number of the membership
  uint32_t slots = 0;
  std::vector<uint32_t> active = {};        ///< ranks that are members, ascending
  std::vector<uint32_t> waiting = {};       ///< ranks whose new processes ask to join
  uint64_t joined = 0, lost = 0, left = 0;  ///< ranks that came, died or were evicted, said goodbye
  uint64_t epochs = 0;                      ///< memberships that this rank has had
  uint64_t excused = 0;          ///< evictions refused since the rank had waited for a lost one
  uint64_t stalls = 0;           ///< times that a rank was found to be slow
  uint64_t heartbeats_late = 0;  ///< heartbeats that came after more than half of `silence`
  uint64_t quorums_missed = 0;   ///< times that too few ranks answered to agree on anything
  uint64_t links_made = 0, links_lost = 0;  ///< connections of the control plane, and those of them
                                            ///< that ended without a goodbye
  uint64_t refused = 0;  ///< rejected connections and messages of strangers and older epochs
};

/// One rank's membership of a job. Any thread may call anything. Worlds, Collectives and their
/// groups share it: the rank leaves, within a second, when the last of them has ended.
class Job : public std::enable_shared_from_this<Job> {
 public:
  /// Founds a job. Blocks until all ranks have come. Throws PeerTimeout naming a missing rank, and
  /// InvalidArgument if there is no secret in `options`, TOKENYARD_SECRET_FILE or TOKENYARD_SECRET.
  static std::shared_ptr<Job> connect(const JobOptions& options);
  /// Joins a running job, in slot `options.rank` of a lost rank or in one that `grow` has added.
  /// Blocks until members admit it (by `recover`, `replace`, `grow` or OnFailure::retry).
  static std::shared_ptr<Job> join(const JobOptions& options);
  /// Begins a job whose other slots are empty; for a process that computes alone before it joins
  /// another job. Needs no store.
  static std::shared_ptr<Job> alone(const JobOptions& options);
  ~Job();

  uint32_t rank() const;
  uint32_t size() const;  ///< number of slots
  /// Returns the active ranks, ascending; empty once this rank has been fenced.
  std::vector<uint32_t> active_ranks() const;
  /// Returns the ranks whose new processes have asked to join and wait; one that any member has let
  /// in waits no more. Sends nothing.
  std::vector<uint32_t> waiting() const;
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

  /// Returns the groups and operations of this job (tokenyard/collectives.hpp).
  std::unique_ptr<Collectives> collectives();
  /// Makes a world of the job's active ranks, over shared memory and the network; `device`: "host",
  /// or "cuda", with one GPU per rank. Its ranks are the job's: rank = slot, and the
  /// rank of an empty slot is absent (Reach::none). Collective among the active ranks, which make
  /// their worlds in the same order; begins anew if ranks are lost meanwhile. After a change of the
  /// membership its exchanges go on, and the world with them (World); for anything else call it
  /// again: until then, calls that need a lost rank fail. Throws PeerTimeout naming a rank that has
  /// not called it, QuorumLost if too few ranks answer, Fenced if the others have gone on without
  /// this one.
  std::unique_ptr<World> world(const std::string& device, const WorldOptions& options = {});
  JobMetrics metrics() const;

  class State;
  explicit Job(std::shared_ptr<State> state);
  const std::shared_ptr<State>& state() const { return state_; }  ///< for the library's own parts

 private:
  std::shared_ptr<State> state_;
};

}  // namespace tokenyard
