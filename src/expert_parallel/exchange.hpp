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
  std::shared_ptr<CallMemory> table;      ///< [tokens, ranks] int32
  uint32_t epoch;                         ///< of the dispatch; names the route among the ranks
  uint32_t tokens, rows;
  std::vector<uint32_t> rows_from, tokens_per_expert;
};

struct ExpertParallel::Parts {
 public:
  Parts(World& world, const ExpertParallelOptions& options);
  ~Parts();
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  Received dispatch(const DispatchInput& input, Stream stream);
  Received dispatch_again(const void* x, const Route& route, Stream stream);
  void combine(const void* y, const Route& route, void* out, const float* weights,
               float* out_weights, Stream stream);
  std::shared_ptr<void> output_buffer(const Route& route, Stream stream);
  void check();
  void wait(Stream stream);

  World& world;
  const ExpertParallelOptions options;
  const throughput::Plan plan;

 private:
  // Arguments (arguments.cpp). They throw before anything is launched.
  void check_dispatch(const DispatchInput& input) const;
  void check_route(const Route& route) const;
  void check_rows(const void* rows, const char* name, uint32_t count) const;

  // Device state (device_state.cpp).
  void open_windows();
  void await_stream(Stream stream, const std::string& what);

  // Calls.
  uint32_t row_bytes() const { return options.hidden * 2; }
  throughput::ReceivedLayout received_layout() const {
    return {.rows_max = world.size() * options.tokens_max, .topk = options.topk};
  }
  /// Orders a call after the ones before it, which may have been made on other streams.
  void begin_call(Stream stream);
  std::shared_ptr<CallMemory> reserve(size_t bytes, Stream stream);
  throughput::CallParams call_params(throughput::CallKind kind, uint32_t route) const;
  throughput::DispatchParams dispatch_params(throughput::CallKind kind, uint32_t tokens,
                                             const void* x, const Route::State& route) const;
  void launch_dispatch(const throughput::DispatchParams& params, Stream stream);
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
  Received received(const std::shared_ptr<Route::State>& route, const std::byte* rows,
                    std::shared_ptr<CallMemory> owner) const;
  /// Rows or weights where peers can read them: in place if they lie in the arena, else a copy that
  /// `copies` keeps.
  uint32_t readable_by_peers(const void* data, size_t bytes, Stream stream,
                             std::vector<std::shared_ptr<CallMemory>>& copies);

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
