/// The loop's hook for several sequences decoded together.
#pragma once

#include "decoder/tasks/dense_kind.hpp"
#include "megakernel/tasks/token.hpp"

namespace tokenyard::megakernel {

/// Does as NextToken for each sequence. An ended sequence repeats its last step until all sequences
/// have ended or a value is NaN; then the loop ends. On a single rank, it clears the last stage's
/// sums.
template <class Kind>
struct NextTokens {
  static constexpr const char* kName = "next_tokens";
  using Status = SequenceStatus;
  struct Args {
    const Best* parts;              ///< [part_count][sequences]
    uint32_t* token;                ///< [sequences] of the next iteration
    uint32_t* position;             ///< [sequences] of the next iteration
    uint32_t* tokens;               ///< [sequences][positions_max + 1] by position
    const uint32_t* prompt;         ///< [sequences][prompt_stride]
    const uint32_t* prompt_tokens;  ///< [sequences]
    uint32_t* status;               ///< [sequences] a Status
    uint64_t* sums;                 ///< [sum_count] to clear, or null
    const uint32_t* broken;         ///< 1 if a value could not be added to sums; or null
    uint32_t sum_count, part_count, positions_max, prompt_stride;
    uint32_t stop_tokens[kStopTokensMax];  ///< each kNoToken: none
  };
  struct Shared {
    bool goes_on[Kind::kSequences], no_number[Kind::kSequences];
  };

  static TOKENYARD_DEVICE void run(Context& context, const Args& args) {
    Shared& shared = context.shared<Shared>();
    clear_sums<Kind::kScope>(context, args.sums, args.sum_count);
    // One sequence per warp.
    TOKENYARD_KEEP_ROLLED
    for (uint32_t s = context.warp(); s < Kind::kSequences; s += context.warps()) {
      const Best best = best_of_parts(args.parts + s, args.part_count, Kind::kSequences);
      if (!warp::elect()) continue;
      const Status status = decide(args, s, best);
      shared.goes_on[s] = status == Status::goes_on;
      shared.no_number[s] = status == Status::not_a_number;
    }
    context.sync();
    if (context.thread() != 0) return;
    bool all_ended = true, no_number = false;
    for (uint32_t s = 0; s < Kind::kSequences; ++s) {
      all_ended &= !shared.goes_on[s];
      no_number |= shared.no_number[s];
    }
    if (all_ended || no_number) context.end_loop();
  }

 private:
  static TOKENYARD_DEVICE Status decide(const Args& args, uint32_t sequence, const Best& best) {
    const auto before = static_cast<Status>(args.status[sequence]);
    if (before != Status::goes_on) return before;
    const uint32_t position = args.position[sequence] + 1;
    // Within the prompt, the prompt gives the next token, whatever the model predicts.
    const bool published = position < args.prompt_tokens[sequence];
    const uint32_t token =
        published ? args.prompt[sequence * args.prompt_stride + position] : best.token;
    const Status status = status_after(args, best, published, token, position);
    if (status != Status::not_a_number && position <= args.positions_max)
      args.tokens[sequence * (args.positions_max + 1) + position] = token;
    args.status[sequence] = static_cast<uint32_t>(status);
    if (status != Status::goes_on) return status;
    args.token[sequence] = token;
    args.position[sequence] = position;
    return status;
  }
};

}  // namespace tokenyard::megakernel
