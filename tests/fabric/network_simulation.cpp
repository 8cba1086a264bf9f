/// Suites `network` and `ibgda`: the contract of networks over the simulated card, and over a
/// software mlx5 card, which reads the entries that kernels write for a ConnectX, under the memory
/// model.
#include "fabric/network_kernel_definitions.hpp"
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
                   {Fault::release_made_relaxed, "gate_kernel.hpp:11", kMessage},
                   {Fault::sys_made_gpu, "gate_kernel.hpp:11", kMessage},
                   {Fault::sys_made_gpu, "network_request.hpp:125", kGone},
                   {Fault::sys_made_gpu, "nic_queue.hpp:333", kMessage},
                   {Fault::sys_made_gpu, "network.hpp:178", kOneRank},
                   {Fault::sys_made_gpu, "network.hpp:192", kOneRank},
                   {Fault::sys_made_gpu, "network.hpp:198", kOneRank},
                   {Fault::sys_made_gpu, "request_front.hpp:18", kOneRank},
                   {Fault::sys_made_gpu, "request_front.hpp:26", kOneRank}},
     .seeds = 1000});

const bool ibgda_registered = simulation::add_suite(
    {.name = "ibgda",
     .what = "kernels that write the entries of an mlx5 card, and a software card that reads them",
     .run = [](SeedRun& run) { network_seed(run, true); },
     .explained = {{Fault::release_made_relaxed, "memory.hpp:51", kReport},
                   {Fault::sys_made_gpu, "memory.hpp:51", kReport},
                   {Fault::release_made_relaxed, "gate_kernel.hpp:11", kMessage},
                   {Fault::sys_made_gpu, "gate_kernel.hpp:11", kMessage},
                   {Fault::sys_made_gpu, "network_request.hpp:125", kGone},
                   {Fault::sys_made_gpu, "nic_queue.hpp:333", kMessage},
                   {Fault::sys_made_gpu, "mlx5_queue.hpp:302", kOneRank},
                   {Fault::sys_made_gpu, "mlx5_queue.hpp:304", kOneRank},
                   {Fault::sys_made_gpu, "mlx5_queue.hpp:328", kOneRank},
                   {Fault::sys_made_gpu, "mlx5_queue.hpp:337", kOneRank},
                   {Fault::sys_made_gpu, "mlx5_queue.hpp:361", kOneRank},
                   {Fault::sys_made_gpu, "mlx5_front.hpp:32", kOneRank},
                   {Fault::sys_made_gpu, "mlx5_front.hpp:38", kOneRank},
                   {Fault::sys_made_gpu, "mlx5_front.hpp:77", kOneRank},
                   {Fault::sys_made_gpu, "mlx5_front.hpp:137", kOneRank},
                   {Fault::sys_made_gpu, "mlx5_front.hpp:140", kOneRank}},
     .seeds = 1000});

}  // namespace
}  // namespace tokenyard::testing
