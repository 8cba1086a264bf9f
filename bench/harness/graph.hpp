/// What is enqueued on a stream once and launched there as often as wanted: a CUDA graph on a GPU.
/// A host, which has none, enqueues it anew each time.
#pragma once

#include <functional>

#include "device/accelerator.hpp"

namespace tokenyard::bench {

class Graph {
 public:
  /// `enqueue` enqueues on `stream`, and nothing that it launches is launched for the first time.
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
