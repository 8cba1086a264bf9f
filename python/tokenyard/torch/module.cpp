/// The module `tokenyard_backend`, built on the user's machine by build.py.
#include "backend.hpp"
#include "torch_store.hpp"

namespace py = pybind11;

namespace tokenyard::torch_backend {

const core::Table* table = nullptr;

namespace {

c10::intrusive_ptr<c10d::Backend> make(const py::capsule& functions,
                                       const std::optional<py::capsule>& group, int rank, int size,
                                       double timeout_s, const std::string& name,
                                       const std::vector<int64_t>& global_ranks,
                                       py::object backend_state, bool host_device) {
  const auto* given = content_of<const core::Table>(functions, core::kTableCapsule);
  TORCH_CHECK(given->version == core::kTableVersion, "tokenyard's torch backend was built for ",
              "table ", core::kTableVersion, ", the package has ", given->version);
  table = given;
  const auto timeout = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::duration<double>(timeout_s));
  return c10::make_intrusive<TokenyardBackend>(group ? group_in(*group) : nullptr, rank, size,
                                               timeout, name, global_ranks,
                                               std::move(backend_state), host_device);
}

/// Returns null for a backend that is not tokenyard's.
py::object state_of(const c10::intrusive_ptr<c10d::Backend>& backend) {
  const auto* ours = dynamic_cast<const TokenyardBackend*>(backend.get());
  return ours != nullptr ? ours->backend_state() : py::none();
}

/// Returns nothing for a work that is not tokenyard's.
std::optional<std::set<uint32_t>> failed_ranks(const c10::intrusive_ptr<c10d::Work>& work) {
  if (dynamic_cast<const DeviceWork*>(work.get()) != nullptr) return std::set<uint32_t>{};
  const auto* ours = dynamic_cast<const TorchWork*>(work.get());
  if (ours == nullptr) return std::nullopt;
  const py::gil_scoped_release unlocked;
  return ours->failed_ranks();
}

TokenyardBackend& ours(const c10::intrusive_ptr<c10d::Backend>& backend) {
  auto* const found = dynamic_cast<TokenyardBackend*>(backend.get());
  TORCH_CHECK_VALUE(found != nullptr, "not a backend of tokenyard's");
  return *found;
}

void move_to(const c10::intrusive_ptr<c10d::Backend>& backend, const py::capsule& group) {
  ours(backend).move_to(group_in(group));
}

void retire(const c10::intrusive_ptr<c10d::Backend>& backend, const std::string& instead) {
  ours(backend).retire(instead);
}

#ifdef C10D_BACKEND_HAS_RECONFIGURE
void resize(const c10::intrusive_ptr<c10d::Backend>& backend, int size) {
  ours(backend).resize(size);
}
#endif

py::capsule lend(const c10::intrusive_ptr<c10d::Store>& store) {
  return py::capsule(
      new core::Store(TorchStore::functions(store)), core::kStoreCapsule, [](PyObject* capsule) {
        auto* lent = static_cast<core::Store*>(PyCapsule_GetPointer(capsule, core::kStoreCapsule));
        if (lent->drop != nullptr) lent->drop(lent->context);
        delete lent;
      });
}

}  // namespace
}  // namespace tokenyard::torch_backend

PYBIND11_MODULE(tokenyard_backend, m) {
  namespace backend = tokenyard::torch_backend;
  m.def("make", &backend::make, py::kw_only(), py::arg("functions"), py::arg("group"),
        py::arg("rank"), py::arg("size"), py::arg("timeout_s"), py::arg("name"),
        py::arg("global_ranks"), py::arg("backend_state"), py::arg("host_device"));
  m.def("state_of", &backend::state_of, py::arg("backend"));
  m.def("failed_ranks", &backend::failed_ranks, py::arg("work"));
  m.def("move_to", &backend::move_to, py::arg("backend"), py::arg("group"));
  m.def("retire", &backend::retire, py::arg("backend"), py::arg("instead"));
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  m.def("resize", &backend::resize, py::arg("backend"), py::arg("size"));
#endif
  m.def("lend_store", &backend::lend, py::arg("store"));
}
