#include "bench/harness/graph.hpp"

#if TOKENYARD_WITH_CUDA
#include "device/cuda/runtime.hpp"
#endif

namespace tokenyard::bench {

#if TOKENYARD_WITH_CUDA

namespace {
cudaStream_t native_stream(Stream stream) {
  return reinterpret_cast<cudaStream_t>(stream.native);
}
}  // namespace

Graph::Graph(Accelerator& accelerator, Stream stream, std::function<void()> enqueue)
    : stream_(stream), enqueue_(std::move(enqueue)) {
  if (accelerator.kind() != AcceleratorKind::gpu) return;
  // Thread-local: what other ranks' threads do meanwhile must not break this capture.
  cuda::check(cudaStreamBeginCapture(native_stream(stream), cudaStreamCaptureModeThreadLocal),
              "cudaStreamBeginCapture");
  enqueue_();
  cudaGraph_t graph = nullptr;
  cuda::check(cudaStreamEndCapture(native_stream(stream), &graph), "cudaStreamEndCapture");
  cudaGraphExec_t launchable = nullptr;
  cuda::check(cudaGraphInstantiate(&launchable, graph, 0), "cudaGraphInstantiate");
  cuda::check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  launchable_ = launchable;
}

Graph::~Graph() {
  // The launch has reported any error.
  if (launchable_ != nullptr) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(launchable_));
}

void Graph::launch() const {
  if (launchable_ == nullptr) return enqueue_();
  cuda::check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(launchable_), native_stream(stream_)),
              "cudaGraphLaunch");
}

#else

Graph::Graph(Accelerator&, Stream stream, std::function<void()> enqueue)
    : stream_(stream), enqueue_(std::move(enqueue)) {}

Graph::~Graph() = default;

void Graph::launch() const {
  enqueue_();
}

#endif

}  // namespace tokenyard::bench
