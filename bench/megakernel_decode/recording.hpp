/// A graph on a stream of its own, timed by the device.
#pragma once

#include <functional>
#include <memory>

#include "bench/harness/graph.hpp"

namespace tokenyard::bench {

class Recording {
 public:
  /// Captures what `enqueue` enqueues on a stream.
  Recording(Accelerator& accelerator, const std::function<void(Stream)>& enqueue);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  /// Runs the graph, waits for it, and returns its device time.
  double run_ms();

 private:
  Accelerator& accelerator_;
  Stream stream_;
  std::unique_ptr<Graph> graph_;
};

}  // namespace tokenyard::bench
