// DeclaredAccess compared with a byte map, and tensors that share memory.
#include <gmock/gmock.h>

#include <array>
#include <random>

#include "base/refused.hpp"
#include "megakernel/proofs/declared_access.hpp"
#include "megakernel/sketch.hpp"

namespace tokenyard::megakernel {
namespace {

using testing::HasSubstr;

constexpr uint64_t kBytes = 96;

/// Permitted accesses of one byte.
struct Byte {
  bool known = false;  ///< in a tensor, in a piece or in its guard
  bool piece = false;  ///< in a piece, outside tensors
  bool reads = false, writes = false, adds = false, streams = false;

  bool may(AccessKind access) const {
    if (!known) return true;
    if (piece && (access == AccessKind::read || access == AccessKind::stream)) return true;
    switch (access) {
      case AccessKind::read:
        return reads || streams;
      case AccessKind::write:
        return writes;
      case AccessKind::add:
        return adds || writes;
      case AccessKind::stream:
        return streams;
    }
    return false;
  }
};

TEST(DeclaredAccess, IsWhatAMapOfBytesSays) {
  std::mt19937 random(7);
  const auto below = [&](uint64_t end) { return random() % end; };
  alignas(64) std::array<std::byte, kBytes> memory{};
  for (uint32_t round = 0; round < 200; ++round) {
    std::array<Byte, kBytes> bytes{};
    Graph graph(kinds(), {});
    // A piece of 64 bytes with a guard of 8, and in it three tensors of 16 bytes, in some order.
    graph.reach({memory.data() + 8, {64}}, 8);
    for (uint64_t i = 8; i < 80; ++i) bytes[i].known = true;
    for (uint64_t i = 8; i < 72; ++i) bytes[i].piece = true;
    std::vector<std::pair<Tensor, uint64_t>> tensors;
    for (const uint64_t at : {8 + below(4), 28 + below(4), 52 + below(4)}) {
      tensors.emplace_back(
          graph.tensor(
              {.name = "t", .bytes = 16, .places = {ConstTensorView(memory.data() + at, {16})}}),
          at);
      for (uint64_t i = at; i < at + 16; ++i) bytes[i].piece = false;
    }
    TaskOptions options{.name = "task"};
    for (uint32_t i = 0; i < 6; ++i) {
      const auto& [tensor, at] = tensors[below(3)];
      const uint64_t begin = below(17), end = begin + below(17 - begin);
      const uint32_t kind = static_cast<uint32_t>(below(4));
      std::vector<Region>* const lists[] = {&options.reads, &options.writes, &options.adds,
                                            &options.streams};
      lists[kind]->push_back(tensor.part(begin, end));
      bool Byte::*const flags[] = {&Byte::reads, &Byte::writes, &Byte::adds, &Byte::streams};
      for (uint64_t byte = begin; byte < end; ++byte) bytes[at + byte].*flags[kind] = true;
    }
    graph.add<Nothing>({}, std::move(options));
    const DeclaredAccess declared(graph);
    const auto base = reinterpret_cast<uint64_t>(memory.data());
    for (uint32_t question = 0; question < 200; ++question) {
      const uint64_t begin = below(kBytes), end = begin + below(kBytes - begin + 1);
      const auto access = static_cast<AccessKind>(below(4));
      uint64_t first = begin;
      while (first < end && bytes[first].may(access)) ++first;
      const auto fault = declared.fault(0, base + begin, base + end, access);
      ASSERT_EQ(fault.has_value(), first < end) << round << " " << begin << " " << end;
      if (!fault) continue;
      EXPECT_EQ(fault->begin - base, first);
      ASSERT_LE(fault->end - base, end);
      for (uint64_t byte = first; byte < fault->end - base; ++byte)
        EXPECT_FALSE(bytes[byte].may(access));
    }
  }
}

TEST(DeclaredAccess, TensorsShareNoBytes) {
  alignas(64) std::array<std::byte, 64> memory{};
  Graph graph(kinds(), {.rank = 0, .ranks = 2});
  const auto tensor = [&](const char* name, uint64_t at, uint64_t bytes, uint64_t peer_at) {
    return test::refused([&] {
      graph.tensor({.name = name,
                    .bytes = bytes,
                    .places = {ConstTensorView(memory.data() + at, {bytes}),
                               ConstTensorView(memory.data() + peer_at, {bytes})}});
    });
  };
  EXPECT_EQ(tensor("a", 0, 8, 32), "nothing");
  EXPECT_EQ(tensor("b", 8, 8, 40), "nothing");
  EXPECT_EQ(tensor("c", 15, 1, 48), "piece of tensor 'c'");
  EXPECT_EQ(tensor("d", 16, 8, 33), "piece of tensor 'd'");
  EXPECT_EQ(tensor("e", 16, 8, 48), "nothing");
  EXPECT_EQ(graph.tensors().size(), 3u);
}

TEST(DeclaredAccess, RanksOfATensorAreAllOrOne) {
  Graph graph(kinds(), {.rank = 0, .ranks = 3});
  std::array<std::byte, 8> memory{};
  EXPECT_EQ(test::refused([&] {
              graph.tensor(
                  {.name = "x",
                   .bytes = 4,
                   .places = {ConstTensorView(&memory[0], {4}), ConstTensorView(&memory[4], {4})}});
            }),
            "places of tensor 'x'");
}

TEST(DeclaredAccess, APlaceHasTheBytesOfItsTensor) {
  Graph graph(kinds(), {});
  std::array<std::byte, 8> memory{};
  EXPECT_EQ(test::refused([&] {
              graph.tensor({.name = "x", .bytes = 8, .places = {ConstTensorView(&memory[0], {4})}});
            }),
            "places of tensor 'x'");
}

}  // namespace
}  // namespace tokenyard::megakernel
