#include "collectives/device/host/device_collectives.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "device_collectives.hpp"
#include "job.hpp"
#include "registration.hpp"
#include "seconds.hpp"
#include "upon_world.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace tokenyard::python {
namespace device_calls {
namespace {

using device_collectives::Call;
using device_collectives::DeviceCollectives;
using device_collectives::DeviceSplits;
using device_collectives::Options;
using device_collectives::Protocol;
using device_collectives::Receive;
using device_collectives::Reduction;
using device_collectives::Send;
using device_collectives::Splits;

// The package checks arrays, with errors that name the argument. They cross as memory of any dtype,
// beside the type of their elements: a DLPack capsule can be consumed only once, so all dtypes
// share one signature.
template <class... Kind>
using Array = nb::ndarray<Kind..., nb::c_contig>;

template <class Given>
TensorView view_of(const Given& array, DataType type) {
  return {const_cast<void*>(static_cast<const void*>(array.data())),
          type,
          {array.nbytes() / bytes_of(type)}};
}
template <class Given>
TensorView view_of(const std::optional<Given>& array, DataType type) {
  return array ? view_of(*array, type) : TensorView{};
}

/// Returns the options of a call; a name of no protocol was refused by the package.
Call call_of(std::optional<double> timeout_s, const std::string& protocol, uint32_t sms,
             uint64_t stream) {
  Call call{.stream = Stream(stream), .sms = sms};
  call.timeout = nanoseconds_of(timeout_s);
  call.protocol = protocol == "slots"     ? Protocol::slots
                  : protocol == "packets" ? Protocol::packets
                  : protocol == "rings"   ? Protocol::rings
                  : protocol == "direct"  ? Protocol::direct
                                          : Protocol::automatic;
  return call;
}

/// Calls `body` with the collectives as one call of the World, without the interpreter lock.
template <class Body>
void in_turn(const DeviceCollectivesHandle& self, const Body& body) {
  const std::shared_ptr<HeldDeviceCollectives> held = self.get();
  const Callers::Turn turn = held->turn();
  nb::gil_scoped_release unlocked;
  body(held->collectives);
}

using Input = std::optional<Array<nb::ro>>;
using Result = std::optional<Array<>>;

void barrier(const DeviceCollectivesHandle& self, std::optional<double> timeout_s,
             const std::string& protocol, uint32_t sms, uint64_t stream) {
  const Call call = call_of(timeout_s, protocol, sms, stream);
  in_turn(self, [&](DeviceCollectives& all) { all.barrier(call); });
}

void all_reduce(const DeviceCollectivesHandle& self, const Array<nb::ro>& input,
                const Array<>& result, DataType type, ReduceOp op, double factor,
                std::optional<double> timeout_s, const std::string& protocol, uint32_t sms,
                uint64_t stream) {
  const Call call = call_of(timeout_s, protocol, sms, stream);
  const TensorView from = view_of(input, type), to = view_of(result, type);
  in_turn(self,
          [&](DeviceCollectives& all) { all.all_reduce(from, to, Reduction(op, factor), call); });
}

void reduce(const DeviceCollectivesHandle& self, const Array<nb::ro>& input, const Result& result,
            DataType type, ReduceOp op, double factor, uint32_t root,
            std::optional<double> timeout_s, const std::string& protocol, uint32_t sms,
            uint64_t stream) {
  const Call call = call_of(timeout_s, protocol, sms, stream);
  const TensorView from = view_of(input, type), to = view_of(result, type);
  in_turn(self,
          [&](DeviceCollectives& all) { all.reduce(from, to, Reduction(op, factor), root, call); });
}

void broadcast(const DeviceCollectivesHandle& self, const Array<>& tensor, DataType type,
               uint32_t root, std::optional<double> timeout_s, const std::string& protocol,
               uint32_t sms, uint64_t stream) {
  const Call call = call_of(timeout_s, protocol, sms, stream);
  const TensorView all_of_it = view_of(tensor, type);
  in_turn(self, [&](DeviceCollectives& all) { all.broadcast(all_of_it, root, call); });
}

void all_gather(const DeviceCollectivesHandle& self, const Array<nb::ro>& input,
                const Array<>& result, DataType type, const std::vector<uint64_t>& counts,
                std::optional<double> timeout_s, const std::string& protocol, uint32_t sms,
                uint64_t stream) {
  const Call call = call_of(timeout_s, protocol, sms, stream);
  const TensorView from = view_of(input, type), to = view_of(result, type);
  in_turn(self, [&](DeviceCollectives& all) {
    if (counts.empty())
      all.all_gather(from, to, call);
    else
      all.all_gather(from, to, counts, call);
  });
}

void gather(const DeviceCollectivesHandle& self, const Array<nb::ro>& input, const Result& result,
            DataType type, uint32_t root, std::optional<double> timeout_s,
            const std::string& protocol, uint32_t sms, uint64_t stream) {
  const Call call = call_of(timeout_s, protocol, sms, stream);
  const TensorView from = view_of(input, type), to = view_of(result, type);
  in_turn(self, [&](DeviceCollectives& all) { all.gather(from, to, root, call); });
}

void scatter(const DeviceCollectivesHandle& self, const Input& input, const Array<>& result,
             DataType type, uint32_t root, std::optional<double> timeout_s,
             const std::string& protocol, uint32_t sms, uint64_t stream) {
  const Call call = call_of(timeout_s, protocol, sms, stream);
  const TensorView from = view_of(input, type), to = view_of(result, type);
  in_turn(self, [&](DeviceCollectives& all) { all.scatter(from, to, root, call); });
}

void reduce_scatter(const DeviceCollectivesHandle& self, const Array<nb::ro>& input,
                    const Array<>& result, DataType type, ReduceOp op, double factor,
                    const std::vector<uint64_t>& counts, std::optional<double> timeout_s,
                    const std::string& protocol, uint32_t sms, uint64_t stream) {
  const Call call = call_of(timeout_s, protocol, sms, stream);
  const TensorView from = view_of(input, type), to = view_of(result, type);
  const Reduction by(op, factor);
  in_turn(self, [&](DeviceCollectives& all) {
    if (counts.empty())
      all.reduce_scatter(from, to, by, call);
    else
      all.reduce_scatter(from, to, by, counts, call);
  });
}

void all_to_all(const DeviceCollectivesHandle& self, const Array<nb::ro>& input,
                const Array<>& result, DataType type, const std::vector<uint64_t>& sent,
                const std::vector<uint64_t>& received, std::optional<double> timeout_s,
                const std::string& protocol, uint32_t sms, uint64_t stream) {
  const Call call = call_of(timeout_s, protocol, sms, stream);
  const TensorView from = view_of(input, type), to = view_of(result, type);
  in_turn(self, [&](DeviceCollectives& all) {
    if (sent.empty())
      all.all_to_all(from, to, call);
    else
      all.all_to_all(from, to, Splits{sent, received}, call);
  });
}

using Counts = nb::ndarray<int64_t, nb::ndim<1>, nb::c_contig>;

void all_to_all_on_device(const DeviceCollectivesHandle& self, const Array<nb::ro>& input,
                          const Array<>& result, DataType type, const Counts& splits,
                          const Counts& received, std::optional<double> timeout_s,
                          const std::string& protocol, uint32_t sms, uint64_t stream) {
  const Call call = call_of(timeout_s, protocol, sms, stream);
  const TensorView from = view_of(input, type), to = view_of(result, type);
  in_turn(self, [&](DeviceCollectives& all) {
    all.all_to_all(from, to, DeviceSplits{splits.data(), received.data()}, call);
  });
}

template <class Given>
using Messages = std::vector<std::tuple<Given, DataType, uint32_t, uint32_t>>;

void exchange(const DeviceCollectivesHandle& self, const Messages<Array<nb::ro>>& sends,
              const Messages<Array<>>& receives, std::optional<double> timeout_s, uint32_t sms,
              uint64_t stream) {
  const Call call = call_of(timeout_s, "automatic", sms, stream);
  std::vector<Send> sent;
  std::vector<Receive> received;
  for (const auto& [array, type, peer, tag] : sends)
    sent.push_back({view_of(array, type), peer, tag});
  for (const auto& [array, type, peer, tag] : receives)
    received.push_back({view_of(array, type), peer, tag});
  in_turn(self, [&](DeviceCollectives& all) { all.exchange(sent, received, call); });
}

std::unique_ptr<DeviceCollectivesHandle> make(const WorldHandle& world, uint32_t sms,
                                              uint32_t slot_bytes, uint32_t packet_bytes,
                                              uint32_t chunk_bytes, uint32_t ring_bytes,
                                              bool arena_tensors, bool keep_inputs,
                                              const std::string& on_failure,
                                              const DeviceCollectivesHandle* before) {
  const std::shared_ptr<HeldDeviceCollectives> follows = before ? before->get() : nullptr;
  return std::make_unique<DeviceCollectivesHandle>(
      make_upon<HeldDeviceCollectives>(world,
                                       Options{.sms = sms,
                                               .slot_bytes = slot_bytes,
                                               .packet_bytes = packet_bytes,
                                               .chunk_bytes = chunk_bytes,
                                               .ring_bytes = ring_bytes,
                                               .arena_tensors = arena_tensors,
                                               .keep_inputs = keep_inputs,
                                               .on_failure = on_failure_of(on_failure)},
                                       follows));
}

uint64_t memory(uint32_t ranks, uint32_t slot_bytes, uint32_t packet_bytes, uint32_t chunk_bytes,
                uint32_t ring_bytes) {
  return DeviceCollectives::arena_bytes({.slot_bytes = slot_bytes,
                                         .packet_bytes = packet_bytes,
                                         .chunk_bytes = chunk_bytes,
                                         .ring_bytes = ring_bytes},
                                        ranks);
}

}  // namespace
}  // namespace device_calls

void register_device_collectives(nb::module_& m) {
  using device_calls::in_turn;
  using device_collectives::DeviceCollectives;
  nb::class_<DeviceCollectivesHandle> all(m, "DeviceCollectives",
                                          "See tokenyard.DeviceCollectives.");
  all.def_static("make", &device_calls::make, "world"_a, nb::kw_only(), "sms"_a, "slot_bytes"_a,
                 "packet_bytes"_a, "chunk_bytes"_a, "ring_bytes"_a, "arena_tensors"_a,
                 "keep_inputs"_a, "on_failure"_a, "before"_a.none());
  all.def_static("memory", &device_calls::memory, nb::kw_only(), "ranks"_a, "slot_bytes"_a,
                 "packet_bytes"_a, "chunk_bytes"_a, "ring_bytes"_a);
  // The last arguments of every operation are those of a Call.
  const auto operation = [&](const char* name, auto function, const auto&... arguments) {
    all.def(name, function, arguments..., nb::kw_only(), "timeout_s"_a.none(), "protocol"_a,
            "sms"_a, "stream"_a);
  };
  const auto input = "input"_a.noconvert(), result = "result"_a.noconvert();
  operation("barrier", &device_calls::barrier);
  operation("all_reduce", &device_calls::all_reduce, input, result, "type"_a, "op"_a, "factor"_a);
  operation("reduce", &device_calls::reduce, input, "result"_a.noconvert().none(), "type"_a, "op"_a,
            "factor"_a, "root"_a);
  operation("broadcast", &device_calls::broadcast, "tensor"_a.noconvert(), "type"_a, "root"_a);
  operation("all_gather", &device_calls::all_gather, input, result, "type"_a, "counts"_a);
  operation("gather", &device_calls::gather, input, "result"_a.noconvert().none(), "type"_a,
            "root"_a);
  operation("scatter", &device_calls::scatter, "input"_a.noconvert().none(), result, "type"_a,
            "root"_a);
  operation("reduce_scatter", &device_calls::reduce_scatter, input, result, "type"_a, "op"_a,
            "factor"_a, "counts"_a);
  operation("all_to_all", &device_calls::all_to_all, input, result, "type"_a, "sent"_a,
            "received"_a);
  operation("all_to_all_on_device", &device_calls::all_to_all_on_device, input, result, "type"_a,
            "splits"_a.noconvert(), "received"_a.noconvert());
  all.def("exchange", &device_calls::exchange, "sends"_a, "receives"_a, nb::kw_only(),
          "timeout_s"_a.none(), "sms"_a, "stream"_a);
  all.def("go_on",
          [](const DeviceCollectivesHandle& self) {
            uint64_t calls = 0;
            in_turn(self, [&](DeviceCollectives& all) { calls = all.go_on(); });
            return calls;
          })
      .def("settle",
           [](const DeviceCollectivesHandle& self) {
             in_turn(self, [](DeviceCollectives& all) { all.settle(); });
           })
      .def_prop_ro("calls", [](const DeviceCollectivesHandle& self) {
        return self.get()->collectives.calls();
      });
  all.def("check",
          [](const DeviceCollectivesHandle& self) {
            in_turn(self, [](DeviceCollectives& all) { all.check(); });
          })
      .def(
          "wait",
          [](const DeviceCollectivesHandle& self, uint64_t stream) {
            in_turn(self, [&](DeviceCollectives& all) { all.wait(Stream(stream)); });
          },
          nb::kw_only(), "stream"_a)
      .def("close", [](const DeviceCollectivesHandle& self) {
        in_turn(self, [](DeviceCollectives& all) { all.close(); });
      });
}

}  // namespace tokenyard::python
