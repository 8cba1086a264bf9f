/// The host side of one object's calls: what they keep on the device, and how one is made. Inside
/// of ExpertParallel.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/accelerator.hpp"
#include "device/device_memory.hpp"
#include "expert_parallel/by_expert/expert_rows_layout.hpp"
#include "expert_parallel/common/call_memory.hpp"
#include "expert_parallel/common/expert_partition.hpp"
#include "expert_parallel/common/last_stream.hpp"
#include "expert_parallel/throughput/host/plan.hpp"
#include "expert_parallel/throughput/kernels/place_picks.hpp"
#include "fabric/alarm_bell.hpp"
#include "fabric/arena.hpp"
#include "tokenyard/expert_parallel.hpp"

namespace tokenyard {

/// Where each token of a dispatch went. Of the arena it keeps what calls on it read: its table, and
/// what travelled beside the rows. Peers write that during the dispatch, and only this rank reads
/// it later: combines the source tokens and the weights, expand all of it. The rows are not the
/// route's: they go with the last Received.
struct Route::State {
  std::shared_ptr<const Health> made_by;  ///< the object's: no other has it
  std::shared_ptr<CallMemory> memory;     ///< the route's piece of ReceivedLayout, then RouteTable
  throughput::ReceivedLayout layout{};    ///< of it, and of the rows that came with it
  const int32_t* row_on = nullptr;        ///< its rows
  std::weak_ptr<CallMemory> received;     ///< the rows that came with it, while somebody has them
  uint32_t tokens = 0;
  uint32_t rows = 0;    ///< that came, or places for them
  uint32_t places = 0;  ///< as the caller bounded them, or 0
  std::vector<uint32_t> rows_from, tokens_per_expert;
  /// What peers write, and what calls on this route need on the way, where a CUDA graph has
  /// captured them: its replays know the addresses, so nothing of it is freed before the route is.
  std::vector<std::shared_ptr<CallMemory>> captured;

  std::byte* table() const { return memory->block().data() + layout.beside_bytes(); }
  const int32_t* sources() const { return at<int32_t>(layout.sources_at()); }
  const int32_t* ids() const { return at<int32_t>(layout.ids_at()); }
  const float* weights() const { return at<float>(layout.weights_at()); }

 private:
  template <class T>
  const T* at(size_t offset) const {
    return reinterpret_cast<const T*>(memory->block().data() + offset);
  }
};

struct ExpertParallel::Parts {
 public:
  Parts(World& world, const ExpertParallelOptions& options);
  ~Parts();
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  Received dispatch(const DispatchInput& input, Stream stream);
  Received dispatch_again(const DispatchInput& input, const Route& route, Stream stream);
  void combine(const CombineInput& input, const Route& route, const CombineOutput& output,
               Stream stream);
  ExpertRows expand(const Received& received, const ExpandOptions& expand, Stream stream);
  RowsByExpert dispatch_by_expert(const DispatchInput& input, const ExpandOptions& expand,
                                  Stream stream);
  void place(std::span<const int32_t> expert_at);
  ExpertParallel::Load load() const;
  void trace_calls(bool on);
  std::vector<ExpertParallel::Moment> last_trace() const;
  ExpertParallel::Memory memory(const RowFormat& format, uint32_t tokens, uint32_t rows) const;
  std::shared_ptr<void> output_buffer(const Route& route, ElementType type, Stream stream);
  void check();
  void wait(Stream stream);

  /// Of this rank.
  uint32_t local_experts() const { return partition.held_by(world.rank()); }

  World& world;
  const ExpertParallelOptions options;
  const ExpertPartition partition;
  const throughput::Plan plan;  ///< of bf16 rows, and of as many blocks as calls have by default

 private:
  // Arguments (arguments.cpp). They throw before anything is launched.
  void check_dispatch(const DispatchInput& input) const;
  void check_route(const Route& route) const;
  void check_format(const DispatchInput& input, uint32_t tokens) const;
  void check_again(const DispatchInput& input, const Route::State& route) const;
  void check_combine(const CombineInput& input, const Route::State& route,
                     const CombineOutput& output) const;
  void check_sms(uint32_t sms) const;
  /// Of work that no other rank waits for.
  void check_local_sms(uint32_t sms, const char* argument) const;
  /// Of a row of this format; throws InvalidArgument for one that cannot be.
  uint32_t row_bytes(const RowFormat& format) const;

  // Device state (device_state.cpp).
  void open_windows();
  /// For as long as the object, or for nothing if it cannot be made.
  template <class T>
  T* own(size_t bytes, DeviceMemory::Kind kind) {
    owned_.push_back(std::make_unique<DeviceMemory>(accelerator_, bytes, kind));
    return owned_.back()->as<T>();
  }
  void await_stream(Stream stream, const std::string& what);

  // Calls.
  throughput::Plan plan_of(uint32_t row_bytes, uint32_t sms) const;
  throughput::RouteTable table_of(const Route::State& route) const {
    return {.base = route.memory ? route.table() : nullptr,
            .ranks = world.size(),
            .local_experts = local_experts()};
  }
  std::shared_ptr<CallMemory> reserve(size_t bytes, Stream stream, ArenaEnd end = ArenaEnd::lower);
  /// Has the route keep what a call on it uses, if a CUDA graph is capturing the call.
  void keep_captured(const std::shared_ptr<CallMemory>& memory, Stream stream, Route::State& route);
  throughput::CallParams call_params(throughput::CallKind kind) const;
  throughput::DispatchParams dispatch_params(throughput::CallKind kind, const DispatchInput& input,
                                             const Route::State& route,
                                             const throughput::Plan& plan) const;
  /// Cleared words for a call's watcher, if it has one; `memory` keeps them.
  throughput::Readiness readiness(const DispatchInput& input, Stream stream, Route::State& route,
                                  std::shared_ptr<CallMemory>& memory);
  /// A dispatch on its way to its launch.
  struct Dispatching {
    std::shared_ptr<Route::State> route;
    DispatchInput input;                            ///< as it travels
    std::shared_ptr<CallMemory> cast_rows, places;  ///< that it reads
    std::shared_ptr<CallMemory> rows;               ///< that come
    throughput::Plan plan;
    throughput::DispatchParams params;
    bool waits() const { return params.awaited; }
  };
  /// Of a call that counts: all but its launch, with memory for as many rows as may come.
  Dispatching prepare(throughput::CallKind kind, const DispatchInput& given, Stream stream);
  /// Launches by `launch_it`, and learns the counts if the host waits for them.
  template <class Launch>
  void run(Dispatching& call, Launch launch_it) {
    const uint32_t epoch_before = call.waits() ? told(record_->epoch) : 0;
    guard([&] {
      launch_it();
      if (call.waits()) await_counts(epoch_before);
    });
    if (call.waits()) learn_counts(call);
    // Counts may be here whose rows never came: on the host the call has ended, and it is known.
    check();
  }
  void launch_dispatch(const throughput::DispatchParams& params, const throughput::Plan& plan,
                       Stream stream);
  /// After await_counts: what the record says of the route; what the bound was too much is given
  /// back.
  void learn_counts(Dispatching& call);
  /// Runs the part of a call from its launch on: what escapes from there leaves the object failed.
  template <class Body>
  void guard(Body body) {
    try {
      body();
    } catch (...) {
      health_->interrupted = true;
      throw;
    }
  }
  /// Waits for the counts of the dispatch that was launched after the record had this epoch.
  void await_counts(uint32_t epoch_before);
  /// A word of the record, once its epoch has been seen.
  uint32_t told(const uint32_t& word) const { return accelerator_.read_flag(&word); }
  std::vector<uint32_t> told(const uint32_t* words, uint32_t count) const;
  void throw_refusal() const;
  void throw_mismatch() const;
  Received received(const std::shared_ptr<Route::State>& route, const RowFormat& format,
                    const throughput::ReceivedLayout& layout, std::shared_ptr<CallMemory> owner,
                    const throughput::Readiness& readiness,
                    std::shared_ptr<CallMemory> watched) const;
  /// Where data lies in the arena, in kOffsetUnit; none if peers cannot be told of it.
  std::optional<uint32_t> place_in_arena(const void* data, size_t bytes) const;
  /// Rows or weights where peers can read them: in place if they lie in the arena, else a copy that
  /// `copies` keeps.
  uint32_t readable_by_peers(const void* data, size_t bytes, Stream stream, Route::State& route,
                             std::vector<std::shared_ptr<CallMemory>>& copies);

  // Calls that need no other rank (local_calls.cpp).
  /// Memory of a call that nobody sees, freed in stream order once it has been enqueued.
  std::shared_ptr<CallMemory> scratch(size_t bytes, Stream stream, Route::State& route);
  /// The input as it travels: of rows cast to FP8 first, if so asked.
  DispatchInput cast(const DispatchInput& input, const throughput::Plan& plan, Stream stream,
                     Route::State& route, std::shared_ptr<CallMemory>& made);
  RowFormat check_cast(const DispatchInput& input) const;
  /// The input with the places of its picks, if experts do not live by their numbers
  /// (placement.cpp).
  DispatchInput placed(const DispatchInput& input, const throughput::Plan& plan, Stream stream,
                       Route::State& route, std::shared_ptr<CallMemory>& made);
  int64_t given_id(int64_t id) const;
  void check_expand(const Received& received, const ExpandOptions& expand) const;
  /// That no row's number is past those of 32 bits, however tokens choose their experts.
  void check_grouping(const ExpandOptions& expand) const;
  void check_by_expert(const DispatchInput& input, const ExpandOptions& expand) const;
  /// Places for all rows that may come by expert, padding included, if the caller has not said.
  uint32_t most_rows_by_expert(uint32_t received, const ExpandOptions& expand) const;
  /// Where each expert's rows begin, and how many there are, if the host knows; throws
  /// InvalidArgument if the caller has places for fewer.
  static ExpertRows count_rows(const Route::State& route, const ExpandOptions& expand);
  /// Of each mover, in what a kernel's Shared struct and tail leave of shared memory.
  throughput::StagePlan rings_beside(size_t shared_bytes, size_t tail_bytes, uint32_t row_bytes,
                                     uint32_t movers) const;
  void fill_in(ExpertRows& rows, const expert_major::ExpertRowsLayout& layout,
               const Received& received, const std::shared_ptr<CallMemory>& memory) const;
  /// Whether a combine brings its results to where peers read them while it pulls theirs, and how.
  throughput::PreparedRow prepared_row(const CombineInput& input) const;
  bool prepares_beside(const CombineInput& input, const throughput::Plan& plan,
                       const Route::State& route) const;
  throughput::Preparation prepare_beside(const CombineInput& input, const throughput::Plan& plan,
                                         const Route::State& route, std::byte* to) const;
  throughput::ResultsParams results_params(const CombineInput& input, const Route::State& route,
                                           std::byte* to, uint32_t groups,
                                           const throughput::StagePlan& rings) const;
  /// Results that lie by expert, summed to one a received row before the combine.
  std::shared_ptr<CallMemory> reduce(const CombineInput& input, const throughput::Plan& plan,
                                     Stream stream, Route::State& route);

  Accelerator& accelerator_;
  Arena& arena_;
  std::shared_ptr<Health> health_;
  ArenaBlock window_;           // ControlLayout.
  Peers windows_{}, arenas_{};  // Everybody's.
  throughput::ControlLayout control_{};
  std::vector<std::unique_ptr<DeviceMemory>> owned_;
  throughput::Workspace* workspace_ = nullptr;
  throughput::CountsRecord* record_ = nullptr;
  throughput::Statistics statistics_{};
  uint64_t* moments_ = nullptr;  ///< [blocks_max, kMoments]
  bool traces_ = false;
  throughput::PlacementTable placement_{};  ///< of no experts: they live by their numbers
  std::optional<DeviceMemory> placement_words_;
  std::vector<int32_t> expert_at_;  ///< [places]
  LastStream last_stream_;
};

}  // namespace tokenyard
