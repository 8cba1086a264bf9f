#include "bench/megakernel_decode/recording.hpp"

#include "tokenyard/error.hpp"

namespace tokenyard::bench {

Recording::Recording(Accelerator& accelerator, const std::function<void(Stream)>& enqueue)
    : accelerator_(accelerator),
      stream_(accelerator.make_stream()),
      graph_(std::make_unique<Graph>(accelerator, stream_,
                                     [enqueue, stream = stream_] { enqueue(stream); })) {}

Recording::~Recording() {
  graph_.reset();
  accelerator_.free_stream(stream_);
}

double Recording::run_ms() {
  const Event begun = accelerator_.record(stream_);
  graph_->launch();
  const Event ended = accelerator_.record(stream_);
  if (!accelerator_.wait_until(accelerator_.now() + std::chrono::seconds(30),
                               [&] { return accelerator_.done(ended); }))
    throw InternalError("recorded work does not end");
  const double taken = accelerator_.elapsed_ms(begun, ended);
  accelerator_.free_event(begun);
  accelerator_.free_event(ended);
  return taken;
}

}  // namespace tokenyard::bench
