#include "tokenyard/low_latency.hpp"

#include <fmt/format.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "device/accelerator.hpp"
#include "ids.hpp"
#include "narrowed.hpp"
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
  size_t tokens, local_experts, slots, hidden, scale_words;
  std::exception_ptr refusal = nullptr;  ///< set if the batch lacks the caller's tokens
};

/// Returns an array in the memory of a batch.
template <class Element>
nb::object batch_array(const HeldBatch& batch, const void* data,
                       std::initializer_list<size_t> shape) {
  const Accelerator& accelerator = batch.serving->world->accelerator();
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
  if (self.received.scales == nullptr)
    return batch_array<uint16_t>(self, self.received.x,
                                 {self.local_experts, self.slots, self.hidden});
  return batch_array<uint8_t>(self, self.received.x, {self.local_experts, self.slots, self.hidden});
}

nb::object scales(const HeldBatch& self) {
  if (self.received.scales == nullptr) return nb::none();
  return batch_array<int32_t>(self, self.received.scales,
                              {self.local_experts, self.scale_words, self.slots});
}

/// Returns the options of a call.
LowLatencyCall call_of(const std::vector<bool>& active, std::optional<double> timeout_s,
                       uint32_t sms, bool hook, const std::optional<Row<int64_t>>& waited_cycles,
                       uint64_t stream) {
  LowLatencyCall call{.active = active, .sms = sms, .hook = hook, .stream = stream};
  call.timeout = nanoseconds_of(timeout_s);
  if (waited_cycles) call.waited_cycles = reinterpret_cast<uint64_t*>(waited_cycles->data());
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

HeldBatch held(const std::shared_ptr<Serving>& serving, const LowLatencyReceived& received,
               size_t tokens, LowLatencyRows rows) {
  const LowLatencyOptions& options = serving->exchange.options();
  const uint32_t ranks = serving->world->size();
  const size_t groups = (options.hidden + 127) / 128;
  return {.serving = serving,
          .received = received,
          .tokens = tokens,
          .local_experts = serving->exchange.local_experts(),
          .slots = size_t{ranks} * options.tokens_max,
          .hidden = options.hidden,
          .scale_words = rows == LowLatencyRows::fp8_ue8m0 ? (groups + 3) / 4 : groups};
}

/// Takes part in a dispatch without tokens, when the package has rejected the arguments.
HeldBatch dispatch_nothing(const ServingHandle& self, uint32_t rows, bool hook, uint64_t stream) {
  const std::shared_ptr<Serving> serving = self.get();
  const Callers::Turn turn = serving->turn();
  const auto format = static_cast<LowLatencyRows>(rows);
  nb::gil_scoped_release unlocked;
  return held(serving,
              serving->exchange.dispatch({.rows = format}, {.hook = hook, .stream = stream}), 0,
              format);
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
  if (rows_total) call.rows_total = rows_total->data();
  const LowLatencyInput input{.x = x.data(),
                              .scales = scales ? scales->data() : nullptr,
                              .topk_idx = topk_idx.data(),
                              .idx_is_int64 = is_int64(topk_idx.dtype()),
                              .weights = topk_weights ? topk_weights->data() : nullptr,
                              .tokens = narrowed("x", x.shape(0)),
                              .rows = static_cast<LowLatencyRows>(rows)};
  nb::gil_scoped_release unlocked;
  try {
    return held(serving, serving->exchange.dispatch(input, call), input.tokens, input.rows);
  } catch (const RefusedBatch& error) {
    HeldBatch batch = held(serving, error.received, 0, input.rows);
    batch.refusal = std::make_exception_ptr(InvalidArgument(error));
    return batch;
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
  const LowLatencyCombine what{.y = y.data(),
                               .weights = topk_weights ? topk_weights->data() : nullptr,
                               .out = out.data(),
                               .logfmt = logfmt,
                               .lost = lost ? lost->data() : nullptr};
  nb::gil_scoped_release unlocked;
  serving->exchange.combine(what, batch.received.handle, call);
}

void receive(const ServingHandle& self, const HeldBatch& batch, uint64_t stream) {
  const std::shared_ptr<Serving> serving = self.get();
  const Callers::Turn turn = serving->turn();
  nb::gil_scoped_release unlocked;
  serving->exchange.receive(batch.received.handle, stream);
}

nb::object combine_buffer(const ServingHandle& self, const HeldBatch& batch) {
  const std::shared_ptr<Serving> serving = self.get();
  const Callers::Turn turn = serving->turn();
  void* memory = nullptr;
  {
    nb::gil_scoped_release unlocked;
    memory = serving->exchange.combine_buffer(batch.received.handle);
  }
  return batch_array<uint16_t>(batch, memory, {batch.local_experts, batch.slots, batch.hidden});
}

void write_mask(const ServingHandle& self, const Row<int32_t>& out, uint64_t stream) {
  const std::shared_ptr<Serving> serving = self.get();
  const Callers::Turn turn = serving->turn();
  nb::gil_scoped_release unlocked;
  serving->exchange.write_mask(out.data(), stream);
}

/// Calls a read-only member of LowLatency, which may run beside another thread's call.
template <auto function>
auto look(const ServingHandle& self) {
  const std::shared_ptr<Serving> serving = self.get();
  nb::gil_scoped_release release;
  return (serving->exchange.*function)();
}

/// Calls any other member of LowLatency, without the interpreter lock.
template <auto function, class... Arguments>
auto unlocked(const ServingHandle& self, Arguments... arguments) {
  const std::shared_ptr<Serving> serving = self.get();
  const Callers::Turn turn = serving->turn();
  nb::gil_scoped_release release;
  return (serving->exchange.*function)(arguments...);
}

std::unique_ptr<ServingHandle> make(const WorldHandle& world, uint32_t experts, uint32_t hidden,
                                    uint32_t topk, uint32_t tokens_max, uint32_t sms,
                                    bool bf16_rows) {
  return std::make_unique<ServingHandle>(world, LowLatencyOptions{.experts = experts,
                                                                  .hidden = hidden,
                                                                  .topk = topk,
                                                                  .tokens_max = tokens_max,
                                                                  .sms = sms,
                                                                  .bf16_rows = bf16_rows});
}

std::tuple<uint64_t, uint64_t, uint64_t> memory(uint32_t experts, uint32_t hidden, uint32_t topk,
                                                uint32_t tokens_max, bool bf16_rows,
                                                uint32_t ranks) {
  const LowLatency::Memory memory = LowLatency::memory({.experts = experts,
                                                        .hidden = hidden,
                                                        .topk = topk,
                                                        .tokens_max = tokens_max,
                                                        .bf16_rows = bf16_rows},
                                                       ranks);
  return {memory.arena_bytes, memory.device_bytes, memory.combine_buffer_bytes};
}

std::string why(const MaskedRank& masked) {
  switch (masked.why) {
    case MaskedRank::Why::timeout:
      return "timeout";
    case MaskedRank::Why::lost:
      return "lost";
    case MaskedRank::Why::differs:
      return "differs";
    case MaskedRank::Why::left_out:
      break;
  }
  return "left out";
}

}  // namespace

void register_low_latency(nb::module_& m) {
  nb::class_<MaskedRank>(m, "MaskedRank", "A rank without which a LowLatency continues.")
      .def_ro("rank", &MaskedRank::rank, "The rank.")
      .def_prop_ro("why", &why, "'timeout', 'lost', 'left out' or 'differs'.")
      .def_ro("phase", &MaskedRank::phase, "The step that waited for it.")
      .def_ro("expected", &MaskedRank::expected, "The value awaited, mostly an epoch.")
      .def_ro("seen", &MaskedRank::seen, "The value last seen.")
      .def_ro("waited_s", &MaskedRank::waited_s, "Seconds that this rank waited for it.")
      .def("__str__", &MaskedRank::text)
      .def("__repr__",
           [](const MaskedRank& self) { return fmt::format("<MaskedRank: {}>", self.text()); });
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
                     return batch_array<int32_t>(self, self.received.counts, {self.local_experts});
                   })
      .def_prop_ro("ranges",
                   [](const HeldBatch& self) {
                     return batch_array<int32_t>(
                         self, self.received.ranges,
                         {self.local_experts, self.serving->world->size(), 2});
                   })
      .def_prop_ro("source_token", [](const HeldBatch& self) {
        return batch_array<int32_t>(self, self.received.source_token,
                                    {self.local_experts, self.slots});
      });
  nb::class_<ServingHandle> serving(m, "LowLatency", "See tokenyard.LowLatency.");
  serving.def_static("make", &make, "world"_a, nb::kw_only(), "experts"_a, "hidden"_a, "topk"_a,
                     "tokens_max"_a, "sms"_a, "bf16_rows"_a);
  serving.def_static("memory", &memory, nb::kw_only(), "experts"_a, "hidden"_a, "topk"_a,
                     "tokens_max"_a, "bf16_rows"_a, "ranks"_a);
  serving
      .def_prop_ro("local_experts",
                   [](const ServingHandle& self) { return self.get()->exchange.local_experts(); })
      .def_prop_ro("first_expert",
                   [](const ServingHandle& self) { return self.get()->exchange.first_expert(); })
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
      .def("masked", &look<&LowLatency::masked>)
      .def("write_mask", &write_mask, "out"_a.noconvert(), nb::kw_only(), "stream"_a)
      .def("update_mask", &unlocked<&LowLatency::update_mask, uint32_t, bool>, "rank"_a, "masked"_a)
      .def("clear_mask", &unlocked<&LowLatency::clear_mask>)
      .def("epoch", &unlocked<&LowLatency::epoch>)
      .def("restart", &unlocked<&LowLatency::restart, uint32_t>, "epoch"_a)
      .def("check", &look<&LowLatency::check>)
      .def("wait", &unlocked<&LowLatency::wait, uint64_t>, "stream"_a)
      .def("close", &unlocked<&LowLatency::close>);
}

}  // namespace tokenyard::python
