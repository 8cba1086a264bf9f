#include "expert_parallel/throughput/host/call_arena.hpp"

#include <algorithm>

#include "expert_parallel/throughput/kernels/control.hpp"

namespace tokenyard::throughput {

std::shared_ptr<CallMemory> CallArena::reserve(size_t bytes, Stream stream, ArenaEnd end) const {
  // Even a call that receives nothing needs an address.
  constexpr size_t kLeast = kOffsetUnit;
  return std::make_shared<CallMemory>(arena_.allocate(std::max(bytes, kLeast), stream, end),
                                      health_);
}

std::shared_ptr<CallMemory> CallArena::scratch(size_t bytes, Stream stream,
                                               Route::State& route) const {
  std::shared_ptr<CallMemory> memory = reserve(bytes, stream);
  keep_captured(memory, stream, route);
  return memory;
}

void CallArena::keep_captured(const std::shared_ptr<CallMemory>& memory, Stream stream,
                              Route::State& route) const {
  if (accelerator_.captures(stream)) route.captured.push_back(memory);
}

uint32_t CallArena::place_of(CallMemory& memory) {
  return static_cast<uint32_t>(memory.block().offset() / kOffsetUnit);
}

std::optional<uint32_t> CallArena::place_of(const void* data, size_t bytes) const {
  if (bytes == 0) return 0;
  const auto address = reinterpret_cast<uintptr_t>(data);
  const auto base = reinterpret_cast<uintptr_t>(arena_.base());
  const bool inside = address >= base && address + bytes <= base + arena_.capacity();
  if (!inside || (address - base) % kOffsetUnit != 0) return std::nullopt;
  return static_cast<uint32_t>((address - base) / kOffsetUnit);
}

uint32_t CallArena::readable_by_peers(const void* data, size_t bytes, Stream stream,
                                      Route::State& route,
                                      std::vector<std::shared_ptr<CallMemory>>& copies) const {
  if (const auto place = place_of(data, bytes)) return *place;
  copies.push_back(scratch(bytes, stream, route));
  CallMemory& copy = *copies.back();
  accelerator_.copy(copy.block().data(), data, bytes, stream);
  return place_of(copy);
}

}  // namespace tokenyard::throughput
