/// Dispatch and combine: every token to the ranks that hold its experts, and the results home.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tokenyard/world.hpp"

namespace tokenyard {

struct ExpertParallelOptions {
  uint32_t experts = 0;  ///< in all; a multiple of the ranks; rank r holds [r, r+1) * experts/ranks
  uint32_t hidden = 0;   ///< elements a token; a multiple of 8
  uint32_t topk = 0;     ///< experts a token, 1 .. 32
  uint32_t tokens_max = 0;  ///< tokens a rank and call; bounds the memory reserved for a call
  uint32_t sms = 0;         ///< multiprocessors (blocks) a call may use; 0: chosen, see sms(). The
                            ///< results are the same, bit for bit, for every number
};

/// What a rank gives to a dispatch. Memory that the rank's kernels can read: host memory on a host
/// world, device memory on a GPU; it must stay unchanged until the call's work has ended.
struct DispatchInput {
  const void* x = nullptr;         ///< [tokens, hidden] bf16, 16-byte aligned
  const void* topk_idx = nullptr;  ///< [tokens, topk] int64 or int32: expert ids, -1 for none
  bool idx_is_int64 = true;
  const float* topk_weights = nullptr;  ///< [tokens, topk]
  uint32_t tokens = 0;
};

/// Where each token of a call went; keeps what combine and a repeated dispatch need. Shared by
/// copy.
class Route;

/// What a rank received, in arena memory: rows in the order of their source rank, then source
/// token. The memory is freed, in stream order, when the last copy of this and of the Route is
/// gone.
class Received;

class ExpertParallel {
 public:
  /// Collective. All ranks give the same options (`sms` may differ), or all throw InvalidArgument.
  /// Throws Unsupported if a rank is not within load/store reach. The World outlives the object,
  /// and whatever it returned.
  ExpertParallel(World& world, const ExpertParallelOptions& options);
  ~ExpertParallel();

  /// Collective. Enqueues on `stream` and waits for the counts, not for the rows. Throws
  /// InvalidArgument before anything is launched for what the host can see; on all ranks alike,
  /// before a row moves, for a bad id anywhere (out of range, or twice in a token): the object then
  /// goes on as if the call had not been. Throws InvalidArgument if ranks make different calls,
  /// PeerTimeout or PeerLost if one does not answer: the object is then failed, and what was
  /// received must not be used.
  Received dispatch(const DispatchInput& input, uint64_t stream = 0);
  /// The same route again with other rows (tokens as before): nothing is counted or exchanged anew.
  Received dispatch(const void* x, const Route& route, uint64_t stream = 0);

  /// Collective. `y`: [rows received, hidden] bf16, row i the result for received row i; in arena
  /// memory (see output_buffer) it is read in place, else copied there first. `out`: [tokens,
  /// hidden] bf16: for every token the fp32 sum, in rank order, over the ranks it went to, rounded
  /// once; zeros for a token that went nowhere. `weights` and `out_weights`, both or neither, alike
  /// on all ranks: [rows received, topk] in, [tokens, topk] out: brought home beside the rows,
  /// summed over the ranks in their order (what dispatch delivered is 0 on all but one of them).
  /// Blocks as little as its stream does; y, weights, out and out_weights must stay until its work
  /// has ended.
  void combine(const void* y, const Route& route, void* out, const float* weights = nullptr,
               float* out_weights = nullptr, uint64_t stream = 0);
  /// Arena memory [rows received, hidden] bf16 for a combine on this route to read in place.
  std::shared_ptr<void> output_buffer(const Route& route, uint64_t stream = 0);

  /// Throws the error of an enqueued call that has failed by now; so does every later call. A
  /// failed object's memory stays out of use until the World goes.
  void check();
  /// Waits until the work enqueued on `stream` has ended, then as check().
  void wait(uint64_t stream = 0);

  const ExpertParallelOptions& options() const;
  uint32_t sms() const;
  World& world() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

class Route {
 public:
  uint32_t tokens() const;         ///< of this rank
  uint32_t rows_received() const;  ///< by this rank
  struct State;
  explicit Route(std::shared_ptr<State> state) : state_(std::move(state)) {}
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

class Received {
 public:
  uint32_t rows = 0;
  const void* x = nullptr;                  ///< [rows, hidden] bf16
  const int32_t* topk_idx = nullptr;        ///< [rows, topk] local expert ids, -1 where not here
  const float* topk_weights = nullptr;      ///< [rows, topk], 0 where not here
  const int32_t* source_token = nullptr;    ///< [rows] index of the token on its source rank
  std::vector<uint32_t> rows_from;          ///< [ranks] rows by source rank
  std::vector<uint32_t> tokens_per_expert;  ///< [local experts]
  std::optional<Route> route;
  std::shared_ptr<void> owner;  ///< keeps the memory
};

}  // namespace tokenyard
