/// Dispatch and combine for serving: few tokens, fixed buffers, and ranks that may die.
///
///     LowLatency exchange(world, {.experts = 288, .hidden = 7168, .topk = 8, .tokens_max = 128});
///     const LowLatencyReceived received =
///         exchange.dispatch({.x = {x, DataType::bfloat16, {tokens, 7168}},
///                            .topk_idx = {ids, {tokens, 8}}});
///     ...  // experts: received.x -> y
///     exchange.combine({.y = y, .topk_weights = {weights, {tokens, 8}},
///                       .out = {out, DataType::bfloat16, {tokens, 7168}}}, received.handle);
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tokenyard/failed_rank.hpp"
#include "tokenyard/stream.hpp"
#include "tokenyard/tensor.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard {

/// How an object reaches other ranks.
enum class LowLatencyPaths : uint8_t {
  topology,  ///< by loads and stores where they are possible, else by put
  put,       ///< by put alone: needs a network to every rank, as ranks have whose host_names differ
};
/// How a rank reaches another one.
enum class LowLatencyPath : uint8_t {
  none,  ///< its slot is empty
  self,
  load_store,
  put,  ///< a message per call and rank, through the network
};

struct LowLatencyOptions {
  /// Experts of all ranks together; without places_per_rank at least one per rank. Each rank holds
  /// experts / ranks of them, rank after rank, and the first experts % ranks ranks hold one more,
  /// unless `set_expert_map` places them.
  uint32_t experts = 0;
  /// Places for experts on each rank, at least enough for all experts: those beyond them hold
  /// replicas, or are empty until the experts of a lost rank need them. 0: just enough, one place
  /// per expert.
  uint32_t places_per_rank = 0;
  uint32_t hidden = 0;      ///< elements per token; a multiple of 32
  uint32_t topk = 0;        ///< experts per token, 1 to 16, no more than there are. (ExpertParallel
                            ///< takes more.)
  uint32_t tokens_max = 0;  ///< tokens per rank and call
  uint32_t sms = 0;  ///< multiprocessors (blocks) per call, unless the call says otherwise: at
                     ///< least 2, one that sends and one that receives; 0: chosen, all there are.
                     ///< The results are the same, bit for bit, for every number
  bool bf16_rows = true;  ///< whether dispatch may deliver BF16, which takes twice the memory
  LowLatencyPaths paths = LowLatencyPaths::topology;  ///< the same on all ranks
};

/// The format of delivered rows.
enum class LowLatencyRows : uint8_t {
  bf16,         ///< as given. (A NaN may become another NaN.)
  fp8,          ///< E4M3 with an fp32 scale per 128 channels: largest magnitude / 448
  fp8_rounded,  ///< the same with scales rounded up to powers of two
  fp8_ue8m0,    ///< the same as exponents, four per word
};

/// A rank's part of a dispatch. The arrays lie in memory that this rank's kernels can read, are
/// contiguous, and stay unchanged until the call's work has ended.
struct LowLatencyInput {
  /// [tokens, hidden] bfloat16, or float8_e4m3fn with `scales`; 16-byte aligned. None: no tokens.
  ConstTensorView x = {};
  /// Of an FP8 x: [tokens, ceil(hidden / 128)] float32, or for fp8_ue8m0
  /// [tokens, ceil(hidden / 512)] int32: words of exponents.
  ConstTensorView scales = {};
  /// [tokens, topk] int64 or int32: expert ids, -1 for none. An expert that a token names twice
  /// gets one row. An id that is no expert counts as -1: see LowLatency::wait.
  ConstTensorView topk_idx = {};
  /// [tokens, topk] float32, finite; those of -1 are ignored. They travel beside the tokens, so
  /// that no combine need wait for this rank's. None: combine has them. Each rank may choose.
  ConstTensorView topk_weights = {};
  LowLatencyRows rows = LowLatencyRows::fp8;  ///< the same on all ranks: see LowLatency::wait
};

/// How a call is made. The arrays lie in this rank's memory.
struct LowLatencyCall {
  /// [ranks] whether each takes part; empty: all do. The others are masked from then on.
  std::vector<bool> active = {};
  std::optional<std::chrono::nanoseconds> timeout =
      std::nullopt;            ///< none: the World's; at most 14 minutes, and 14 for more
  uint32_t sms = 0;            ///< multiprocessors of this call; 0: as the object has
  bool hook = false;           ///< only send; `receive` does the rest, and in between no SM is held
  TensorView rows_total = {};  ///< dispatch: [local experts] int32, adds the rows received
  TensorView waited_cycles = {};  ///< [ranks] uint64 or int64, adds the cycles waited for each
                                  ///< rank, modulo 2^32: failed_ranks() has longer waits
  TensorView span_ns = {};  ///< [2, 2] uint64 nanoseconds of the device's clock, of the call or its
                            ///< sends, and of its receive: the begin of the first block, if it is
                            ///< less than the value there, and the end of the last, if it is more
  Stream stream = {};
};

/// The batch of a dispatch, for its combine. Copies share it.
class LowLatencyHandle;

/// Rows that a rank received, in memory of the object. It stays unchanged until this batch's
/// combine has run, a rank is unmasked or calls restart, the object goes on in another epoch of its
/// job, or all copies of the handle are gone. slots = ranks * tokens_max.
struct LowLatencyReceived {
  /// [local experts, slots, hidden] bfloat16 or float8_e4m3fn. An expert's rows lie packed from
  /// slot 0, by source rank, then source token; the slots behind them are undefined.
  ConstTensorView x = {};
  /// [local experts, slots, groups] float32 for 128 channels each, or [local experts, slots, words]
  /// int32 of four exponents each; none for BF16. The words of neighbouring slots are neighbours.
  ConstTensorView scales = {};
  ConstTensorView source_token = {};  ///< [local experts, slots] int32 index on the source rank
  ConstTensorView ranges = {};        ///< [local experts, ranks, 2] int32: first row, rows
  ConstTensorView counts = {};        ///< [local experts] int32: rows
  std::shared_ptr<LowLatencyHandle> handle = {};
  std::shared_ptr<const void> owner = {};  ///< keeps the memory, also beyond the object
};

/// A rank's part of a combine.
struct LowLatencyCombine {
  ConstTensorView y = {};             ///< [local experts, slots, hidden] bfloat16, read in place
  ConstTensorView topk_weights = {};  ///< [tokens, topk] float32; none if the dispatch had them
  TensorView out = {};                ///< [tokens, hidden] bfloat16, no overlap with y
  bool logfmt = false;  ///< rows of sums travel as ten-bit logarithms, two thirds of BF16's bytes,
                        ///< at an error of up to 2.2 % of each rank's part; the same on all ranks:
                        ///< see LowLatency::wait
  /// [tokens] int32, or none: choices that the sum lacks, since their experts are on masked ranks
  /// or have no place.
  TensorView lost = {};
};

/// A dispatch refused for an argument of this rank, and made without this rank's tokens. The batch
/// is under way: its combine sends the other ranks the results for their tokens, and needs no
/// weights. If it is dropped, the others wait for those results until they mask this rank.
class RefusedBatch : public InvalidArgument {
 public:
  RefusedBatch(const InvalidArgument& why, LowLatencyReceived received)
      : InvalidArgument(why), received(std::move(received)) {}
  LowLatencyReceived received;  ///< the other ranks' tokens
};

class LowLatency {
 public:
  /// Collective. All ranks give the same options (`sms` may differ), or all throw InvalidArgument.
  /// All throw it, too, for an `sms` that some rank's device does not have, and for more experts
  /// and tokens than the shared memory of a dispatch's blocks holds: one bit per pair of them, and
  /// six bytes per choice of the tokens that a block receives, which the receiving blocks share.
  /// Throws Unsupported if a rank can be reached neither by loads and stores nor over a network, or
  /// if `paths` asks for a network that the World has not. The World outlives the object. If it
  /// follows a job, the object goes on with it: see World.
  LowLatency(World& world, const LowLatencyOptions& options);
  /// Keeps the arena memory out of use for as long as the World lives, since peers may still write
  /// there; `close` gives it back.
  ~LowLatency();

  /// Sends every token to the ranks that hold its experts, as rows of each. Enqueues and returns.
  /// All ranks make the same calls in the same order. A rank that does not answer in time is masked
  /// (see `failed_ranks`), and the rows of the others are exact.
  ///
  /// Throws RefusedBatch at once for an array, an option of the call or a number of tokens that the
  /// host finds wrong: this rank then takes part without tokens, so that the others do not wait for
  /// it. Throws InvalidArgument before anything is launched if there is no place for a batch: a
  /// third one while two are neither combined nor dropped, a hook that was not called, BF16 rows
  /// without bf16_rows. Throws Cancelled after World::cancel.
  LowLatencyReceived dispatch(const LowLatencyInput& input, const LowLatencyCall& call = {});
  /// Brings the experts' results home, weighted and summed; a token that went nowhere gets zeros.
  /// Enqueues and returns. A sum lacks lost choices, those of masked ranks and of experts without a
  /// place, in all its channels; `lost` counts them. Weights are finite. Ends the batch: its handle
  /// is refused afterwards. Throws InvalidArgument before anything is launched: the batch can still
  /// be combined, and the others wait for it.
  void combine(const LowLatencyCombine& what, const std::shared_ptr<LowLatencyHandle>& handle,
               const LowLatencyCall& call = {});
  /// Enqueues the second half of a dispatch or combine that was called with `hook`, in the order of
  /// the first halves. The results are there in the order of `stream`.
  void receive(const std::shared_ptr<LowLatencyHandle>& handle, Stream stream = {});
  /// Returns memory of this object for the results of a batch's experts: [local experts, slots,
  /// hidden] bfloat16, allocated on first use. (Combine reads any memory in place.)
  TensorView combine_buffer(const std::shared_ptr<LowLatencyHandle>& handle);

  /// Returns the masked ranks, as far as the host can see now; see `wait`.
  std::vector<FailedRank> failed_ranks() const;
  /// Writes which ranks are masked, after this object's calls so far: `out`, [ranks] int32 in this
  /// rank's memory, gets 0 for a rank that takes part and another number for a masked one. Enqueues
  /// and returns, so a CUDA graph can hold it.
  void write_mask(TensorView out, Stream stream = {});
  /// Masks a rank from the next call on, or from the next replay of a captured one, or unmasks it.
  /// Masking takes place after the calls so far, on the last one's stream; if none is under way,
  /// because of `wait`, it is done on return. Unmasking waits for this rank's stream, refills what
  /// the rank may have left in the staging memory, and ends the batches under way, as `restart`
  /// does. All ranks concerned drain their streams before any of them unmasks, all have unmasked
  /// before any of them makes a call, and all have made as many calls.
  void update_mask(uint32_t rank, bool masked);
  /// Unmasks all ranks; see update_mask.
  void clear_mask();
  /// Returns the number of the last call, which ranks agree on before `restart`.
  uint32_t epoch();
  /// Unmasks all ranks and counts calls from `epoch` on, so that ranks which have made different
  /// numbers of calls can continue together. All drain their streams before any rank calls it, all
  /// give the same epoch, at least the largest of theirs (epochs wrap: 0 follows 2^32 - 1), and all
  /// have returned before any rank makes a call. The batches under way end, whichever ranks were
  /// masked, since a rank may have counted rows that it lacks: their handles are refused with
  /// InvalidArgument, and so are hooks that were not called.
  void restart(uint32_t epoch);

  /// Places experts on ranks. Collective, between calls.
  ///
  /// `expert_at`: [places of all ranks] the expert that each place holds, rank after rank, or -1
  /// for an empty place. Tokens take the places of an expert that has several in turn, of those on
  /// ranks that take part. topk_idx names experts, while the rows of a rank lie by its places. A
  /// choice whose expert has no place on such a rank counts as -1, and is counted as lost. An empty
  /// list: the map with which the object began. Waits for earlier calls; captured calls use the
  /// newest map, if one was set before they were captured. Throws InvalidArgument, on all ranks
  /// alike.
  void set_expert_map(std::span<const int32_t> expert_at);
  /// Returns the expert at each place of all ranks, or -1: of the map that was set, with the
  /// experts of evicted ranks spread over empty places (spread_lost_experts).
  std::vector<int32_t> expert_map() const;
  /// Returns the expert at each place of this rank, or -1.
  std::vector<int32_t> held_experts() const;
  /// Returns the experts that have no place, ascending.
  std::vector<uint32_t> lost_experts() const;
  /// Sets what set_expert_map, evict and admit call last if they changed which experts this rank
  /// holds, so that their weights are loaded before a call needs them: with held_experts(), on the
  /// caller's thread.
  void on_experts_changed(std::function<void(const std::vector<int32_t>& held)> hook);

  /// Masks ranks that the members of a job have agreed to go on without, and spreads their experts
  /// over empty places of the others; those that find none are lost. All members call it with the
  /// same ranks between the same two calls, so that no token goes to a place before its rank knows
  /// the expert. Involves no other rank. With `epoch` it also does what `restart` does, under the
  /// same conditions: for members that have made different numbers of calls.
  void evict(const std::vector<uint32_t>& ranks, std::optional<uint32_t> epoch = std::nullopt);
  /// Opens the slots of ranks that were replaced. Collective: the members call it while each
  /// replacement makes its LowLatency, with the same options, in the World that reaches it. Ranks
  /// agree on the epoch from which all count, refill all staging, end the batches under way, and
  /// exchange the addresses of their memory; replacements get the expert map, and their experts are
  /// theirs again. Returns their ranks. Calls captured before must be captured anew: they hold the
  /// addresses of memory that is gone. Throws InvalidArgument on all ranks alike if options or maps
  /// differ; PeerLost or PeerTimeout if a rank does not come.
  std::vector<uint32_t> admit();

  /// Totals of this rank since the object was made, as its host made the calls: the replays of a
  /// CUDA graph are only in unplaced_choices. No kernel totals rows, bytes and waiting; a call
  /// writes its own to rows_total and waited_cycles.
  struct Metrics {
    uint64_t dispatch_calls = 0;  ///< refused ones, too, in which this rank had no tokens
    uint64_t refused_dispatch_calls = 0;
    uint64_t combine_calls = 0;
    uint64_t dispatched_tokens = 0;
    /// Choices of this rank's tokens whose experts had no place on a rank that takes part, counted
    /// by dispatches on the device. Those that a rank masked later lacks are in a combine's `lost`.
    uint64_t unplaced_choices = 0;
    std::vector<uint32_t> masked_by_peer;  ///< [ranks] 1 for a masked rank, as failed_ranks sees it
  };
  /// Returns what has been counted so far. Any thread may call it; waits for nothing.
  Metrics metrics() const;

  /// Throws InvalidArgument for a fault that kernels have found by now: `topk_idx` for the first id
  /// of a dispatch that is no expert, with its token and choice; `rows` or `use_logfmt` for a rank
  /// that differs from this one and is masked since. Each is thrown once, of several dispatches the
  /// first one's. Nothing fails because of it, and later calls work. Throws Cancelled after
  /// World::cancel. Does not wait.
  void check();
  /// Waits until the work enqueued on `stream` has ended, then checks as `check` does. The stream
  /// may be freed afterwards; the stream of the last call that was not waited for outlives this
  /// object.
  void wait(Stream stream = {});
  /// Gives the memory back. Collective. No call may follow, nor a hook. If a rank does not come,
  /// the memory stays out of use as long as the World lives; throws PeerLost or PeerTimeout if that
  /// rank is not masked. (A rank that is gone is noticed at once, a silent one after the World's
  /// timeout.)
  void close();

  struct Memory {
    uint64_t arena_bytes;           ///< in the arena, which peers reach
    uint64_t device_bytes;          ///< beside the arena
    uint64_t combine_buffer_bytes;  ///< of each of the two buffers that combine_buffer returns
    uint64_t network_bytes;  ///< shared with the network: in the arena, or pinned beside a GPU's
  };
  /// Returns what an object of these options takes on each rank, if it reaches `put_ranks` of the
  /// others by put. Makes nothing. Throws InvalidArgument.
  static Memory memory(const LowLatencyOptions& options, uint32_t ranks, uint32_t put_ranks = 0);
  /// Returns [ranks] how this rank reaches each.
  std::vector<LowLatencyPath> paths() const;

  /// Places of this rank: local_experts() of them, numbered from first_expert() on. Without an
  /// expert map and places_per_rank, the experts of these numbers.
  uint32_t local_experts() const;
  uint32_t first_expert() const;

  const LowLatencyOptions& options() const;
  World& world() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tokenyard
