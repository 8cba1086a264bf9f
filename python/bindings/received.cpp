#include "received.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include "device/accelerator.hpp"
#include "registration.hpp"

namespace nb = nanobind;

namespace tokenyard::python {
namespace {

struct Owner {
  std::shared_ptr<Exchange> exchange;
  std::shared_ptr<void> memory;  // Dies before the exchange whose arena it is a piece of.
};

nb::capsule capsule_of(const std::shared_ptr<Exchange>& exchange,
                       const std::shared_ptr<void>& memory) {
  return nb::capsule(new Owner{exchange, memory},
                     [](void* owner) noexcept { delete static_cast<Owner*>(owner); });
}

}  // namespace

template <class Element>
nb::object arena_array(const std::shared_ptr<Exchange>& exchange,
                       const std::shared_ptr<void>& memory, const Element* data,
                       std::initializer_list<size_t> shape) {
  const Accelerator& accelerator = exchange->world->accelerator();
  const bool on_gpu = accelerator.kind() == AcceleratorKind::gpu;
  const nb::ndarray<nb::array_api, Element> array(
      const_cast<Element*>(data), shape.size(), shape.begin(), capsule_of(exchange, memory),
      nullptr, nb::dtype<Element>(), on_gpu ? nb::device::cuda::value : nb::device::cpu::value,
      on_gpu ? accelerator.device_index() : 0);
  return nb::cast(array);
}

template nb::object arena_array(const std::shared_ptr<Exchange>&, const std::shared_ptr<void>&,
                                const uint16_t*, std::initializer_list<size_t>);

namespace {

template <class Element>
nb::object rows_of(const HeldReceived& self, const void* data, size_t columns) {
  const Received& received = self.received;
  return arena_array(self.exchange, received.owner, static_cast<const Element*>(data),
                     {received.rows, columns});
}

nb::object x(const HeldReceived& self) {
  return rows_of<uint16_t>(self, self.received.x, self.exchange->expert_parallel.options().hidden);
}

nb::object topk_idx(const HeldReceived& self) {
  return rows_of<int32_t>(self, self.received.topk_idx,
                          self.exchange->expert_parallel.options().topk);
}

nb::object topk_weights(const HeldReceived& self) {
  return rows_of<float>(self, self.received.topk_weights,
                        self.exchange->expert_parallel.options().topk);
}

nb::object source_token(const HeldReceived& self) {
  return arena_array(self.exchange, self.received.owner, self.received.source_token,
                     {self.received.rows});
}

HeldRoute route(const HeldReceived& self) {
  if (!self.received.route) throw InternalError("a dispatch without a route");
  return {self.exchange, *self.received.route};
}

}  // namespace

void register_received(nb::module_& m) {
  nb::class_<HeldRoute>(m, "Route", "Where each token of a call went; see tokenyard.Route.")
      .def_prop_ro("tokens", [](const HeldRoute& self) { return self.route.tokens(); })
      .def_prop_ro("rows_received",
                   [](const HeldRoute& self) { return self.route.rows_received(); });
  nb::class_<HeldReceived>(m, "Received",
                           "What a dispatch received; arrays lie in the arena, for DLPack.")
      .def_prop_ro("x", &x, "[rows, hidden] uint16: the bits of bfloat16.")
      .def_prop_ro("topk_idx", &topk_idx, "[rows, topk] int32.")
      .def_prop_ro("topk_weights", &topk_weights, "[rows, topk] float32.")
      .def_prop_ro("source_token", &source_token, "[rows] int32.")
      .def_prop_ro("rows_from", [](const HeldReceived& self) { return self.received.rows_from; })
      .def_prop_ro("tokens_per_expert",
                   [](const HeldReceived& self) { return self.received.tokens_per_expert; })
      .def_prop_ro("route", &route);
}

}  // namespace tokenyard::python
