#include "received.hpp"
#include "fabric/world_access.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include "device/accelerator.hpp"
#include "registration.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace tokenyard::python {
namespace {

struct Owner {
  std::shared_ptr<Exchange> exchange;
  std::shared_ptr<void> memory;  // Destroyed before the exchange whose arena it is part of.
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
  const Accelerator& accelerator = accelerator_of(*exchange->world);
  const bool on_gpu = accelerator.kind() == AcceleratorKind::gpu;
  const nb::ndarray<nb::array_api, Element> array(
      const_cast<Element*>(data), shape.size(), shape.begin(), capsule_of(exchange, memory),
      nullptr, nb::dtype<Element>(), on_gpu ? nb::device::cuda::value : nb::device::cpu::value,
      on_gpu ? accelerator.device_index() : 0);
  return nb::cast(array);
}

template nb::object arena_array(const std::shared_ptr<Exchange>&, const std::shared_ptr<void>&,
                                const uint8_t*, std::initializer_list<size_t>);

namespace {

/// Returns an array of what travelled beside the rows. It keeps the route alive, but no rows.
template <class Element>
nb::object beside_rows(const HeldReceived& self, const Element* data,
                       std::initializer_list<size_t> shape) {
  return arena_array(self.exchange, std::make_shared<Route>(*self.received.route), data, shape);
}

/// Rows as bytes.
nb::object rows_of(const std::shared_ptr<Exchange>& exchange, const std::shared_ptr<void>& memory,
                   const ConstTensorView& rows) {
  if (!rows.given()) return nb::none();
  return arena_array(exchange, memory, rows.as<uint8_t>(),
                     {rows.shape[0], rows.shape[1] * bytes_of(rows.type)});
}

nb::object received_x(const HeldReceived& self) {
  return rows_of(self.exchange, self.received.owner, self.received.x);  // None: grouped by expert.
}

const std::shared_ptr<void>& owner_of_rows(const Received& received) {
  return received.owner;
}
const std::shared_ptr<void>& owner_of_rows(const ExpertRows& rows) {
  return rows.rows_owner;
}

/// Returns scales in their layout: by rows [rows, stride], by columns [words, stride].
template <class Held, class Rows>
nb::object scales_of(const Held& self, const Rows& rows) {
  const ConstTensorView& scales = rows.scales;
  if (!scales.given()) return nb::none();
  const bool by_rows = rows.format.scale_order == ScaleOrder::rows;
  return arena_array(
      self.exchange, owner_of_rows(rows), scales.as<uint8_t>(),
      {scales.shape[by_rows ? 0 : 1], scales.strides[by_rows ? 0 : 1] * bytes_of(scales.type)});
}

nb::object device_counts(const HeldReceived& self, const ConstTensorView& counts) {
  // Counts of rows are below 2^31.
  return beside_rows(self, counts.as<int32_t>(), {counts.shape[0]});
}

nb::object ready_words(const HeldReceived& self, const ConstTensorView& words) {
  if (!words.given()) return nb::none();
  return arena_array(self.exchange, self.received.watched, words.as<int32_t>(), {words.shape[0]});
}

nb::object expert_x(const HeldExpertRows& self) {
  return rows_of(self.exchange, self.rows.rows_owner, self.rows.x);  // None: they are forgotten.
}

template <class Element>
nb::object expert_column(const HeldExpertRows& self, const ConstTensorView& column) {
  return arena_array(self.exchange, self.rows.owner, column.as<Element>(), {column.shape[0]});
}

nb::object topk_idx(const HeldReceived& self) {
  return beside_rows(self, self.received.topk_idx.as<int32_t>(),
                     {self.received.rows, self.exchange->expert_parallel.options().topk});
}

nb::object topk_weights(const HeldReceived& self) {
  return beside_rows(self, self.received.topk_weights.as<float>(),
                     {self.received.rows, self.exchange->expert_parallel.options().topk});
}

nb::object source_token(const HeldReceived& self) {
  return beside_rows(self, self.received.source_token.as<int32_t>(), {self.received.rows});
}

HeldRoute route(const HeldReceived& self) {
  if (!self.received.route) throw InternalError("a dispatch without a route");
  return {self.exchange, *self.received.route};
}

}  // namespace

void register_received(nb::module_& m) {
  nb::class_<HeldRoute>(m, "Route", "The route of a dispatch; see tokenyard.Route.")
      .def_prop_ro("tokens", [](const HeldRoute& self) { return self.route.tokens(); })
      .def_prop_ro("rows_received",
                   [](const HeldRoute& self) { return self.route.rows_received(); })
      .def_prop_ro(
          "row_on",
          [](const HeldRoute& self) {
            return arena_array(self.exchange, std::make_shared<Route>(self.route),
                               self.route.row_on().as<int32_t>(),
                               {self.route.tokens(), self.route.row_on().shape[1]});
          },
          "[tokens, ranks] int32.");
  nb::class_<HeldReceived>(m, "Received",
                           "The result of a dispatch; its arrays, in the arena, support DLPack.")
      .def(
          "record_stream",
          [](const HeldReceived& self, uint64_t stream) {
            self.received.record_stream(Stream(stream));
          },
          "stream"_a)
      .def_prop_ro("x", &received_x, "[rows, row bytes] uint8.")
      .def_prop_ro(
          "scales", [](const HeldReceived& self) { return scales_of(self, self.received); },
          "[rows, 4 * words] or [words, 4 * stride] uint8, or None.")
      .def_prop_ro("type", [](const HeldReceived& self) { return self.received.format.type; })
      .def_prop_ro(
          "rows_from_on_device",
          [](const HeldReceived& self) {
            return device_counts(self, self.received.rows_from_on_device);
          },
          "[ranks] int32.")
      .def_prop_ro(
          "tokens_per_expert_on_device",
          [](const HeldReceived& self) {
            return device_counts(self, self.received.tokens_per_expert_on_device);
          },
          "[experts of this rank] int32.")
      .def_prop_ro(
          "sources_ready",
          [](const HeldReceived& self) { return ready_words(self, self.received.sources_ready); },
          "[ranks] int32, or None.")
      .def_prop_ro(
          "experts_ready",
          [](const HeldReceived& self) { return ready_words(self, self.received.experts_ready); },
          "[experts of this rank] int32, or None.")
      .def_prop_ro("topk_idx", &topk_idx, "[rows, topk] int32.")
      .def_prop_ro("topk_weights", &topk_weights, "[rows, topk] float32.")
      .def_prop_ro("source_token", &source_token, "[rows] int32.")
      .def_prop_ro(
          "lost",
          [](const HeldReceived& self) -> nb::object {
            const ConstTensorView& lost = self.received.lost;
            if (!lost.given()) return nb::none();
            return beside_rows(self, lost.as<int32_t>(), {lost.shape[0]});
          },
          "[tokens dispatched here] int32, or None.")
      .def_prop_ro("rows_from", [](const HeldReceived& self) { return self.received.rows_from; })
      .def_prop_ro("tokens_per_expert",
                   [](const HeldReceived& self) { return self.received.tokens_per_expert; })
      .def_prop_ro("route", &route);
  nb::class_<HeldExpertRows>(m, "ExpertRows", "Received rows by expert; see tokenyard.ExpertRows.")
      .def(
          "record_stream",
          [](const HeldExpertRows& self, uint64_t stream) {
            self.rows.record_stream(Stream(stream));
          },
          "stream"_a)
      .def("forget_rows", [](HeldExpertRows& self) { self.rows.forget_rows(); })
      .def_prop_ro("rows", [](const HeldExpertRows& self) { return self.rows.rows; })
      .def_prop_ro("x", &expert_x, "[rows, row bytes] uint8, or None.")
      .def_prop_ro(
          "scales", [](const HeldExpertRows& self) { return scales_of(self, self.rows); },
          "[rows, 4 * words] or [words, 4 * stride] uint8, or None.")
      .def_prop_ro(
          "offsets",
          [](const HeldExpertRows& self) {
            return expert_column<int32_t>(self, self.rows.offsets);
          },
          "[experts of this rank + 1] int32.")
      .def_prop_ro(
          "row_of",
          [](const HeldExpertRows& self) { return expert_column<int32_t>(self, self.rows.row_of); },
          "[rows] int32.")
      .def_prop_ro(
          "weights",
          [](const HeldExpertRows& self) { return expert_column<float>(self, self.rows.weights); },
          "[rows] float32.")
      .def_prop_ro(
          "row_of_choice",
          [](const HeldExpertRows& self) {
            return arena_array(
                self.exchange, self.rows.owner, self.rows.row_of_choice.as<int32_t>(),
                {self.rows.route->rows_received(), self.exchange->expert_parallel.options().topk});
          },
          "[rows received, topk] int32.")
      .def_prop_ro("first_rows", [](const HeldExpertRows& self) { return self.rows.first_rows; });
}

}  // namespace tokenyard::python
