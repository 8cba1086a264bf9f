/// The exchange of sums between ranks of different hosts, which cannot add to each other's memory.
///
/// A rank adds its products to the sums of each rank of its host, and to one more sum per word, of
/// its own terms for ranks of other hosts. When all these terms are there, send_sums copies the
/// words to every such rank, and add_sums adds them to that rank's sums:
///
///     products -(sums)-> send_sums =put, signal=> add_sums -(sums)-> the next stage
///
/// A word that is sent has the units of its terms and their number (words.hpp). Adding it does what
/// adding the terms one by one would do, because addition of 64-bit integers is associative, too.
/// So a rank's sums have the same bits however its peers are spread over hosts.
///
/// Sent words are read by send_sums alone, which clears them; the step's last event separates that
/// from the next iteration's first term.
#pragma once

#include "decoder/tasks/dense_kind.hpp"

namespace tokenyard::megakernel {

inline constexpr uint32_t kFarRanksMax = kSumRanksMax - 1;

/// Sends this rank's terms of a stage to ranks of other hosts, and clears them.
template <class Kind>
struct SendSums {
  static constexpr const char* kName = "send_sums";
  struct Args {
    uint64_t* sums;                   ///< vectors in VectorWords order
    Peer<uint64_t> to[kFarRanksMax];  ///< each like `sums`
    uint32_t ranks, hidden;
    uint32_t words;  ///< per vector of all sequences, padding included
    uint32_t terms;  ///< per sum
    uint32_t sums_event;
  };

  static TOKENYARD_DEVICE void run(Context& context, const Args& args) {
    TOKENYARD_KEEP_ROLLED
    for (uint32_t first = context.thread(); first < args.words;
         first += kAtOnce * context.threads())
      send(context, args, first);
  }

 private:
  static constexpr uint32_t kAtOnce = 4;

  /// Returns whether a word belongs to a chunk of the vectors: padding gets no terms.
  static TOKENYARD_DEVICE bool is_sum(const Args& args, uint32_t word) {
    constexpr uint32_t kGroup = kChunk * kWarpLanes;
    const uint32_t chunk = word / kGroup * VectorWords<Kind::kSequences>::kTogether +
                           word % kWarpLanes / Kind::kSequences;
    return word < args.words && chunk < args.hidden / kChunk;
  }

  /// Sends every threads()-th word from `first` on, kAtOnce of them, by one thread.
  static TOKENYARD_DEVICE void send(Context& context, const Args& args, uint32_t first) {
    uint64_t sums[kAtOnce];
    context.await_carried(Event{args.sums_event}, [&] {
      uint32_t missing = 0;
      TOKENYARD_UNROLL
      for (uint32_t n = 0; n < kAtOnce; ++n) {
        const uint32_t word = first + n * context.threads();
        const bool is = is_sum(args, word);
        // Another thread may have cleared other words, so without its own this one reads `first`.
        sums[n] = load<Order::relaxed, Kind::kScope>(args.sums + (is ? word : first));
        missing |= is ? static_cast<uint32_t>(sums[n]) ^ args.terms : 0;
      }
      return terms_of_sum(missing) == 0;
    });
    TOKENYARD_UNROLL
    for (uint32_t n = 0; n < kAtOnce; ++n) {
      const uint32_t word = first + n * context.threads();
      if (!is_sum(args, word)) continue;
      for (uint32_t rank = 0; rank < args.ranks; ++rank)
        store<Order::weak, Scope::sys>(args.to[rank] + word, sums[n]);
      // Relaxed: events of this step precede the next iteration's terms.
      store<Order::relaxed, Kind::kScope>(args.sums + word, 0);
    }
  }
};

/// Adds what ranks of other hosts have sent to this rank's sums.
template <class Kind>
struct AddSums {
  static constexpr const char* kName = "add_sums";
  struct Args {
    const uint64_t* from[kFarRanksMax];  ///< one per rank, each like `sums`
    uint64_t* sums;
    uint32_t ranks;
    uint32_t begin, end;  ///< words that this block adds
  };

  static TOKENYARD_DEVICE void run(Context& context, const Args& args) {
    TOKENYARD_KEEP_ROLLED
    for (uint32_t word = args.begin + context.thread(); word < args.end;
         word += context.threads()) {
      // No number of terms overflows, since all of a sum together do not.
      uint64_t sum = 0;
      for (uint32_t rank = 0; rank < args.ranks; ++rank) sum += args.from[rank][word];
      // Relaxed: the word carries all the information.
      add<Order::relaxed, Kind::kScope>(Peer<uint64_t>(args.sums + word), sum);
    }
  }
};

}  // namespace tokenyard::megakernel
