#include "bench/across_hosts/stand_in.hpp"

#include <algorithm>
#include <cstring>
#include <random>

namespace tokenyard::bench {

StandIn::StandIn(const Scene& scene) : scene_(scene), routes_(scene.ranks()) {
  const uint32_t ranks = scene.ranks();
  std::vector<int64_t> experts(scene.experts);
  for (uint32_t expert = 0; expert < scene.experts; ++expert) experts[expert] = expert;
  for (uint32_t source = 0; source < ranks; ++source) {
    SourceRoute& route = routes_[source];
    std::mt19937 random(scene.seed * 1000 + source);
    route.rows.assign(ranks, 0);
    route.choices.assign(scene.experts, 0);
    route.tokens_to.resize(scene.hosts);
    // Only those that exchange slots with rank 0 are needed token by token.
    const bool is_kept = source % scene.locals == 0;
    if (is_kept) route.ids.reserve(size_t{scene.tokens} * scene.topk);
    if (is_kept) route.number.assign(size_t{scene.tokens} * ranks, -1);
    std::vector<bool> to_rank(ranks), to_host(scene.hosts);
    for (uint32_t token = 0; token < scene.tokens; ++token) {
      std::fill(to_rank.begin(), to_rank.end(), false);
      std::fill(to_host.begin(), to_host.end(), false);
      for (uint32_t choice = 0; choice < scene.topk; ++choice) {
        std::swap(experts[choice], experts[choice + random() % (scene.experts - choice)]);
        const int64_t id = experts[choice];
        if (is_kept) route.ids.push_back(id);
        ++route.choices[static_cast<size_t>(id)];
        const uint32_t rank = scene.rank_of(id);
        to_host[rank / scene.locals] = true;
        if (to_rank[rank]) continue;
        to_rank[rank] = true;
        if (is_kept)
          route.number[size_t{token} * ranks + rank] = static_cast<int32_t>(route.rows[rank]);
        ++route.rows[rank];
      }
      for (uint32_t host = 0; is_kept && host < scene.hosts; ++host)
        if (to_host[host]) route.tokens_to[host].push_back(token);
    }
  }
  for (uint32_t place = 0; place < scene.locals; ++place) {
    uint32_t rows = 0;
    for (uint32_t source = 0; source <= ranks; ++source) {
      first_row_.push_back(rows);
      if (source < ranks) rows += routes_[source].rows[place];
    }
  }
}

void StandIn::write_row(uint32_t source, uint32_t token, std::byte* to, uint32_t words) const {
  auto* const row = reinterpret_cast<uint32_t*>(to);
  const uint32_t first = word(source, token, 0);
  for (uint32_t i = 0; i < words; ++i) row[i] = first + i * 0xc2b2ae3du;
}

void StandIn::write_slot(uint32_t source, uint32_t token, const internode::SlotLayout& slot,
                         std::byte* to) const {
  write_row(source, token, to, slot.row_bytes / 4 + slot.scale_words);
  if (slot.choices == 0) return;
  std::memcpy(to + slot.token_at(), &token, sizeof token);
  for (uint32_t choice = 0; choice < scene_.topk; ++choice) {
    const int64_t id = routes_[source].ids[size_t{token} * scene_.topk + choice];
    const auto id32 = static_cast<int32_t>(id);
    const int32_t index = number(source, token, scene_.rank_of(id));
    const float factor = weight(source, token, choice);
    std::memcpy(to + slot.ids_at() + 4 * choice, &id32, 4);
    std::memcpy(to + slot.numbers_at() + 4 * choice, &index, 4);
    std::memcpy(to + slot.weights_at() + 4 * choice, &factor, 4);
  }
}

uint16_t whole_bf16(uint32_t value) {
  const auto number = static_cast<float>(value);
  uint32_t bits = 0;
  std::memcpy(&bits, &number, sizeof bits);
  return static_cast<uint16_t>(bits >> 16);
}

}  // namespace tokenyard::bench
