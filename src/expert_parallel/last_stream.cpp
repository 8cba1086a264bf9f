#include "expert_parallel/last_stream.hpp"

#include "tokenyard/error.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard {

void LastStream::begin_call(Stream stream) {
  // A graph that is being captured is ordered by whoever launches it.
  if (accelerator_.captures(stream)) return;
  if (in_use_ && stream_.native != stream.native) {
    const Event before = accelerator_.mark(stream_);
    accelerator_.wait(stream, before);
    accelerator_.free_event(before);
  }
  stream_ = stream;
  in_use_ = true;
}

void LastStream::forget(Stream stream) {
  if (stream_.native != stream.native) return;
  in_use_ = false;
  stream_ = {};
}

void await_stream(World& world, Stream stream, std::chrono::nanoseconds patience,
                  const std::string& phase) {
  Accelerator& accelerator = world.accelerator();
  const Event event = accelerator.record(stream);
  const bool ended =
      accelerator.wait_until(accelerator.now() + patience, [&] { return accelerator.done(event); });
  accelerator.free_event(event);
  if (ended) return;
  throw PeerTimeout(WaitFacts{.rank = world.rank(),
                              .phase = phase,
                              .expected = 1,
                              .seen = 0,
                              .waited_s = std::chrono::duration<double>(patience).count()});
}

}  // namespace tokenyard
