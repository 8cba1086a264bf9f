/// The backend's calls that concern membership, implemented in Python by backend_state.py.
#include "backend.hpp"

#include <algorithm>

namespace tokenyard::torch_backend {

namespace py = pybind11;

c10d::ErrorType TokenyardBackend::getError() {
  const py::gil_scoped_acquire locked;
  const auto state = backend_state_.attr("state")().cast<std::string>();
  if (state == "whole") return c10d::ErrorType::SUCCESS;
  return state == "ranks lost" ? c10d::ErrorType::REMOTE_ERROR : c10d::ErrorType::COMM_ERROR;
}

void TokenyardBackend::retire(const std::string& instead) {
  {
    const std::lock_guard lock(place_mutex_);
    instead_ = instead;
  }
  take_place(nullptr);
}

void TokenyardBackend::refuse(const char* title) const {
  std::string instead;
  {
    const std::lock_guard lock(place_mutex_);
    instead = instead_;
  }
  if (instead.empty()) throw_cancelled(title);
  const py::gil_scoped_acquire locked;
  const py::object error = py::module_::import("tokenyard.errors")
                               .attr("invalid")("group", instead, "the one before it");
  PyErr_SetObject(py::type::of(error).ptr(), error.ptr());
  throw py::error_already_set();
}

void TokenyardBackend::shutdown() {
  const py::gil_scoped_acquire locked;
  backend_state_.attr("shutdown")();
}

void TokenyardBackend::abort() {
  take_place(nullptr);
  const py::gil_scoped_acquire locked;
  backend_state_.attr("abort")();
}

c10::intrusive_ptr<c10d::Backend> TokenyardBackend::shrink(
    const std::vector<int64_t>& ranks_to_exclude, int flags,
    const c10::intrusive_ptr<Options>& options) {
  constexpr int kAbortFirst = 1;  // torch.distributed.distributed_c10d.SHRINK_ABORT
  TORCH_CHECK_VALUE(!options, "backend tokenyard keeps a group's options on shrink; pass none");
  if (flags & kAbortFirst) take_place(nullptr);
  const py::gil_scoped_acquire locked;
  return backend_state_.attr("shrink")(ranks_to_exclude, (flags & kAbortFirst) != 0)
      .cast<c10::intrusive_ptr<Backend>>();
}

c10::intrusive_ptr<c10d::Backend> TokenyardBackend::split(
    const c10::intrusive_ptr<c10d::Store>& /*store*/, const std::vector<int>& ranks,
    const c10::intrusive_ptr<Options>& options) {
  if (std::find(ranks.begin(), ranks.end(), rank_) == ranks.end()) return nullptr;
  const double timeout_s = std::chrono::duration<double>(options->timeout).count();
  const py::gil_scoped_acquire locked;
  return backend_state_.attr("split")(ranks, options->group_name, timeout_s)
      .cast<c10::intrusive_ptr<Backend>>();
}

#ifdef C10D_BACKEND_HAS_RECONFIGURE

c10d::ReconfigureHandle TokenyardBackend::get_reconfigure_handle() const {
  const py::gil_scoped_acquire locked;
  return backend_state_.attr("handle")().cast<std::string>();
}

TokenyardBackend::WorkPtr TokenyardBackend::reconfigure(const c10d::ReconfigureOptions& options) {
  const auto handles =
      std::visit([](const auto& any) { return std::vector<std::string>(any.begin(), any.end()); },
                 options.handles);
  const bool ordered = std::holds_alternative<std::vector<std::string>>(options.handles);
  TORCH_CHECK_VALUE(options.hints.empty(), "backend tokenyard supports no hints; pass none");

  const py::gil_scoped_acquire locked;
  py::object timeout = py::none();
  if (options.timeout)
    timeout = py::float_(std::chrono::duration<double>(*options.timeout).count());
  take_place(nullptr);
  const auto [group, rank, size] =
      backend_state_.attr("reconfigure")(options.uuid, handles, ordered, timeout)
          .cast<std::tuple<py::capsule, int, int>>();
  rank_ = rank;
  size_ = size;
  take_place(group_in(group));
  return work(c10d::OpType::UNKNOWN, "tokenyard:reconfigure", {}, {});
}

#endif

}  // namespace tokenyard::torch_backend
