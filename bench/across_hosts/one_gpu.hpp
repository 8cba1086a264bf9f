/// One rank of a world of many hosts on one GPU: the kernels are real, and so are all rows that
/// this rank sends, forwards and receives; a thread of the host stands for the wire and the peers.
///
///     rank 0      real: its calls of dispatch and combine, its arena, its rings
///     ranks of    their arenas are on the same GPU; their words come from the card, and what they
///     its host    would send to one another is left out
///     its peers   Wire: take what rank 0 sends, and send as many slots as the routing says
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tokenyard::bench {

struct OneGpuSettings {
  std::vector<uint32_t> hosts{8, 4, 2};
  std::vector<uint32_t> tokens{4096};
  std::vector<uint32_t> sms;  ///< empty: those of the goals
  uint32_t locals = 8, hidden = 7168, topk = 8, experts = 256;
  uint32_t calls = 20, movers = 0, ring_rows = 0, chunk_rows = 0;
  double gb_s = 50, credit_us = 10;
  bool pinned = false;  ///< rings lie in pinned memory of the host
  std::string device = "cuda", output;
};

/// Checks every row and sum, then measures.
void run_one_gpu(const OneGpuSettings& settings);

}  // namespace tokenyard::bench
