/// A collective call on device tensors, drawn or chosen, with its inputs and expected results on
/// every rank. The reference is the arithmetic of the collectives on CPU tensors.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "collectives/algorithms/reduce.hpp"
#include "collectives/device/host/device_collectives.hpp"
#include "expert_parallel/rank_memory.hpp"
#include "fabric/world_access.hpp"
#include "simulation/random.hpp"

namespace tokenyard::test {

using device_collectives::Call;
using device_collectives::DeviceCollectives;
using device_collectives::Operation;
using device_collectives::Protocol;

using Bytes = std::vector<uint8_t>;

struct CallCase {
  Operation operation = Operation::all_reduce;
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  uint64_t elements = 1;  ///< of a message
  uint32_t root = 0;
  bool in_place = false;
  uint32_t offset = 0;  ///< elements between aligned memory and the tensors
  uint64_t seed = 0;    ///< of the inputs
  Call call = {};

  bool reduces() const {
    return operation == Operation::all_reduce || operation == Operation::reduce ||
           operation == Operation::reduce_scatter;
  }
  bool input_has_parts() const {
    return operation == Operation::scatter || operation == Operation::reduce_scatter ||
           operation == Operation::all_to_all;
  }
  bool result_has_parts() const {
    return operation == Operation::all_gather || operation == Operation::gather ||
           operation == Operation::all_to_all;
  }
  bool has_input(uint32_t rank) const {
    const bool from_root = operation == Operation::broadcast || operation == Operation::scatter;
    return !from_root || rank == root;
  }
  bool has_result(uint32_t rank) const {
    const bool to_root = operation == Operation::reduce || operation == Operation::gather;
    return !to_root || rank == root;
  }
  size_t part() const { return elements * bytes_of(type); }
  std::string text() const {
    return fmt::format("operation {} of {} {}, op {}, root {}{}, offset {}, protocol {}",
                       static_cast<uint32_t>(operation), elements, name_of(type), name_of(op), root,
                       in_place ? ", in place" : "", offset, static_cast<uint32_t>(call.protocol));
  }

  /// Returns the input of a rank: numbers whose sums and products neither overflow nor are exact.
  Bytes input(uint32_t rank, uint32_t ranks) const {
    simulation::Random random(seed * 131 + rank);
    const uint64_t count = elements * (input_has_parts() ? ranks : 1);
    std::vector<float> numbers(count);
    Bytes bytes(count * bytes_of(type));
    for (float& number : numbers) {
      const float size = static_cast<float>(random.between(1 << 20, 1 << 22)) / (1 << 21);
      number = random.chance(512) ? size : -size;
    }
    const bool is_short = type == DataType::float16 || type == DataType::bfloat16;
    if (is_short) {
      collectives::narrow(bytes.data(), numbers.data(), type, count);
    } else if (type == DataType::float32) {
      std::memcpy(bytes.data(), numbers.data(), bytes.size());
    } else if (type == DataType::float64) {
      const std::vector<double> wide(numbers.begin(), numbers.end());
      std::memcpy(bytes.data(), wide.data(), bytes.size());
    } else {
      for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.next());
      if (type == DataType::boolean)
        for (uint8_t& byte : bytes) byte &= 1;
    }
    return bytes;
  }

  /// Returns the expected result of a rank that has one.
  Bytes result(uint32_t rank, uint32_t ranks) const {
    std::vector<Bytes> inputs(ranks);
    for (uint32_t source = 0; source < ranks; ++source)
      if (has_input(source)) inputs[source] = input(source, ranks);
    const auto message = [&](uint32_t source) {
      return inputs[source].data() + (input_has_parts() ? rank * part() : 0);
    };
    if (reduces()) return reduced(message, ranks);
    if (!has_input((root + 1) % ranks) || ranks == 1) return message_of(message(root));
    if (!result_has_parts()) return message_of(message(root));
    Bytes all;
    for (uint32_t source = 0; source < ranks; ++source)
      all.insert(all.end(), message(source), message(source) + part());
    return all;
  }

 private:
  Bytes message_of(const uint8_t* from) const { return Bytes(from, from + part()); }
  template <class Message>
  Bytes reduced(const Message& message, uint32_t ranks) const {
    const DataType wide = collectives::accumulator_of(type);
    Bytes sum(elements * bytes_of(wide)), result(part());
    collectives::widen(sum.data(), message(0), type, elements);
    const collectives::Combine add = collectives::accumulate_of(type, op);
    for (uint32_t source = 1; source < ranks; ++source)
      add(sum.data(), sum.data(), message(source), elements);
    if (op == ReduceOp::average) collectives::divide(sum.data(), wide, elements, ranks);
    collectives::narrow(result.data(), sum.data(), type, elements);
    return result;
  }
};

/// A tensor between guards, in device memory.
class GuardedTensor {
 public:
  GuardedTensor(Accelerator& accelerator, const CallCase& of, size_t bytes)
      : at_(kGuard + of.offset * bytes_of(of.type)),
        bytes_(bytes),
        type_(of.type),
        memory_(accelerator, at_ + bytes + kGuard) {
    memory_.poison();
  }

  uint8_t* data() const { return memory_.data() + at_; }
  TensorView view(uint64_t first_byte, uint64_t bytes) const {
    return {data() + first_byte, type_, {bytes / bytes_of(type_)}};
  }
  TensorView view() const { return view(0, bytes_); }
  /// Returns the tensor's bytes; `intact` tells whether the guards are.
  Bytes read(bool& intact) const {
    const Bytes all = memory_.read();
    for (size_t i = 0; i < all.size(); ++i)
      if ((i < at_ || i >= at_ + bytes_) && all[i] != 0xee) intact = false;
    return Bytes(all.begin() + static_cast<ptrdiff_t>(at_),
                 all.begin() + static_cast<ptrdiff_t>(at_ + bytes_));
  }

 private:
  static constexpr size_t kGuard = 64;
  size_t at_, bytes_;
  DataType type_;
  DeviceArray<uint8_t> memory_;
};

/// A call's tensors on one rank, between its start and the check of its result.
class StartedCall {
 public:
  StartedCall(World& world, const CallCase& of) : world_(world), of_(of) {
    Accelerator& accelerator = accelerator_of(world);
    const uint32_t rank = world.rank(), ranks = world.size();
    const size_t part = of.part();
    const size_t in = part * (of.input_has_parts() ? ranks : 1);
    const size_t out = part * (of.result_has_parts() ? ranks : 1);
    const bool share = of.in_place || of.operation == Operation::broadcast;
    if (share) {
      shared_ = std::make_unique<GuardedTensor>(accelerator, of, std::max(in, out));
      input_ = shared_->view(in < out ? rank * part : 0, in);
      result_ = shared_->view(out < in ? rank * part : 0, out);
    } else {
      given_ = std::make_unique<GuardedTensor>(accelerator, of, in);
      taken_ = std::make_unique<GuardedTensor>(accelerator, of, out);
      input_ = given_->view();
      result_ = taken_->view();
    }
    if (!of.has_input(rank)) return;
    sent_ = of.input(rank, ranks);
    if (sent_.empty()) return;
    accelerator.copy(input_.data, sent_.data(), sent_.size(), Stream{});
    await_all(accelerator);
  }

  void start(DeviceCollectives& collectives) {
    const ConstTensorView input = of_.has_input(world_.rank()) ? input_ : TensorView{};
    const TensorView result = of_.has_result(world_.rank()) ? result_ : TensorView{};
    switch (of_.operation) {
      case Operation::barrier:
        return collectives.barrier(of_.call);
      case Operation::all_reduce:
        return collectives.all_reduce(input, result, of_.op, of_.call);
      case Operation::reduce:
        return collectives.reduce(input, result, of_.op, of_.root, of_.call);
      case Operation::broadcast:
        return collectives.broadcast(result_, of_.root, of_.call);
      case Operation::all_gather:
        return collectives.all_gather(input, result, of_.call);
      case Operation::gather:
        return collectives.gather(input, result, of_.root, of_.call);
      case Operation::scatter:
        return collectives.scatter(input, result, of_.root, of_.call);
      case Operation::reduce_scatter:
        return collectives.reduce_scatter(input, result, of_.op, of_.call);
      case Operation::all_to_all:
        return collectives.all_to_all(input, result, of_.call);
    }
  }

  /// Returns whether nothing was written to the result of a call that has its own.
  bool untouched() const {
    bool intact = true;
    const Bytes seen = taken_ ? taken_->read(intact) : Bytes();
    return intact && std::count(seen.begin(), seen.end(), 0xee) == std::ssize(seen);
  }
  /// Returns what is wrong after the call has ended; empty if nothing is.
  std::string difference() const {
    if (of_.operation == Operation::barrier) return "";
    bool intact = true;
    std::string wrong;
    if (shared_) {
      const Bytes all = shared_->read(intact);
      const auto* const begin =
          static_cast<const uint8_t*>(result_.data) - shared_->data() + all.data();
      if (of_.has_result(world_.rank())) wrong = compare(Bytes(begin, begin + result_.bytes()));
    } else {
      if (of_.has_result(world_.rank())) wrong = compare(taken_->read(intact));
      if (of_.has_input(world_.rank()) && given_->read(intact) != sent_)
        wrong += "the input was written; ";
    }
    return wrong + (intact ? "" : "memory beside a tensor was written; ");
  }

 private:
  std::string compare(const Bytes& seen) const {
    const Bytes expected = of_.result(world_.rank(), world_.size());
    if (seen.size() != expected.size()) return "another number of bytes; ";
    for (size_t i = 0; i < seen.size(); ++i)
      if (seen[i] != expected[i])
        return fmt::format("byte {} of {} is {:#x} instead of {:#x}; ", i, seen.size(), seen[i],
                           expected[i]);
    return "";
  }

  World& world_;
  const CallCase of_;
  std::unique_ptr<GuardedTensor> shared_, given_, taken_;
  TensorView input_, result_;
  Bytes sent_;
};

/// Makes the call and returns what is wrong.
inline std::string difference_after(World& world, DeviceCollectives& collectives,
                                    const CallCase& of) {
  StartedCall call(world, of);
  call.start(collectives);
  collectives.wait(of.call.stream);
  const std::string wrong = call.difference();
  return wrong.empty() ? "" : of.text() + ": " + wrong;
}

}  // namespace tokenyard::test
