#include "megakernel/tasks/builtin.hpp"
#include "megakernel/tasks/builtin_list.hpp"

#if TOKENYARD_WATCHED
/// Defined in builtin_watched.cpp.
extern "C" void tokenyard_watched_builtin(const void* params);
#endif

namespace tokenyard::megakernel {

TOKENYARD_DECLARE_KERNEL(builtin_kernel, RunParams);
TOKENYARD_DECLARE_KERNEL(placed_builtin_kernel, RunParams);

namespace {

#if TOKENYARD_WATCHED
KernelEntry watched_entry() {
  KernelEntry entry = builtin_kernel.entry;
  entry.on_host = tokenyard_watched_builtin;
  entry.on_gpu = entry.on_gpu_rows = nullptr;
  return entry;
}
#endif

TaskSet make_builtin_tasks() {
  TaskSet set = task_set<BuiltinTasks>(builtin_kernel.entry, placed_builtin_kernel.entry);
#if TOKENYARD_WATCHED
  static const KernelEntry watched = watched_entry();
  set.watched = &watched;
#endif
  return set;
}

}  // namespace

const TaskSet& builtin_tasks() {
  static const TaskSet set = make_builtin_tasks();
  return set;
}

}  // namespace tokenyard::megakernel
