/// The host side of one object's calls: what they keep on the device, and how one is made. Inside
/// of ExpertParallel.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "device/accelerator.hpp"
#include "expert_parallel/call_memory.hpp"
#include "expert_parallel/throughput/plan.hpp"
#include "fabric/alarm_bell.hpp"
#include "fabric/arena.hpp"
#include "tokenyard/expert_parallel.hpp"

namespace tokenyard {

/// Where each token of a dispatch went, and the memory that the rows came to.
struct Route::State {
  std::shared_ptr<const Health> made_by;  ///< the object's: no other has it
  std::shared_ptr<CallMemory> received;   ///< ReceivedLayout
  throughput::ReceivedLayout layout{};    ///< of it
  std::shared_ptr<CallMemory> table;      ///< RouteTable
  uint32_t tokens = 0;
  uint32_t rows = 0;    ///< that came, or places for them
  uint32_t places = 0;  ///< as the caller bounded them, or 0
  std::vector<uint32_t> rows_from, tokens_per_expert;
  /// Where combine copies what does not lie in the arena. Kept, so that nothing is freed while a
  /// CUDA graph is captured.
  std::shared_ptr<CallMemory> y_copy, weights_copy;
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
  std::shared_ptr<void> output_buffer(const Route& route, ElementType type, Stream stream);
  void check();
  void wait(Stream stream);

  World& world;
  const ExpertParallelOptions options;
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
  /// Of a row of this format; throws InvalidArgument for one that cannot be.
  uint32_t row_bytes(const RowFormat& format) const;

  // Device state (device_state.cpp).
  void open_windows();
  void await_stream(Stream stream, const std::string& what);

  // Calls.
  throughput::Plan plan_of(uint32_t row_bytes, uint32_t sms) const;
  throughput::RouteTable table_of(const Route::State& route) const {
    return {.base = route.table ? route.table->block().data() : nullptr,
            .ranks = world.size(),
            .local_experts = control_.local_experts};
  }
  /// Orders a call after the ones before it, which may have been made on other streams.
  void begin_call(Stream stream);
  std::shared_ptr<CallMemory> reserve(size_t bytes, Stream stream);
  throughput::CallParams call_params(throughput::CallKind kind) const;
  throughput::DispatchParams dispatch_params(throughput::CallKind kind, const DispatchInput& input,
                                             const Route::State& route,
                                             const throughput::Plan& plan) const;
  void launch_dispatch(const throughput::DispatchParams& params, const throughput::Plan& plan,
                       Stream stream);
  /// After await_counts: what the record says of the route.
  void take_counts(Route::State& route);
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
                    const throughput::ReceivedLayout& layout,
                    std::shared_ptr<CallMemory> owner) const;
  /// Rows or weights where peers can read them: in place if they lie in the arena, else a copy in
  /// `copy`, which is made larger if need be.
  uint32_t readable_by_peers(const void* data, size_t bytes, Stream stream,
                             std::shared_ptr<CallMemory>& copy);

  Accelerator& accelerator_;
  Arena& arena_;
  std::shared_ptr<Health> health_;
  ArenaBlock window_;              // ControlLayout.
  std::byte** windows_ = nullptr;  // [ranks] device: everybody's window_.
  throughput::ControlLayout control_{};
  throughput::Workspace* workspace_ = nullptr;
  throughput::CountsRecord* record_ = nullptr;
  Stream last_stream_;
  bool called_ = false;
};

}  // namespace tokenyard
