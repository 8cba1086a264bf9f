/// The checks of what the one real rank has written: every row and sum, bit for bit.
#include <fmt/format.h>

#include <cstring>

#include "bench/across_hosts/in_parallel.hpp"
#include "bench/across_hosts/one_gpu_exchange.hpp"

namespace tokenyard::bench {

void Exchange::check_dispatch(const Received& received) {
  const uint32_t words = fp8_ ? scale_words() : 0, topk = scene_.topk;
  const uint32_t held = scene_.experts / scene_.ranks();
  for (uint32_t place = 0; place < scene_.locals; ++place) {
    const throughput::ReceivedLayout layout = received_layout(place, words);
    const std::byte* const rows_at =
        place == 0 ? static_cast<const std::byte*>(received.x.data) : blocks_[place].data();
    const std::byte* beside = nullptr;
    if (place != 0)
      beside = besides_[place].data() + (beside_end(place) - besides_[place].offset()) -
               layout.beside_bytes();
    if (place == 0)
      require(received.rows == layout.rows,
              fmt::format("{} rows were received, not {}", received.rows, layout.rows));
    each_rail_source([&](uint32_t source) {
      const uint32_t first = routing_->first_row(place, source);
      const uint32_t count = routing_->of(source).rows[place];
      if (count == 0) return;
      const auto part = [&]<class T>(T, const void* of_rank_0, const std::byte* of_other,
                                     uint32_t per_row) {
        const void* const from = place == 0 ? of_rank_0 : of_other;
        return world_.fetch<T>(static_cast<const T*>(from) + size_t{first} * per_row,
                               size_t{count} * per_row);
      };
      const auto rows = part(uint32_t{}, rows_at, rows_at, row_bytes_ / 4);
      const auto scales =
          words == 0 ? std::vector<uint32_t>{}
                     : part(uint32_t{}, received.scales.data, rows_at + layout.scales_at(), words);
      const auto ids = part(int32_t{}, received.topk_idx.data, beside + layout.ids_at(), topk);
      const auto weights =
          part(float{}, received.topk_weights.data, beside + layout.weights_at(), topk);
      const auto sources =
          part(int32_t{}, received.source_token.data, beside + layout.sources_at(), 1);
      in_parallel(scene_.tokens, [&](size_t at) {
        const auto token = static_cast<uint32_t>(at);
        const int32_t number = routing_->number(source, token, place);
        if (number < 0) return;
        const auto row = static_cast<size_t>(number);
        bool right = sources[row] == static_cast<int32_t>(token);
        for (uint32_t i = 0; i < row_bytes_ / 4; ++i)
          right = right && rows[row * (row_bytes_ / 4) + i] == routing_->word(source, token, i);
        for (uint32_t i = 0; i < words; ++i)
          right =
              right && scales[row * words + i] == routing_->word(source, token, row_bytes_ / 4 + i);
        for (uint32_t choice = 0; choice < topk; ++choice) {
          const int64_t id = routing_->of(source).ids[size_t{token} * topk + choice];
          const bool here = scene_.rank_of(id) == place;
          right = right &&
                  ids[row * topk + choice] ==
                      (here ? static_cast<int32_t>(id) - static_cast<int32_t>(place * held) : -1);
          right = right && weights[row * topk + choice] ==
                               (here ? routing_->weight(source, token, choice) : 0.0f);
        }
        require(right, fmt::format("token {} of rank {} on rank {}", token, source, place));
      });
    });
  }
  for (uint32_t link = 0; link < link_hosts_.size(); ++link) {
    const std::vector<uint32_t>& tokens = tokens_out(link_hosts_[link]);
    const auto slots = world_.fetch<std::byte>(outbox_[link], tokens.size() * slot_.bytes());
    in_parallel(tokens.size(), [&](size_t at) {
      std::vector<std::byte> expected(slot_.bytes());
      routing_->write_slot(0, tokens[at], slot_, expected.data());
      const size_t length = slot_.weights_at() + 4 * slot_.weights;
      require(std::memcmp(&slots[at * slot_.bytes()], expected.data(), length) == 0,
              fmt::format("slot {} to host {}", at, link_hosts_[link]));
    });
  }
}

void Exchange::check_combine() {
  const auto sum = [&](uint32_t source, uint32_t token, uint32_t element) {
    uint32_t all = 0;
    for (uint32_t place = 0; place < scene_.locals; ++place)
      if (routing_->goes(source, token, place))
        all += StandIn::result(place, source, token, element);
    return all;
  };
  const auto out = world_.fetch<uint16_t>(out_, size_t{scene_.tokens} * scene_.hidden);
  std::vector<std::vector<bool>> to_host(scene_.hosts, std::vector<bool>(scene_.tokens));
  for (uint32_t host = 1; host < scene_.hosts; ++host)
    for (const uint32_t token : tokens_out(host)) to_host[host][token] = true;
  in_parallel(scene_.tokens, [&](size_t at) {
    const auto token = static_cast<uint32_t>(at);
    for (uint32_t element = 0; element < scene_.hidden; ++element) {
      uint32_t all = sum(0, token, element);
      for (uint32_t host = 1; host < scene_.hosts; ++host)
        if (to_host[host][token]) all += StandIn::partial(host, token, element);
      require(out[at * scene_.hidden + element] == whole_bf16(all),
              fmt::format("element {} of the sum of token {}", element, token));
    }
  });
  for (uint32_t link = 0; link < link_hosts_.size(); ++link) {
    const uint32_t host = link_hosts_[link], source = scene_.rail_peer(host);
    const std::vector<uint32_t>& tokens = tokens_in(host);
    const auto slots = world_.fetch<std::byte>(outbox_[link], tokens.size() * slot_.bytes());
    in_parallel(tokens.size(), [&](size_t at) {
      const auto* const row = reinterpret_cast<const uint16_t*>(&slots[at * slot_.bytes()]);
      for (uint32_t element = 0; element < scene_.hidden; ++element)
        require(row[element] == whole_bf16(sum(source, tokens[at], element)),
                fmt::format("element {} of partial sum {} for host {}", element, at, host));
    });
  }
}

}  // namespace tokenyard::bench
