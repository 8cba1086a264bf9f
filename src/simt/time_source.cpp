#include "simt/time_source.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

namespace tokenyard::simt {

namespace {
constexpr uint32_t kYields = 64;        // before the first nap
constexpr uint64_t kNapNsMax = 50'000;  // at most this late a peer's answer is noticed
}  // namespace

uint64_t WallTime::now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void WallTime::idle(uint32_t rounds, uint64_t wake_ns) {
  if (rounds < kYields) {
    std::this_thread::yield();
    return;
  }
  uint64_t nap_ns = std::min<uint64_t>(kNapNsMax, uint64_t{1000} * (rounds - kYields + 1));
  if (wake_ns) {
    const uint64_t now = now_ns();
    nap_ns = std::min(nap_ns, wake_ns > now ? wake_ns - now : 0);
  }
  std::this_thread::sleep_for(std::chrono::nanoseconds(nap_ns));
}

}  // namespace tokenyard::simt
