#include "bench/across_hosts/one_gpu_exchange.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "bench/across_hosts/in_parallel.hpp"
#include "bench/harness/each_rank.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::bench {

using internode::Link;
using internode::LinkCounts;
using internode::Rails;
using internode::RailWorkspace;
using internode::WindowLayout;

Exchange::Exchange(OneRankWorld& world, const OneGpuSettings& settings, const Scene& scene)
    : world_(world),
      stream_(world.device().make_stream()),
      settings_(settings),
      scene_(scene),
      routing_(std::make_unique<StandIn>(scene)),
      exchanges_(scene.ranks()),
      memory_(world.device()),
      card_(world, 2 * (scene.hosts - 1) + 1, std::clamp(16 / (scene.hosts - 1), 2u, 8u)) {
  std::vector<std::exception_ptr> thrown(scene.ranks());
  const uint32_t most =
      settings.sms.empty() ? 16 : *std::max_element(settings.sms.begin(), settings.sms.end());
  on_each_rank(world.worlds(), [&](World& of) {
    exchanges_[of.rank()] = std::make_unique<ExpertParallel>(
        of, ExpertParallelOptions{.experts = scene.experts,
                                  .hidden = scene.hidden,
                                  .topk = scene.topk,
                                  .tokens_max = scene.tokens,
                                  .sms = most,
                                  .tuning = {.movers = settings.movers,
                                             .ring_rows = settings.ring_rows,
                                             .chunk_rows = settings.chunk_rows}});
  });
  world.rank().on_launch = [this](const RankLaunch& launch) { run(launch); };
  const size_t slot = scene.hidden * 2 + 4096;
  for (uint32_t host = 1; host < scene.hosts; ++host) {
    inbox_.push_back(static_cast<std::byte*>(memory_.reserve(scene.tokens * slot)));
    outbox_.push_back(static_cast<std::byte*>(memory_.reserve(scene.tokens * slot)));
  }
  x_ = static_cast<std::byte*>(memory_.reserve(size_t{scene.tokens} * scene.hidden * 2));
  scales_ = static_cast<uint32_t*>(memory_.reserve(size_t{scene.tokens} * scale_words() * 4 + 16));
  out_ = static_cast<std::byte*>(memory_.reserve(size_t{scene.tokens} * scene.hidden * 2));
  ids_ = static_cast<int64_t*>(memory_.reserve(size_t{scene.tokens} * scene.topk * 8));
  weights_ = static_cast<float*>(memory_.reserve(size_t{scene.tokens} * scene.topk * 4));
  image_ = static_cast<std::byte*>(memory_.reserve(size_t{1} << 20));
  greetings_ = static_cast<std::byte*>(memory_.reserve(size_t{1} << 20));
  blocks_.resize(scene.locals);
  besides_.resize(scene.locals);
}

Exchange::~Exchange() {
  world_.rank().on_launch = nullptr;
  on_each_rank(world_.worlds(), [&](World& of) { exchanges_[of.rank()].reset(); });
  world_.device().free_stream(stream_);
}

Received Exchange::dispatch(bool fp8, uint32_t sms) {
  fp8_ = fp8;
  row_bytes_ = scene_.hidden * (fp8 ? 1 : 2);
  if (filled_ == nullptr) fill_input();
  DispatchInput input{
      .x = {x_, fp8 ? DataType::float8_e4m3fn : DataType::bfloat16, {scene_.tokens, scene_.hidden}},
      .topk_idx = {ids_, DataType::int64, {scene_.tokens, scene_.topk}},
      .topk_weights = {weights_, DataType::float32, {scene_.tokens, scene_.topk}},
      .sms = sms};
  if (fp8) input.scales = {scales_, DataType::uint32, {scene_.tokens, scale_words()}};
  return exchanges_[0]->dispatch(input, stream_);
}

void Exchange::combine(const Received& received, const CombineBuffer& y, uint32_t sms) {
  exchanges_[0]->combine({.y = y.y, .sms = sms}, *received.route,
                         {.x = {out_, DataType::bfloat16, {scene_.tokens, scene_.hidden}}},
                         stream_);
}

CombineBuffer Exchange::results(const Received& received) {
  row_bytes_ = scene_.hidden * 2;
  CombineBuffer y = exchanges_[0]->combine_buffer(*received.route, DataType::bfloat16, stream_);
  for (uint32_t place = 0; place < scene_.locals; ++place) {
    if (place != 0) reserve_rows(place, row_bytes_, 0);
    std::byte* const to = place == 0 ? static_cast<std::byte*>(y.y.data) : blocks_[place].data();
    each_rail_source([&](uint32_t source) {
      const uint32_t rows = routing_->of(source).rows[place];
      std::vector<uint16_t> values(size_t{rows} * scene_.hidden);
      in_parallel(scene_.tokens, [&](size_t token) {
        const int32_t row = routing_->number(source, static_cast<uint32_t>(token), place);
        if (row < 0) return;
        for (uint32_t element = 0; element < scene_.hidden; ++element)
          values[size_t(row) * scene_.hidden + element] =
              whole_bf16(StandIn::result(place, source, static_cast<uint32_t>(token), element));
      });
      world_.upload(to + size_t{routing_->first_row(place, source)} * row_bytes_, values.data(),
                    values.size() * 2);
    });
  }
  filled_ = nullptr;
  return y;
}

void Exchange::fill_input() {
  const uint32_t words = fp8_ ? scale_words() : 0;
  const size_t stride = row_bytes_ + 4 * words;
  std::vector<std::byte> made(scene_.tokens * stride), rows(size_t{scene_.tokens} * row_bytes_);
  std::vector<uint32_t> scales(size_t{scene_.tokens} * words);
  std::vector<float> weights(size_t{scene_.tokens} * scene_.topk);
  in_parallel(scene_.tokens, [&](size_t at) {
    const auto token = static_cast<uint32_t>(at);
    std::byte* const row = &made[token * stride];
    routing_->write_row(0, token, row, row_bytes_ / 4 + words);
    std::memcpy(&rows[size_t{token} * row_bytes_], row, row_bytes_);
    if (words != 0) std::memcpy(&scales[size_t{token} * words], row + row_bytes_, 4 * words);
    for (uint32_t choice = 0; choice < scene_.topk; ++choice)
      weights[size_t{token} * scene_.topk + choice] = routing_->weight(0, token, choice);
  });
  world_.upload(x_, rows.data(), rows.size());
  if (words != 0) world_.upload(scales_, scales.data(), scales.size() * 4);
  world_.upload(weights_, weights.data(), weights.size() * 4);
  world_.upload(ids_, routing_->of(0).ids.data(), routing_->of(0).ids.size() * 8);
  for (uint32_t place = 1; place < scene_.locals; ++place) reserve_rows(place, row_bytes_, words);
}

void Exchange::reserve_rows(uint32_t place, uint32_t, uint32_t words) {
  const throughput::ReceivedLayout layout = received_layout(place, words);
  Arena& arena = arena_of(*world_.worlds()[place]);
  blocks_[place] = {};
  blocks_[place] = arena.allocate(layout.bytes(), Stream{});
  if (!besides_[place])
    besides_[place] = arena.allocate(
        size_t{scene_.ranks()} * scene_.tokens * (scene_.topk * 8 + 4) + 4096, Stream{});
}

CallTraffic Exchange::traffic_of(const RankLaunch& launch, const Rails& rails,
                                 const throughput::CallParams& call, bool combines) {
  using throughput::ReadyWord;
  const WindowLayout& layout = rails.layout;
  const uint32_t ranks = scene_.ranks(), locals = scene_.locals;
  const auto links = world_.fetch<Link>(rails.links, rails.tables.links);
  const auto counts = world_.fetch<LinkCounts>(&rails.tables.counts(0), links.size());
  const RailWorkspace workspace = world_.fetch<RailWorkspace>(&rails.tables.workspace(), 1)[0];
  const uint32_t epoch =
      throughput::epoch_after(world_.fetch<throughput::Workspace>(call.workspace, 1)[0].epoch);
  const uint32_t route_epoch = call.route == nullptr ? 0 : world_.fetch<uint32_t>(call.route, 1)[0];
  const auto ready = [&](uint32_t word, uint32_t rank) -> uint32_t {
    const bool near = rank != 0 && rank < locals;
    switch (static_cast<ReadyWord>(word)) {
      case ReadyWord::call:
        return throughput::CallWord::of(call.kind, call.weights, call.comes_later,
                                        launch.shape.blocks)
            .bits;
      case ReadyWord::route:
        return route_epoch;
      case ReadyWord::format:
        return call.format.bits;
      case ReadyWord::scales:
        return call.scales.bits;
      case ReadyWord::rows:
        return near ? static_cast<uint32_t>(blocks_[rank].offset() / throughput::kOffsetUnit) : 0;
      case ReadyWord::places:
        return call.places;
      case ReadyWord::beside:
        return near && !combines ? static_cast<uint32_t>(beside_end(rank) / throughput::kOffsetUnit)
                                 : 0;
    }
    return 0;
  };
  CallTraffic traffic;
  traffic.gb_s = settings_.gb_s;
  traffic.credit_us = settings_.credit_us;
  // Words that other ranks of this host store here, about themselves and their rail peers.
  std::vector<Stamped> image(layout.ready_word(ranks, 0) / sizeof(Stamped));
  const auto say = [&](size_t offset, uint32_t value) {
    image[offset / sizeof(Stamped)] = {epoch, value};
  };
  const uint32_t held = scene_.experts / ranks;
  for (uint32_t source = 1; source < ranks; ++source) {
    for (uint32_t word = 0; word < throughput::kReadyWords; ++word)
      say(layout.ready_word(source, word), ready(word, source));
    say(layout.ready_word(source, internode::kSlotsComing), 0);
    if (combines) continue;
    say(layout.refusal(source, 0), 0);
    for (uint32_t place = 0; place < locals; ++place)
      say(layout.count(source, place), routing_->of(source).rows[place]);
    for (uint32_t expert = 0; expert < held; ++expert)
      say(layout.expert(source, expert), routing_->of(source).choices[expert]);
  }
  world_.upload(image_, image.data(), image.size() * sizeof(Stamped));
  std::byte* const near = rails.windows.here;
  for (uint32_t host = 0; host < scene_.hosts && locals > 1; ++host) {
    const size_t from = layout.ready_word(host * locals + 1, 0);
    (host == 0 ? traffic.words : traffic.words_later)
        .push_back({.from = image_ + from,
                    .to = near + from,
                    .bytes = layout.ready_word((host + 1) * locals, 0) - from});
  }
  for (uint32_t place = 1; place < locals; ++place)
    traffic.finished.push_back(
        {.word = near + layout.finished(place), .value = epoch, .word_bytes = 4});
  // The greetings of the rail peers.
  const size_t stride = (layout.greeting.words() * sizeof(uint32_t) + 15) / 16 * 16;
  std::vector<std::byte> greetings(stride * links.size());
  link_hosts_.clear();
  for (uint32_t link = 0; link < links.size(); ++link) {
    const uint32_t host = links[link].host, peer = links[link].rank;
    link_hosts_.push_back(host);
    auto* const words = reinterpret_cast<uint32_t*>(&greetings[link * stride]);
    for (uint32_t word = 0; word < throughput::kReadyWords; ++word)
      words[internode::GreetingLayout::ready_word(word)] = ready(word, peer);
    const auto in = static_cast<uint32_t>(tokens_in(host).size());
    const auto out = static_cast<uint32_t>(tokens_out(host).size());
    words[internode::GreetingLayout::ready_word(internode::kSlotsComing)] = combines ? 0 : in;
    for (uint32_t place = 0; place < locals && !combines; ++place)
      words[internode::GreetingLayout::count(place)] = routing_->of(peer).rows[place];
    for (uint32_t expert = 0; expert < held * locals && !combines; ++expert)
      words[layout.greeting.expert(expert)] = routing_->of(peer).choices[expert];
    std::byte* const far = rails.far;
    traffic.links.push_back(
        {.fill = &world_.pair(peer, rails.fill_queue),
         .drain = &world_.pair(peer, rails.drain_queue),
         .slots_out = combines ? in : out,
         .slots_in = combines ? out : in,
         .capacity = rails.capacity,
         .chunk = rails.chunk,
         .slot_bytes = rails.slot.bytes(),
         .first_out = counts[link].first_out,
         .first_in = counts[link].first_in,
         .stage = far + layout.stage(link),
         .ring = rails.rings + layout.ring(link),
         .inbox = inbox_[link],
         .outbox = outbox_[link],
         .greeting = {.from = greetings_ + link * stride,
                      .to = far +
                            layout.greeting_in(link, static_cast<uint32_t>(workspace.calls & 1)),
                      .bytes = layout.greeting.words() * sizeof(uint32_t),
                      .word = far + layout.greeted(link),
                      .value = workspace.calls + 1},
         .arrived = reinterpret_cast<uint64_t*>(far + layout.arrived(link)),
         .credited = reinterpret_cast<uint64_t*>(far + layout.credited(link))});
  }
  world_.upload(greetings_, greetings.data(), greetings.size());
  capacity = rails.capacity;
  chunk = rails.chunk;
  ring_bytes = size_t{2} * links.size() * layout.ring_bytes;
  slot_ = rails.slot;
  if (filled_ != launch.kernel) fill_inboxes(links, rails.slot, combines);
  filled_ = launch.kernel;
  return traffic;
}

void Exchange::fill_inboxes(const std::vector<Link>& links, const internode::SlotLayout& slot,
                            bool combines) {
  for (uint32_t link = 0; link < links.size(); ++link) {
    const uint32_t host = links[link].host;
    const std::vector<uint32_t>& tokens = combines ? tokens_out(host) : tokens_in(host);
    std::vector<std::byte> made(tokens.size() * slot.bytes());
    in_parallel(tokens.size(), [&](size_t at) {
      std::byte* const to = &made[at * slot.bytes()];
      if (!combines) return routing_->write_slot(scene_.rail_peer(host), tokens[at], slot, to);
      for (uint32_t element = 0; element < scene_.hidden; ++element) {
        const uint16_t value = whole_bf16(StandIn::partial(host, tokens[at], element));
        std::memcpy(to + 2 * element, &value, 2);
      }
    });
    world_.upload(inbox_[link], made.data(), made.size());
  }
}

void Exchange::run(const RankLaunch& launch) {
  const bool combines = launch.kernel == &internode::combine_kernel.entry;
  const auto* const of_combine = static_cast<const internode::CombineParams*>(launch.params);
  const auto* const of_dispatch = static_cast<const internode::DispatchParams*>(launch.params);
  const Rails& rails = combines ? of_combine->rails : of_dispatch->rails;
  const throughput::CallParams& call =
      combines ? of_combine->combine.call : of_dispatch->dispatch.call;
  const CallTraffic traffic = traffic_of(launch, rails, call, combines);
  Accelerator& device = world_.device();
  card_.begin();
  {
    Wire wire(traffic, card_);
    const Event begin = device.record(launch.stream);
    launched_at_us_ = Wire::now_us();
    device.launch(*launch.kernel, launch.shape, launch.stream, launch.params);
    const Event end = device.record(launch.stream);
    const bool ended = device.wait_until(device.now() + std::chrono::seconds(30),
                                         [&] { return device.done(end); });
    outcome = wire.end();
    card_.end();
    require(ended, "the kernel does not end");
    us = device.elapsed_ms(begin, end) * 1e3;
    device.free_event(begin);
    device.free_event(end);
  }
  device.drain();
  if (outcome.wrong != 0 || !outcome.complete) {
    exchanges_[0]->check();  // Tells what rank 0 has waited for.
    throw InternalError(fmt::format("{} requests of rank 0 are wrong, or lack", outcome.wrong));
  }
  wire_us = std::max(outcome.bytes_out, outcome.bytes_in) / 50e3;
}

}  // namespace tokenyard::bench
