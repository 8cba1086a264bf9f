/// The events of a run, always as a hash and on request as text. It names memory by region and
/// offset, never by address, so that two runs of a seed give the same bytes.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <string_view>

namespace tokenyard::simulation {

class Trace {
 public:
  /// Writes text to `file`, which must outlive this object; null for no text.
  explicit Trace(std::FILE* file = nullptr) : file_(file) {}

  /// Records an event: its name, its actor, and the location and value involved.
  void event(std::string_view what, uint32_t actor, uint32_t region, uint64_t offset,
             uint64_t value) {
    mix(what.size() * 31 + static_cast<uint8_t>(what.front()));
    mix(uint64_t{actor} << 32 | region);
    mix(offset);
    mix(value);
    ++events_;
    if (file_ != nullptr)
      fmt::print(file_, "{} {} actor {} region {} + {:#x} = {:#x}\n", events_, what, actor, region,
                 offset, value);
  }
  void note(std::string_view text) {
    for (const char letter : text) mix(static_cast<uint8_t>(letter));
    if (file_ != nullptr) fmt::print(file_, "{} {}\n", events_, text);
  }
  uint64_t hash() const { return hash_; }
  uint64_t events() const { return events_; }

 private:
  /// Hashes a word at a time, not bytes as base/fnv1a.hpp does, because a run has very many events.
  void mix(uint64_t word) {
    hash_ = (hash_ ^ word) * 0x9e3779b97f4a7c15u;
    hash_ ^= hash_ >> 29;
  }

  std::FILE* file_;
  uint64_t hash_ = 0xcbf29ce484222325u;
  uint64_t events_ = 0;
};

}  // namespace tokenyard::simulation
