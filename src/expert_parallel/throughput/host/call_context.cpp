#include "expert_parallel/throughput/host/call_context.hpp"
#include "fabric/agreement.hpp"
#include "fabric/world_access.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

namespace tokenyard::throughput {

CallContext::CallContext(const std::shared_ptr<World>& world, const ExpertParallelOptions& options,
                         std::shared_ptr<const void> exchange)
    : setup(*world, options),
      health(std::make_shared<Health>(world, std::move(exchange))),
      arena(setup.accelerator, arena_of(*world), health),
      window(setup),
      observation(setup, window.blocks_max()),
      last_stream(setup.accelerator) {
  if (!spans_hosts(*world)) return;
  rails.emplace(setup.world, internode::RailExchange::Shape{
                                 .experts = setup.places(),
                                 .topk = options.topk,
                                 .tokens_max = options.tokens_max,
                                 .hidden = options.hidden,
                                 .partition = setup.partition,
                                 .blocks_max = std::max(setup.plan.blocks, options.sms_max),
                                 .ring_rows = options.tuning.ring_rows,
                                 .chunk_rows = options.tuning.chunk_rows,
                                 .movers = options.tuning.movers,
                                 .fp32_partials = options.fp32_partials});
}

CallParams CallContext::params(CallKind kind) const {
  return {.rank = setup.world.rank(),
          .ranks = setup.world.size(),
          .first_present = setup.first_present,
          .absent = window.absent(),
          .kind = kind,
          .weights = Weights::without,
          .comes_later = false,
          .route = nullptr,
          .format = {},
          .scales = {},
          .rows_at = 0,
          .places = 0,
          .beside_at = 0,
          .control = window.control(),
          .arenas = window.arenas(),
          .workspace = window.workspace(),
          .statistics = observation.statistics(),
          .moments = observation.moments(),
          .wait_context = wait_context()};
}

RouteTable CallContext::table_of(const Route::State& route) const {
  return {.base = route.memory ? route.table() : nullptr,
          .ranks = setup.world.size(),
          .local_experts = setup.local_experts()};
}

size_t CallContext::table_bytes(const Route::State& route) const {
  // Between hosts the exchange's own tables take the place of the rows.
  if (rails) return table_of(route).bytes(0) + rails->route_bytes(route.tokens);
  return table_of(route).bytes(route.tokens);
}

void CallContext::check_route(const Route& route) const {
  const std::shared_ptr<Route::State>& state = RouteAccess::state_of(route);
  if (!state)
    throw InvalidArgument("route", "a route from a dispatch of this object", "an empty route");
  if (state->made_by == health) return;
  if (state->made_by->exchange == health->exchange)
    throw InvalidArgument(
        "route",
        fmt::format("a route of epoch {}: dispatch again, since the ranks have changed",
                    membership_epoch_of(*health->world)),
        fmt::format("a route of epoch {}", membership_epoch_of(*state->made_by->world)));
  throw InvalidArgument("route", "a route from a dispatch of this object",
                        "a route of another object");
}

void CallContext::wait(Stream stream) {
  setup.await_stream(stream, "the end of a stream's work");
  last_stream.forget(stream);
}

void CallContext::close() {
  try {
    // A running kernel may still use the memory freed below.
    if (last_stream.in_use() && !health->failed())
      setup.await_stream(last_stream.get(), "the end of its last call");
  } catch (const std::exception&) {
    health->interrupted = true;  // A destructor cannot report it.
  }
  if (health->failed()) return;
  window.give_back();
  if (rails) rails->give_back();
}

}  // namespace tokenyard::throughput
