#include "device/await_stream.hpp"

#include "device/owned_event.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {

void await_stream(Accelerator& accelerator, uint32_t rank, Stream stream,
                  std::chrono::nanoseconds timeout, const std::string& phase) {
  const OwnedEvent event(accelerator, accelerator.record(stream));
  const bool ended = accelerator.wait_until(accelerator.now() + timeout,
                                            [&] { return accelerator.done(event.get()); });
  if (ended) return;
  throw PeerTimeout(WaitFacts{.rank = rank,
                              .phase = phase,
                              .expected = 1,
                              .seen = 0,
                              .waited_s = std::chrono::duration<double>(timeout).count()});
}

}  // namespace tokenyard
