#include "tokenyard/doctor.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tokenyard/error.hpp"
#include "tokenyard/version.hpp"
#include "world/doctor_probes.hpp"

namespace tokenyard {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

constexpr std::chrono::milliseconds kShort{20};

const FabricFacts& fabric(const Diagnosis& found, const std::string& name) {
  const auto at = std::find_if(found.fabrics.begin(), found.fabrics.end(),
                               [&](const FabricFacts& facts) { return facts.name == name; });
  if (at == found.fabrics.end()) throw std::runtime_error("no fabric called " + name);
  return *at;
}

/// A machine with two GPUs on which everything works; tests break one thing each.
DoctorProbes sound_machine() {
  NvidiaFacts nvidia;
  nvidia.driver = "580";
  nvidia.descriptors = true;
  for (uint32_t index = 0; index < 2; ++index)
    nvidia.gpus.push_back({.index = index,
                           .cuda_index = static_cast<int32_t>(index),
                           .name = "GPU of a test",
                           .uuid = "GPU-0",
                           .memory_bytes = uint64_t{141} << 30,
                           .links = {index == 0 ? "-" : "NV18", index == 0 ? "NV18" : "-"},
                           .link_bytes_per_second = 450e9});
  return {.nvidia = [nvidia] { return nvidia; },
          .toolkit = [] { return "13.0"; },
          .in_container = [] { return false; },
          .share_memory = [] {},
          .listen = [] {},
          .worlds =
              [](uint32_t ranks, const std::string& device, const WorldOptions& options) {
                return World::in_process(ranks, device, options);
              },
          .network = [] { return "eth0"; },
          .rdma = [] { return "mlx5_0"; }};
}

DoctorProbes without_gpus(NvidiaFacts::Missing missing, const std::string& why_not) {
  DoctorProbes ask = sound_machine();
  NvidiaFacts nvidia;
  nvidia.missing = missing;
  nvidia.why_not = why_not;
  ask.nvidia = [nvidia] { return nvidia; };
  return ask;
}

TEST(Doctor, FindsWhatEveryLinuxHas) {
  const Diagnosis found = doctor();
  EXPECT_TRUE(fabric(found, "host, threads").works);
  EXPECT_TRUE(fabric(found, "host, processes").works) << fabric(found, "host, processes").why;
  EXPECT_TRUE(fabric(found, "host, simulated").works);
  EXPECT_THAT(found.system, HasSubstr("Linux"));
}

TEST(Doctor, GivesAReasonForEverythingAndARemedyForWhatFails) {
  const Diagnosis found = doctor();
  for (const FabricFacts& facts : found.fabrics) {
    EXPECT_NE(facts.why, "") << facts.name;
    EXPECT_TRUE(facts.works || !facts.remedy.empty()) << facts.name;
  }
  EXPECT_NE(found.toolkit, "");
  EXPECT_NE(found.driver, "");
  EXPECT_FALSE(found.gpus.empty() && fabric(found, "nvlink").works);
  for (const GpuFacts& gpu : found.gpus) {
    EXPECT_EQ(gpu.links.size(), found.gpus.size()) << "a link to every GPU, itself included";
    EXPECT_NE(gpu.uuid, "");
  }
}

TEST(Doctor, ReportsInText) {
  Diagnosis found{
      .system = "a machine",
      .toolkit = "13.0",
      .driver = "580",
      .gpus = {{.index = 0,
                .cuda_index = -1,
                .name = "GPU of a test",
                .uuid = "GPU-0",
                .memory_bytes = uint64_t{141} << 30,
                .links = {"-", "NV18"}},
               {.index = 1,
                .cuda_index = 0,
                .name = "GPU of a test",
                .uuid = "GPU-1",
                .domain = "c1.7",
                .memory_bytes = uint64_t{141} << 30,
                .links = {"NV18", "-"}}},
      .fabrics = {{"nvlink", false, "it rained", "open an umbrella"}},
      .self_tests = {
          {.device = "cuda",
           .ranks = 2,
           .how = "peer access (NV18)",
           .dispatch_bytes_per_second = 300e9,
           .combine_bytes_per_second = 315e9,
           .link_bytes_per_second = 450e9,
           .error = "",
           .remedy = ""},
          {.device = "host", .ranks = 4, .how = "", .error = "it hailed", .remedy = "go in"}}};
  EXPECT_EQ(
      found.text(),
      "system        a machine\n"
      "CUDA toolkit  13.0\n"
      "NVIDIA driver 580\n"
      "GPU 0         GPU of a test 141 GiB, GPU-0; links: - NV18; hidden from this process\n"
      "GPU 1         GPU of a test 141 GiB, GPU-1; links: NV18 -; NVLink domain c1.7\n"
      "\n"
      "fabrics\n"
      "  no  nvlink           it rained\n"
      "\n"
      "self-test: dispatch and combine\n"
      "  yes 2 x cuda (peer access (NV18)): each rank received 300 GB/s by dispatch, 315 GB/s "
      "by combine: 70 % of the link's 450 GB/s\n"
      "  no  4 x host: it hailed\n"
      "\n"
      "what to do\n"
      "  nvlink               open an umbrella\n"
      "  self-test, host      go in\n");
  found.fabrics[0] = {"nvlink", true, "it shines", ""};
  found.self_tests.clear();
  EXPECT_THAT(found.text(), EndsWith("\nwhat to do\n  nothing: all of it works\n"));
}

TEST(Doctor, JsonHasTheDocumentedKeys) {
  Diagnosis found = diagnose(sound_machine());
  found.system = "a \"quoted\" \\ machine\n";
  found.self_tests = {{.device = "host", .ranks = 2, .how = "", .error = "", .remedy = ""}};
  const auto json = nlohmann::json::parse(found.json());
  const auto keys = [](const nlohmann::json& object) {
    std::vector<std::string> names;
    for (const auto& [name, value] : object.items()) names.push_back(name);
    return names;
  };
  // In the order of their names.
  EXPECT_THAT(keys(json), testing::ElementsAre("driver", "fabrics", "gpus", "self_tests", "system",
                                               "toolkit", "version"));
  EXPECT_THAT(keys(json["gpus"][0]),
              testing::ElementsAre("cuda_index", "domain", "index", "link_bytes_per_second",
                                   "links", "memory_bytes", "name", "uuid"));
  EXPECT_THAT(keys(json["fabrics"][0]), testing::ElementsAre("name", "remedy", "why", "works"));
  EXPECT_THAT(keys(json["self_tests"][0]),
              testing::ElementsAre("combine_bytes_per_second", "device",
                                   "dispatch_bytes_per_second", "error", "how",
                                   "link_bytes_per_second", "link_share", "ranks", "remedy"));
  EXPECT_EQ(json["system"], found.system);
  EXPECT_EQ(json["version"], TOKENYARD_VERSION_STRING);
  EXPECT_EQ(json["gpus"].size(), 2u);
  EXPECT_EQ(json["gpus"][1]["links"][0], "NV18");
  EXPECT_EQ(json["gpus"][0]["memory_bytes"], uint64_t{141} << 30);
  EXPECT_EQ(json["fabrics"][3]["works"], true);
  EXPECT_TRUE(nlohmann::json::parse(Diagnosis{}.json())["gpus"].empty());
}

TEST(Doctor, HasNothingToAddOnASoundMachine) {
  const Diagnosis found = diagnose(sound_machine());
  for (const FabricFacts& facts : found.fabrics) EXPECT_TRUE(facts.remedy.empty()) << facts.name;
  EXPECT_TRUE(fabric(found, "nvlink").works);
}

TEST(Doctor, ShowsNetworkCards) {
  EXPECT_EQ(fabric(diagnose(sound_machine()), "rdma").why, "mlx5_0");
  DoctorProbes ask = sound_machine();
  const auto refused = [&](const std::string& what) {
    ask.rdma = [what]() -> std::string { throw Unsupported(what, "mlx5_0 port 1: down"); };
    return fabric(diagnose(ask), "rdma");
  };
  EXPECT_FALSE(refused("network \"ibgda\"").works);
  EXPECT_EQ(refused("network \"ibgda\"").why, "mlx5_0 port 1: down");
  EXPECT_THAT(refused("network \"ibgda\"").remedy, HasSubstr("bring a port up"));
  EXPECT_THAT(refused("the network's plug-in libtokenyard_ibgda.so").remedy,
              HasSubstr("--target tokenyard_ibgda_plugin"));
}

TEST(Doctor, ShowsTheNetworkBetweenHosts) {
  EXPECT_EQ(fabric(diagnose(sound_machine()), "network").why, "eth0");
  EXPECT_THAT(fabric(doctor(), "network").why, HasSubstr("lo (127.0.0.1)"));
  DoctorProbes ask = sound_machine();
  ask.network = []() -> std::string {
    throw InvalidArgument("TOKENYARD_NETWORK_QUEUES", "1 to 1024", "0");
  };
  const FabricFacts facts = fabric(diagnose(ask), "network");
  EXPECT_FALSE(facts.works);
  EXPECT_THAT(facts.remedy, HasSubstr("unset TOKENYARD_NETWORK_QUEUES, or set it to 1 to 1024"));
}

TEST(Doctor, SharedMemoryThatFailsLeavesThreads) {
  DoctorProbes ask = sound_machine();
  ask.share_memory = [] { throw OsError("map shared memory", ENOMEM, "out of memory"); };
  const FabricFacts facts = fabric(diagnose(ask), "host, processes");
  EXPECT_FALSE(facts.works);
  EXPECT_THAT(facts.why, HasSubstr("out of memory"));
  EXPECT_THAT(facts.remedy, HasSubstr("processes=False"));
}

TEST(Doctor, ALoopbackThatIsDownIsBroughtUp) {
  DoctorProbes ask = sound_machine();
  ask.listen = [] { throw OsError("listen on 127.0.0.1", EADDRNOTAVAIL, "no such address"); };
  const FabricFacts facts = fabric(diagnose(ask), "host, processes");
  EXPECT_FALSE(facts.works);
  EXPECT_EQ(facts.remedy, "sudo ip link set lo up");
}

TEST(Doctor, EachStateOfTheDriverHasItsRemedy) {
  using Missing = NvidiaFacts::Missing;
  const auto remedy = [](const DoctorProbes& ask) {
    const Diagnosis found = diagnose(ask);
    EXPECT_FALSE(fabric(found, "nvlink").works);
    return fabric(found, "nvlink").remedy;
  };
  EXPECT_THAT(remedy(without_gpus(Missing::library, "no library")),
              HasSubstr("apt-get install nvidia-driver"));
  EXPECT_THAT(remedy(without_gpus(Missing::driver, "no answer")), HasSubstr("modprobe nvidia"));
  EXPECT_THAT(remedy(without_gpus(Missing::gpu, "no GPU")), HasSubstr("lspci"));
  DoctorProbes contained = without_gpus(Missing::library, "no library");
  contained.in_container = [] { return true; };
  EXPECT_THAT(remedy(contained), HasSubstr("--gpus all"));
  EXPECT_THAT(remedy(contained), HasSubstr("device=\"host\""));
}

TEST(Doctor, ABuildWithoutCudaNextToGpusIsToBeRebuilt) {
  DoctorProbes ask = sound_machine();
  ask.toolkit = [] { return ""; };
  const Diagnosis found = diagnose(ask);
  EXPECT_THAT(fabric(found, "nvlink").remedy, HasSubstr("-Ccmake.define.TOKENYARD_CUDA=ON"));
  EXPECT_EQ(self_test(ask, found, kShort).size(), 1u) << "the host alone";
}

TEST(Doctor, GpusThatCannotReachEachOtherAreNamed) {
  DoctorProbes ask = sound_machine();
  NvidiaFacts nvidia = ask.nvidia();
  nvidia.gpus[0].links[1] = "none";
  nvidia.descriptors = false;
  nvidia.descriptors_why_not = "GPU 0 cannot export memory";
  ask.nvidia = [nvidia] { return nvidia; };
  const FabricFacts facts = fabric(diagnose(ask), "nvlink");
  EXPECT_TRUE(facts.works);
  EXPECT_THAT(facts.why, HasSubstr("GPUs 0 and 1 have no peer access"));
  EXPECT_THAT(facts.remedy, HasSubstr("CUDA_VISIBLE_DEVICES"));
  EXPECT_THAT(facts.remedy, HasSubstr("processes=False"));
}

TEST(Doctor, SelfTestTimesTheHost) {
  const auto tests = self_test(Diagnosis{}, kShort);
  ASSERT_EQ(tests.size(), 1u);
  EXPECT_EQ(tests[0].error, "");
  EXPECT_EQ(tests[0].remedy, "");
  EXPECT_EQ(tests[0].device, "host");
  EXPECT_GE(tests[0].ranks, 2u);
  EXPECT_GT(tests[0].dispatch_bytes_per_second, 0);
  EXPECT_GT(tests[0].combine_bytes_per_second, 0);
  EXPECT_EQ(tests[0].link_share(), 0) << "threads have no link";
}

TEST(Doctor, SelfTestComparesWithTheLinkOfGpus) {
  DoctorProbes ask = sound_machine();
  uint32_t asked = 0;
  ask.worlds = [&](uint32_t ranks, const std::string& device, const WorldOptions& options) {
    if (device == "cuda") asked = ranks;
    return World::in_process(ranks, "host", options);  // They act as GPUs.
  };
  const auto tests = self_test(ask, diagnose(ask), kShort);
  ASSERT_EQ(tests.size(), 2u);
  EXPECT_EQ(tests[1].device, "cuda");
  EXPECT_EQ(tests[1].error, "");
  EXPECT_EQ(asked, 2u);
  EXPECT_EQ(tests[1].link_bytes_per_second, 450e9);
  EXPECT_GT(tests[1].link_share(), 0);
}

/// Three GPUs, whose links tell them apart; CUDA shows this process two of them, in its own order.
DoctorProbes machine_with_a_hidden_gpu() {
  DoctorProbes ask = sound_machine();
  NvidiaFacts nvidia = ask.nvidia();
  nvidia.gpus.push_back(nvidia.gpus[1]);
  nvidia.gpus[2].index = 2;
  nvidia.gpus[0].links = {"-", "none", "NV18"};
  nvidia.gpus[1].links = {"none", "-", "none"};
  nvidia.gpus[2].links = {"NV18", "none", "-"};
  nvidia.gpus[2].link_bytes_per_second = 400e9;
  nvidia.gpus[0].cuda_index = 1;
  nvidia.gpus[1].cuda_index = -1;
  nvidia.gpus[2].cuda_index = 0;
  nvidia.visible_devices = "2,0";
  ask.nvidia = [nvidia] { return nvidia; };
  return ask;
}

TEST(Doctor, GpusThatCudaHidesAreNeitherJudgedNorTested) {
  DoctorProbes ask = machine_with_a_hidden_gpu();
  uint32_t asked = 0;
  ask.worlds = [&](uint32_t ranks, const std::string& device, const WorldOptions& options) {
    if (device == "cuda") asked = ranks;
    return World::in_process(ranks, "host", options);  // They act as GPUs.
  };
  const Diagnosis found = diagnose(ask);
  const FabricFacts facts = fabric(found, "nvlink");
  EXPECT_TRUE(facts.works);
  EXPECT_THAT(facts.why, HasSubstr("2 of the machine's 3 GPUs"));
  EXPECT_THAT(facts.why, testing::Not(HasSubstr("no peer access"))) << "the hidden one's";
  EXPECT_THAT(facts.remedy, HasSubstr("unset CUDA_VISIBLE_DEVICES (now '2,0')"));
  const auto tests = self_test(ask, found, kShort);
  ASSERT_EQ(tests.size(), 2u);
  EXPECT_EQ(asked, 2u);
  EXPECT_EQ(tests[1].link_bytes_per_second, 400e9) << "rank 0 is on the first GPU that CUDA counts";
}

TEST(Doctor, NoGpuIsTestedIfCudaShowsNone) {
  DoctorProbes ask = machine_with_a_hidden_gpu();
  NvidiaFacts nvidia = ask.nvidia();
  for (GpuFacts& gpu : nvidia.gpus) gpu.cuda_index = -1;
  nvidia.visible_devices = "";
  nvidia.cuda_why_not = "CUDA shows this process none of them";
  ask.nvidia = [&] { return nvidia; };
  const Diagnosis found = diagnose(ask);
  EXPECT_FALSE(fabric(found, "nvlink").works);
  EXPECT_EQ(fabric(found, "nvlink").why, nvidia.cuda_why_not);
  EXPECT_THAT(fabric(found, "nvlink").remedy, HasSubstr("unset CUDA_VISIBLE_DEVICES"));
  EXPECT_EQ(self_test(ask, found, kShort).size(), 1u) << "the host alone";
  nvidia.visible_devices.reset();
  EXPECT_THAT(fabric(diagnose(ask), "nvlink").remedy, HasSubstr("update of the driver"));
}

TEST(Doctor, SelfTestThatFailsSaysWhyAndWhatToDo) {
  DoctorProbes ask = sound_machine();
  ask.worlds = [](uint32_t, const std::string&,
                  const WorldOptions&) -> std::vector<std::unique_ptr<World>> {
    throw Unsupported("device 'cuda'", "it is ill");
  };
  for (const SelfTest& test : self_test(ask, diagnose(ask), kShort)) {
    EXPECT_THAT(test.error, HasSubstr("it is ill"));
    EXPECT_NE(test.remedy, "");
    EXPECT_EQ(test.dispatch_bytes_per_second, 0);
  }
}

}  // namespace
}  // namespace tokenyard
