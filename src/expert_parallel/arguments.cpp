/// Arguments of calls, checked before anything is launched.
#include <fmt/format.h>

#include "expert_parallel/exchange.hpp"

namespace tokenyard {

namespace {

void require_pointer(const void* pointer, const char* argument, uint64_t elements,
                     uint64_t alignment) {
  if (elements == 0) return;
  if (pointer == nullptr)
    throw InvalidArgument(argument, fmt::format("{} elements", elements), "a null pointer");
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  if (address % alignment != 0)
    throw InvalidArgument(argument, fmt::format("an address aligned to {} bytes", alignment),
                          fmt::format("{:#x}", address));
}

constexpr uint64_t kRowAlignment = 16;  // Of bulk copies and vector accesses.

}  // namespace

void ExpertParallel::Parts::check_rows(const void* rows, const char* name, uint32_t count) const {
  require_pointer(rows, name, uint64_t{count} * options.hidden, kRowAlignment);
}

void ExpertParallel::Parts::check_dispatch(const DispatchInput& input) const {
  if (input.tokens > options.tokens_max)
    throw InvalidArgument("tokens", fmt::format("at most tokens_max = {}", options.tokens_max),
                          std::to_string(input.tokens));
  const uint64_t picks = uint64_t{input.tokens} * options.topk;
  check_rows(input.x, "x", input.tokens);
  require_pointer(input.topk_idx, "topk_idx", picks, input.idx_is_int64 ? 8 : 4);
  require_pointer(input.topk_weights, "topk_weights", picks, 4);
}

void ExpertParallel::Parts::check_route(const Route& route) const {
  if (!route.state() || route.state()->made_by != health_)
    throw InvalidArgument("route", "one that a dispatch of this object made",
                          route.state() ? "one of another object" : "an empty one");
}

}  // namespace tokenyard
