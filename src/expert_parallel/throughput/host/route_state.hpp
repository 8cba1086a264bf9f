/// The contents of a Route.
#pragma once

#include <memory>
#include <vector>

#include "expert_parallel/common/call_memory.hpp"
#include "expert_parallel/throughput/kernels/received_layout.hpp"
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
  ConstTensorView row_on = {};            ///< [tokens, ranks] its rows
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

/// The library's way to what a Route holds; its callers have none.
struct RouteAccess {
  static Route make(std::shared_ptr<Route::State> state) { return Route(std::move(state)); }
  static const std::shared_ptr<Route::State>& state_of(const Route& route) { return route.state_; }
};

}  // namespace tokenyard
