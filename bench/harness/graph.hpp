/// Work that is captured once and launched any number of times: a CUDA graph on a GPU. A host
/// enqueues it anew each time.
#pragma once

#include <functional>

#include "device/accelerator.hpp"

namespace tokenyard::bench {

class Graph {
 public:
  /// Captures what `enqueue` enqueues on `stream`. It must have launched each of its kernels
  /// before.
  Graph(Accelerator& accelerator, Stream stream, std::function<void()> enqueue);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  /// Enqueues and returns.
  void launch() const;

 private:
  const Stream stream_;
  const std::function<void()> enqueue_;
  [[maybe_unused]] void* launchable_ = nullptr;  ///< a cudaGraphExec_t; none on a host
};

}  // namespace tokenyard::bench
