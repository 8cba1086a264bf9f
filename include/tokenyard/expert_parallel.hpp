/// Dispatch and combine: every token to the ranks that hold its experts, and the results home.
///
///     ExpertParallel exchange(world, {.experts = 256, .hidden = 7168, .topk = 8,
///                                     .tokens_max = 4096});
///     const Received received =
///         exchange.dispatch({.x = {x, DataType::bfloat16, {tokens, 7168}},
///                            .topk_idx = {ids, {tokens, 8}},
///                            .topk_weights = {weights, {tokens, 8}}});
///     ...  // experts: received.x -> y
///     exchange.combine({.y = {y, DataType::bfloat16, {received.rows, 7168}}}, *received.route,
///                      {.x = {out, DataType::bfloat16, {tokens, 7168}}});
///
/// Every call checks type, shape, layout and alignment of the arrays that it is given, and throws
/// InvalidArgument before anything moves.
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

struct ExpertParallelOptions {
  /// Experts of all ranks together. Rank after rank holds experts / ranks of them, and the first
  /// experts % ranks ranks hold one more, unless `set_expert_map` places them.
  uint32_t experts = 0;
  /// Places for experts on each rank, at least enough for all experts: those beyond them hold
  /// replicas, or are empty until the experts of a lost rank need them. 0: just enough, one place
  /// per expert.
  uint32_t places_per_rank = 0;
  uint32_t hidden = 0;      ///< elements per token; a multiple of 8
  uint32_t topk = 0;        ///< experts per token, 1 to 256
  uint32_t tokens_max = 0;  ///< tokens per rank and call; bounds the memory that a call reserves
  uint32_t sms = 0;      ///< multiprocessors (blocks) per call; 0: chosen, see sms(). The results
                         ///< are the same, bit for bit, for every number
  uint32_t sms_max = 0;  ///< most multiprocessors that one call may ask for; 0: as many as `sms`
  /// How a dispatch moves rows, for benchmarks that search for better values; 0: chosen. No result
  /// depends on it.
  struct Tuning {
    uint32_t movers = 0;        ///< warps per block that move rows: 1 to 8
    uint32_t kept_percent = 0;  ///< share of a block's tokens that no other block claims: 1 to 100
    uint32_t stages = 0;        ///< most rows in a mover's ring
    uint32_t lag = 0;           ///< about as many of them may still be read by stores
    uint32_t ring_rows = 0;     ///< between hosts: BF16 rows in the ring of a rail peer
    uint32_t chunk_rows = 0;  ///< between hosts: rows per put and per credit, at least, while more
                              ///< are to come; half a ring at most
  } tuning = {};
  /// Between hosts: a host's sums of bfloat16 or float16 results travel as fp32, so that a combine
  /// rounds once, as inside a host, and twice the bytes cross the network.
  bool fp32_partials = false;
};

/// The order of received scales in memory.
enum class ScaleOrder : uint8_t {
  rows,     ///< strides [words, 1]: a row's words are neighbours
  columns,  ///< strides [1, stride]: a column's words are neighbours, and each column begins at a
            ///< multiple of 16 bytes, as grouped GEMMs read them by TMA
};

/// A row as it travels: its elements, and beside them words of scales, whose meaning is the
/// caller's (float32 factors, exponents packed four to a word). The same on all ranks in a call.
struct RowFormat {
  /// bfloat16, float16, float32, float8_e4m3fn, or uint8 for rows of bytes that only their owners
  /// understand. A row is a multiple of 16 bytes, so `hidden` is a multiple of 16 for FP8.
  DataType type = DataType::bfloat16;
  uint32_t row_bytes = 0;    ///< bytes per row of uint8; else 0, and `hidden` determines them
  uint32_t scale_words = 0;  ///< 4-byte words of scales per row
  ScaleOrder scale_order = ScaleOrder::rows;  ///< of scales as received
  DataType scale_type = DataType::uint32;     ///< float32, int32, uint32, or uint8 (four per word)
};

/// The cast of bfloat16 rows to FP8 before they travel. A group's scale is its largest magnitude
/// (at least 1e-4) over 448; a packed one is rounded up to a power of two.
struct CastToFp8 {
  enum class Scales : uint8_t {
    none,    ///< no cast
    fp32,    ///< one word per group: its factor
    packed,  ///< UE8M0: the exponents of four groups per word, the first in the lowest byte
  };
  Scales scales = Scales::none;
  uint32_t channels = 128;  ///< channels per group: 16, 32, 64, 128, 256 or 512; divides hidden
};

/// A rank's part of a dispatch. The arrays lie in memory that this rank's kernels can read, are
/// contiguous, and stay unchanged until the call's work has ended.
struct DispatchInput {
  /// [tokens, hidden] bfloat16, float16, float32 or float8_e4m3fn, or [tokens, bytes] uint8;
  /// 16-byte aligned. All ranks give the same type and row size. None: no tokens.
  ConstTensorView x = {};
  ConstTensorView topk_idx = {};      ///< [tokens, topk] int64 or int32: expert ids, -1 for none
  ConstTensorView topk_weights = {};  ///< [tokens, topk] float32; none: every choice weighs 1
  /// [tokens, words] float32, int32 or uint32, or [tokens, 4 * words] uint8: travel beside the
  /// rows.
  ConstTensorView scales = {};
  ScaleOrder scale_order = ScaleOrder::rows;  ///< of the scales as received, those of `cast` too
  CastToFp8 cast = {};                        ///< of bfloat16 rows without scales
  /// Not 0: the host does not wait, and the output has places for this many rows. Places that no
  /// row fills have -1 in topk_idx and source_token, and an undefined x. If more rows come to any
  /// rank than it has places for, all ranks fail with InvalidArgument.
  uint32_t received_tokens_max = 0;
  /// A stream whose kernels may wait for rows as they arrive: Received then has `sources_ready` and
  /// `experts_ready`. The stream continues once these are cleared, so its kernels may run beside
  /// the call. Where no host waits for the counts, they must leave multiprocessors for the call to
  /// begin on.
  std::optional<Stream> watcher = {};
  uint32_t sms = 0;  ///< multiprocessors of this call; 0: as the object has. Ranks may differ
  /// Whether this rank frees memory and makes the call again if its arena has no room: the others
  /// wait for it. If not, they are told, and all ranks raise the InvalidArgument.
  bool comes_again = false;
};

class ExpertRows;
struct RowsByExpert;

/// How received rows are grouped by expert.
struct GroupByExpertOptions {
  uint32_t alignment = 1;  ///< every expert's first row is a multiple of it
  uint32_t rows_max = 0;   ///< places, padding included; needed where no host waited for the counts
  ScaleOrder scale_order = ScaleOrder::rows;  ///< of the scales of grouped rows
  /// Multiprocessors of group_by_expert: any number that the device has, since no other rank takes
  /// part; 0: as the object has. (dispatch_by_expert takes its input's.)
  uint32_t sms = 0;
  /// Whether rows of padding are zeros; else they are undefined, which saves their stores.
  bool clear_padding = true;
};

/// A rank's part of a combine. The arrays lie in memory that this rank's kernels can read, and are
/// contiguous.
struct CombineInput {
  /// [rows received, hidden] bfloat16, float16 or float32, the same type on all ranks; 16-byte
  /// aligned. With `by_expert`: [by_expert->rows, hidden], in the order of those rows.
  ConstTensorView y = {};
  /// Not null: the results of a received row's choices are summed first, in the order of the
  /// choices, in fp32, each times its routing weight if `weighted`, and rounded to y's type once.
  /// Sums of these come home.
  const ExpertRows* by_expert = nullptr;
  bool weighted = false;
  ConstTensorView topk_weights = {};  ///< [rows received, topk] float32: come home beside the rows
  /// [tokens, hidden] of y's type, 16-byte aligned: sums begin with them.
  ConstTensorView biases[2] = {};
  /// [tokens, ranks] uint32 or int32: the order in which a token's rows are added, each rank once.
  /// None: the order of the ranks. The sum of another host counts for the first of its ranks.
  ConstTensorView rank_order = {};
  uint32_t sms = 0;  ///< multiprocessors of this call; 0: as the object has. Ranks may differ
  /// Multiprocessors that sum the rows of `by_expert` on this rank before anything travels; 0: some
  /// of `sms` do so while the others pull.
  uint32_t local_sms = 0;
};

/// Where a combine writes, in memory that this rank's kernels can write.
struct CombineOutput {
  TensorView x = {};  ///< [tokens, hidden] of y's type, 16-byte aligned, no overlap with y
  TensorView topk_weights = {};  ///< [tokens, topk] float32; given if and only if the input's are
};

/// Arena memory for the results of a dispatch, which a combine reads in place.
struct CombineBuffer {
  TensorView y;                 ///< [rows received, hidden], not initialised
  std::shared_ptr<void> owner;  ///< keeps the memory
};

class Route;
class Received;

class ExpertParallel {
 public:
  /// Collective. All ranks give the same options (`sms` may differ), or all throw InvalidArgument.
  /// Throws Unsupported if a rank of this host is not within load/store reach, or one of another
  /// host not within put/signal reach. The World outlives the object. If it follows a job, the
  /// object goes on with it: see World.
  ExpertParallel(World& world, const ExpertParallelOptions& options);
  ~ExpertParallel();

  /// Sends every token to the ranks that hold its experts. Collective.
  ///
  /// Enqueues on `stream` and waits for the counts, not for the rows. With received_tokens_max it
  /// waits for nothing, and a CUDA graph may capture it. Throws InvalidArgument
  /// - before anything is launched, for an argument that this rank's host finds wrong;
  /// - on all ranks alike and before a row moves, for an expert id out of range or twice in a token
  ///   (unless the expert has no place), and for rows or scales that differ from rank 0's. The
  ///   object can be used further, unless no host waited;
  /// - if ranks make different calls.
  /// Throws PeerTimeout or PeerLost if a rank does not answer. After these and after different
  /// calls the object has failed until its job goes on (Job::recover), and the received rows must
  /// not be used. Throws OperationAborted, which names it, if this rank has returned a call that
  /// others had not finished when the job went on.
  Received dispatch(const DispatchInput& input, Stream stream = {});
  /// The same on the route of an earlier dispatch, with other rows, of any format: nothing is
  /// counted or exchanged anew. `input` has as many tokens as then, no topk_idx, no topk_weights
  /// and no received_tokens_max.
  Received dispatch(const DispatchInput& input, const Route& route, Stream stream = {});

  /// Brings results home. Collective.
  ///
  /// Row i of y is the result for received row i. y in arena memory (see combine_buffer) is read in
  /// place; else it is copied there first. Each row of output.x is the fp32 sum of the biases, then
  /// of the token's rows in rank order, rounded once; a token that went nowhere gets the biases, or
  /// zeros. Between hosts, each other host sums its rows and rounds them before. Weights, given on
  /// all ranks or on none, are summed over the ranks in their order (what dispatch delivered is 0
  /// on all ranks but one). Waits for no more than its stream does; the arrays stay until the work
  /// of the call has ended. Throws as `dispatch` does.
  void combine(const CombineInput& input, const Route& route, const CombineOutput& output,
               Stream stream = {});
  /// Allocates arena memory for a combine on this route to read in place: [rows received, hidden]
  /// of `type`, which is bfloat16, float16 or float32. Freed in the order of `stream`.
  CombineBuffer combine_buffer(const Route& route, DataType type = DataType::bfloat16,
                               Stream stream = {});

  /// Groups received rows by expert, ready for a grouped GEMM: each row once per expert that it
  /// names on this rank, an expert's rows together, in the order in which they were received, then
  /// padding up to the next multiple of the alignment. Not collective; enqueues on `stream` and
  /// waits for nothing. Received scales must lie by rows. Throws InvalidArgument.
  ExpertRows group_by_expert(const Received& received, const GroupByExpertOptions& options,
                             Stream stream = {});

  /// Dispatches, and groups rows by expert as they come, without a second pass. Collective.
  ///
  /// The result is the same as that of group_by_expert after dispatch, and sooner. Until the number
  /// of rows is known the arena holds `rows_max` of them; if that is 0, as many as may come. A host
  /// that waits throws InvalidArgument if more come, and the object can be used further; where no
  /// host waits, the object fails. There is no watcher, and scales travel by rows. Throws as
  /// `dispatch` and `group_by_expert` do.
  RowsByExpert dispatch_by_expert(const DispatchInput& input, const GroupByExpertOptions& options,
                                  Stream stream = {});

  /// Arena memory that an exchange and one of its dispatches take on each rank.
  struct Memory {
    uint64_t arena_bytes = 0;          ///< of the exchange itself, as long as it lives
    uint64_t peak_bytes = 0;           ///< of a dispatch while its number of rows is unknown
    uint64_t kept_bytes = 0;           ///< of its results and route, once the number is known
    uint64_t kept_by_route_bytes = 0;  ///< those of kept_bytes that the Route alone keeps
    uint64_t network_bytes = 0;        ///< of rings between hosts: in the arena, too, or on GPUs
                                       ///< in memory that the network has registered
  };
  /// Returns what an exchange of these options takes on each of `ranks` ranks, and a dispatch of
  /// `tokens` tokens that brings `rows_received` rows of this format. Makes nothing. Where
  /// options.sms is 0, arena_bytes is that of a GPU; a host takes less. For the rank with most
  /// experts; the others take no more. `hosts`: hosts of the world, of equal size; network_bytes
  /// are those of a GPU. Throws InvalidArgument.
  static Memory memory(const ExpertParallelOptions& options, uint32_t ranks, uint32_t tokens,
                       uint32_t rows_received, const RowFormat& format = {}, uint32_t hosts = 1);

  /// Places experts on ranks, as load balancers decide. Collective, between calls.
  ///
  /// `expert_at`: [places of all ranks] the expert that each place holds, rank after rank, or -1
  /// for an empty place, so ranks may hold unequal numbers. Tokens take the places of an expert
  /// that has several in turn. topk_idx names experts, while received ids and counts name places. A
  /// choice whose expert has no place counts as -1, and `Received::lost` and `metrics` count it.
  /// After ranks were lost, spread_lost_experts makes a map. An empty list: the map with which the
  /// object began. Waits for earlier calls; throws InvalidArgument, on all ranks alike.
  void set_expert_map(std::span<const int32_t> expert_at);
  /// Returns the expert at each place of all ranks, or -1.
  std::vector<int32_t> expert_map() const;
  /// Returns the expert at each place of this rank, or -1.
  std::vector<int32_t> held_experts() const;
  /// Returns the experts that have no place, ascending.
  std::vector<uint32_t> lost_experts() const;
  /// Sets what set_expert_map calls last if it changed which experts this rank holds, so that their
  /// weights are loaded before a call needs them: with held_experts(), on the caller's thread.
  void on_experts_changed(std::function<void(const std::vector<int32_t>& held)> hook);

  struct Load {
    std::vector<uint64_t> tokens_per_expert;  ///< [local experts] rows that name each
    std::vector<double> waited_us;            ///< [ranks] microseconds that calls waited for each
  };
  /// Returns what the device has counted so far. Reads memory that calls write as they go, and
  /// waits for nothing.
  Load load() const;

  /// Totals of this rank since the object was made. Names end in their unit.
  struct Metrics {
    uint64_t dispatch_calls = 0;  ///< dispatch and dispatch_by_expert, as this host made them
    uint64_t combine_calls = 0;
    /// Those among them whose counts no host read (received_tokens_max): the rows and bytes below
    /// lack theirs. The replays of a CUDA graph are in neither.
    uint64_t uncounted_calls = 0;
    uint64_t dispatched_tokens = 0;
    /// Choices of this rank's tokens whose experts had no place, counted on the device: replays are
    /// in it.
    uint64_t unplaced_choices = 0;
    std::vector<uint64_t> received_rows_by_peer;   ///< [ranks] by dispatch, from each rank
    std::vector<uint64_t> received_bytes_by_peer;  ///< [ranks] of these rows and their scales
    std::vector<uint64_t> returned_rows_by_peer;   ///< [ranks] by combine, to each rank
    std::vector<uint64_t> returned_bytes_by_peer;  ///< [ranks] of these rows
    /// [local experts] received rows that name each, counted on the device: replays are in it.
    std::vector<uint64_t> received_choices_by_expert;
    /// [ranks] time that calls waited for each rank, measured on the device: replays are in it.
    std::vector<double> wait_seconds_by_peer;
    /// The other rank that calls here have waited for the longest; none if they never waited.
    std::optional<uint32_t> slowest_rank;

    // Between hosts, counted on the device: replays are in them. Lists are empty inside a host.

    /// [ranks] put into that rank's ring, and put here by it: rows with what travels beside them,
    /// and partial sums. 0 for ranks without a link to this one.
    std::vector<uint64_t> link_sent_bytes_by_peer = {}, link_arrived_bytes_by_peer = {};
    /// [ranks] for which nothing was put, since that rank had not read what was there.
    std::vector<double> link_credit_wait_seconds_by_peer = {};
    /// [ranks] for which no rows of that rank were there to be read.
    std::vector<double> link_row_wait_seconds_by_peer = {};
    /// For which a role had nothing to do, over one warp of each block: senders without room for
    /// rows, forwarders without rows or room, and warps that add without partial sums.
    double send_wait_seconds = 0, forward_wait_seconds = 0, add_wait_seconds = 0;
    /// The other host, and the place on all hosts, whose ranks calls here have waited for the
    /// longest.
    std::optional<uint32_t> slowest_host = {}, slowest_rail = {};
  };
  /// Returns what has been counted so far. Any thread may call it; waits for nothing.
  Metrics metrics() const;

  /// A moment of a call on one block.
  struct Moment {
    uint32_t block;
    const char* name;  ///< "begun", "counted", "greeted", "known", "routed", "moved", ...
    uint64_t ns;       ///< nanoseconds of the device's clock
  };
  /// Starts or stops the recording of calls' moments. Costs a few stores per block.
  void trace_calls(bool on);
  /// Returns the moments of the last traced call, block by block, in the order of time, once its
  /// work has ended (see wait).
  std::vector<Moment> last_trace() const;

  /// Returns the ranks that this object has failed for, as far as the host can see now: none while
  /// it works, and one once it has failed, unless no rank but this one is to blame.
  std::vector<FailedRank> failed_ranks() const;
  /// Throws the error of an enqueued call that has failed by now; every later call throws it, too,
  /// until the job goes on. A failed object's memory stays out of use until the World goes.
  void check();
  /// Waits until the work enqueued on `stream` has ended, then checks as `check` does. The stream
  /// may be freed afterwards; the stream of the last call that was not waited for outlives this
  /// object.
  void wait(Stream stream = {});

  const ExpertParallelOptions& options() const;
  /// Places of this rank: local_experts() of them, numbered from first_expert() on. Without an
  /// expert map and places_per_rank, the experts of these numbers.
  uint32_t local_experts() const;
  uint32_t first_expert() const;
  /// How BF16 rows travel between hosts. All zero inside a host.
  struct Rings {
    uint32_t links = 0;       ///< ranks of other hosts that this rank exchanges rows with
    uint32_t ring_rows = 0;   ///< rows in the ring of each
    uint32_t chunk_rows = 0;  ///< rows per put and per credit, at least, while more are to come
    uint32_t put_rows = 0;    ///< rows per put, at most
    uint64_t bytes = 0;       ///< of all rings and of the stages that the network reads
  };
  Rings rings() const;
  uint32_t sms() const;
  /// Returns why `sms` is what it is, in a sentence.
  const std::string& sms_reason() const;
  World& world() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Where each token of a dispatch went. Keeps what combine and a repeated dispatch need, but no
/// rows. Copies share it.
class Route {
 public:
  uint32_t tokens() const;         ///< dispatched by this rank
  uint32_t rows_received() const;  ///< by this rank; where no host waited, places for rows
  /// Returns [tokens, ranks] int32: the row that each token became on each rank, or -1; on the
  /// device, once the dispatch's work has ended.
  /// None between hosts.
  ConstTensorView row_on() const;

  struct State;

 private:
  friend struct RouteAccess;
  explicit Route(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

/// Rows that a rank received, in arena memory, in the order of their source rank, then source
/// token. Rows and scales are freed, in stream order, when the last copy of this is gone; the
/// arrays beside them (ids, weights, source tokens, counts) when the last copy of the Route is
/// gone, too. All that a CUDA graph has captured stays until the Route goes.
class Received {
 public:
  /// Delays the reuse of the memory until the work that is on `stream` now has ended. For streams
  /// other than the call's own.
  void record_stream(Stream stream) const;

  uint32_t rows = 0;       ///< where no host waited for the counts, places for rows
  ConstTensorView x = {};  ///< [rows, hidden], or [rows, bytes] uint8
  RowFormat format = {};
  /// [rows, words] of the type that was sent, or [rows, 4 * words] uint8; in the order that the
  /// strides say. Bytes that come by columns are words here, [rows, words] uint32. None: no scales.
  ConstTensorView scales = {};
  ConstTensorView topk_idx = {};      ///< [rows, topk] int32 local expert ids, -1 where not here
  ConstTensorView topk_weights = {};  ///< [rows, topk] float32, 0 where not here
  ConstTensorView source_token = {};  ///< [rows] int32 index of the token on its source rank
  /// [tokens dispatched here] int32: choices whose experts have no place; none: no map was set, or
  /// there were no tokens. The route keeps it.
  ConstTensorView lost = {};
  std::vector<uint32_t> rows_from = {};  ///< [ranks] rows by source; empty if not waited for
  std::vector<uint32_t> tokens_per_expert = {};  ///< [local experts]; empty if not waited for
  ConstTensorView rows_from_on_device = {};      ///< [ranks] uint32, once the call's work has ended
  ConstTensorView tokens_per_expert_on_device = {};  ///< [local experts] uint32, likewise
  /// With a watcher: [ranks] and [local experts] uint32, 1 once all rows of a source, or all that
  /// name an expert, are here. A kernel that has read a 1 with acquire at gpu scope may read those
  /// rows. A failed call leaves words at 0: wait with a deadline.
  ConstTensorView sources_ready = {};
  ConstTensorView experts_ready = {};
  std::optional<Route> route = {};
  std::shared_ptr<void> owner = {};    ///< keeps rows and scales; the route keeps the rest
  std::shared_ptr<void> watched = {};  ///< keeps sources_ready and experts_ready
};

/// Received rows, copied to each of their experts on this rank.
class ExpertRows {
 public:
  /// As Received::record_stream.
  void record_stream(Stream stream) const;
  /// Drops x and scales, and frees their memory unless `rows_owner` has another copy. The arrays
  /// that a combine with CombineInput::by_expert reads stay.
  void forget_rows();

  uint32_t rows = 0;       ///< padding included; places, where the host does not know the counts
  ConstTensorView x = {};  ///< [rows, hidden], or [rows, bytes] uint8
  RowFormat format = {};
  ConstTensorView scales = {};            ///< as in Received
  ConstTensorView offsets = {};           ///< [local experts + 1] int32: each expert's first row
  ConstTensorView row_of = {};            ///< [rows] int32: the received row, -1 for padding
  ConstTensorView weights = {};           ///< [rows] float32: the routing weight, 0 for padding
  ConstTensorView row_of_choice = {};     ///< [rows received, topk] int32: each choice's row, or -1
  std::vector<uint32_t> first_rows = {};  ///< `offsets` for the host; empty if it does not know
  std::optional<Route> route = {};
  std::shared_ptr<void> rows_owner = {};  ///< keeps x and scales
  std::shared_ptr<void> owner = {};       ///< keeps the other arrays
};

/// The result of dispatch_by_expert. `received` has no x and no scales: `rows` has them.
struct RowsByExpert {
  Received received;
  ExpertRows rows;
};

}  // namespace tokenyard
