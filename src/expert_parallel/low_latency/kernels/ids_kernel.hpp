/// A dispatch as its threads see it, the ids of its choices as loaded, and the report to the host
/// of choices that are no experts.
#pragma once

#include "expert_parallel/low_latency/kernels/call_kernel.hpp"
#include "expert_parallel/low_latency/kernels/dispatch.hpp"

namespace tokenyard::low_latency {

struct Dispatch {
  const DispatchParams& params;
  const DispatchTail tail;
  const Call& call;
};

/// Returns the block's shared memory.
TOKENYARD_DEVICE DispatchTail tail_of(const DispatchParams& params) {
  DispatchTail tail = params.tail;
  tail.base = block::shared_tail<NoShared>();
  return tail;
}

/// An id in flight, of either width. Converting both widths to one number at once would wait for
/// the load; value() converts when the id is needed.
struct LoadedId {
  int64_t wide = -1;
  int32_t narrow = -1;

  TOKENYARD_DEVICE static LoadedId load(const DispatchParams& params, uint32_t token,
                                        uint32_t choice) {
    const size_t index = size_t{token} * params.topk + choice;
    LoadedId id;
    if (params.idx_is_int64)
      id.wide = load_cached(static_cast<const int64_t*>(params.topk_idx) + index);
    else
      id.narrow = load_cached(static_cast<const int32_t*>(params.topk_idx) + index);
    return id;
  }
  TOKENYARD_DEVICE int64_t value(const DispatchParams& params) const {
    return params.idx_is_int64 ? wide : narrow;
  }
};

/// Returns the stamp of this dispatch's ids.
TOKENYARD_DEVICE IdsStamp stamp_of(const Dispatch& call) {
  return IdsStamp::of(call.call.epoch(), static_cast<uint32_t>(call.params.row.format()));
}

TOKENYARD_DEVICE bool is_expert(const DispatchParams& params, int64_t id) {
  return static_cast<uint64_t>(id) < params.experts;
}

/// Reports to the host the first choice that is no expert, of the first dispatch not yet read by
/// the host. Called by the reporting thread.
TOKENYARD_DEVICE void publish_mistake(const Dispatch& call, uint32_t choice) {
  const DispatchParams& params = call.params;
  RemoteError& remote_error = *params.remote_error;
  const uint32_t published = remote_error.version, epoch = call.call.epoch();
  // Relaxed: the word says only that the host no longer needs a record.
  const bool heard = load<Order::relaxed, Scope::sys>(&remote_error.heard) == published;
  const RemoteError::Record last = remote_error.records[RemoteError::place(published)];
  const bool same = published != 0 && last.epoch == epoch;
  if (same ? heard || last.choice <= choice : !heard) return;
  const uint32_t version = published + 1;
  const uint32_t token = params.by.topk.quotient(choice);
  const LoadedId id = LoadedId::load(params, token, params.by.topk.remainder(choice, token));
  remote_error.records[RemoteError::place(version)] = {epoch, choice, id.value(params)};
  store<Order::release, Scope::sys>(&remote_error.version, version);
}

/// Notes a choice whose id is no expert; it counts as none. Atomics on host memory may not work, so
/// an atomic counter in device memory decides which thread writes there: the one that finds it
/// zero, until no other has come since. No thread waits.
TOKENYARD_DEVICE void report_error(const Dispatch& call, uint32_t choice) {
  Workspace& workspace = *call.params.call.workspace;
  uint32_t* const first = &workspace.first_mistake[call.call.parity()];
  fetch_max<Order::relaxed, Scope::gpu>(first, ~choice);
  // acq_rel: the reporting thread has seen what the threads that it counted have noted.
  uint32_t noted = fetch_add<Order::acq_rel, Scope::gpu>(&workspace.mistakes, 1) + 1;
  if (noted != 1) return;
  TOKENYARD_KEEP_ROLLED for (uint32_t counted = 0; counted != noted;) {
    publish_mistake(call, ~load<Order::relaxed, Scope::gpu>(first));
    counted = noted;
    noted = compare_exchange<Order::acq_rel, Scope::gpu>(&workspace.mistakes, counted, 0);
  }
}

}  // namespace tokenyard::low_latency
