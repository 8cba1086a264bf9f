/// The contents of a Route.
#pragma once

#include <memory>
#include <vector>

#include "expert_parallel/common/call_memory.hpp"
#include "expert_parallel/throughput/kernels/received_layout.hpp"
#include "tokenyard/expert_parallel.hpp"

namespace tokenyard {

/// Where each token of a dispatch went. It keeps the arena memory that calls on it read: its table
/// and the metadata of its rows. Peers write the metadata during the dispatch; afterwards only this
/// rank reads it: combine the source tokens and weights, expand all of it. The rows are not part of
/// it; they are freed with the last Received.
struct Route::State {
  std::shared_ptr<const Health> made_by;  ///< identifies the session
  std::shared_ptr<CallMemory> memory;     ///< the route's block of ReceivedLayout, then RouteTable
  throughput::ReceivedLayout layout{};    ///< of it and of the rows received with it
  ConstTensorView row_on = {};            ///< [tokens, ranks] rows of its table
  std::weak_ptr<CallMemory> received;     ///< rows received with it, while the caller keeps them
  uint32_t tokens = 0;
  uint32_t rows = 0;    ///< received, or places for them
  uint32_t places = 0;  ///< bound given by the caller, or 0
  std::vector<uint32_t> rows_from, tokens_per_expert;
  std::shared_ptr<CallMemory> lost;  ///< Received::lost, if an expert map moves choices
  /// Memory that peers write and calls on this route use, of calls captured by a CUDA graph: its
  /// replays use the addresses, so nothing of it is freed before the route.
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

/// The library's way to what a Route holds; its callers have none.
struct RouteAccess {
  static Route make(std::shared_ptr<Route::State> state) { return Route(std::move(state)); }
  static const std::shared_ptr<Route::State>& state_of(const Route& route) { return route.state_; }
};

}  // namespace tokenyard
