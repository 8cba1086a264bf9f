/// Dispatch and combine: every token to the ranks that hold its experts, and the results home.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tokenyard/world.hpp"

namespace tokenyard {

struct ExpertParallelOptions {
  uint32_t experts = 0;  ///< in all; rank after rank holds experts / ranks of them, and the first
                         ///< experts % ranks ranks one more, unless place() says otherwise
  uint32_t hidden = 0;   ///< elements a token; a multiple of 8
  uint32_t topk = 0;     ///< experts a token, 1 .. 256
  uint32_t tokens_max = 0;  ///< tokens a rank and call; bounds the memory reserved for a call
  uint32_t sms = 0;         ///< multiprocessors (blocks) a call may use; 0: chosen, see sms(). The
                            ///< results are the same, bit for bit, for every number
  uint32_t sms_max = 0;     ///< most that a call may ask for; 0: as many as `sms`
  /// How a dispatch moves rows, for benchmarks that look for better; 0: chosen. No result depends
  /// on it.
  struct Tuning {
    uint32_t movers = 0;        ///< warps of a block that move rows: 1 .. 8
    uint32_t kept_percent = 0;  ///< of a block's tokens, that nobody else claims: 1 .. 100
    uint32_t stages = 0;        ///< at most this many rows in a mover's ring
    uint32_t lag = 0;           ///< about this many of them may still be read by stores
  } tuning = {};
};

/// What a row is made of. Dispatch moves bits and looks at none of them, whatever the type;
/// combine adds up bf16, fp16 and fp32.
enum class ElementType : uint8_t { bf16, fp16, fp32, fp8_e4m3, bytes };
/// "bf16", "fp16", ...
const char* name_of(ElementType type);

/// How scales lie where they are received, in words of 4 bytes.
enum class ScaleOrder : uint8_t {
  rows,     ///< [rows, words]
  columns,  ///< [words, stride]: a column's words are neighbours, and columns begin 16 bytes
            ///< aligned
};

/// What words of scales are: nothing looks at them, but ranks that differ are told so.
enum class ScaleType : uint8_t { words, fp32, int32, bytes };
/// "words", "fp32", ...
const char* name_of(ScaleType type);

/// A row as it travels: its elements, and words of scales beside them that mean what the caller
/// likes (fp32 factors, exponents packed four to a word). All ranks give the same in a call.
struct RowFormat {
  ElementType type = ElementType::bf16;  ///< hidden must fill 16-byte pieces: fp8 a multiple of 16
  uint32_t row_bytes = 0;    ///< of `bytes`: a multiple of 16; else 0, and hidden says it
  uint32_t scale_words = 0;  ///< 4-byte words of scales a row
  ScaleOrder scale_order = ScaleOrder::rows;  ///< as received
  ScaleType scale_type = ScaleType::words;
};

/// FP8 made of bf16 rows before they travel. A group's scale is its largest magnitude (at least
/// 1e-4) over 448; a packed one is rounded up to a power of two.
struct CastToFp8 {
  enum class Scales : uint8_t {
    none,    ///< rows travel as they are
    fp32,    ///< one word a group: its factor
    packed,  ///< UE8M0: the exponents of four groups a word, first in the lowest byte
  };
  Scales scales = Scales::none;
  uint32_t channels = 128;  ///< a group: 16, 32, 64, 128, 256 or 512; divides hidden
};

/// What a rank gives to a dispatch. Memory that the rank's kernels can read: host memory on a host
/// world, device memory on a GPU; it must stay unchanged until the call's work has ended.
struct DispatchInput {
  const void* x = nullptr;         ///< [tokens, hidden] of format.type, 16-byte aligned
  const void* topk_idx = nullptr;  ///< [tokens, topk] int64 or int32: expert ids, -1 for none
  bool idx_is_int64 = true;
  const float* topk_weights = nullptr;  ///< [tokens, topk], or null: every choice weighs 1
  uint32_t tokens = 0;
  RowFormat format = {};
  const void* scales = nullptr;  ///< [tokens, format.scale_words], 4-byte aligned
  /// Of bf16 rows that have no scales yet; format.scale_order still says how scales are received.
  CastToFp8 cast = {};
  /// Not 0: the host does not wait, and the output has places for this many rows. Those that no row
  /// comes to are marked by -1 in topk_idx and source_token; what lies in their x is not said. If
  /// more rows come to any rank than it has places for, all ranks fail with InvalidArgument.
  uint32_t received_tokens_max = 0;
  /// A stream whose kernels may wait for rows as they arrive: Received then has `sources_ready` and
  /// `experts_ready`. It is made to come after these have been cleared, and so may begin while the
  /// call is under way; where no host waits for the counts, with fewer blocks than would keep the
  /// call from beginning.
  std::optional<uint64_t> watcher = {};
  uint32_t sms = 0;  ///< for this call; 0: as many as the object has. May differ between ranks
};

/// Received rows, copied to each of their experts here: see ExpertParallel::expand.
class ExpertRows;
struct RowsByExpert;

/// How received rows are grouped by expert.
struct ExpandOptions {
  uint32_t alignment = 1;  ///< every expert's first row is a multiple of it
  uint32_t rows_max = 0;   ///< places, padding included; needed where no host waited for the counts
  ScaleOrder scale_order = ScaleOrder::rows;
  /// For `expand`, any number that there is, since no other rank takes part; 0: as many as the
  /// object has. (dispatch_by_expert takes its input's.)
  uint32_t sms = 0;
  /// Whether rows of padding are zeros; else they hold anything, which saves their stores.
  bool clear_padding = true;
};

/// What a rank gives to a combine.
struct CombineInput {
  const void* y = nullptr;               ///< [rows received, hidden] of `type`
  ElementType type = ElementType::bf16;  ///< bf16, fp16 or fp32, alike on all ranks
  /// Not null: y is [by_expert->rows, hidden], as its rows lie. A received row's results are then
  /// added up first, in the order of its picks, in fp32, each times its routing weight if
  /// `weighted`, and rounded to `type` once; what comes home are sums of these.
  const ExpertRows* by_expert = nullptr;
  bool weighted = false;
  const float* weights = nullptr;  ///< [rows received, topk], or null
  const void* biases[2] = {};      ///< [tokens, hidden] of `type` or null: sums begin with them
  /// [tokens, ranks] the order in which a token's rows are added, each rank once; null: that of the
  /// ranks.
  const uint32_t* rank_order = nullptr;
  uint32_t sms = 0;  ///< as DispatchInput's
  /// For adding up by_expert here before anything goes home; 0: some of `sms` do so meanwhile.
  uint32_t local_sms = 0;
};

/// Where a combine writes, in memory of this rank.
struct CombineOutput {
  void* x = nullptr;              ///< [tokens, hidden] of the input's type, apart from y
  float* topk_weights = nullptr;  ///< [tokens, topk]; given if and only if weights are
};

/// Where each token of a call went; keeps what combine and a repeated dispatch need, but no rows.
/// Shared by copy.
class Route;

/// What a rank received, in arena memory: rows in the order of their source rank, then source
/// token. Rows and scales are freed, in stream order, when the last copy of this is gone; what lies
/// beside them (ids, weights, source tokens, counts) when the last copy of the Route is gone too.
/// What a CUDA graph has captured stays until the Route goes.
class Received;

class ExpertParallel {
 public:
  /// Collective. All ranks give the same options (`sms` may differ), or all throw InvalidArgument.
  /// Throws Unsupported if a rank is not within load/store reach. The World outlives the object,
  /// and whatever it returned.
  ExpertParallel(World& world, const ExpertParallelOptions& options);
  ~ExpertParallel();

  /// Collective. Enqueues on `stream` and waits for the counts, not for the rows; with
  /// received_tokens_max for nothing, and then a CUDA graph may capture it. Throws
  /// InvalidArgument before anything is launched for what the host can see; on all ranks alike,
  /// before a row moves, for a bad id anywhere (out of range, or twice in a token) and for rows or
  /// scales that differ from rank 0's: the object then goes on as if the call had not been (it
  /// fails where no host waits). Throws InvalidArgument if ranks make different calls,
  /// PeerTimeout or PeerLost if one does not answer: the object is then failed, and what was
  /// received must not be used.
  Received dispatch(const DispatchInput& input, uint64_t stream = 0);
  /// The same route again with other rows, of any format: nothing is counted or exchanged anew.
  /// `input`: tokens as before; topk_idx and topk_weights stay null.
  Received dispatch(const DispatchInput& input, const Route& route, uint64_t stream = 0);
  /// The same of bf16 rows.
  Received dispatch(const void* x, const Route& route, uint64_t stream = 0);

  /// Collective. `input.y`: row i is the result for received row i; in arena memory (see
  /// output_buffer) it is read in place, else copied there first. `output.x`: for every token the
  /// fp32 sum of the biases, then, in rank order, over the ranks it went to, rounded once; zeros
  /// and the biases for a token that went nowhere. Weights, on all ranks or on none, are brought
  /// home beside the rows, summed over the ranks in their order (what dispatch delivered is 0 on
  /// all but one of them). Blocks as little as its stream does; what is read and written must stay
  /// until its work has ended.
  void combine(const CombineInput& input, const Route& route, const CombineOutput& output,
               uint64_t stream = 0);
  /// The same of bf16 rows.
  void combine(const void* y, const Route& route, void* out, const float* weights = nullptr,
               float* out_weights = nullptr, uint64_t stream = 0);
  /// Arena memory [rows received, hidden] of `type` for a combine on this route to read in place.
  std::shared_ptr<void> output_buffer(const Route& route, uint64_t stream = 0,
                                      ElementType type = ElementType::bf16);

  /// Groups what was received by expert, ready for a grouped GEMM: every row once for each of its
  /// experts on this rank, an expert's rows together, in the order in which they were received,
  /// with zeros up to the next multiple of the alignment. Not collective; enqueues on `stream`, and
  /// waits for nothing. Received scales must lie by rows. Throws InvalidArgument.
  ExpertRows expand(const Received& received, const ExpandOptions& options, uint64_t stream = 0);

  /// Collective: a dispatch whose rows are grouped by expert as they come, without a second pass:
  /// what `expand` makes of what `dispatch` brings, sooner. Throws as these do. While the number of
  /// rows is not known the arena holds `rows_max` of them, or if that is 0 the most that may come:
  /// give it where that is too many. A host that waits throws InvalidArgument if more come, and the
  /// object goes on; where no host waits, the object fails. There is no watcher, and scales travel
  /// by rows.
  RowsByExpert dispatch_by_expert(const DispatchInput& input, const ExpandOptions& options,
                                  uint64_t stream = 0);

  /// What a call takes of the arena of each rank, in bytes.
  struct Memory {
    size_t object = 0;         ///< the object itself, as long as it lives
    size_t peak = 0;           ///< a dispatch while the number of rows is not known
    size_t kept = 0;           ///< once it is known: by Received and Route
    size_t kept_by_route = 0;  ///< of that by the Route, once Received is gone
  };
  /// Of a dispatch of `tokens` tokens that brings `rows_received` rows.
  Memory memory(const RowFormat& format, uint32_t tokens, uint32_t rows_received) const;

  /// Collective, between calls: where experts live, as load balancers say it. `expert_at`:
  /// [options.experts] the expert that each place holds, rank after rank, or -1 for a place that
  /// holds none, so ranks may hold unequal numbers; an expert may have several places, and then
  /// tokens take them in turn. From now on topk_idx names experts, while what is received and
  /// counted goes by places. Empty: place and expert are one again. Waits for earlier calls; throws
  /// InvalidArgument, on all ranks alike.
  void set_expert_map(std::span<const int32_t> expert_at);

  /// What has been counted on the device so far; reads memory that calls write as they go, and
  /// waits for nothing.
  struct Load {
    std::vector<uint64_t> tokens_per_expert;  ///< [local experts] rows that name each
    std::vector<double> waited_us;            ///< [ranks] that calls have waited for each rank
  };
  Load load() const;

  /// A moment of a call on one block.
  struct Moment {
    uint32_t block;
    const char* name;  ///< "begun", "counted", "greeted", "known", "routed", "moved", ...
    uint64_t ns;       ///< of the device's clock
  };
  /// Has calls note their moments from now on, or no longer. Costs a few stores a block.
  void trace_calls(bool on);
  /// Of the last call that was traced, block by block, in the order of time; once its work has
  /// ended (see wait).
  std::vector<Moment> last_trace() const;

  /// Throws the error of an enqueued call that has failed by now; so does every later call. A
  /// failed object's memory stays out of use until the World goes.
  void check();
  /// Waits until the work enqueued on `stream` has ended, then as check(). The stream may then be
  /// freed; without, the stream of the last call outlives this object.
  void wait(uint64_t stream = 0);

  const ExpertParallelOptions& options() const;
  /// Experts of this rank: local_experts() of them, numbered from first_expert() on. Where place()
  /// has said otherwise, these are places.
  uint32_t local_experts() const;
  uint32_t first_expert() const;
  uint32_t sms() const;
  /// Why it is that many, in a sentence.
  const std::string& sms_reason() const;
  World& world() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class Route {
 public:
  uint32_t tokens() const;         ///< of this rank
  uint32_t rows_received() const;  ///< by this rank; where no host waited, places for rows
  /// [tokens, ranks] the row that each token became on each rank, or -1; on the device, once the
  /// dispatch's work is done.
  const int32_t* row_on() const;
  struct State;
  explicit Route(std::shared_ptr<State> state) : state_(std::move(state)) {}
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

class Received {
 public:
  /// Also used on `stream`: the memory goes to nobody else before what is enqueued there now has
  /// ended. For streams other than the call's own.
  void record_stream(uint64_t stream) const;

  uint32_t rows = 0;        ///< where no host waited for the counts, places for rows
  const void* x = nullptr;  ///< [rows, hidden], or [rows, row_bytes] of `bytes`
  RowFormat format;
  const void* scales = nullptr;             ///< [rows, words] or [words, scale_stride], or null
  uint32_t scale_stride = 0;                ///< words from one row, or column, to the next
  const int32_t* topk_idx = nullptr;        ///< [rows, topk] local expert ids, -1 where not here
  const float* topk_weights = nullptr;      ///< [rows, topk], 0 where not here
  const int32_t* source_token = nullptr;    ///< [rows] index of the token on its source rank
  std::vector<uint32_t> rows_from;          ///< [ranks] rows by source rank; empty if not waited
  std::vector<uint32_t> tokens_per_expert;  ///< [local experts]; empty if not waited for
  const uint32_t* rows_from_on_device = nullptr;          ///< [ranks], once the call's work is done
  const uint32_t* tokens_per_expert_on_device = nullptr;  ///< [local experts], likewise
  /// Where the call has a watcher: [ranks] and [local experts], 1 once all rows of a source, or all
  /// that name an expert, are here. A kernel that has read a 1 with acquire at gpu scope may read
  /// those rows. A failed call leaves words at 0: wait with a deadline.
  const uint32_t* sources_ready = nullptr;
  const uint32_t* experts_ready = nullptr;
  std::optional<Route> route;
  std::shared_ptr<void> owner;    ///< keeps rows and scales; the route keeps what lies beside them
  std::shared_ptr<void> watched;  ///< keeps these words
};

class ExpertRows {
 public:
  /// As Received's.
  void record_stream(uint64_t stream) const;
  /// Lets x and scales go, and their memory unless somebody else keeps `rows_owner`. What
  /// CombineInput::by_expert reads stays.
  void forget_rows();

  uint32_t rows = 0;        ///< padding included; places, where the host does not know the counts
  const void* x = nullptr;  ///< [rows, hidden], or [rows, row_bytes] of `bytes`
  RowFormat format;
  const void* scales = nullptr;      ///< as in Received
  uint32_t scale_stride = 0;         ///< likewise
  const int32_t* offsets = nullptr;  ///< [local experts + 1] each expert's first row
  const int32_t* row_of = nullptr;   ///< [rows] which received row it is, -1 for padding
  const float* weights = nullptr;    ///< [rows] its routing weight, 0 for padding
  const int32_t* slots = nullptr;    ///< [rows received, topk] where each pick's row lies, or -1
  std::vector<uint32_t> first_rows;  ///< `offsets` for the host; empty if it does not know
  std::optional<Route> route;
  std::shared_ptr<void> rows_owner;  ///< keeps x and scales
  std::shared_ptr<void> owner;       ///< keeps what lies beside them
};

/// What dispatch_by_expert brings. `received` has all but rows and scales: its x and scales are
/// null.
struct RowsByExpert {
  Received received;
  ExpertRows rows;
};

}  // namespace tokenyard
