/// Bindings of a job's store server.
#include "control/store_server.hpp"

#include <nanobind/stl/string.h>

#include "registration.hpp"
#include "tokenyard/error.hpp"
#include "unlocked.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace tokenyard::python {
namespace {

class ServerHandle {
 public:
  ServerHandle(const std::string& host, uint16_t port, const std::string& secret)
      : server_(shared_and_destroyed_unlocked(
            std::make_unique<control::StoreServer>(host, port, secret))) {}
  const control::StoreServer& get() const {
    if (!server_) throw InvalidArgument("store", "an open StoreServer", "a closed one");
    return *server_;
  }
  void close() { server_.reset(); }

 private:
  std::shared_ptr<control::StoreServer> server_;
};

}  // namespace

void register_store_server(nb::module_& m) {
  nb::class_<ServerHandle>(m, "StoreServer", "See tokenyard.StoreServer.")
      .def(nb::init<const std::string&, uint16_t, const std::string&>(), nb::kw_only(), "host"_a,
           "port"_a, "secret"_a)
      .def_prop_ro("port", [](const ServerHandle& self) { return self.get().port(); })
      .def_prop_ro("refused", [](const ServerHandle& self) { return self.get().refused(); })
      .def("close", &ServerHandle::close);
}

}  // namespace tokenyard::python
