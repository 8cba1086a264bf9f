#include "fabric/gather.hpp"

#include <gtest/gtest.h>

#include "fabric/bootstrap.hpp"
#include "fabric/in_process_mesh.hpp"
#include "fabric/manual_accelerator.hpp"
#include "fabric/ranks.hpp"
#include "fabric/worlds.hpp"

namespace tokenyard {
namespace {

struct Place {
  uint64_t offset;
  uint32_t rank;
  bool shared;
  bool operator==(const Place&) const = default;
};

Place place_of(uint32_t rank) {
  return {uint64_t{rank} << 40, rank, rank % 2 == 1};
}

TEST(Gather, GivesTheValueOfEachRank) {
  run_threads("host", 3, {.arena_bytes = 4096}, [](World& world) {
    const auto places = gather(world, place_of(world.rank()), "places");
    EXPECT_EQ(places, (std::vector{place_of(0), place_of(1), place_of(2)}));
  });
}

/// Ranks 1 and 2 send 4 bytes and rank 0 sends 8, as ranks of different builds may.
TEST(Gather, NamesTheRankThatSendsAnotherSize) {
  const auto meshes = InProcessMesh::make(3);
  const auto failures = run_ranks(3, [&](uint32_t rank) {
    ManualAccelerator accelerator;
    AbortFlag abort_flag(accelerator);
    Bootstrap talk(meshes[rank], Membership::of(*meshes[rank]), accelerator, abort_flag);
    const TimePoint until = accelerator.now() + std::chrono::seconds(30);
    if (rank == 0)
      gather(talk, uint64_t{7}, "places", until);
    else
      gather(talk, uint32_t{7}, "places", until);
  });
  const auto says = [&](uint32_t rank, uint32_t named, const std::string& expected,
                        const std::string& seen) {
    EXPECT_TRUE(holds<InvalidArgument>(failures[rank], [&](const InvalidArgument& error) {
      EXPECT_EQ(error.argument, "places");
      EXPECT_EQ(error.rank, named);
      EXPECT_EQ(error.expected, expected);
      EXPECT_EQ(error.seen, seen);
    }));
  };
  says(0, 1, "8 bytes", "4 bytes");
  says(1, 0, "4 bytes", "8 bytes");
  says(2, 0, "4 bytes", "8 bytes");
}

// The concept is checked at compile time.
static_assert(PlainValue<Place> && PlainValue<float>);
static_assert(!PlainValue<bool> && !PlainValue<std::string>);

}  // namespace
}  // namespace tokenyard
