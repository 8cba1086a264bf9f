#include "device/architectures.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tokenyard {
namespace {

using testing::HasSubstr;

constexpr ComputeCapability kA100{8, 0}, kL4{8, 9}, kH200{9, 0}, kB200{10, 0}, kB300{10, 3},
    kRtx5090{12, 0};

TEST(Architectures, MachineCodeThatIsBoundToOneRunsThereOnly) {
  EXPECT_TRUE(has_code_for("90a-real,100a-real", kH200));
  EXPECT_TRUE(has_code_for("90a-real,100a-real", kB200));
  EXPECT_FALSE(has_code_for("90a-real,100a-real", kB300));
  EXPECT_FALSE(has_code_for("90a-real,100a-real", kRtx5090));
  EXPECT_FALSE(has_code_for("90a-real,100a-real", kA100));
}

TEST(Architectures, MachineCodeRunsOnNewerOnesOfItsMajorVersion) {
  EXPECT_TRUE(has_code_for("80-real", kL4));
  EXPECT_FALSE(has_code_for("89-real", kA100));
  EXPECT_FALSE(has_code_for("90-real", kB200));
  EXPECT_TRUE(has_code_for("100f-real", kB300));
  EXPECT_FALSE(has_code_for("100f-real", kRtx5090));
}

TEST(Architectures, PtxRunsOnAllThatAreNotOlder) {
  EXPECT_TRUE(has_code_for("90a-real,90-virtual", kRtx5090));
  EXPECT_TRUE(has_code_for("90", kRtx5090));
  EXPECT_FALSE(has_code_for("90-virtual", kL4));
  EXPECT_FALSE(has_code_for("90a-virtual", kB200));
}

TEST(Architectures, ListsWithoutNumbersCountAsAll) {
  EXPECT_TRUE(has_code_for("native", kA100));
  EXPECT_TRUE(has_code_for("all-major", kB300));
}

TEST(Architectures, AGpuWithoutCodeIsNamedWithWhatToDo) {
  EXPECT_EQ(missing_code("90a-real", kH200), "");
  EXPECT_THAT(missing_code("90a-real", kA100), HasSubstr("sm_80, and kernels need sm_90 (H100)"));
  EXPECT_THAT(missing_code("90a-real", kA100), HasSubstr("device='host'"));
  EXPECT_THAT(missing_code("90a-real,100a-real", kB300),
              HasSubstr("sm_103, and this build has code for 90a-real,100a-real only"));
  EXPECT_THAT(missing_code("90a-real", kB300), HasSubstr("CMAKE_CUDA_ARCHITECTURES=103a-real"));
}

}  // namespace
}  // namespace tokenyard
