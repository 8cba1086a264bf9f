#include "tokenyard/expert_parallel.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "ids.hpp"
#include "received.hpp"
#include "registration.hpp"
#include "room.hpp"
#include "tokenyard/expert_map.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace tokenyard::python {
namespace {

// The package checks dtypes, shapes and devices, with errors that name the argument; these types
// reject anything else. Rows and scales cross as bytes of any dtype.
//
// All dtypes share one signature: a DLPack capsule can be consumed only once, so nanobind could not
// try a second overload.
template <class... Kind>
using Matrix = nb::ndarray<Kind..., nb::ndim<2>, nb::c_contig>;
using Rows = Matrix<nb::ro>;
using Ids = Matrix<nb::ro>;
using Weights = Matrix<const float>;

/// An array whose elements are of this type, though it may cross as bytes or words.
template <class Array>
auto view_of(const Array& array, DataType type) {
  const uint64_t columns = array.shape(1) * array.itemsize() / bytes_of(type);
  using Memory = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(array.data())>>,
                                    const void, void>;
  return BasicTensorView<Memory>(array.data(), type, {array.shape(0), columns});
}

/// An optional array, or no view.
template <class Array>
ConstTensorView view_of(const std::optional<Array>& array, DataType type) {
  return array ? ConstTensorView(view_of(*array, type)) : ConstTensorView();
}

ConstTensorView view_of(const Ids& ids) {
  return view_of(ids, is_int64(ids.dtype()) ? DataType::int64 : DataType::int32);
}

/// Python's handle of an exchange; arrays that it returned keep the exchange itself alive.
class ExchangeHandle {
 public:
  ExchangeHandle(const WorldHandle& world, const ExpertParallelOptions& options)
      : exchange_(make_upon<Exchange>(world, options)) {}

  const std::shared_ptr<Exchange>& get() const {
    if (!exchange_) throw InvalidArgument("exchange", "an open ExpertParallel", "a closed one");
    return exchange_;
  }

  void close() { exchange_.reset(); }

 private:
  std::shared_ptr<Exchange> exchange_;
};

DataType scale_type_of(nb::dlpack::dtype dtype) {
  if (dtype == nb::dtype<float>()) return DataType::float32;
  return dtype == nb::dtype<int32_t>() ? DataType::int32 : DataType::uint8;
}

/// Returns the input that all forms of dispatch share.
DispatchInput input_of(const Rows& x, DataType type, const std::optional<Rows>& scales,
                       ScaleOrder scale_order, const CastToFp8* cast,
                       std::optional<uint64_t> watcher, uint32_t sms) {
  DispatchInput input;
  input.x = view_of(x, type);
  if (scales) input.scales = view_of(*scales, scale_type_of(scales->dtype()));
  input.scale_order = scale_order;
  if (cast != nullptr) input.cast = *cast;
  if (watcher) input.watcher = Stream(*watcher);
  input.sms = sms;
  return input;
}

/// Adds the input of a dispatch that exchanges counts.
void add_choices(DispatchInput& input, const Ids& topk_idx,
                 const std::optional<Weights>& topk_weights, uint32_t received_tokens_max) {
  input.topk_idx = view_of(topk_idx);
  input.topk_weights = view_of(topk_weights, DataType::float32);
  input.received_tokens_max = received_tokens_max;
}

HeldReceived dispatch_rows(const ExchangeHandle& self, const Rows& x, const Ids& topk_idx,
                           const std::optional<Weights>& topk_weights, DataType type,
                           const std::optional<Rows>& scales, ScaleOrder scale_order,
                           const CastToFp8* cast, uint32_t received_tokens_max,
                           std::optional<uint64_t> watcher, uint32_t sms, uint64_t stream) {
  const std::shared_ptr<Exchange> exchange = self.get();
  const Callers::Turn turn = exchange->turn();
  DispatchInput input = input_of(x, type, scales, scale_order, cast, watcher, sms);
  add_choices(input, topk_idx, topk_weights, received_tokens_max);
  return {exchange, with_room([&](bool comes_again) {
            input.comes_again = comes_again;
            return exchange->expert_parallel.dispatch(input, Stream(stream));
          })};
}

std::pair<HeldReceived, HeldExpertRows> dispatch_by_expert(
    const ExchangeHandle& self, const Rows& x, const Ids& topk_idx,
    const std::optional<Weights>& topk_weights, DataType type, const std::optional<Rows>& scales,
    ScaleOrder scale_order, const CastToFp8* cast, uint32_t received_tokens_max, uint32_t alignment,
    uint32_t rows_max, bool clear_padding, uint32_t sms, uint64_t stream) {
  const std::shared_ptr<Exchange> exchange = self.get();
  const Callers::Turn turn = exchange->turn();
  DispatchInput input = input_of(x, type, scales, ScaleOrder::rows, cast, std::nullopt, sms);
  add_choices(input, topk_idx, topk_weights, received_tokens_max);
  const GroupByExpertOptions grouped{.alignment = alignment,
                                     .rows_max = rows_max,
                                     .scale_order = scale_order,
                                     .clear_padding = clear_padding};
  RowsByExpert by_expert = with_room([&](bool comes_again) {
    input.comes_again = comes_again;
    return exchange->expert_parallel.dispatch_by_expert(input, grouped, Stream(stream));
  });
  return {HeldReceived{exchange, std::move(by_expert.received)},
          HeldExpertRows{exchange, std::move(by_expert.rows)}};
}

HeldReceived dispatch_rows_again(const ExchangeHandle& self, const Rows& x, const HeldRoute& route,
                                 DataType type, const std::optional<Rows>& scales,
                                 ScaleOrder scale_order, const CastToFp8* cast,
                                 std::optional<uint64_t> watcher, uint32_t sms, uint64_t stream) {
  const std::shared_ptr<Exchange> exchange = self.get();
  const Callers::Turn turn = exchange->turn();
  const DispatchInput input = input_of(x, type, scales, scale_order, cast, watcher, sms);
  return {exchange, with_room([&] {
            return exchange->expert_parallel.dispatch(input, route.route, Stream(stream));
          })};
}

void combine_rows(const ExchangeHandle& self, const Rows& y, const HeldRoute& route,
                  const Matrix<>& out, DataType type, const std::optional<Weights>& weights,
                  const std::optional<Matrix<float>>& out_weights, const std::optional<Rows>& bias,
                  const std::optional<Rows>& second_bias,
                  const std::optional<Matrix<const int32_t>>& rank_order,
                  const HeldExpertRows* by_expert, bool weighted, uint32_t sms, uint32_t local_sms,
                  uint64_t stream) {
  const std::shared_ptr<Exchange> exchange = self.get();
  const Callers::Turn turn = exchange->turn();
  const CombineInput input{.y = view_of(y, type),
                           .by_expert = by_expert == nullptr ? nullptr : &by_expert->rows,
                           .weighted = weighted,
                           .topk_weights = view_of(weights, DataType::float32),
                           .biases = {view_of(bias, type), view_of(second_bias, type)},
                           // The kernel treats a number that is no rank as a rank without a row.
                           .rank_order = view_of(rank_order, DataType::int32),
                           .sms = sms,
                           .local_sms = local_sms};
  CombineOutput output{.x = view_of(out, type)};
  if (out_weights) output.topk_weights = view_of(*out_weights, DataType::float32);
  with_room([&] { exchange->expert_parallel.combine(input, route.route, output, Stream(stream)); });
}

HeldExpertRows group_by_expert(const ExchangeHandle& self, const HeldReceived& received,
                               uint32_t alignment, uint32_t rows_max, bool clear_padding,
                               ScaleOrder scale_order, uint32_t sms, uint64_t stream) {
  const std::shared_ptr<Exchange> exchange = self.get();
  const Callers::Turn turn = exchange->turn();
  const GroupByExpertOptions grouped{.alignment = alignment,
                                     .rows_max = rows_max,
                                     .scale_order = scale_order,
                                     .sms = sms,
                                     .clear_padding = clear_padding};
  return {exchange, with_room([&] {
            return exchange->expert_parallel.group_by_expert(received.received, grouped,
                                                             Stream(stream));
          })};
}

nb::object rows_combine_buffer(const ExchangeHandle& self, const HeldRoute& route, DataType type,
                               uint64_t stream) {
  const std::shared_ptr<Exchange> exchange = self.get();
  const Callers::Turn turn = exchange->turn();
  const CombineBuffer buffer = with_room(
      [&] { return exchange->expert_parallel.combine_buffer(route.route, type, Stream(stream)); });
  return arena_array(exchange, buffer.owner, buffer.y.as<const uint8_t>(),
                     {buffer.y.shape[0], buffer.y.shape[1] * bytes_of(type)});
}

std::tuple<uint64_t, uint64_t, uint64_t, uint64_t, uint64_t> memory_of(
    uint32_t experts, uint32_t hidden, uint32_t topk, uint32_t tokens_max, uint32_t sms,
    uint32_t sms_max, uint32_t places_per_rank, uint32_t ranks, uint32_t tokens,
    uint32_t rows_received, DataType type, uint32_t row_bytes, uint32_t scale_words, uint32_t hosts,
    uint32_t ring_rows) {
  const ExpertParallel::Memory memory = ExpertParallel::memory(
      {.experts = experts,
       .places_per_rank = places_per_rank,
       .hidden = hidden,
       .topk = topk,
       .tokens_max = tokens_max,
       .sms = sms,
       .sms_max = sms_max,
       .tuning = {.ring_rows = ring_rows}},
      ranks, tokens, rows_received,
      {.type = type, .row_bytes = row_bytes, .scale_words = scale_words}, hosts);
  return {memory.arena_bytes, memory.peak_bytes, memory.kept_bytes, memory.kept_by_route_bytes,
          memory.network_bytes};
}

void wait_for_exchange(const ExchangeHandle& self, uint64_t stream) {
  const std::shared_ptr<Exchange> exchange = self.get();
  const Callers::Turn turn = exchange->turn();
  nb::gil_scoped_release unlocked;
  exchange->expert_parallel.wait(Stream(stream));
}

void place(const ExchangeHandle& self, const std::vector<int32_t>& expert_at) {
  const std::shared_ptr<Exchange> exchange = self.get();
  const Callers::Turn turn = exchange->turn();
  nb::gil_scoped_release unlocked;
  exchange->expert_parallel.set_expert_map(expert_at);
}

nb::tuple load(const ExchangeHandle& self) {
  const ExpertParallel::Load load = self.get()->expert_parallel.load();
  return nb::make_tuple(load.tokens_per_expert, load.waited_us);
}

nb::dict metrics(const ExchangeHandle& self) {
  const ExpertParallel::Metrics found = self.get()->expert_parallel.metrics();
  nb::dict metrics;
  metrics["dispatch_calls"] = found.dispatch_calls;
  metrics["combine_calls"] = found.combine_calls;
  metrics["uncounted_calls"] = found.uncounted_calls;
  metrics["dispatched_tokens"] = found.dispatched_tokens;
  metrics["unplaced_choices"] = found.unplaced_choices;
  metrics["received_rows_by_peer"] = found.received_rows_by_peer;
  metrics["received_bytes_by_peer"] = found.received_bytes_by_peer;
  metrics["returned_rows_by_peer"] = found.returned_rows_by_peer;
  metrics["returned_bytes_by_peer"] = found.returned_bytes_by_peer;
  metrics["received_choices_by_expert"] = found.received_choices_by_expert;
  metrics["wait_seconds_by_peer"] = found.wait_seconds_by_peer;
  metrics["slowest_rank"] = found.slowest_rank;
  if (found.link_sent_bytes_by_peer.empty()) return metrics;
  metrics["link_sent_bytes_by_peer"] = found.link_sent_bytes_by_peer;
  metrics["link_arrived_bytes_by_peer"] = found.link_arrived_bytes_by_peer;
  metrics["link_credit_wait_seconds_by_peer"] = found.link_credit_wait_seconds_by_peer;
  metrics["link_row_wait_seconds_by_peer"] = found.link_row_wait_seconds_by_peer;
  metrics["send_wait_seconds"] = found.send_wait_seconds;
  metrics["forward_wait_seconds"] = found.forward_wait_seconds;
  metrics["add_wait_seconds"] = found.add_wait_seconds;
  metrics["slowest_host"] = found.slowest_host;
  metrics["slowest_rail"] = found.slowest_rail;
  return metrics;
}

std::tuple<uint32_t, uint32_t, uint32_t, uint32_t, uint64_t> rings(const ExchangeHandle& self) {
  const ExpertParallel::Rings found = self.get()->expert_parallel.rings();
  return {found.links, found.ring_rows, found.chunk_rows, found.put_rows, found.bytes};
}

nb::list last_trace(const ExchangeHandle& self) {
  nb::list trace;
  for (const ExpertParallel::Moment& moment : self.get()->expert_parallel.last_trace())
    trace.append(nb::make_tuple(moment.block, moment.name, moment.ns));
  return trace;
}

std::unique_ptr<ExchangeHandle> make_exchange(const WorldHandle& world, uint32_t experts,
                                              uint32_t hidden, uint32_t topk, uint32_t tokens_max,
                                              uint32_t sms, uint32_t sms_max,
                                              uint32_t places_per_rank, uint32_t ring_rows,
                                              uint32_t chunk_rows, bool fp32_partials) {
  return std::make_unique<ExchangeHandle>(
      world, ExpertParallelOptions{.experts = experts,
                                   .places_per_rank = places_per_rank,
                                   .hidden = hidden,
                                   .topk = topk,
                                   .tokens_max = tokens_max,
                                   .sms = sms,
                                   .sms_max = sms_max,
                                   .tuning = {.ring_rows = ring_rows, .chunk_rows = chunk_rows},
                                   .fp32_partials = fp32_partials});
}

}  // namespace

void register_expert_parallel(nb::module_& m) {
  nb::enum_<ScaleOrder>(m, "ScaleOrder", "Layout of received scales.")
      .value("rows", ScaleOrder::rows)
      .value("columns", ScaleOrder::columns);
  m.def(
      "spread_lost_experts",
      [](const std::vector<int32_t>& expert_at, const std::vector<bool>& living) {
        return spread_lost_experts(expert_at, living);
      },
      "expert_at"_a, "living"_a);
  nb::class_<CastToFp8> cast(m, "CastToFp8", "A cast of bf16 rows to FP8 before they are sent.");
  nb::enum_<CastToFp8::Scales>(cast, "Scales", "Format of a group's scale.")
      .value("none", CastToFp8::Scales::none)
      .value("fp32", CastToFp8::Scales::fp32)
      .value("packed", CastToFp8::Scales::packed);
  cast.def(
      "__init__",
      [](CastToFp8* self, CastToFp8::Scales scales, uint32_t channels) {
        new (self) CastToFp8{scales, channels};
      },
      "scales"_a, "channels"_a);
  nb::class_<ExchangeHandle> exchange(m, "ExpertParallel", "See tokenyard.ExpertParallel.");
  exchange
      .def_static("make", &make_exchange, "world"_a, nb::kw_only(), "experts"_a, "hidden"_a,
                  "topk"_a, "tokens_max"_a, "sms"_a, "sms_max"_a, "places_per_rank"_a,
                  "ring_rows"_a, "chunk_rows"_a, "fp32_partials"_a)
      .def_prop_ro("rings", &rings)
      .def_prop_ro("sms",
                   [](const ExchangeHandle& self) { return self.get()->expert_parallel.sms(); })
      .def_prop_ro(
          "sms_reason",
          [](const ExchangeHandle& self) { return self.get()->expert_parallel.sms_reason(); })
      .def_prop_ro(
          "local_experts",
          [](const ExchangeHandle& self) { return self.get()->expert_parallel.local_experts(); })
      .def_prop_ro("first_expert", [](const ExchangeHandle& self) {
        return self.get()->expert_parallel.first_expert();
      });
  exchange
      .def("dispatch", &dispatch_rows, "x"_a.noconvert(), "topk_idx"_a.noconvert(),
           "topk_weights"_a.noconvert().none(), nb::kw_only(), "type"_a,
           "scales"_a.noconvert().none(), "scale_order"_a, "cast"_a.none(), "received_tokens_max"_a,
           "watcher"_a.none(), "sms"_a, "stream"_a)
      .def("dispatch_by_expert", &dispatch_by_expert, "x"_a.noconvert(), "topk_idx"_a.noconvert(),
           "topk_weights"_a.noconvert().none(), nb::kw_only(), "type"_a,
           "scales"_a.noconvert().none(), "scale_order"_a, "cast"_a.none(), "received_tokens_max"_a,
           "alignment"_a, "rows_max"_a, "clear_padding"_a, "sms"_a, "stream"_a)
      .def("dispatch_again", &dispatch_rows_again, "x"_a.noconvert(), "route"_a, nb::kw_only(),
           "type"_a, "scales"_a.noconvert().none(), "scale_order"_a, "cast"_a.none(),
           "watcher"_a.none(), "sms"_a, "stream"_a)
      .def("group_by_expert", &group_by_expert, "received"_a, nb::kw_only(), "alignment"_a,
           "rows_max"_a, "clear_padding"_a, "scale_order"_a, "sms"_a, "stream"_a)
      .def("combine", &combine_rows, "y"_a.noconvert(), "route"_a, "out"_a.noconvert(),
           nb::kw_only(), "type"_a, "weights"_a.noconvert().none(),
           "out_weights"_a.noconvert().none(), "bias"_a.noconvert().none(),
           "second_bias"_a.noconvert().none(), "rank_order"_a.noconvert().none(),
           "by_expert"_a.none(), "weighted"_a, "sms"_a, "local_sms"_a, "stream"_a)
      .def("combine_buffer", &rows_combine_buffer, "route"_a, nb::kw_only(), "type"_a, "stream"_a)
      .def_static("memory", &memory_of, nb::kw_only(), "experts"_a, "hidden"_a, "topk"_a,
                  "tokens_max"_a, "sms"_a, "sms_max"_a, "places_per_rank"_a, "ranks"_a, "tokens"_a,
                  "rows_received"_a, "type"_a, "row_bytes"_a, "scale_words"_a, "hosts"_a,
                  "ring_rows"_a)
      .def("place", &place, "expert_at"_a)
      .def(
          "on_experts_changed",
          [](const ExchangeHandle& self,
             const std::function<void(const std::vector<int32_t>&)>& hook) {
            self.get()->expert_parallel.on_experts_changed(hook);
          },
          "hook"_a)
      .def_prop_ro(
          "expert_map",
          [](const ExchangeHandle& self) { return self.get()->expert_parallel.expert_map(); })
      .def_prop_ro(
          "held_experts",
          [](const ExchangeHandle& self) { return self.get()->expert_parallel.held_experts(); })
      .def_prop_ro(
          "lost_experts",
          [](const ExchangeHandle& self) { return self.get()->expert_parallel.lost_experts(); })
      .def("load", &load)
      .def("metrics", &metrics)
      .def("failed_ranks",
           [](const ExchangeHandle& self) { return self.get()->expert_parallel.failed_ranks(); })
      .def(
          "trace_calls",
          [](const ExchangeHandle& self, bool on) { self.get()->expert_parallel.trace_calls(on); },
          "on"_a)
      .def("last_trace", &last_trace)
      .def("check", [](const ExchangeHandle& self) { self.get()->expert_parallel.check(); })
      .def("wait", &wait_for_exchange, nb::kw_only(), "stream"_a)
      .def("close", &ExchangeHandle::close);
}

}  // namespace tokenyard::python
