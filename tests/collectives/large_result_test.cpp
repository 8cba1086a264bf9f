// Results larger than twice a core's cache bypass the caches, in whole lines: a code path of its
// own, with beginnings and ends inside a line. Ranks write unequal amounts, so that some take that
// path and others do not.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <vector>

#include "collectives/engine_calls.hpp"
#include "collectives/engine_world.hpp"

namespace tokenyard::collectives::testing {
namespace {

using Values = std::vector<float>;

/// Integers small enough for exact sums, different on each rank.
Values values_of(uint32_t rank, size_t elements) {
  Values values(elements);
  for (size_t i = 0; i < elements; ++i) values[i] = static_cast<float>((i * 13 + rank * 101) % 997);
  return values;
}

/// A rank's array, which begins one element into a line.
struct Shifted {
  Values memory;
  explicit Shifted(Values values) : memory(std::move(values)) { memory.insert(memory.begin(), -1); }
  explicit Shifted(size_t elements) : Shifted(Values(elements, -2)) {}
  Array array() { return {memory.data() + 1, memory.size() - 1, DataType::float32}; }
  Values values() const { return {memory.begin() + 1, memory.end()}; }
};

class LargeResults : public ::testing::TestWithParam<uint32_t> {
 protected:
  uint32_t ranks() const { return GetParam(); }
  /// Elements of a rank's part: 3 MiB and a little; a tenth of that on the last rank.
  size_t part_of_rank(uint32_t rank) const {
    return (rank + 1 == ranks() ? size_t{78'643} : size_t{786'432}) + 5 + rank;
  }
  std::vector<Shifted> empty_parts() const {
    std::vector<Shifted> parts;
    for (uint32_t rank = 0; rank < ranks(); ++rank) parts.emplace_back(part_of_rank(rank));
    return parts;
  }
  static std::vector<Array> arrays_of(std::vector<Shifted>& parts) {
    std::vector<Array> arrays;
    for (Shifted& part : parts) arrays.push_back(part.array());
    return arrays;
  }
  template <typename Make>
  void run_all(Make make) {
    EngineWorld world({.ranks = ranks(), .ring_bytes = 500'001, .chunk_bytes = 128 << 10});
    std::vector<std::shared_ptr<Operation>> operations;
    for (uint32_t rank = 0; rank < ranks(); ++rank) {
      operations.push_back(world.start(rank, make(rank)));
    }
    world.run(operations);
    for (const auto& operation : operations) ASSERT_EQ(error_text(*operation), "");
  }
};

TEST_P(LargeResults, AreGathered) {
  std::vector<Shifted> in;
  std::vector<std::vector<Shifted>> out(ranks(), empty_parts());
  for (uint32_t rank = 0; rank < ranks(); ++rank) {
    in.emplace_back(values_of(rank, part_of_rank(rank)));
  }
  run_all([&](uint32_t rank) {
    return Call{.signature = {.kind = OperationKind::all_gather, .type = DataType::float32},
                .in = {in[rank].array()},
                .out = arrays_of(out[rank])};
  });
  for (uint32_t rank = 0; rank < ranks(); ++rank) {
    for (uint32_t from = 0; from < ranks(); ++from) {
      ASSERT_TRUE(out[rank][from].memory == in[from].memory) << rank << " from " << from;
    }
  }
}

TEST_P(LargeResults, AreExchanged) {
  // Each rank sends rank r a part of r's length, and so receives its own length from each.
  std::vector<std::vector<Shifted>> in(ranks()), out(ranks());
  for (uint32_t rank = 0; rank < ranks(); ++rank) {
    for (uint32_t other = 0; other < ranks(); ++other) {
      in[rank].emplace_back(values_of(rank * ranks() + other, part_of_rank(other)));
      out[rank].emplace_back(part_of_rank(rank));
    }
  }
  run_all([&](uint32_t rank) {
    const std::vector<Array> parts = arrays_of(in[rank]);
    return Call{.signature = {.kind = OperationKind::all_to_all, .type = DataType::float32},
                .in = {parts.begin(), parts.end()},
                .out = arrays_of(out[rank])};
  });
  for (uint32_t rank = 0; rank < ranks(); ++rank) {
    for (uint32_t from = 0; from < ranks(); ++from) {
      ASSERT_TRUE(out[rank][from].memory == in[from][rank].memory) << rank << " from " << from;
    }
  }
}

TEST_P(LargeResults, AreAddedUp) {
  const size_t elements = 2 * part_of_rank(0);
  std::vector<Shifted> all, sums;
  std::vector<std::vector<Shifted>> parts(ranks());
  Values sum(elements, 0);
  for (uint32_t rank = 0; rank < ranks(); ++rank) {
    const Values mine = values_of(rank, elements);
    for (size_t i = 0; i < elements; ++i) sum[i] += mine[i];
    all.emplace_back(mine);
    sums.emplace_back(elements);
    for (uint32_t to = 0; to < ranks(); ++to) parts[rank].emplace_back(mine);
  }
  run_all([&](uint32_t rank) {
    const std::vector<Array> mine = arrays_of(parts[rank]);
    return Call{.signature = {.kind = OperationKind::reduce_scatter, .type = DataType::float32},
                .in = {mine.begin(), mine.end()},
                .out = {sums[rank].array()}};
  });
  run_all([&](uint32_t rank) { return all_reduce_call(all[rank].array()); });
  for (uint32_t rank = 0; rank < ranks(); ++rank) {
    ASSERT_TRUE(sums[rank].values() == sum) << rank;
    ASSERT_TRUE(all[rank].values() == sum) << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, LargeResults, ::testing::Values(1, 2, 3),
                         [](const auto& info) { return fmt::format("{}", info.param); });

}  // namespace
}  // namespace tokenyard::collectives::testing
