/// Collectives on tensors of a device, among the ranks of a World: by loads and stores inside a
/// host, by put and signal between hosts. Calls are enqueued in streams and may be captured into
/// CUDA graphs.
///
/// All ranks make the same collective calls in the same order, also where they use several streams:
/// a call runs after the previous one. Ranks that make different calls all get the same
/// InvalidArgument, which names a rank that differs from rank 0, and no data of such a call are
/// accepted.
///
/// A call that fails on the device, since a rank is gone or silent or makes another call, ends at
/// its deadline at the latest. `check` or `wait` throws the error, as does every later call in that
/// world. Results of a failed call are undefined; inputs that are not also results are never
/// written, and with `keep_inputs` results over an input hold the input again.
///
/// No call has a round of confirmation. Collective calls are numbered alike on all ranks (`calls`).
/// After a failure the ranks that go on agree on the last call that all of them have finished: in
/// the first call after a recovery of the job that the World follows (fabric/sessions.hpp), in
/// `go_on`, or in the constructor of an object that follows another one. Each later call has
/// failed, also where it has finished (`error_of`), and its number is given anew. Nothing in a
/// stream is undone. Messages have no numbers: each has its own two ranks.
///
/// Results are the same bits from run to run, for any number of multiprocessors: reductions fold in
/// the order of ranks, 16- and 8-bit floats in float32 with one rounding at the end. A result may
/// lie exactly where the input does (for operations with parts: where the caller's own part does);
/// any other overlap is a mistake. Between hosts, reductions fold the ranks of each host in their
/// order, then the hosts in theirs, and there is no other protocol than Protocol::automatic.
///
/// Protocol::direct moves bytes from tensor to tensor, all of which must lie in the arenas of their
/// ranks. Its all_to_all is never in place. After a failed call, a late peer may still write into
/// such tensors: their memory is not used again within the world.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "collectives/device/kernels/call_word.hpp"
#include "tokenyard/collectives.hpp"
#include "tokenyard/job.hpp"
#include "tokenyard/stream.hpp"
#include "tokenyard/tensor.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard::device_collectives {

struct Options {
  uint32_t sms = 0;  ///< blocks of a call at most, may differ among ranks; 0: chosen
  // The same on all ranks:
  uint32_t slot_bytes = 256 << 10;  ///< largest message of Protocol::slots, unless a call asks for
                                    ///< it; a window takes four times as many per rank
  uint32_t packet_bytes = 0;        ///< the same of Protocol::packets; a window takes twice as many
                                    ///< per peer; 0: chosen
  uint32_t chunk_bytes = 16 << 10;  ///< largest chunk that a warp moves, a multiple of 16
  uint32_t ring_bytes = 0;          ///< of a ring; a window has two per peer; 0: chosen
  std::optional<std::array<uint32_t, 4>> key = {};  ///< of packets; rank 0's counts. Unset: drawn
  bool arena_tensors = false;  ///< calls larger than packets are Protocol::direct, unless a call
                               ///< asks for another: their tensors lie in arenas
  bool keep_inputs = false;    ///< a call in place copies its input first, and back if it fails;
                               ///< without Protocol::direct, whose late stores would follow
  /// `retry`, `exclude`: as the job of the World does, which has the same. Each call waits on the
  /// host for its end, and is made again once the job continues. Needs keep_inputs.
  OnFailure on_failure = OnFailure::raise;
};

/// How a call folds: an operator, and for sums of floats a factor of every summand, the same on all
/// ranks (PREMUL_SUM).
struct Reduction {
  // NOLINTNEXTLINE(google-explicit-constructor): an operator is a reduction.
  Reduction(ReduceOp op, double factor = 1) : op(op), factor(factor) {}
  ReduceOp op;
  double factor;
};

struct Call {
  Stream stream{};
  std::optional<std::chrono::nanoseconds> timeout = {};  ///< unset: the world's
  Protocol protocol = Protocol::automatic;               ///< alike on all ranks
  uint32_t sms = 0;  ///< blocks at most; 0: those of the options
};

/// Numbers of elements that a rank sends to, and receives from, each rank.
struct Splits {
  std::vector<uint64_t> sent, received;
};

/// The same in memory of the device: numbers of elements by rank, [World::size]. `sent` is read and
/// `received` is written in stream order.
struct DeviceSplits {
  const int64_t* sent;
  int64_t* received;
};

/// A message to another rank, and one from another rank. Both sides give the same type, size and
/// tag, below kTags; otherwise the receiver's call fails and names both.
struct Send {
  ConstTensorView tensor;
  uint32_t to;
  uint32_t tag = 0;
};
struct Receive {
  TensorView tensor;
  uint32_t from;
  uint32_t tag = 0;
};
inline constexpr uint32_t kTags = (1 << 24) - 1;

class Session;

/// A collective call that was made.
struct CallTicket {
  std::shared_ptr<Session> session;
  uint64_t number = 0;  ///< 0: no call, or one that a CUDA graph captured
};

class DeviceCollectives {
 public:
  /// Collective; throws on all ranks alike, unless this rank's own options are wrong. Throws
  /// Unsupported if a rank cannot reach another one of its host by loads and stores, or one of
  /// another host by the network, or if no queue of the network is free. `before`: an object whose
  /// ranks this one's have been, in an older world, and whose calls it continues to count; null on
  /// ranks that had none. It is used no more.
  explicit DeviceCollectives(World& world, const Options& options = {},
                             DeviceCollectives* before = nullptr);
  /// Waits for the last call. Without `close`, the window stays unused while the arena exists.
  ~DeviceCollectives();
  DeviceCollectives(const DeviceCollectives&) = delete;
  DeviceCollectives& operator=(const DeviceCollectives&) = delete;

  /// Returns after all ranks have begun it, in stream order: what ranks did before is visible.
  void barrier(const Call& call = {});
  /// `result`: as many elements as `input`.
  void all_reduce(ConstTensorView input, TensorView result, const Reduction& by,
                  const Call& call = {});
  /// `result` is given on the root only.
  void reduce(ConstTensorView input, TensorView result, const Reduction& by, uint32_t root,
              const Call& call = {});
  /// `tensor` is sent by the root and written by the others.
  void broadcast(TensorView tensor, uint32_t root, const Call& call = {});
  /// `result`: one part of the input's elements per rank.
  void all_gather(ConstTensorView input, TensorView result, const Call& call = {});
  /// Gathers inputs whose numbers of elements, `counts` by rank and alike on all ranks, may differ:
  /// a broadcast per rank.
  void all_gather(ConstTensorView input, TensorView result, const std::vector<uint64_t>& counts,
                  const Call& call = {});
  /// `result` is given on the root only.
  void gather(ConstTensorView input, TensorView result, uint32_t root, const Call& call = {});
  /// `input` is given on the root only.
  void scatter(ConstTensorView input, TensorView result, uint32_t root, const Call& call = {});
  /// `input`: one part of the result's elements per rank.
  void reduce_scatter(ConstTensorView input, TensorView result, const Reduction& by,
                      const Call& call = {});
  /// Reduces parts whose numbers of elements, `counts` by rank and alike on all ranks, may differ:
  /// a reduce per rank.
  void reduce_scatter(ConstTensorView input, TensorView result, const Reduction& by,
                      const std::vector<uint64_t>& counts, const Call& call = {});
  /// Both have one part per rank.
  void all_to_all(ConstTensorView input, TensorView result, const Call& call = {});
  /// Exchanges parts of any sizes, which need not be known to other ranks than the two: a pair that
  /// differs is named on all ranks. Never in place.
  void all_to_all(ConstTensorView input, TensorView result, const Splits& splits,
                  const Call& call = {});
  /// The same with splits that only the device knows, also within a CUDA graph. Parts lie one
  /// behind the other, in the order of ranks; input and result may be larger than their sum. The
  /// input has parts for empty slots, too, from which nothing is received. Ranks whose splits
  /// exceed their input, and those that get more than their result holds, are named on all ranks
  /// before data move.
  void all_to_all(ConstTensorView input, TensorView result, const DeviceSplits& splits,
                  const Call& call = {});

  /// Sends and receives messages, which go on independently of one another. Messages between two
  /// ranks arrive in the order in which they are sent. They are outside the order of collective
  /// calls, and of other ranks' messages; small ones do not wait for their receiver. A message to
  /// this rank itself is received in the same call. Throws Unsupported where ranks share a GPU, and
  /// for messages between hosts if the network had no queue left for them.
  void exchange(const std::vector<Send>& sends, const std::vector<Receive>& receives,
                const Call& call = {});

  /// Returns the number of the last collective call: after going on, that of the last call which
  /// all ranks that have gone on have finished. Calls that a CUDA graph captures have none.
  uint64_t calls() const;
  /// Collective. Goes on, if the job has recovered since the last call; returns `calls`. All ranks
  /// call it, those that know of no failure, too. The first other call goes on only if the job's
  /// ranks have changed or this rank knows of a failure, and throws OperationAborted if this rank
  /// has finished a call that not all have finished, and has done nothing then.
  uint64_t go_on();
  /// Returns the last collective call.
  CallTicket last_call() const;
  /// Returns the error of a call, or null: of one that has failed, of each later one, and once
  /// ranks have gone on of each that not all of them have finished. `ended`: whether the stream has
  /// passed the call.
  static std::exception_ptr error_of(const CallTicket& call, bool ended);
  /// Returns the error of the messages of the same session, or null if none is known.
  static std::exception_ptr error_of_messages(const CallTicket& call);
  /// Waits for the end of all calls; afterwards the World may be closed before another object
  /// follows this one.
  void settle();

  /// Throws the error of the first call that failed, as far as the host can see it. Throws
  /// InvalidArgument after the replay of a CUDA graph that was captured before ranks changed.
  void check();
  /// Waits for all work enqueued on `stream`, then checks.
  void wait(Stream stream = {});
  /// Collective, unless ranks have changed since the last call. Waits for the last call and frees
  /// the window. CUDA graphs that have captured calls must not be replayed afterwards.
  void close();

  /// Returns the bytes of the arena that an object takes on each rank, if all are on one host.
  static uint64_t arena_bytes(const Options& options, uint32_t ranks);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tokenyard::device_collectives
