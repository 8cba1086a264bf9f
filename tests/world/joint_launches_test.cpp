/// Ranks that end do not hold up the launches of ranks that share their device.
#include "device/joint_launches.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "fabric/host/in_process_fabric.hpp"
#include "fabric/manual_accelerator.hpp"
#include "world/in_process.hpp"

namespace tokenyard {

namespace {

class SharedDevice final : public ManualAccelerator, public JointLauncher {
 public:
  void retire() override { has_retired = true; }

  bool has_retired = false;
};

TEST(RanksThatShareADevice, RetireWhenTheyEnd) {
  const std::vector devices{std::make_shared<SharedDevice>(), std::make_shared<SharedDevice>(),
                            std::make_shared<SharedDevice>()};
  const auto worlds = join_all({devices.begin(), devices.end()},
                               std::make_shared<InProcessFabric>(1u), {.arena_bytes = 1 << 16});
  worlds[0]->goodbye()();
  EXPECT_TRUE(devices[0]->has_retired);
  worlds[1]->cancel();
  EXPECT_TRUE(devices[1]->has_retired);
  EXPECT_FALSE(devices[2]->has_retired);
}

}  // namespace

}  // namespace tokenyard
