/// Lifetime of results, and queries on a route.
#include "expert_parallel/throughput/host/route_state.hpp"

namespace tokenyard {

namespace {

void record(const std::shared_ptr<void>& memory, Stream stream) {
  if (memory != nullptr)
    std::static_pointer_cast<CallMemory>(memory)->block().record_stream(stream);
}

void record(const std::optional<Route>& route, Stream stream) {
  if (!route) return;
  record(RouteAccess::state_of(*route)->memory, stream);
}

}  // namespace

void Received::record_stream(Stream stream) const {
  record(owner, stream);
  record(watched, stream);
  record(route, stream);
}

void ExpertRows::record_stream(Stream stream) const {
  record(rows_owner, stream);
  record(owner, stream);
  record(route, stream);
}

void ExpertRows::forget_rows() {
  x = scales = {};
  rows_owner.reset();
}

uint32_t Route::tokens() const {
  return state_->tokens;
}
uint32_t Route::rows_received() const {
  return state_->rows;
}
ConstTensorView Route::row_on() const {
  return state_->row_on;
}

}  // namespace tokenyard
