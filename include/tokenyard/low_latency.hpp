/// Dispatch and combine for serving: few tokens, fixed buffers, and ranks that may die.
///
///     LowLatency exchange(world, {.experts = 288, .hidden = 7168, .topk = 8, .tokens_max = 128});
///     LowLatencyReceived rows = exchange.dispatch({.x = x, .topk_idx = ids, .tokens = 100});
///     ...  // experts: rows.x -> y
///     exchange.combine({.y = y, .weights = weights, .out = out}, rows.handle);
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tokenyard/world.hpp"

namespace tokenyard {

struct LowLatencyOptions {
  /// In all, at least one a rank. Each rank holds experts / ranks of them, rank after rank, and the
  /// first experts % ranks ranks hold one more.
  uint32_t experts = 0;
  uint32_t hidden = 0;  ///< elements a token; a multiple of 32
  uint32_t topk = 0;  ///< experts a token, 1 .. 16 (ExpertParallel takes more), no more than there
                      ///< are
  uint32_t tokens_max = 0;  ///< tokens a rank and call
  uint32_t sms = 0;  ///< multiprocessors (blocks) of a call, unless it says otherwise: at least 2,
                     ///< one that sends and one that receives, or 0: all there are. Results are the
                     ///< same, bit for bit, for every number
  bool bf16_rows = true;  ///< whether dispatch may deliver BF16, which takes twice the memory
};

/// What a dispatch delivers.
enum class LowLatencyRows : uint8_t {
  bf16,         ///< as given. (A NaN may become another NaN.)
  fp8,          ///< E4M3 with an fp32 scale for 128 channels: largest magnitude / 448
  fp8_rounded,  ///< the same with scales rounded up to powers of two
  fp8_ue8m0,    ///< those scales as exponents, four to a word
};

/// Memory that the rank's kernels can read: host memory on a host world, device memory on a GPU; it
/// must stay unchanged until the call's work has ended.
struct LowLatencyInput {
  const void* x = nullptr;       ///< [tokens, hidden] bf16; with `scales` E4M3. 16-byte aligned
  const void* scales = nullptr;  ///< of an FP8 x: [tokens, ceil(hidden / 128)] fp32, or for
                                 ///< fp8_ue8m0 [tokens, ceil(hidden / 512)] words of exponents
  /// [tokens, topk] int64 or int32: expert ids, -1 for none. An expert that stands twice in a token
  /// gets one row. An id that is no expert counts as -1: see LowLatency::wait.
  const void* topk_idx = nullptr;
  bool idx_is_int64 = true;
  /// [tokens, topk], finite; those of -1 count for nothing. May be null: combine has them. Here
  /// they travel beside the tokens, and no combine need wait for this rank's. Each rank may choose
  /// for itself.
  const float* weights = nullptr;
  uint32_t tokens = 0;
  LowLatencyRows rows = LowLatencyRows::fp8;  ///< the same on all ranks: see LowLatency::wait
};

/// How a call is made.
struct LowLatencyCall {
  /// [ranks] who takes part; empty: everybody. Whoever does not is masked from then on.
  std::vector<bool> active = {};
  std::optional<std::chrono::nanoseconds> timeout =
      std::nullopt;   ///< else the World's; of more than 14 minutes, 14
  uint32_t sms = 0;   ///< else the options'
  bool hook = false;  ///< only send; `receive` does the rest, and in between no SM is held
  int32_t* rows_total = nullptr;      ///< dispatch: [local experts] rows received are added here
  uint64_t* waited_cycles = nullptr;  ///< [ranks] cycles waited for each rank are added here, less
                                      ///< multiples of 2^32: longer waits are in `masked`
  uint64_t* span_ns = nullptr;  ///< [2][2] of the call or its sends, and of its receive: when the
                                ///< first block began, if that is less than what stands there, and
                                ///< when the last one ended, if more; by the device's own clock
  uint64_t stream = 0;
};

/// Where the tokens of a dispatch went, for its combine. Shared by copy.
class LowLatencyHandle;

/// What a rank received, in memory of the object that stays as it is until this batch's combine
/// has run, a rank is unmasked or calls restart, or all copies of the handle are gone.
/// slots = ranks * tokens_max.
struct LowLatencyReceived {
  const void* x = nullptr;       ///< [local experts, slots, hidden] bf16 or E4M3: rows lie packed
                                 ///< from slot 0, by source rank, then source token
  const void* scales = nullptr;  ///< [local experts, scale words, slots]: fp32 for 128 channels,
                                 ///< or words of four exponents; null for bf16
  const int32_t* source_token = nullptr;  ///< [local experts, slots] index on the source rank
  const int32_t* ranges = nullptr;        ///< [local experts, ranks, 2] first row, rows
  const int32_t* counts = nullptr;        ///< [local experts] rows
  std::shared_ptr<LowLatencyHandle> handle;
};

struct LowLatencyCombine {
  const void* y = nullptr;         ///< [local experts, slots, hidden] bf16, read in place
  const float* weights = nullptr;  ///< [tokens, topk]; null if the dispatch had them
  void* out = nullptr;             ///< [tokens, hidden] bf16, apart from y
  bool logfmt = false;      ///< rows of sums travel as ten-bit logarithms, two thirds of BF16's
                            ///< bytes, at an error of up to 2.2 % of each rank's part; the same
                            ///< on all ranks: see LowLatency::wait
  int32_t* lost = nullptr;  ///< [tokens], may be null: picks whose experts are on masked ranks, so
                            ///< that the sum lacks them
};

/// A rank that is not spoken with.
struct MaskedRank {
  enum class Why : uint8_t { timeout, lost, left_out, differs };
  uint32_t rank = 0;
  Why why = Why::timeout;
  std::string phase;                ///< what was awaited of it
  uint64_t expected = 0, seen = 0;  ///< of what was awaited: mostly an epoch, and that of before;
                                    ///< of a rank that differs the formats here and there
  double waited_s = 0;

  /// "rank 1 did not answer in phase "low latency dispatch: ids": expected 3, seen 2, after 0.4 s".
  std::string text() const;
};

/// A dispatch refused for what this rank gives to it, and made without this rank's tokens. The
/// batch is under way: whoever combines it sends the others the results for their tokens, and needs
/// no weights. Where it is dropped, the others wait for those results until they mask this rank.
class RefusedBatch : public InvalidArgument {
 public:
  RefusedBatch(const InvalidArgument& why, LowLatencyReceived received)
      : InvalidArgument(why), received(std::move(received)) {}
  LowLatencyReceived received;  ///< the others' tokens
};

class LowLatency {
 public:
  /// Collective. All ranks give the same options (`sms` may differ), or all throw InvalidArgument;
  /// so they do for an `sms` that some rank's device has not, and for more experts and tokens than
  /// a block of a dispatch has shared memory for: a bit for each pair of them, and six bytes for
  /// each pick of the tokens that it receives, which the receiving blocks share.
  /// Throws Unsupported if a rank is not within load/store reach. The World outlives the object.
  LowLatency(World& world, const LowLatencyOptions& options);
  /// Keeps its arena memory out of use for as long as the World lives, since peers may still write
  /// there; `close` does not.
  ~LowLatency();

  /// Enqueues and returns: every token to the ranks that hold its experts, as rows of each expert.
  /// All ranks make the same calls in the same order. A rank that does not answer in time is masked
  /// (see `masked`), and what the others sent is exact. Throws RefusedBatch at once for what the
  /// host can see of input and call: a batch over tokens_max, a pointer that cannot be, an `sms`
  /// too small for the blocks' shared memory. This rank then takes part without tokens, so that the
  /// others do not wait for it. Throws InvalidArgument before anything is launched for what leaves
  /// no place for a batch: a third one while two are neither combined nor dropped, a hook that was
  /// not called, BF16 rows without bf16_rows. Throws Cancelled after World::cancel.
  LowLatencyReceived dispatch(const LowLatencyInput& input, const LowLatencyCall& call = {});
  /// Enqueues: the experts' results home, weighted and summed; zeros for a token that went nowhere.
  /// A sum lacks the experts of masked ranks, all channels of it alike; `lost` tells. Weights are
  /// finite. Ends the batch: the handle can be used no more. Throws InvalidArgument before anything
  /// is launched: the batch can be combined still, and the others wait for it.
  void combine(const LowLatencyCombine& what, const std::shared_ptr<LowLatencyHandle>& handle,
               const LowLatencyCall& call = {});
  /// The second half of a dispatch or combine that was called with `hook`, in the order of the
  /// first ones. Enqueues; the results are there in the order of `stream`.
  void receive(const std::shared_ptr<LowLatencyHandle>& handle, uint64_t stream = 0);
  /// Memory of this object, [local experts, slots, hidden] bf16, for the experts of a batch to
  /// write to. (Combine reads any memory in place; this one need not be allocated.)
  void* combine_buffer(const std::shared_ptr<LowLatencyHandle>& handle);

  /// Ranks that are masked, as far as the host can see now; see `wait`.
  std::vector<MaskedRank> masked() const;
  /// Enqueues, after this object's calls so far: `out` [ranks], in the rank's memory, gets 0 for
  /// each rank that is spoken with, and something else for each that is masked. The host waits for
  /// nothing, so a CUDA graph can hold it.
  void write_mask(int32_t* out, uint64_t stream = 0);
  /// Masks a rank from the next call on, or from the next replay of one that was captured, or
  /// unmasks it. Masking comes in the order of the calls so far, on the last one's stream; if none
  /// is under way, which `wait` has seen to, it is done on return. Unmasking waits for the own
  /// stream, refills what the rank may have left in the staging, and ends the batches under way, as
  /// `restart` does. No rank concerned unmasks one before all of them have drained their streams,
  /// nor makes a call before all have done so, and their calls so far have been as many.
  void update_mask(uint32_t rank, bool masked);
  void clear_mask();
  /// The number of the last call: what ranks agree on before `restart`.
  uint32_t epoch();
  /// As clear_mask, and counts calls from `epoch` on, so that ranks whose calls have not been as
  /// many can go on together: no rank calls it before all have drained their streams, all give the
  /// same epoch, at least the largest of theirs, and none makes a call before all have returned.
  /// Batches under way end, whoever was masked, since a rank may have counted rows of theirs that
  /// it lacks: their handles are refused with InvalidArgument, hooks that were not called as well.
  void restart(uint32_t epoch);

  /// Throws InvalidArgument for what kernels have found by now, and only says: `topk_idx` for the
  /// first id of a dispatch that is no expert, with its token and pick; `rows` or `use_logfmt` for
  /// a rank that differs from this one, which is masked since. Each is told once, of several
  /// dispatches the first one's; nothing fails for it, and calls that follow are as good as ever.
  /// Throws Cancelled after World::cancel. Does not wait.
  void check();
  /// Waits until the work enqueued on `stream` has ended, then as check(). The stream may then be
  /// freed; without, the stream of the last call outlives this object.
  void wait(uint64_t stream = 0);
  /// Collective: gives the memory back. No call may follow, nor a hook. Where a rank does not come,
  /// the memory stays out of use as long as the World lives; throws PeerLost or PeerTimeout if that
  /// rank is not masked. (One that is gone is noticed at once, one that is silent after the World's
  /// timeout.)
  void close();

  struct Memory {
    uint64_t arena_bytes;           ///< that peers reach
    uint64_t device_bytes;          ///< beside it
    uint64_t combine_buffer_bytes;  ///< each of the two that `combine_buffer` may be asked for
  };
  /// What an object of these options takes on each rank.
  static Memory memory(const LowLatencyOptions& options, uint32_t ranks);

  /// Experts of this rank: local_experts() of them, numbered from first_expert() on.
  uint32_t local_experts() const;
  uint32_t first_expert() const;

  const LowLatencyOptions& options() const;
  World& world() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tokenyard
