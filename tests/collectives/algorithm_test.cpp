// Every operation, type, algorithm, number of ranks and many lengths against plain loops. Values
// are small integers, so that every order of adding gives the same sum.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "collectives/algorithms/reduce.hpp"
#include "collectives/engine_calls.hpp"
#include "collectives/engine_world.hpp"

namespace tokenyard::collectives::testing {
namespace {

const DataType all_types[] = {DataType::boolean, DataType::uint8,     DataType::int8,
                              DataType::uint16,  DataType::int16,     DataType::uint32,
                              DataType::int32,   DataType::uint64,    DataType::int64,
                              DataType::float16, DataType::bfloat16,  DataType::float32,
                              DataType::float64, DataType::complex64, DataType::complex128};
const size_t lengths[] = {0, 1, 7, 1023, 5000};

/// Bytes of elements made from integers.
struct Elements {
  DataType type;
  std::vector<std::byte> bytes;
  size_t size() const { return bytes.size() / bytes_of(type); }
  Array array() { return {bytes.data(), size(), type}; }
  bool operator==(const Elements&) const = default;
};

template <typename T>
void put(Elements& elements, size_t index, T value) {
  std::memcpy(elements.bytes.data() + index * bytes_of(elements.type), &value, sizeof value);
}

Elements from_numbers(DataType type, const std::vector<int>& numbers) {
  Elements elements = {type, std::vector<std::byte>(numbers.size() * bytes_of(type))};
  for (size_t i = 0; i < numbers.size(); ++i) {
    const int n = numbers[i];
    switch (type) {
      case DataType::boolean:
        put(elements, i, static_cast<uint8_t>(n != 0));
        break;
      case DataType::uint8:
      case DataType::int8:
      case DataType::float8_e5m2:
      case DataType::float8_e4m3fn:  // Moved, and never reduced.
        put(elements, i, static_cast<uint8_t>(n));
        break;
      case DataType::uint16:
      case DataType::int16:
        put(elements, i, static_cast<uint16_t>(n));
        break;
      case DataType::uint32:
      case DataType::int32:
        put(elements, i, n);
        break;
      case DataType::uint64:
      case DataType::int64:
        put(elements, i, static_cast<int64_t>(n));
        break;
      case DataType::float64:
        put(elements, i, static_cast<double>(n));
        break;
      case DataType::complex128: {
        const double parts[2] = {static_cast<double>(n), 0};
        std::memcpy(elements.bytes.data() + i * 16, parts, 16);
        break;
      }
      case DataType::complex64: {
        const float parts[2] = {static_cast<float>(n), 0};
        std::memcpy(elements.bytes.data() + i * 8, parts, 8);
        break;
      }
      case DataType::float32:
        put(elements, i, static_cast<float>(n));
        break;
      case DataType::float16:
      case DataType::bfloat16: {
        const float wide = static_cast<float>(n);
        narrow(elements.bytes.data() + i * 2, &wide, type, 1);
        break;
      }
    }
  }
  return elements;
}

/// A rank's input: numbers from 0 to 3, so that no sum or product overflows any type.
std::vector<int> numbers_of(uint32_t rank, size_t count, int salt = 0) {
  std::vector<int> numbers(count);
  for (size_t i = 0; i < count; ++i) {
    numbers[i] = static_cast<int>((i * 7 + rank * 3 + static_cast<size_t>(salt)) % 4);
  }
  return numbers;
}

std::vector<int> reduced(const std::vector<std::vector<int>>& all, ReduceOp op, DataType type) {
  std::vector<int> result = all[0];
  for (size_t rank = 1; rank < all.size(); ++rank) {
    for (size_t i = 0; i < result.size(); ++i) {
      const int a = result[i], b = all[rank][i];
      switch (op) {
        case ReduceOp::sum:
        case ReduceOp::average:
          result[i] = a + b;
          break;
        case ReduceOp::product:
          result[i] = type == DataType::boolean ? (a != 0 && b != 0) : a * b;
          break;
        case ReduceOp::min:
          result[i] = type == DataType::boolean ? (a != 0 && b != 0) : std::min(a, b);
          break;
        case ReduceOp::max:
          result[i] = std::max(a, b);
          break;
        case ReduceOp::bit_and:
          result[i] = type == DataType::boolean ? (a != 0 && b != 0) : (a & b);
          break;
        case ReduceOp::bit_or:
          result[i] = a | b;
          break;
        case ReduceOp::bit_xor:
          result[i] = type == DataType::boolean ? (a != 0) != (b != 0) : a ^ b;
          break;
      }
    }
  }
  return result;
}

std::vector<ReduceOp> ops_of(DataType type) {
  std::vector<ReduceOp> ops;
  for (int op = 0; op < 8; ++op) {
    try {
      check_reducible(type, static_cast<ReduceOp>(op));
      if (static_cast<ReduceOp>(op) != ReduceOp::average) ops.push_back(static_cast<ReduceOp>(op));
    } catch (const InvalidArgument&) {
      continue;
    }
  }
  return ops;
}

/// Starts `make(rank)` on all ranks and waits.
void run_all(EngineWorld& world, uint32_t ranks, const std::function<Call(uint32_t)>& make) {
  std::vector<std::shared_ptr<Operation>> operations;
  for (uint32_t rank = 0; rank < ranks; ++rank) operations.push_back(world.start(rank, make(rank)));
  world.run(operations);
  for (const auto& operation : operations) ASSERT_EQ(error_text(*operation), "");
}

struct Layout {
  uint32_t ranks;
  std::vector<uint64_t> hosts;
};
const Layout layouts[] = {{1, {}},       {2, {}}, {3, {}},           {4, {}},
                          {5, {}},       {6, {}}, {4, {0, 0, 1, 1}}, {5, {0, 1, 0, 2, 1}},
                          {3, {0, 1, 2}}};

class Algorithms : public ::testing::TestWithParam<size_t> {
 protected:
  Layout layout() const { return layouts[GetParam()]; }
  /// Rings of an odd size, so that elements are torn.
  EngineWorld make_world() const {
    return EngineWorld({.ranks = layout().ranks,
                        .ring_bytes = 4003,
                        .chunk_bytes = 2048,
                        .hosts = layout().hosts});
  }
};

TEST_P(Algorithms, AllReduceEqualsALoop) {
  const uint32_t ranks = layout().ranks;
  EngineWorld world = make_world();
  for (const DataType type : all_types) {
    for (const ReduceOp op : ops_of(type)) {
      for (const size_t length : lengths) {
        if (length == 5000 && type != DataType::float32 && type != DataType::float16) continue;
        for (const Algorithm algorithm :
             {Algorithm::automatic, Algorithm::doubling, Algorithm::halving_doubling,
              Algorithm::ring, Algorithm::direct, Algorithm::tree}) {
          if (op != ReduceOp::sum && algorithm != Algorithm::automatic) continue;
          SCOPED_TRACE(
              fmt::format("{} {} {} {}", name_of(type), name_of(op), length, name_of(algorithm)));
          std::vector<std::vector<int>> numbers;
          std::vector<Elements> elements;
          for (uint32_t rank = 0; rank < ranks; ++rank) {
            numbers.push_back(numbers_of(rank, length));
            elements.push_back(from_numbers(type, numbers[rank]));
          }
          run_all(world, ranks, [&](uint32_t rank) {
            return all_reduce_call(elements[rank].array(), op, algorithm);
          });
          const Elements expected = from_numbers(type, reduced(numbers, op, type));
          for (uint32_t rank = 0; rank < ranks; ++rank) ASSERT_TRUE(elements[rank] == expected);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(Algorithms, ReduceAndBroadcastEqualALoop) {
  const uint32_t ranks = layout().ranks;
  EngineWorld world = make_world();
  for (const DataType type : {DataType::int32, DataType::bfloat16, DataType::complex128}) {
    for (const size_t length : lengths) {
      for (const Algorithm algorithm : {Algorithm::automatic, Algorithm::tree, Algorithm::ring}) {
        for (uint32_t root = 0; root < ranks; ++root) {
          SCOPED_TRACE(
              fmt::format("{} {} {} root {}", name_of(type), length, name_of(algorithm), root));
          std::vector<std::vector<int>> numbers;
          std::vector<Elements> elements;
          for (uint32_t rank = 0; rank < ranks; ++rank) {
            numbers.push_back(numbers_of(rank, length));
            elements.push_back(from_numbers(type, numbers[rank]));
          }
          run_all(world, ranks, [&](uint32_t rank) {
            return reduce_call(elements[rank].array(), ReduceOp::sum, root, algorithm);
          });
          const Elements sum = from_numbers(type, reduced(numbers, ReduceOp::sum, type));
          for (uint32_t rank = 0; rank < ranks; ++rank) {
            ASSERT_TRUE(elements[rank] == (rank == root ? sum : from_numbers(type, numbers[rank])));
          }
          run_all(world, ranks, [&](uint32_t rank) {
            return broadcast_call(elements[rank].array(), root, algorithm);
          });
          for (uint32_t rank = 0; rank < ranks; ++rank) ASSERT_TRUE(elements[rank] == sum);
        }
      }
    }
  }
}

TEST_P(Algorithms, PartsOfAnyLengthArrive) {
  const uint32_t ranks = layout().ranks;
  EngineWorld world = make_world();
  const DataType type = DataType::int16;
  const auto length_of = [](uint32_t one, uint32_t other, size_t base) {
    return base == 0 ? 0 : (base + one * 17 + other * 31) % (base + 50);
  };
  for (const size_t base : lengths) {
    for (const Algorithm algorithm : {Algorithm::automatic, Algorithm::ring, Algorithm::direct}) {
      SCOPED_TRACE(fmt::format("{} {}", base, name_of(algorithm)));
      // all_gather: rank r's part has the same length on all ranks.
      std::vector<Elements> in(ranks);
      std::vector<std::vector<Elements>> out(ranks);
      std::vector<std::vector<Array>> out_arrays(ranks);
      size_t bytes = 0;
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        in[rank] = from_numbers(type, numbers_of(rank, length_of(rank, 0, base)));
        bytes += in[rank].bytes.size();
        for (uint32_t from = 0; from < ranks; ++from) {
          out[rank].push_back(from_numbers(type, std::vector<int>(length_of(from, 0, base), -1)));
        }
        for (Elements& part : out[rank]) out_arrays[rank].push_back(part.array());
      }
      run_all(world, ranks, [&](uint32_t rank) {
        return Call{
            .signature = {.kind = OperationKind::all_gather, .type = type, .algorithm = algorithm},
            .in = {in[rank].array()},
            .out = out_arrays[rank],
            .bytes = bytes};
      });
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        for (uint32_t from = 0; from < ranks; ++from) ASSERT_TRUE(out[rank][from] == in[from]);
      }

      // reduce_scatter: all ranks' parts for rank r have the same length.
      std::vector<Elements> sums(ranks);
      std::vector<std::vector<Elements>> parts(ranks);
      std::vector<std::vector<ConstArray>> part_arrays(ranks);
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        sums[rank] = from_numbers(type, std::vector<int>(length_of(rank, 0, base), -1));
        for (uint32_t to = 0; to < ranks; ++to) {
          parts[rank].push_back(
              from_numbers(type, numbers_of(rank, length_of(to, 0, base), static_cast<int>(to))));
        }
        for (Elements& part : parts[rank]) part_arrays[rank].push_back(part.array());
      }
      run_all(world, ranks, [&](uint32_t rank) {
        return Call{.signature = {.kind = OperationKind::reduce_scatter,
                                  .type = type,
                                  .algorithm = algorithm},
                    .in = part_arrays[rank],
                    .out = {sums[rank].array()},
                    .bytes = bytes};
      });
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        std::vector<std::vector<int>> numbers;
        for (uint32_t from = 0; from < ranks; ++from) {
          numbers.push_back(numbers_of(from, length_of(rank, 0, base), static_cast<int>(rank)));
        }
        ASSERT_TRUE(sums[rank] == from_numbers(type, reduced(numbers, ReduceOp::sum, type)));
      }
    }

    // all_to_all, gather and scatter: each pair has a length of its own.
    std::vector<std::vector<Elements>> sent(ranks), got(ranks);
    std::vector<std::vector<ConstArray>> sent_arrays(ranks);
    std::vector<std::vector<Array>> got_arrays(ranks);
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      for (uint32_t other = 0; other < ranks; ++other) {
        sent[rank].push_back(from_numbers(type, numbers_of(rank, length_of(rank, other, base), 5)));
        got[rank].push_back(from_numbers(type, std::vector<int>(length_of(other, rank, base), -1)));
      }
      for (Elements& part : sent[rank]) sent_arrays[rank].push_back(part.array());
      for (Elements& part : got[rank]) got_arrays[rank].push_back(part.array());
    }
    run_all(world, ranks, [&](uint32_t rank) {
      return Call{.signature = {.kind = OperationKind::all_to_all, .type = type},
                  .in = sent_arrays[rank],
                  .out = got_arrays[rank]};
    });
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      for (uint32_t from = 0; from < ranks; ++from)
        ASSERT_TRUE(got[rank][from] == sent[from][rank]);
    }
    const uint32_t root = ranks - 1;
    for (Elements& part : got[root]) part = from_numbers(type, std::vector<int>(part.size(), -1));
    got_arrays[root].clear();
    for (Elements& part : got[root]) got_arrays[root].push_back(part.array());
    run_all(world, ranks, [&](uint32_t rank) {
      return Call{.signature = {.kind = OperationKind::gather, .type = type, .root = root},
                  .in = {sent_arrays[rank][root]},
                  .out = rank == root ? got_arrays[root] : std::vector<Array>{}};
    });
    for (uint32_t from = 0; from < ranks; ++from) ASSERT_TRUE(got[root][from] == sent[from][root]);
    run_all(world, ranks, [&](uint32_t rank) {
      return Call{.signature = {.kind = OperationKind::scatter, .type = type, .root = root},
                  .in = rank == root ? sent_arrays[root] : std::vector<ConstArray>{},
                  .out = {got_arrays[rank][root]}};
    });
    for (uint32_t rank = 0; rank < ranks; ++rank) ASSERT_TRUE(got[rank][root] == sent[root][rank]);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, Algorithms, ::testing::Range<size_t>(0, std::size(layouts)),
                         [](const auto& info) {
                           const Layout& layout = layouts[info.param];
                           return fmt::format(
                               "{}ranks{}", layout.ranks,
                               layout.hosts.empty() ? "" : fmt::format("Layout{}", info.param));
                         });

}  // namespace
}  // namespace tokenyard::collectives::testing
