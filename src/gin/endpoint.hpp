/// A rank's part of the exchange before ranks join a communicator.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "base/byte_stream.hpp"
#include "device/network_request.hpp"
#include "gin/gin_driver.hpp"

namespace tokenyard::gin {

struct Endpoint {
  using IdWords = std::array<uint64_t, std::tuple_size_v<CommunicatorId> / sizeof(uint64_t)>;

  uint32_t version = 0;  ///< of NCCL, alike on all ranks
  uint32_t queues = 0;   ///< as this rank's options say
  bool by_rail = false;  ///< likewise
  MemoryKey arena_key = 0;
  uint64_t arena_bytes = 0;
  uint64_t words = 0;  ///< place in the arena of the words that peers' cards add to
  IdWords id_words{};  ///< of the lowest rank

  CommunicatorId id() const { return std::bit_cast<CommunicatorId>(id_words); }
  void set_id(const CommunicatorId& id) { id_words = std::bit_cast<IdWords>(id); }
  /// Returns whether a word per queue of so many ranks lies in the arena: nobody else checks where
  /// cards put.
  bool has_words_of(uint32_t ranks) const {
    const uint64_t needed = uint64_t{ranks} * queues * sizeof(uint64_t);
    return words % sizeof(uint64_t) == 0 && needed <= arena_bytes && words <= arena_bytes - needed;
  }

  friend void visit(auto& stream, MaybeConst<Endpoint> auto& end) {
    stream(end.version, end.queues, end.by_rail, end.arena_key, end.arena_bytes, end.words);
    for (auto& word : end.id_words) stream(word);
  }
};

}  // namespace tokenyard::gin
