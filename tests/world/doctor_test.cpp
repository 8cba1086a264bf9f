#include "tokenyard/doctor.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace tokenyard {
namespace {

using testing::HasSubstr;

const FabricFacts& fabric(const Diagnosis& found, const std::string& name) {
  const auto at = std::find_if(found.fabrics.begin(), found.fabrics.end(),
                               [&](const FabricFacts& facts) { return facts.name == name; });
  if (at == found.fabrics.end()) throw std::runtime_error("no fabric called " + name);
  return *at;
}

TEST(Doctor, FindsWhatEveryLinuxHas) {
  const Diagnosis found = doctor();
  EXPECT_TRUE(fabric(found, "host, threads").works);
  EXPECT_TRUE(fabric(found, "host, processes").works) << fabric(found, "host, processes").why;
  EXPECT_TRUE(fabric(found, "host, simulated").works);
  EXPECT_THAT(found.system, HasSubstr("Linux"));
}

TEST(Doctor, GivesAReasonForEverything) {
  const Diagnosis found = doctor();
  for (const FabricFacts& facts : found.fabrics) EXPECT_NE(facts.why, "") << facts.name;
  EXPECT_NE(found.toolkit, "");
  EXPECT_NE(found.driver, "");
  EXPECT_FALSE(found.gpus.empty() && fabric(found, "nvlink").works);
  for (const GpuFacts& gpu : found.gpus) {
    EXPECT_EQ(gpu.links.size(), found.gpus.size()) << "a link to every GPU, itself included";
    EXPECT_NE(gpu.uuid, "");
  }
}

TEST(Doctor, ReportsInText) {
  const Diagnosis found{.system = "a machine",
                        .toolkit = "13.0",
                        .driver = "580",
                        .gpus = {{.index = 1,
                                  .name = "GPU of a test",
                                  .uuid = "GPU-1",
                                  .memory_bytes = uint64_t{141} << 30,
                                  .links = {"NV18", "-"}}},
                        .fabrics = {{"nvlink", false, "it rained"}}};
  EXPECT_EQ(found.text(),
            "system        a machine\n"
            "CUDA toolkit  13.0\n"
            "NVIDIA driver 580\n"
            "GPU 1         GPU of a test 141 GiB, GPU-1; links: NV18 -\n"
            "\n"
            "fabrics\n"
            "  no  nvlink           it rained\n");
}

}  // namespace
}  // namespace tokenyard
