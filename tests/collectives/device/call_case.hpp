/// A collective call on device tensors, drawn or chosen, with its inputs and expected results on
/// every rank. The reference is the arithmetic of the collectives on CPU tensors.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "collectives/algorithms/reduce.hpp"
#include "collectives/device/host/device_collectives.hpp"
#include "device/numbers.hpp"
#include "expert_parallel/rank_memory.hpp"
#include "fabric/arena.hpp"
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
  double factor = 1;
  bool in_place = false;
  bool in_arena = false;  ///< the tensors lie in the arena
  uint32_t offset = 0;    ///< elements between aligned memory and the tensors
  uint32_t shift = 0;     ///< by so many more for a result apart from its input
  uint64_t seed = 0;      ///< of the inputs
  Call call = {};
  std::vector<uint32_t> host_of = {};  ///< [ranks] on which numbers are first reduced; empty: one
  std::vector<uint32_t> absent = {};   ///< ranks whose slots are empty

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
  bool is_present(uint32_t rank) const { return std::ranges::find(absent, rank) == absent.end(); }
  std::string text() const {
    return fmt::format(
        "operation {} of {} {}, op {} of {} times, root {}{}{}, offset {} + {}, protocol {}",
        static_cast<uint32_t>(operation), elements, name_of(type), name_of(op), factor, root,
        in_place ? ", in place" : "", in_arena ? ", in the arena" : "", offset, shift,
        static_cast<uint32_t>(call.protocol));
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
    } else if (is_float8()) {
      for (uint64_t i = 0; i < count; ++i) bytes[i] = to_float8(numbers[i]);
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
      if (is_present(source))
        all.insert(all.end(), message(source), message(source) + part());
      else
        all.resize(all.size() + part());
    return all;
  }

 private:
  Bytes message_of(const uint8_t* from) const { return Bytes(from, from + part()); }
  bool is_float8() const {
    return type == DataType::float8_e4m3fn || type == DataType::float8_e5m2;
  }
  uint8_t to_float8(float number) const {
    return type == DataType::float8_e5m2 ? to_float8_e5m2(number).bits
                                         : to_float8_e4m3(number).bits;
  }
  float from_float8(uint8_t bits) const {
    return type == DataType::float8_e5m2 ? to_float(Float8E5M2{bits}) : to_float(Float8E4M3{bits});
  }
  /// The type in which elements are folded; devices fold 8-bit floats, too.
  DataType wide() const {
    return is_float8() ? DataType::float32 : collectives::accumulator_of(type);
  }
  Bytes widened(const uint8_t* message) const {
    Bytes numbers(elements * bytes_of(wide()));
    if (!is_float8()) {
      collectives::widen(numbers.data(), message, type, elements);
      return numbers;
    }
    for (uint64_t i = 0; i < elements; ++i) {
      const float number = from_float8(message[i]);
      std::memcpy(numbers.data() + i * sizeof(float), &number, sizeof(float));
    }
    return numbers;
  }
  Bytes narrowed(const Bytes& numbers) const {
    Bytes result(part());
    if (!is_float8()) {
      collectives::narrow(result.data(), numbers.data(), type, elements);
      return result;
    }
    for (uint64_t i = 0; i < elements; ++i) {
      float number;
      std::memcpy(&number, numbers.data() + i * sizeof(float), sizeof(float));
      result[i] = to_float8(number);
    }
    return result;
  }
  /// sum = factor * summand + sum, rounded once.
  template <class Number>
  void add_scaled(Bytes& sum, const Bytes& summand) const {
    for (uint64_t at = 0; at < sum.size(); at += sizeof(Number)) {
      Number a, b;
      std::memcpy(&a, sum.data() + at, sizeof(Number));
      std::memcpy(&b, summand.data() + at, sizeof(Number));
      a = std::fma(b, static_cast<Number>(factor), a);
      std::memcpy(sum.data() + at, &a, sizeof(Number));
    }
  }
  template <class Message>
  Bytes reduced(const Message& message, uint32_t ranks) const {
    std::vector<std::vector<uint32_t>> hosts(1);
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      if (!is_present(rank)) continue;
      const uint32_t host = host_of.empty() ? 0 : host_of[rank];
      if (host >= hosts.size()) hosts.resize(host + 1);
      hosts[host].push_back(rank);
    }
    std::erase_if(hosts, [](const auto& members) { return members.empty(); });
    Bytes sum = of_host(message, hosts[0]);
    for (size_t host = 1; host < hosts.size(); ++host) {
      const Bytes partial = of_host(message, hosts[host]);
      collectives::combine_of(wide(), op)(sum.data(), sum.data(), partial.data(), elements);
    }
    if (op == ReduceOp::average)
      collectives::divide(sum.data(), wide(), elements,
                          ranks - static_cast<uint32_t>(absent.size()));
    return narrowed(sum);
  }
  template <class Message>
  Bytes of_host(const Message& message, const std::vector<uint32_t>& members) const {
    const collectives::Combine add = collectives::combine_of(wide(), op);
    Bytes sum(elements * bytes_of(wide()));
    if (factor == 1) sum = widened(message(members[0]));
    for (size_t i = factor == 1 ? 1 : 0; i < members.size(); ++i) {
      const Bytes summand = widened(message(members[i]));
      if (factor == 1)
        add(sum.data(), sum.data(), summand.data(), elements);
      else if (wide() == DataType::float64)
        add_scaled<double>(sum, summand);
      else
        add_scaled<float>(sum, summand);
    }
    return sum;
  }
};

/// A tensor between guards, in device memory or in the arena.
class GuardedTensor {
 public:
  GuardedTensor(World& world, const CallCase& of, size_t bytes)
      : accelerator_(accelerator_of(world)),
        at_(kGuard + of.offset * bytes_of(of.type)),
        bytes_(bytes),
        all_bytes_(at_ + bytes + kGuard),
        type_(of.type) {
    if (of.in_arena)
      lent_ = arena_of(world).allocate(all_bytes_, Stream{});
    else
      own_ = std::make_unique<DeviceArray<uint8_t>>(accelerator_, all_bytes_);
    accelerator_.fill(begin(), 0xee, all_bytes_, Stream{});
    await_all(accelerator_);
  }

  uint8_t* data() const { return begin() + at_; }
  TensorView view(uint64_t first_byte, uint64_t bytes) const {
    return {data() + first_byte, type_, {bytes / bytes_of(type_)}};
  }
  TensorView view() const { return view(0, bytes_); }
  /// Returns the tensor's bytes; `intact` tells whether the guards are.
  Bytes read(bool& intact) const {
    const Bytes all = read_back(accelerator_, begin(), all_bytes_);
    for (size_t i = 0; i < all.size(); ++i)
      if ((i < at_ || i >= at_ + bytes_) && all[i] != 0xee) intact = false;
    return Bytes(all.begin() + static_cast<ptrdiff_t>(at_),
                 all.begin() + static_cast<ptrdiff_t>(at_ + bytes_));
  }

 private:
  static constexpr size_t kGuard = 64;

  uint8_t* begin() const { return own_ ? own_->data() : reinterpret_cast<uint8_t*>(lent_.data()); }

  Accelerator& accelerator_;
  size_t at_, bytes_, all_bytes_;
  DataType type_;
  std::unique_ptr<DeviceArray<uint8_t>> own_;
  ArenaBlock lent_;
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
      shared_ = std::make_unique<GuardedTensor>(world, of, std::max(in, out));
      input_ = shared_->view(in < out ? rank * part : 0, in);
      result_ = shared_->view(out < in ? rank * part : 0, out);
    } else {
      given_ = std::make_unique<GuardedTensor>(world, of, in);
      CallCase shifted = of;
      shifted.offset += of.shift;
      taken_ = std::make_unique<GuardedTensor>(world, shifted, out);
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
    const device_collectives::Reduction by(of_.op, of_.factor);
    switch (of_.operation) {
      case Operation::barrier:
        return collectives.barrier(of_.call);
      case Operation::all_reduce:
        return collectives.all_reduce(input, result, by, of_.call);
      case Operation::reduce:
        return collectives.reduce(input, result, by, of_.root, of_.call);
      case Operation::broadcast:
        return collectives.broadcast(result_, of_.root, of_.call);
      case Operation::all_gather:
        return collectives.all_gather(input, result, of_.call);
      case Operation::gather:
        return collectives.gather(input, result, of_.root, of_.call);
      case Operation::scatter:
        return collectives.scatter(input, result, of_.root, of_.call);
      case Operation::reduce_scatter:
        return collectives.reduce_scatter(input, result, by, of_.call);
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
