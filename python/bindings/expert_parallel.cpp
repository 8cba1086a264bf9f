#include "tokenyard/expert_parallel.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/unique_ptr.h>

#include "received.hpp"
#include "registration.hpp"
#include "unlocked.hpp"
#include "world.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace tokenyard::python {
namespace {

// The package has checked dtypes, shapes and devices, with messages that name the argument; these
// types make sure that nothing else gets through. BF16 crosses as the integers of its bits.
template <class Element>
using Matrix = nb::ndarray<Element, nb::ndim<2>, nb::c_contig>;
using Bf16 = Matrix<const uint16_t>;
using Weights = Matrix<const float>;

/// A rank's exchange as Python holds it; arrays it gave out keep the exchange itself alive.
class ExchangeHandle {
 public:
  ExchangeHandle(const WorldHandle& world, const ExpertParallelOptions& options) {
    const std::shared_ptr<World> shared = world.get();
    std::unique_ptr<Exchange> made;
    {
      nb::gil_scoped_release unlocked;
      made = std::make_unique<Exchange>(shared, options);
    }
    exchange_ = shared_and_destroyed_unlocked(std::move(made));
  }

  const std::shared_ptr<Exchange>& get() const {
    if (!exchange_) throw InvalidArgument("exchange", "an open ExpertParallel", "a closed one");
    return exchange_;
  }

  void close() { exchange_.reset(); }

 private:
  std::shared_ptr<Exchange> exchange_;
};

template <class Id>
HeldReceived dispatch(const ExchangeHandle& self, const Bf16& x, const Matrix<const Id>& topk_idx,
                      const Weights& topk_weights, uint64_t stream) {
  const std::shared_ptr<Exchange> exchange = self.get();
  const DispatchInput input{.x = x.data(),
                            .topk_idx = topk_idx.data(),
                            .idx_is_int64 = sizeof(Id) == sizeof(int64_t),
                            .topk_weights = topk_weights.data(),
                            .tokens = static_cast<uint32_t>(x.shape(0))};
  nb::gil_scoped_release unlocked;
  return {exchange, exchange->expert_parallel.dispatch(input, stream)};
}

HeldReceived dispatch_again(const ExchangeHandle& self, const Bf16& x, const HeldRoute& route,
                            uint64_t stream) {
  const std::shared_ptr<Exchange> exchange = self.get();
  nb::gil_scoped_release unlocked;
  return {exchange, exchange->expert_parallel.dispatch(x.data(), route.route, stream)};
}

void combine(const ExchangeHandle& self, const Bf16& y, const HeldRoute& route,
             const Matrix<uint16_t>& out, const std::optional<Weights>& weights,
             const std::optional<Matrix<float>>& out_weights, uint64_t stream) {
  const std::shared_ptr<Exchange> exchange = self.get();
  nb::gil_scoped_release unlocked;
  exchange->expert_parallel.combine(y.data(), route.route, out.data(),
                                    weights ? weights->data() : nullptr,
                                    out_weights ? out_weights->data() : nullptr, stream);
}

nb::object output_buffer(const ExchangeHandle& self, const HeldRoute& route, uint64_t stream) {
  const std::shared_ptr<Exchange> exchange = self.get();
  std::shared_ptr<void> memory;
  {
    nb::gil_scoped_release unlocked;
    memory = exchange->expert_parallel.output_buffer(route.route, stream);
  }
  return arena_array(exchange, memory, static_cast<const uint16_t*>(memory.get()),
                     {route.route.rows_received(), exchange->expert_parallel.options().hidden});
}

void wait(const ExchangeHandle& self, uint64_t stream) {
  const std::shared_ptr<Exchange> exchange = self.get();
  nb::gil_scoped_release unlocked;
  exchange->expert_parallel.wait(stream);
}

std::unique_ptr<ExchangeHandle> make(const WorldHandle& world, uint32_t experts, uint32_t hidden,
                                     uint32_t topk, uint32_t tokens_max, uint32_t sms) {
  return std::make_unique<ExchangeHandle>(world, ExpertParallelOptions{.experts = experts,
                                                                       .hidden = hidden,
                                                                       .topk = topk,
                                                                       .tokens_max = tokens_max,
                                                                       .sms = sms});
}

}  // namespace

void register_expert_parallel(nb::module_& m) {
  nb::class_<ExchangeHandle>(m, "ExpertParallel", "See tokenyard.ExpertParallel.")
      .def_static("make", &make, "world"_a, nb::kw_only(), "experts"_a, "hidden"_a, "topk"_a,
                  "tokens_max"_a, "sms"_a)
      .def_prop_ro("sms",
                   [](const ExchangeHandle& self) { return self.get()->expert_parallel.sms(); })
      .def("dispatch", &dispatch<int32_t>, "x"_a.noconvert(), "topk_idx"_a.noconvert(),
           "topk_weights"_a.noconvert(), nb::kw_only(), "stream"_a)
      .def("dispatch", &dispatch<int64_t>, "x"_a.noconvert(), "topk_idx"_a.noconvert(),
           "topk_weights"_a.noconvert(), nb::kw_only(), "stream"_a)
      .def("dispatch_again", &dispatch_again, "x"_a.noconvert(), "route"_a, nb::kw_only(),
           "stream"_a)
      .def("combine", &combine, "y"_a.noconvert(), "route"_a, "out"_a.noconvert(),
           "weights"_a.noconvert().none(), "out_weights"_a.noconvert().none(), nb::kw_only(),
           "stream"_a)
      .def("output_buffer", &output_buffer, "route"_a, nb::kw_only(), "stream"_a)
      .def("check", [](const ExchangeHandle& self) { self.get()->expert_parallel.check(); })
      .def("wait", &wait, nb::kw_only(), "stream"_a)
      .def("close", &ExchangeHandle::close);
}

}  // namespace tokenyard::python
