/// A dispatch, and a kernel on another stream that takes its rows as they come.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "device/accelerator.hpp"
#include "expert_parallel/throughput/exchange_checks.hpp"
#include "expert_parallel/throughput/readiness_kernels.hpp"
#include "fabric/abort_flag.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::test {

/// A stream besides the default one.
class SideStream {
 public:
  explicit SideStream(Accelerator& accelerator)
      : accelerator_(accelerator), stream_(accelerator.make_stream()) {}
  ~SideStream() { accelerator_.free_stream(stream_); }
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;
  Stream stream() const { return stream_; }

 private:
  Accelerator& accelerator_;
  Stream stream_;
};

struct Sums {
  std::vector<uint32_t> of_sources, of_experts;
  bool operator==(const Sums&) const = default;
};

/// Returns the sums that the kernel must find, computed from the expected rows.
inline Sums expected_sums_of(const Shape& shape, const Expected& expected) {
  Sums sums{std::vector<uint32_t>(shape.ranks),
            std::vector<uint32_t>(expected.tokens_per_expert.size())};
  for (size_t row = 0; row < expected.rows.size(); ++row) {
    uint32_t sum = 0;
    for (size_t column = 0; column < shape.hidden; column += 2) {
      const size_t at = row * shape.hidden + column;
      sum += uint32_t{expected.x[at]} | uint32_t{expected.x[at + 1]} << 16;
    }
    sums.of_sources[expected.rows[row].source] += sum;
    for (size_t choice = row * shape.topk; choice < (row + 1) * shape.topk; ++choice)
      if (expected.ids[choice] >= 0)
        sums.of_experts[static_cast<size_t>(expected.ids[choice])] += sum;
  }
  return sums;
}

/// Returns the sums that a kernel finds which runs beside a dispatch of `input`.
inline Sums watched(ExpertParallel& exchange, const Shape& shape, const DispatchInput& input,
                    const Route* route, Stream beside, std::optional<Received>& received_there) {
  World& world = exchange.world();
  Accelerator& accelerator = accelerator_of(world);
  const uint32_t local_experts = shape.local_experts(world.rank());
  // Before the call: an allocation or copy on its stream would wait for its end.
  const DeviceArray<uint32_t> first(accelerator, size_t{shape.ranks} + 1);
  const DeviceArray<uint32_t> of_sources(accelerator, shape.ranks),
      of_experts(accelerator, local_experts);
  const Received received =
      route == nullptr ? exchange.dispatch(input) : exchange.dispatch(input, *route);
  std::vector<uint32_t> first_rows{0};
  for (const uint32_t rows : received.rows_from) first_rows.push_back(first_rows.back() + rows);
  accelerator.copy(first.data(), first_rows.data(), first_rows.size() * sizeof(uint32_t), beside);
  ErrorRecord failure(accelerator, abort_flag_of(world));
  launch(accelerator, watch_kernel,
         {.blocks = shape.ranks + local_experts, .warps = 2, .cooperative = false}, beside,
         {.sources_ready = received.sources_ready.as<uint32_t>(),
          .experts_ready = received.experts_ready.as<uint32_t>(),
          .x = received.x.as<uint32_t>(),
          .topk_idx = received.topk_idx.as<int32_t>(),
          .first_rows = first.data(),
          .ranks = shape.ranks,
          .local_experts = local_experts,
          .row_words = shape.hidden / 2,
          .topk = shape.topk,
          .of_sources = of_sources.data(),
          .of_experts = of_experts.data(),
          .wait_context = failure.wait_context(world.timeout())});
  await_all(accelerator, beside);
  const std::vector<std::string> phases{"a source's rows", "an expert's rows"};
  failure.check(phases);
  received_there = received;
  return {of_sources.read(), of_experts.read()};
}

}  // namespace tokenyard::test
