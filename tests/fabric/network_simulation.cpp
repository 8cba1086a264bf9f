/// Suites `network` and `ibgda`: the contract of networks over the simulated card, and over a
/// software mlx5 card, which reads the entries that kernels write for a ConnectX, under the memory
/// model.
#include "fabric/network_seed.hpp"

namespace tokenyard::testing {
namespace {

using simulation::Fault;

constexpr const char* kReport =
    "polls the abort flag or writes the report, which the host reads only after the kernel";
constexpr const char* kOneRank =
    "the card is simulated by a kernel of the same rank, which gpu scope includes; a real card is "
    "outside";
constexpr const char* kMessage =
    "a rank learns a key by a message between hosts, which orders the region before it";
constexpr const char* kGone = "asks whether a rank is gone, and no data depends on the answer";

const bool registered = simulation::add_suite(
    {.name = "network",
     .what = "puts and signals between hosts",
     .run = [](SeedRun& run) { network_seed(run, false); },
     .explained = {{Fault::release_made_relaxed, "memory.hpp:51", kReport},
                   {Fault::sys_made_gpu, "memory.hpp:51", kReport},
                   {Fault::release_made_relaxed, "gate_kernel.hpp:19", kMessage},
                   {Fault::sys_made_gpu, "gate_kernel.hpp:19", kMessage},
                   {Fault::sys_made_gpu, "gate_kernel.hpp:11", kGone},
                   {Fault::sys_made_gpu, "nic_kernel.hpp:262", kMessage},
                   {Fault::sys_made_gpu, "network.hpp:180", kOneRank},
                   {Fault::sys_made_gpu, "network.hpp:190", kOneRank},
                   {Fault::sys_made_gpu, "network.hpp:200", kOneRank},
                   {Fault::sys_made_gpu, "network.hpp:204", kOneRank},
                   {Fault::sys_made_gpu, "nic_kernel.hpp:115", kOneRank},
                   {Fault::sys_made_gpu, "nic_kernel.hpp:370", kOneRank}},
     .reaches = {{std::string(kNoticed[0]), 300}, {std::string(kNoticed[1]), 300}},
     .seeds = 1000});

const bool ibgda_registered = simulation::add_suite(
    {.name = "ibgda",
     .what = "kernels that write the entries of an mlx5 card, and a software card that reads them",
     .run = [](SeedRun& run) { network_seed(run, true); },
     .reaches = {{std::string(kNoticed[0]), 300}, {std::string(kNoticed[1]), 300}},
     .seeds = 1000});

}  // namespace
}  // namespace tokenyard::testing
