/// Work that is enqueued once and launched as often as wanted: a CUDA graph on a GPU. A host runs
/// the work itself each time.
#pragma once

#include <functional>

#include "device/accelerator.hpp"

namespace tokenyard::bench {

class Recording {
 public:
  /// `enqueue` enqueues on a stream.
  Recording(Accelerator& accelerator, std::function<void(Stream)> enqueue);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  /// Runs it to its end, and returns how long it took on the device.
  double run_ms();

 private:
  Accelerator& accelerator_;
  std::function<void(Stream)> enqueue_;
  Stream stream_;
  void* graph_ = nullptr;  ///< a cudaGraphExec_t
};

}  // namespace tokenyard::bench
