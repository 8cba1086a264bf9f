#include "megakernel/tasks/decoder.hpp"
#include "megakernel/tasks/decoder_kernel.hpp"

#if TOKENYARD_WATCHED
/// Of decoder_watched.cpp.
extern "C" void tokenyard_watched_decoder(const void* params);
#endif

namespace tokenyard::megakernel {

namespace {

#if TOKENYARD_WATCHED
KernelEntry watched_entry() {
  KernelEntry entry = decoder_kernel.entry;
  entry.on_host = tokenyard_watched_decoder;
  entry.on_gpu = entry.on_gpu_rows = nullptr;
  return entry;
}
#endif

TaskSet make_decoder_tasks() {
  TaskSet set = task_set<DecoderTasks>(decoder_kernel.entry, placed_decoder_kernel.entry);
#if TOKENYARD_WATCHED
  static const KernelEntry watched = watched_entry();
  set.watched = &watched;
#endif
  return set;
}

}  // namespace

const TaskSet& decoder_tasks() {
  static const TaskSet set = make_decoder_tasks();
  return set;
}

}  // namespace tokenyard::megakernel
