#include "simt/host_accelerator.hpp"

#include <fmt/core.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "tokenyard/error.hpp"

namespace tokenyard::simt {

namespace {
// A small GPU's, so that shapes chosen from it are plausible; only shared memory is enforced.
constexpr Capacity kCapacity{.multiprocessors = 32, .shared_bytes = 227 << 10};
constexpr size_t kAlignment = 256;
constexpr auto kInterruptEvery = std::chrono::milliseconds(50);
}  // namespace

HostAccelerator::HostAccelerator(std::function<void()> interrupt)
    : interrupt_(std::move(interrupt)),
      executor_({.memory = memory_, .schedule = schedule_, .time = time_, .interrupt = [this] {
                   interrupt_();
                 }}) {}

HostAccelerator::~HostAccelerator() = default;

Capacity HostAccelerator::capacity() const {
  return kCapacity;
}

void HostAccelerator::require_living(Stream stream) const {
  if (freed_streams_.contains(stream.native))
    throw InternalError(fmt::format("stream {} is used after it was freed", stream.native));
}

void HostAccelerator::launch(const KernelEntry& kernel, const LaunchShape& shape, Stream stream,
                             const void* params) {
  require_living(stream);
  const uint32_t threads = shape.warps * 32;
  if (shape.blocks == 0) throw InvalidArgument("blocks", "at least 1", "0");
  if (threads == 0 || threads > kernel.threads_max)
    throw InvalidArgument("warps",
                          fmt::format("1 .. {} for {}", kernel.threads_max / 32, kernel.name),
                          fmt::format("{}", shape.warps));
  if (kernel.shared_bytes + shape.extra_shared_bytes > kCapacity.shared_bytes)
    throw InvalidArgument("shared memory of " + std::string(kernel.name),
                          fmt::format("at most {} bytes", kCapacity.shared_bytes),
                          fmt::format("{}", kernel.shared_bytes + shape.extra_shared_bytes));
  const auto grid = executor_.launch(0, kernel,
                                     {.blocks = shape.blocks,
                                      .threads = threads,
                                      .extra_shared_bytes = shape.extra_shared_bytes,
                                      .guard = shape.guard},
                                     params);
  executor_.run([&] { return grid->running == 0; });
}

void* HostAccelerator::allocate(size_t bytes) {
  const size_t rounded = (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  void* memory = std::aligned_alloc(kAlignment, rounded);
  if (!memory) throw OsError(fmt::format("aligned_alloc of {} bytes", rounded), errno, "no memory");
  std::memset(memory, 0, rounded);
  return memory;
}

void HostAccelerator::free(void* memory) {
  std::free(memory);
}

void HostAccelerator::copy(void* to, const void* from, size_t bytes, Stream stream) {
  require_living(stream);
  if (bytes > 0) std::memmove(to, from, bytes);
}

void HostAccelerator::fill(void* to, int byte, size_t bytes, Stream stream) {
  require_living(stream);
  if (bytes > 0) std::memset(to, byte, bytes);
}

Event HostAccelerator::record(Stream stream) {
  require_living(stream);
  return {reinterpret_cast<uintptr_t>(new uint64_t(time_.now_ns()))};
}

void HostAccelerator::free_event(Event event) {
  delete reinterpret_cast<uint64_t*>(event.native);
}

float HostAccelerator::elapsed_ms(Event begin, Event end) {
  const auto ns = [](Event event) { return *reinterpret_cast<const uint64_t*>(event.native); };
  return static_cast<float>(static_cast<double>(ns(end) - ns(begin)) * 1e-6);
}

bool HostAccelerator::wait_until(TimePoint until, const std::function<bool()>& condition) {
  auto listened = Clock::now();
  for (uint32_t rounds = 0; !condition(); ++rounds) {
    const auto now = Clock::now();
    if (now >= until) return false;
    if (now - listened >= kInterruptEvery) {
      listened = now;
      interrupt_();
    }
    time_.idle(rounds, 0);
  }
  return true;
}

uint32_t HostAccelerator::read_flag(const uint32_t* flag) {
  return __atomic_load_n(flag, __ATOMIC_ACQUIRE);
}

void HostAccelerator::write_flag(uint32_t* flag, uint32_t value) {
  __atomic_store_n(flag, value, __ATOMIC_RELEASE);
}

}  // namespace tokenyard::simt
