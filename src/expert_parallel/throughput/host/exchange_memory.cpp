/// The arena memory that an exchange and its calls take. Arithmetic: nothing is made.
#include <algorithm>

#include "expert_parallel/common/expert_map.hpp"
#include "expert_parallel/internode/host/rails.hpp"
#include "expert_parallel/throughput/host/options.hpp"
#include "expert_parallel/throughput/host/plan.hpp"
#include "expert_parallel/throughput/host/row_format.hpp"
#include "expert_parallel/throughput/kernels/received_layout.hpp"
#include "expert_parallel/throughput/kernels/route_table.hpp"
#include "fabric/agreement.hpp"

namespace tokenyard {

ExpertParallel::Memory ExpertParallel::memory(const ExpertParallelOptions& options, uint32_t ranks,
                                              uint32_t tokens, uint32_t rows_received,
                                              const RowFormat& format, uint32_t hosts) {
  require(ranks > 0, "ranks", "at least 1", ranks);
  require(hosts > 0 && hosts <= ranks, "hosts", "1 to " + std::to_string(ranks), hosts);
  check_options(options, ranks);
  require(tokens <= options.tokens_max, "tokens",
          "at most tokens_max = " + std::to_string(options.tokens_max), tokens);
  const uint32_t rows_max = ranks * options.tokens_max;
  require(rows_received <= rows_max, "rows_received", "at most " + std::to_string(rows_max),
          rows_received);
  const uint32_t experts = ExpertPartition::of(places_of(options, ranks), ranks).held_at_most();
  const uint32_t sms = options.sms != 0 ? options.sms : throughput::kBlocksGpu;
  const throughput::ControlLayout control{.ranks = ranks,
                                          .blocks_max = std::max(sms, options.sms_max),
                                          .local_experts_max = experts,
                                          .rows_max = rows_max};
  throughput::ReceivedLayout layout{.rows = rows_max,
                                    .row_bytes = throughput::row_bytes(format, options.hidden),
                                    .topk = options.topk,
                                    .scale_words = format.scale_words,
                                    .scale_order = format.scale_order};
  const throughput::RouteTable table{.base = nullptr, .ranks = ranks, .local_experts = experts};
  // The arena allocates whole units.
  const auto allocated = [](uint64_t bytes) {
    return (std::max<uint64_t>(bytes, 1) + throughput::kOffsetUnit - 1) / throughput::kOffsetUnit *
           throughput::kOffsetUnit;
  };
  internode::RailExchange::Bytes between{};
  if (hosts > 1)
    between = internode::RailExchange::bytes_of(
        {.experts = places_of(options, ranks),
         .topk = options.topk,
         .tokens_max = options.tokens_max,
         .hidden = options.hidden,
         .partition = ExpertPartition::of(places_of(options, ranks), ranks),
         .blocks_max = std::max(sms, options.sms_max),
         .ring_rows = options.tuning.ring_rows,
         .chunk_rows = options.tuning.chunk_rows,
         .movers = options.tuning.movers,
         .fp32_partials = options.fp32_partials},
        ranks, hosts, tokens);
  const auto of_route = [&] {
    const uint64_t tables = hosts > 1 ? table.bytes(0) + between.route : table.bytes(tokens);
    return allocated(layout.beside_bytes() + tables);
  };
  Memory memory{.arena_bytes = allocated(control.bytes()),
                .peak_bytes = allocated(layout.bytes()) + of_route(),
                .network_bytes = hosts > 1 ? allocated(between.far) : 0};
  if (hosts > 1) memory.arena_bytes += allocated(between.near);
  layout.rows = rows_received;
  memory.kept_by_route_bytes = of_route();
  memory.kept_bytes = allocated(layout.bytes()) + memory.kept_by_route_bytes;
  return memory;
}

}  // namespace tokenyard
