#include "tokenyard/low_latency.hpp"
#include "fabric/world_access.hpp"

#include <fmt/format.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <array>

#include "device/accelerator.hpp"
#include "ids.hpp"
#include "registration.hpp"
#include "seconds.hpp"
#include "upon_world.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace tokenyard::python {
namespace {

// The package checks dtypes, shapes and devices, with errors that name the argument. Rows cross as
// bytes of any dtype. All dtypes share one signature: a DLPack capsule can be consumed only once.
template <class... Kind>
using Matrix = nb::ndarray<Kind..., nb::ndim<2>, nb::c_contig>;
using Cube = nb::ndarray<nb::ro, nb::ndim<3>, nb::c_contig>;
template <class Element>
using Row = nb::ndarray<Element, nb::ndim<1>, nb::c_contig>;

/// A rank's LowLatency and its World.
struct Serving : UponWorld {
  Serving(UponWorld upon, const LowLatencyOptions& options)
      : UponWorld(std::move(upon)), exchange(*world, options) {}
  LowLatency exchange;
};

/// Python's handle of a dispatched batch; the batch's arrays keep it alive.
struct HeldBatch {
  std::shared_ptr<Serving> serving;
  LowLatencyReceived received;
  size_t tokens;
  std::exception_ptr refusal = nullptr;  ///< set if the batch lacks the caller's tokens
};

/// Returns an array in the memory of a batch.
template <class Element>
nb::object batch_array(const HeldBatch& batch, const void* data,
                       std::initializer_list<size_t> shape) {
  const Accelerator& accelerator = accelerator_of(*batch.serving->world);
  const bool on_gpu = accelerator.kind() == AcceleratorKind::gpu;
  const nb::capsule owner(new HeldBatch(batch),
                          [](void* held) noexcept { delete static_cast<HeldBatch*>(held); });
  const nb::ndarray<nb::array_api, Element> array(
      const_cast<void*>(data), shape.size(), shape.begin(), owner, nullptr, nb::dtype<Element>(),
      on_gpu ? nb::device::cuda::value : nb::device::cpu::value,
      on_gpu ? accelerator.device_index() : 0);
  return nb::cast(array);
}

nb::object batch_x(const HeldBatch& self) {
  const ConstTensorView& x = self.received.x;
  const std::initializer_list<size_t> shape{x.shape[0], x.shape[1], x.shape[2]};
  if (x.type == DataType::bfloat16) return batch_array<uint16_t>(self, x.data, shape);
  return batch_array<uint8_t>(self, x.data, shape);
}

nb::object scales(const HeldBatch& self) {
  const ConstTensorView& scales = self.received.scales;
  if (!scales.given()) return nb::none();
  // As the words lie: those of neighbouring slots are neighbours.
  return batch_array<int32_t>(self, scales.data,
                              {scales.shape[0], scales.shape[2], scales.shape[1]});
}

/// A matrix whose elements are of this type, though it may cross as bytes or words.
template <class Array>
ConstTensorView matrix_of(const Array& array, DataType type) {
  return {array.data(), type, {array.shape(0), array.shape(1) * array.itemsize() / bytes_of(type)}};
}

/// Returns the options of a call.
LowLatencyCall call_of(const std::vector<bool>& active, std::optional<double> timeout_s,
                       uint32_t sms, bool hook, const std::optional<Row<int64_t>>& waited_cycles,
                       uint64_t stream) {
  LowLatencyCall call{.active = active, .sms = sms, .hook = hook, .stream = Stream(stream)};
  call.timeout = nanoseconds_of(timeout_s);
  if (waited_cycles) call.waited_cycles = {waited_cycles->data(), {waited_cycles->shape(0)}};
  return call;
}

class ServingHandle {
 public:
  ServingHandle(const WorldHandle& world, const LowLatencyOptions& options)
      : serving_(make_upon<Serving>(world, options)) {}

  const std::shared_ptr<Serving>& get() const { return serving_; }

 private:
  std::shared_ptr<Serving> serving_;
};

/// Takes part in a dispatch without tokens, when the package has rejected the arguments.
HeldBatch dispatch_nothing(const ServingHandle& self, uint32_t rows, bool hook, uint64_t stream) {
  const std::shared_ptr<Serving> serving = self.get();
  const Callers::Turn turn = serving->turn();
  const auto format = static_cast<LowLatencyRows>(rows);
  nb::gil_scoped_release unlocked;
  return {serving,
          serving->exchange.dispatch({.rows = format}, {.hook = hook, .stream = Stream(stream)}),
          0};
}

HeldBatch dispatch(const ServingHandle& self, const Matrix<nb::ro>& x,
                   const Matrix<nb::ro>& topk_idx, const std::optional<Matrix<nb::ro>>& scales,
                   uint32_t rows, const std::optional<Matrix<const float>>& topk_weights,
                   const std::vector<bool>& active, std::optional<double> timeout_s, uint32_t sms,
                   bool hook, const std::optional<Row<int32_t>>& rows_total,
                   const std::optional<Row<int64_t>>& waited_cycles, uint64_t stream) {
  const std::shared_ptr<Serving> serving = self.get();
  const Callers::Turn turn = serving->turn();
  LowLatencyCall call = call_of(active, timeout_s, sms, hook, waited_cycles, stream);
  if (rows_total) call.rows_total = {rows_total->data(), {rows_total->shape(0)}};
  LowLatencyInput input{.rows = static_cast<LowLatencyRows>(rows)};
  input.x = matrix_of(x, scales ? DataType::float8_e4m3fn : DataType::bfloat16);
  const bool packed = input.rows == LowLatencyRows::fp8_ue8m0;
  if (scales) input.scales = matrix_of(*scales, packed ? DataType::int32 : DataType::float32);
  input.topk_idx =
      matrix_of(topk_idx, is_int64(topk_idx.dtype()) ? DataType::int64 : DataType::int32);
  if (topk_weights) input.topk_weights = matrix_of(*topk_weights, DataType::float32);
  nb::gil_scoped_release unlocked;
  try {
    return {serving, serving->exchange.dispatch(input, call), x.shape(0)};
  } catch (const RefusedBatch& error) {
    return {serving, error.received, 0, std::make_exception_ptr(InvalidArgument(error))};
  }
}

void combine(const ServingHandle& self, const Cube& y,
             const std::optional<Matrix<const float>>& topk_weights, const HeldBatch& batch,
             const Matrix<>& out, const std::optional<Row<int32_t>>& lost, bool logfmt,
             const std::vector<bool>& active, std::optional<double> timeout_s, uint32_t sms,
             bool hook, const std::optional<Row<int64_t>>& waited_cycles, uint64_t stream) {
  const std::shared_ptr<Serving> serving = self.get();
  const Callers::Turn turn = serving->turn();
  const LowLatencyCall call = call_of(active, timeout_s, sms, hook, waited_cycles, stream);
  LowLatencyCombine what{.y = {y.data(), DataType::bfloat16, {y.shape(0), y.shape(1), y.shape(2)}},
                         .logfmt = logfmt};
  if (topk_weights) what.topk_weights = matrix_of(*topk_weights, DataType::float32);
  what.out = {out.data(), DataType::bfloat16, {out.shape(0), out.shape(1)}};
  if (lost) what.lost = {lost->data(), {lost->shape(0)}};
  nb::gil_scoped_release unlocked;
  serving->exchange.combine(what, batch.received.handle, call);
}

void receive(const ServingHandle& self, const HeldBatch& batch, uint64_t stream) {
  const std::shared_ptr<Serving> serving = self.get();
  const Callers::Turn turn = serving->turn();
  nb::gil_scoped_release unlocked;
  serving->exchange.receive(batch.received.handle, Stream(stream));
}

nb::object combine_buffer(const ServingHandle& self, const HeldBatch& batch) {
  const std::shared_ptr<Serving> serving = self.get();
  const Callers::Turn turn = serving->turn();
  TensorView y;
  {
    nb::gil_scoped_release unlocked;
    y = serving->exchange.combine_buffer(batch.received.handle);
  }
  return batch_array<uint16_t>(batch, y.data, {y.shape[0], y.shape[1], y.shape[2]});
}

void write_mask(const ServingHandle& self, const Row<int32_t>& out, uint64_t stream) {
  const std::shared_ptr<Serving> serving = self.get();
  const Callers::Turn turn = serving->turn();
  nb::gil_scoped_release unlocked;
  serving->exchange.write_mask({out.data(), {out.shape(0)}}, Stream(stream));
}

/// Calls a read-only member of LowLatency, which may run beside another thread's call.
template <auto function>
auto look(const ServingHandle& self) {
  const std::shared_ptr<Serving> serving = self.get();
  nb::gil_scoped_release release;
  return (serving->exchange.*function)();
}

nb::dict serving_metrics(const ServingHandle& self) {
  const LowLatency::Metrics found = self.get()->exchange.metrics();
  nb::dict metrics;
  metrics["dispatch_calls"] = found.dispatch_calls;
  metrics["refused_dispatch_calls"] = found.refused_dispatch_calls;
  metrics["combine_calls"] = found.combine_calls;
  metrics["dispatched_tokens"] = found.dispatched_tokens;
  metrics["unplaced_choices"] = found.unplaced_choices;
  metrics["masked_by_peer"] = found.masked_by_peer;
  return metrics;
}

/// Calls any other member of LowLatency, without the interpreter lock.
template <auto function, class... Arguments>
auto unlocked(const ServingHandle& self, Arguments... arguments) {
  const std::shared_ptr<Serving> serving = self.get();
  const Callers::Turn turn = serving->turn();
  nb::gil_scoped_release release;
  return (serving->exchange.*function)(arguments...);
}

void set_expert_map(const ServingHandle& self, const std::vector<int32_t>& expert_at) {
  const std::shared_ptr<Serving> serving = self.get();
  const Callers::Turn turn = serving->turn();
  nb::gil_scoped_release release;
  serving->exchange.set_expert_map(expert_at);
}

void evict(const ServingHandle& self, const std::vector<uint32_t>& ranks,
           std::optional<uint32_t> epoch) {
  const std::shared_ptr<Serving> serving = self.get();
  const Callers::Turn turn = serving->turn();
  nb::gil_scoped_release release;
  serving->exchange.evict(ranks, epoch);
}

void wait(const ServingHandle& self, uint64_t stream) {
  unlocked<&LowLatency::wait>(self, Stream(stream));
}

std::unique_ptr<ServingHandle> make(const WorldHandle& world, uint32_t experts, uint32_t hidden,
                                    uint32_t topk, uint32_t tokens_max, uint32_t sms,
                                    bool bf16_rows, uint32_t places_per_rank, bool only_put) {
  return std::make_unique<ServingHandle>(
      world,
      LowLatencyOptions{.experts = experts,
                        .places_per_rank = places_per_rank,
                        .hidden = hidden,
                        .topk = topk,
                        .tokens_max = tokens_max,
                        .sms = sms,
                        .bf16_rows = bf16_rows,
                        .paths = only_put ? LowLatencyPaths::put : LowLatencyPaths::topology});
}

std::tuple<uint64_t, uint64_t, uint64_t, uint64_t> memory(uint32_t experts, uint32_t hidden,
                                                          uint32_t topk, uint32_t tokens_max,
                                                          bool bf16_rows, uint32_t places_per_rank,
                                                          uint32_t ranks, uint32_t put_ranks) {
  const LowLatency::Memory memory = LowLatency::memory({.experts = experts,
                                                        .places_per_rank = places_per_rank,
                                                        .hidden = hidden,
                                                        .topk = topk,
                                                        .tokens_max = tokens_max,
                                                        .bf16_rows = bf16_rows},
                                                       ranks, put_ranks);
  return {memory.arena_bytes, memory.device_bytes, memory.combine_buffer_bytes,
          memory.network_bytes};
}

/// Returns [ranks] how this rank reaches each.
std::vector<std::string> paths(const ServingHandle& self) {
  constexpr std::array names{"none", "self", "load_store", "put"};
  std::vector<std::string> paths;
  for (const LowLatencyPath path : self.get()->exchange.paths())
    paths.emplace_back(names.at(static_cast<size_t>(path)));
  return paths;
}

std::string why(const FailedRank& masked) {
  switch (masked.why) {
    case FailedRank::Why::timeout:
      return "timeout";
    case FailedRank::Why::lost:
      return "lost";
    case FailedRank::Why::differs:
      return "differs";
    case FailedRank::Why::left_out:
      break;
  }
  return "left out";
}

}  // namespace

void register_low_latency(nb::module_& m) {
  nb::class_<FailedRank>(m, "FailedRank",
                         "A rank without which an exchange continues, or for which it has failed.")
      .def_ro("rank", &FailedRank::rank, "The rank.")
      .def_prop_ro("why", &why, "'timeout', 'lost', 'left out' or 'differs'.")
      .def_ro("phase", &FailedRank::phase, "The step that waited for it.")
      .def_ro("expected", &FailedRank::expected, "The value awaited, mostly an epoch.")
      .def_ro("seen", &FailedRank::seen, "The value last seen.")
      .def_ro("waited_s", &FailedRank::waited_s, "Seconds that this rank waited for it.")
      .def("__str__", [](const FailedRank& self) { return self.text; })
      .def("__repr__",
           [](const FailedRank& self) { return fmt::format("<FailedRank: {}>", self.text); });
  nb::class_<HeldBatch>(m, "LowLatencyBatch", "A low-latency batch; its arrays support DLPack.")
      .def_prop_ro("tokens", [](const HeldBatch& self) { return self.tokens; })
      .def("require_accepted",
           [](const HeldBatch& self) {
             if (self.refusal) std::rethrow_exception(self.refusal);
           })
      .def_prop_ro("x", &batch_x, "[local experts, slots, hidden] uint16 or uint8: BF16, FP8 bits.")
      .def_prop_ro("scales", &scales, "[local experts, words, slots] int32 bits, or None.")
      .def_prop_ro("counts",
                   [](const HeldBatch& self) {
                     const ConstTensorView& counts = self.received.counts;
                     return batch_array<int32_t>(self, counts.data, {counts.shape[0]});
                   })
      .def_prop_ro("ranges",
                   [](const HeldBatch& self) {
                     const ConstTensorView& ranges = self.received.ranges;
                     return batch_array<int32_t>(
                         self, ranges.data, {ranges.shape[0], ranges.shape[1], ranges.shape[2]});
                   })
      .def_prop_ro("source_token", [](const HeldBatch& self) {
        const ConstTensorView& source = self.received.source_token;
        return batch_array<int32_t>(self, source.data, {source.shape[0], source.shape[1]});
      });
  nb::class_<ServingHandle> serving(m, "LowLatency", "See tokenyard.LowLatency.");
  serving.def_static("make", &make, "world"_a, nb::kw_only(), "experts"_a, "hidden"_a, "topk"_a,
                     "tokens_max"_a, "sms"_a, "bf16_rows"_a, "places_per_rank"_a, "only_put"_a);
  serving.def_static("memory", &memory, nb::kw_only(), "experts"_a, "hidden"_a, "topk"_a,
                     "tokens_max"_a, "bf16_rows"_a, "places_per_rank"_a, "ranks"_a, "put_ranks"_a);
  serving.def_prop_ro("paths", &paths, "[ranks] 'self', 'load_store', 'put', or 'none'.")
      .def_prop_ro("local_experts",
                   [](const ServingHandle& self) { return self.get()->exchange.local_experts(); })
      .def_prop_ro("first_expert",
                   [](const ServingHandle& self) { return self.get()->exchange.first_expert(); })
      .def_prop_ro("expert_map", &look<&LowLatency::expert_map>)
      .def_prop_ro("held_experts", &look<&LowLatency::held_experts>)
      .def_prop_ro("lost_experts", &look<&LowLatency::lost_experts>)
      .def("set_expert_map", &set_expert_map, "expert_at"_a)
      .def(
          "on_experts_changed",
          [](const ServingHandle& self,
             const std::function<void(const std::vector<int32_t>&)>& hook) {
            self.get()->exchange.on_experts_changed(hook);
          },
          "hook"_a)
      .def("evict", &evict, "ranks"_a, "epoch"_a.none())
      .def("admit", &unlocked<&LowLatency::admit>)
      .def("dispatch", &dispatch, "x"_a.noconvert(), "topk_idx"_a.noconvert(),
           "scales"_a.noconvert().none(), "rows"_a, nb::kw_only(),
           "topk_weights"_a.noconvert().none(), "active"_a, "timeout_s"_a.none(), "sms"_a, "hook"_a,
           "rows_total"_a.noconvert().none(), "waited_cycles"_a.noconvert().none(), "stream"_a)
      .def("dispatch_nothing", &dispatch_nothing, "rows"_a, nb::kw_only(), "hook"_a, "stream"_a)
      .def("combine", &combine, "y"_a.noconvert(), "topk_weights"_a.noconvert().none(), "batch"_a,
           "out"_a.noconvert(), "lost"_a.noconvert().none(), "logfmt"_a, nb::kw_only(), "active"_a,
           "timeout_s"_a.none(), "sms"_a, "hook"_a, "waited_cycles"_a.noconvert().none(),
           "stream"_a)
      .def("receive", &receive, "batch"_a, nb::kw_only(), "stream"_a)
      .def("combine_buffer", &combine_buffer, "batch"_a)
      .def("metrics", &serving_metrics)
      .def("failed_ranks", &look<&LowLatency::failed_ranks>)
      .def("write_mask", &write_mask, "out"_a.noconvert(), nb::kw_only(), "stream"_a)
      .def("update_mask", &unlocked<&LowLatency::update_mask, uint32_t, bool>, "rank"_a, "masked"_a)
      .def("clear_mask", &unlocked<&LowLatency::clear_mask>)
      .def("epoch", &unlocked<&LowLatency::epoch>)
      .def("restart", &unlocked<&LowLatency::restart, uint32_t>, "epoch"_a)
      .def("check", &look<&LowLatency::check>)
      .def("wait", &wait, "stream"_a)
      .def("close", &unlocked<&LowLatency::close>);
}

}  // namespace tokenyard::python
