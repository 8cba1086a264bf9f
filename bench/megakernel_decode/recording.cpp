#include "bench/megakernel_decode/recording.hpp"

#if TOKENYARD_WITH_CUDA
#include "device/cuda/runtime.hpp"
#endif
#include "tokenyard/error.hpp"

namespace tokenyard::bench {

namespace {

#if TOKENYARD_WITH_CUDA
cudaStream_t native(Stream stream) {
  return reinterpret_cast<cudaStream_t>(stream.native);
}

void* record_graph(Stream stream, const std::function<void(Stream)>& enqueue) {
  cuda::check(cudaStreamBeginCapture(native(stream), cudaStreamCaptureModeThreadLocal),
              "cudaStreamBeginCapture");
  enqueue(stream);
  cudaGraph_t graph = nullptr;
  cuda::check(cudaStreamEndCapture(native(stream), &graph), "cudaStreamEndCapture");
  cudaGraphExec_t launchable = nullptr;
  cuda::check(cudaGraphInstantiate(&launchable, graph, 0), "cudaGraphInstantiate");
  cudaGraphDestroy(graph);
  return launchable;
}
void launch_graph(void* graph, Stream stream) {
  cuda::check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), native(stream)),
              "cudaGraphLaunch");
}
void free_graph(void* graph) {
  cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph));
}
#else
void* record_graph(Stream, const std::function<void(Stream)>&) {
  return nullptr;
}
void launch_graph(void*, Stream) {}
void free_graph(void*) {}
#endif

}  // namespace

Recording::Recording(Accelerator& accelerator, std::function<void(Stream)> enqueue)
    : accelerator_(accelerator), enqueue_(std::move(enqueue)), stream_(accelerator.make_stream()) {
  if (accelerator.kind() == AcceleratorKind::gpu) graph_ = record_graph(stream_, enqueue_);
}

Recording::~Recording() {
  if (graph_ != nullptr) free_graph(graph_);
  accelerator_.free_stream(stream_);
}

double Recording::run_ms() {
  const Event begun = accelerator_.record(stream_);
  if (graph_ != nullptr)
    launch_graph(graph_, stream_);
  else
    enqueue_(stream_);
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
