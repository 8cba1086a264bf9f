#include "fabric/network/mlx5_check.hpp"

#include "fabric/network_fault.hpp"

namespace tokenyard {

void check_mlx5(Accelerator& accelerator, const QueuePair& pair, const Mlx5Pair& queue,
                const AbortWord* gone, const std::string& phase) {
  if (accelerator.read_flag(&pair.refused) != 0) return;
  const mlx5::Completion& entry = *queue.completion;
  const uint32_t word = accelerator.read_flag(&entry.index_opcode);
  if (mlx5::completed_of(word) != mlx5::Completed::request_error) return;
  const auto syndrome = mlx5::syndrome_of(accelerator.read_flag(&entry.syndromes));
  const AbortWord abort = accelerator.read_flag(gone);
  if (syndrome == mlx5::Syndrome::retry_exceeded || (abort != kNoAbort && abort != kCancelled))
    return;
  const mlx5::Block& block = queue.blocks[mlx5::index_of(word) % queue.slots];
  const Mlx5Refusal refusal = mlx5_refusal(block, syndrome);
  throw network_fault({.check = static_cast<uint32_t>(refusal.check),
                       .rank = pair.rank,
                       .queue = pair.number,
                       .region = refusal.facts.region},
                      pair.peer, phase, refusal.facts.expected, refusal.facts.seen);
}

bool has_failed_request(Accelerator& accelerator, const Mlx5Pair& queue) {
  const uint32_t word = accelerator.read_flag(&queue.completion->index_opcode);
  return mlx5::completed_of(word) == mlx5::Completed::request_error;
}

}  // namespace tokenyard
