/// The search for the options with which calls between hosts are fastest on a site: one option
/// after the other, from what the exchange chooses by itself, until none gets better.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace tokenyard::bench {

/// Options of an exchange between hosts that change no result. 0: chosen by the exchange.
struct RingOptions {
  uint32_t sms = 0, ring_rows = 0, chunk_rows = 0;

  bool operator==(const RingOptions&) const = default;
};

/// Values that the search tries for each option.
struct RingCandidates {
  std::vector<uint32_t> sms, ring_rows, chunk_rows;
};

/// The outcome of a search, and the times that it measured on the way.
struct Tuned {
  struct Tried {
    RingOptions options;
    double us;
  };
  RingOptions best;
  double us = 0, chosen_us = 0;  ///< of the best, and of what the exchange chooses
  std::vector<Tried> tried = {};
};

/// Times that differ by less say nothing: the value that stood before stays.
inline constexpr double kGainMin = 0.01;

/// `measure(options)`: microseconds. `sms`: with which the search begins.
template <class Measure>
Tuned tune(uint32_t sms, const RingCandidates& candidates, Measure measure) {
  Tuned tuned{.best = {.sms = sms}};
  const auto time = [&](const RingOptions& options) {
    for (const Tuned::Tried& before : tuned.tried)
      if (before.options == options) return before.us;
    tuned.tried.push_back({options, measure(options)});
    return tuned.tried.back().us;
  };
  tuned.us = tuned.chosen_us = time(tuned.best);
  const std::array options{
      std::pair{&RingOptions::sms, &candidates.sms},
      std::pair{&RingOptions::ring_rows, &candidates.ring_rows},
      std::pair{&RingOptions::chunk_rows, &candidates.chunk_rows},
  };
  for (bool better = true; better;) {
    better = false;
    for (const auto& [option, values] : options)
      for (const uint32_t value : *values) {
        RingOptions next = tuned.best;
        next.*option = value;
        const double us = time(next);
        if (us >= tuned.us * (1 - kGainMin)) continue;
        tuned.best = next;
        tuned.us = us;
        better = true;
      }
  }
  return tuned;
}

/// Returns the options as code, without those that the exchange chooses best by itself.
inline std::string as_code(const RingOptions& options) {
  std::string code = fmt::format("tokenyard.ExpertParallel(world, ..., sms={}", options.sms);
  if (options.ring_rows != 0) code += fmt::format(", ring_rows={}", options.ring_rows);
  if (options.chunk_rows != 0) code += fmt::format(", chunk_rows={}", options.chunk_rows);
  return code + ")";
}

}  // namespace tokenyard::bench
