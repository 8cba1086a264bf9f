/// The module `tokenyard_backend`, built on the user's machine by build.py.
#include "backend.hpp"
#include "torch_store.hpp"

namespace py = pybind11;

namespace tokenyard::torch_backend {

const core::Table* table = nullptr;

namespace {

template <class Content>
Content* content_of(const py::capsule& capsule, const char* name) {
  auto* content = PyCapsule_GetPointer(capsule.ptr(), name);
  if (content == nullptr) throw py::error_already_set();
  return static_cast<Content*>(content);
}

c10::intrusive_ptr<c10d::Backend> make(const py::capsule& functions, const py::capsule& group,
                                       int rank, int size, double timeout_s,
                                       const std::string& name,
                                       const std::vector<int64_t>& global_ranks,
                                       py::object on_shutdown, py::object on_abort) {
  const auto* given = content_of<const core::Table>(functions, core::kTableCapsule);
  TORCH_CHECK(given->version == core::kTableVersion, "tokenyard's torch backend was built for ",
              "table ", core::kTableVersion, ", the package has ", given->version);
  table = given;
  const auto timeout = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::duration<double>(timeout_s));
  return c10::make_intrusive<TokenyardBackend>(content_of<core::Group>(group, core::kGroupCapsule),
                                               rank, size, timeout, name, global_ranks,
                                               Hooks{std::move(on_shutdown), std::move(on_abort)});
}

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
        py::arg("global_ranks"), py::arg("on_shutdown"), py::arg("on_abort"));
  m.def("lend_store", &backend::lend, py::arg("store"));
}
