#include "bench/across_hosts/one_gpu.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "bench/across_hosts/one_rank.hpp"
#include "bench/harness/each_rank.hpp"
#include "bench/harness/workload.hpp"
#include "expert_parallel/throughput/kernels/received_layout.hpp"
#include "fabric/world_access.hpp"
#include "tokenyard/expert_parallel.hpp"

namespace tokenyard::bench {

namespace {

using internode::Link;
using internode::LinkCounts;
using internode::Rails;
using internode::RailWorkspace;
using internode::WindowLayout;

constexpr uint32_t kScaleChannels = 128;

/// Runs `body(i)` for all i below `count`, on the threads of this machine; rethrows an exception.
template <class Body>
void in_parallel(size_t count, Body body) {
  std::exception_ptr thrown;
  std::mutex mutex;
  std::atomic<size_t> next = 0;
  {
    std::vector<std::jthread> threads;
    for (uint32_t i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i)
      threads.emplace_back([&] {
        try {
          for (size_t at; (at = next++) < count;) body(at);
        } catch (...) {
          const std::lock_guard lock(mutex);
          thrown = std::current_exception();
        }
      });
  }
  if (thrown) std::rethrow_exception(thrown);
}

void require(bool holds, const std::string& what) {
  if (!holds) throw InternalError("wrong: " + what);
}

/// Multiprocessors as the goals name them.
uint32_t sms_of(const OneGpuSettings& settings, uint32_t hosts, bool combines) {
  if (!settings.sms.empty()) return settings.sms[0];
  if (hosts <= 3) return combines ? 16 : 12;
  if (hosts <= 6) return 8;
  return combines ? 6 : 4;
}

/// Rank 0's calls of one shape, and the world around them.
class Exchange {
 public:
  Exchange(OneRankWorld& world, const OneGpuSettings& settings, const Scene& scene)
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
    scales_ =
        static_cast<uint32_t*>(memory_.reserve(size_t{scene.tokens} * scale_words() * 4 + 16));
    out_ = static_cast<std::byte*>(memory_.reserve(size_t{scene.tokens} * scene.hidden * 2));
    ids_ = static_cast<int64_t*>(memory_.reserve(size_t{scene.tokens} * scene.topk * 8));
    weights_ = static_cast<float*>(memory_.reserve(size_t{scene.tokens} * scene.topk * 4));
    image_ = static_cast<std::byte*>(memory_.reserve(size_t{1} << 20));
    greetings_ = static_cast<std::byte*>(memory_.reserve(size_t{1} << 20));
    blocks_.resize(scene.locals);
    besides_.resize(scene.locals);
  }
  ~Exchange() {
    world_.rank().on_launch = nullptr;
    on_each_rank(world_.worlds(), [&](World& of) { exchanges_[of.rank()].reset(); });
    world_.device().free_stream(stream_);
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /// Takes other routes and rows.
  void draw(uint32_t seed) {
    scene_.seed = seed;
    routing_ = std::make_unique<StandIn>(scene_);
    filled_ = nullptr;
  }

  Received dispatch(bool fp8, uint32_t sms) {
    fp8_ = fp8;
    row_bytes_ = scene_.hidden * (fp8 ? 1 : 2);
    if (filled_ == nullptr) fill_input();
    DispatchInput input{.x = {x_,
                              fp8 ? DataType::float8_e4m3fn : DataType::bfloat16,
                              {scene_.tokens, scene_.hidden}},
                        .topk_idx = {ids_, DataType::int64, {scene_.tokens, scene_.topk}},
                        .topk_weights = {weights_, DataType::float32, {scene_.tokens, scene_.topk}},
                        .sms = sms};
    if (fp8) input.scales = {scales_, DataType::uint32, {scene_.tokens, scale_words()}};
    return exchanges_[0]->dispatch(input, stream_);
  }

  void combine(const Received& received, const CombineBuffer& y, uint32_t sms) {
    exchanges_[0]->combine({.y = y.y, .sms = sms}, *received.route,
                           {.x = {out_, DataType::bfloat16, {scene_.tokens, scene_.hidden}}},
                           stream_);
  }

  /// Writes all results that this host's ranks have for the sources of rank 0.
  CombineBuffer results(const Received& received) {
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

  void check_dispatch(const Received& received);
  void check_combine();
  /// Overwrites what calls write.
  void poison() {
    for (uint32_t place = 1; place < scene_.locals; ++place)
      if (blocks_[place])
        world_.device().fill(blocks_[place].data(), 0xee, blocks_[place].bytes(), Stream{});
    world_.device().fill(out_, 0xee, size_t{scene_.tokens} * scene_.hidden * 2, Stream{});
    for (uint32_t link = 0; link + 1 < scene_.hosts; ++link)
      world_.device().fill(outbox_[link], 0xee, size_t{scene_.tokens} * (scene_.hidden * 2 + 4096),
                           Stream{});
  }

  // Of the last call.
  double us = 0, wire_us = 0;
  WireOutcome outcome;
  uint32_t capacity = 0, chunk = 0;
  size_t ring_bytes = 0;

 private:
  uint32_t scale_words() const { return std::max(scene_.hidden / kScaleChannels, 1u); }
  template <class Body>
  void each_rail_source(Body body) const {
    for (uint32_t host = 0; host < scene_.hosts; ++host) body(scene_.rail_peer(host));
  }

  void fill_input() {
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

  throughput::ReceivedLayout received_layout(uint32_t place, uint32_t words) const {
    return {.rows = routing_->rows_on(place),
            .row_bytes = row_bytes_,
            .topk = scene_.topk,
            .scale_words = words,
            .scale_order = ScaleOrder::rows};
  }
  /// Makes a rank's memory for the rows of all sources.
  void reserve_rows(uint32_t place, uint32_t, uint32_t words) {
    const throughput::ReceivedLayout layout = received_layout(place, words);
    Arena& arena = arena_of(*world_.worlds()[place]);
    blocks_[place] = {};
    blocks_[place] = arena.allocate(layout.bytes(), Stream{});
    if (!besides_[place])
      besides_[place] = arena.allocate(
          size_t{scene_.ranks()} * scene_.tokens * (scene_.topk * 8 + 4) + 4096, Stream{});
  }
  size_t beside_end(uint32_t place) const {
    return besides_[place].offset() + besides_[place].bytes() / 256 * 256;
  }

  void run(const RankLaunch& launch);
  CallTraffic traffic_of(const RankLaunch& launch, const Rails& rails,
                         const throughput::CallParams& call, bool combines);
  void fill_inboxes(const std::vector<Link>& links, const internode::SlotLayout& slot,
                    bool combines);
  const std::vector<uint32_t>& tokens_out(uint32_t host) const {
    return routing_->of(0).tokens_to[host];
  }
  const std::vector<uint32_t>& tokens_in(uint32_t host) const {
    return routing_->of(scene_.rail_peer(host)).tokens_to[0];
  }

  OneRankWorld& world_;
  const Stream stream_;
  const OneGpuSettings& settings_;
  Scene scene_;
  std::unique_ptr<StandIn> routing_;
  std::vector<std::unique_ptr<ExpertParallel>> exchanges_;
  DeviceMemory memory_;
  Card card_;
  std::vector<std::byte*> inbox_, outbox_;  ///< [links]
  std::byte *x_ = nullptr, *out_ = nullptr, *image_ = nullptr, *greetings_ = nullptr;
  uint32_t* scales_ = nullptr;
  int64_t* ids_ = nullptr;
  float* weights_ = nullptr;
  std::vector<ArenaBlock> blocks_, besides_;  ///< [locals] rows, and what lies beside them
  const KernelEntry* filled_ = nullptr;       ///< whose slots are in the inboxes
  std::vector<uint32_t> link_hosts_;          ///< [links] of the last call
  internode::SlotLayout slot_{};
  uint32_t row_bytes_ = 0;
  bool fp8_ = false;
};

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

/// Measures one shape, and prints a line per call.
class OneGpuShape {
 public:
  OneGpuShape(OneRankWorld& world, const OneGpuSettings& settings, const Scene& scene,
              Report& report)
      : world_(world),
        settings_(settings),
        scene_(scene),
        exchange_(world, settings, scene),
        report_(report) {}

  void run() {
    std::vector<uint32_t> dispatches = settings_.sms, combines = settings_.sms;
    if (settings_.sms.empty()) {
      dispatches = {sms_of(settings_, scene_.hosts, false)};
      combines = {sms_of(settings_, scene_.hosts, true)};
    }
    for (const bool fp8 : {false, true}) {
      if (fp8 && scene_.hidden % kScaleChannels != 0) continue;
      exchange_.draw(2);
      exchange_.check_dispatch(exchange_.dispatch(fp8, dispatches[0]));
      exchange_.draw(1);
      for (const uint32_t sms : dispatches)
        measure(
            fp8 ? "dispatch fp8" : "dispatch bf16", sms,
            [&] { last_ = exchange_.dispatch(fp8, sms); },
            [&] { exchange_.check_dispatch(*last_); });
    }
    last_.reset();
    exchange_.draw(2);
    for (const bool checks_only : {true, false}) {
      const Received received = exchange_.dispatch(false, dispatches[0]);
      const CombineBuffer y = exchange_.results(received);
      for (const uint32_t sms : combines) {
        const auto combine = [&] { exchange_.combine(received, y, sms); };
        if (!checks_only) {
          measure("combine bf16", sms, combine, [&] { exchange_.check_combine(); });
          continue;
        }
        combine();
        exchange_.check_combine();
      }
      exchange_.draw(1);
    }
  }

 private:
  template <class Call, class Check>
  void measure(const std::string& name, uint32_t sms, Call call, Check check) {
    std::vector<double> times;
    double wire = 0, idle_out = 0, idle_in = 0, out = 0, in = 0;
    for (uint32_t i = 0; i <= settings_.calls; ++i) {
      const bool last = i == settings_.calls;
      call();
      if (i == 0) continue;
      times.push_back(exchange_.us);
      wire += exchange_.wire_us / settings_.calls;
      idle_out += exchange_.outcome.idle_out_us / settings_.calls;
      idle_in += exchange_.outcome.idle_in_us / settings_.calls;
      out += exchange_.outcome.bytes_out / settings_.calls;
      in += exchange_.outcome.bytes_in / settings_.calls;
      if (last) check();
    }
    const Spread spread = spread_of(times);
    report_.add({.name = name + " one gpu",
                 .gpus = world_.on_gpu() ? 1u : 0u,
                 .ranks = scene_.ranks(),
                 .tokens = scene_.tokens,
                 .hidden = scene_.hidden,
                 .sms = sms,
                 .ours = spread,
                 .floor = wire});
    fmt::print(
        "    {:.1f} % of the link; {:.1f} us over it; {:.2f} GB/s out, {:.2f} in; wire idle {:.1f} "
        "us out, {:.1f} in; {} puts, the first of {} slots; {} slots per ring, {} per chunk, "
        "{:.1f} MiB of rings\n",
        100 * wire / spread.median, spread.median - wire, out / spread.median * 1e-3,
        in / spread.median * 1e-3, idle_out, idle_in, exchange_.outcome.puts,
        exchange_.outcome.first_slots, exchange_.capacity, exchange_.chunk,
        static_cast<double>(exchange_.ring_bytes) / (1 << 20));
    std::fflush(stdout);
  }

  OneRankWorld& world_;
  const OneGpuSettings& settings_;
  const Scene scene_;
  Exchange exchange_;
  Report& report_;
  std::optional<Received> last_;
};

}  // namespace

void run_one_gpu(const OneGpuSettings& settings) {
  const uint32_t most = *std::max_element(settings.tokens.begin(), settings.tokens.end());
  std::unique_ptr<Report> report;
  for (const uint32_t hosts : settings.hosts) {
    Scene scene{.hosts = hosts,
                .locals = settings.locals,
                .tokens = most,
                .hidden = settings.hidden,
                .topk = settings.topk,
                .experts = settings.experts};
    require_equal_shares(scene.experts, scene.ranks());
    // Until its number is known, a call has room for every row.
    const size_t rows = size_t{scene.ranks()} * most;
    OneRankWorld world(scene, settings.device,
                       rows * (scene.hidden * 2 + scene.topk * 24) * 2 + (size_t{1} << 30));
    if (!report) report = std::make_unique<Report>("across_hosts_1_gpu", *world.worlds()[0]);
    for (const uint32_t tokens : settings.tokens) {
      scene.tokens = tokens;
      OneGpuShape(world, settings, scene, *report).run();
    }
    report->finish(settings.output);
  }
}

}  // namespace tokenyard::bench
