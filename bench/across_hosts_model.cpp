// Models an exchange between hosts: the kernels themselves, of all ranks, in virtual time, over
// links of a rate and a latency. Multiprocessors store, load and hand over as fast as was measured
// (across_hosts_model/costs.hpp). Rows are short in memory and charged in full.
//
//   ./run bench across_hosts_model
//   ./run bench across_hosts_model --hosts 8 --tokens 1024 --calls dispatch-fp8
//   ./run bench across_hosts_model --hosts 8 --tokens 128 --calls low-latency
//   ./run bench across_hosts_model --routing group-limited --calls deep-ep-v1
//   ./run bench across_hosts_model --smoke
//
// A time is from the start of the kernels to the end of the last rank's: launches and events are
// not in the model. The floor is what the busiest rank sends or receives, at the rate that is left
// after headers. Bytes count only if they cross a link. Rows of --output replace those of the same
// case and shape.
//
// deep-ep-v1 models the dispatch of DeepEP V1 with the same constants (across_hosts_model/
// deep_ep_v1.hpp), on NVLink of 160 GB/s, as the machines had that its figures are from.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "bench/across_hosts_model/deep_ep_v1.hpp"
#include "bench/across_hosts_model/ledger.hpp"
#include "bench/across_hosts_model/low_latency_model.hpp"
#include "bench/across_hosts_model/modelled_world.hpp"
#include "bench/across_hosts_model/routing.hpp"
#include "bench/harness/command_line.hpp"
#include "bench/harness/each_rank.hpp"
#include "expert_parallel/internode/kernels/combine.hpp"
#include "expert_parallel/internode/kernels/dispatch.hpp"
#include "expert_parallel/internode/kernels/phase.hpp"
#include "fabric/world_access.hpp"
#include "tokenyard/expert_parallel.hpp"

namespace tokenyard::bench {
namespace {

struct Settings {
  std::vector<uint32_t> hosts{2, 4, 8};
  uint32_t locals = 8, tokens = 4096, hidden = 7168, topk = 8;
  uint32_t experts = 0;                        ///< 0: 256, or 288 where ranks do not divide those
  uint32_t low_latency_sms = 0;                ///< 0: as many as there is memory for
  uint32_t dispatch_sms = 0, combine_sms = 0;  ///< 0: as for this number of hosts
  uint32_t ring_kib = 0, movers = 0;           ///< 0: chosen
  uint32_t slow_rail = UINT32_MAX;             ///< rank whose link has half of the rate
  std::string routing = "uniform";
  bool shows_waits = false;
  std::vector<std::string> calls{"dispatch-bf16", "dispatch-fp8", "combine-bf16"};
  std::string output;
};

/// Multiprocessors of a call, as the goals name them.
struct Sms {
  uint32_t dispatch, combine;
};
Sms sms_of(const Settings& settings, uint32_t hosts) {
  Sms sms = hosts <= 3 ? Sms{12, 16} : hosts <= 6 ? Sms{8, 8} : Sms{4, 6};
  if (settings.dispatch_sms != 0) sms.dispatch = settings.dispatch_sms;
  if (settings.combine_sms != 0) sms.combine = settings.combine_sms;
  return sms;
}

RoutedShape routed_of(const Settings& settings, uint32_t hosts) {
  const uint32_t ranks = hosts * settings.locals;
  const uint32_t experts = settings.experts != 0 ? settings.experts : 256 % ranks == 0 ? 256 : 288;
  require_equal_shares(experts, ranks);
  return {.hosts = hosts,
          .locals = settings.locals,
          .experts = experts,
          .topk = settings.topk,
          .tokens = settings.tokens,
          .routing = routing_of(settings.routing)};
}

/// Elements of a row in memory. A row of 7168 is added up in 7 parts, one of these too.
constexpr uint32_t kShortHidden = 224;
constexpr uint32_t kScaleChannels = 128;

/// The outcome of a call in virtual time.
struct Modelled {
  double us = 0, floor_us = 0, first_put_us = 0, last_slots_us = 0, slot_over_row = 1, storing = 0;
  double bytes_mean = 0, seconds = 0;
  uint64_t messages = 0;
  uint32_t capacity = 0, chunk = 0;
  std::vector<WaitOfRole> waits = {};
};

class Model {
 public:
  Model(const Settings& settings, uint32_t hosts)
      : settings_(settings),
        routed_(routed_of(settings, hosts)),
        hosts_(hosts),
        ranks_(hosts * settings.locals),
        world_(hosts, settings.locals, arena_bytes(),
               [this](std::vector<std::vector<Launched>>& launches) { run(launches); }) {}

  /// Dispatches tokens, or combines what a dispatch has brought.
  Modelled measure(const std::string& call) {
    const bool fp8 = call == "dispatch-fp8", combines = call == "combine-bf16";
    const Sms sms = sms_of(settings_, hosts_);
    const auto begun = std::chrono::steady_clock::now();
    world_.each_rank([&](World& world) { exchange(world, fp8, combines, sms); });
    last_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    return last_;
  }

 private:
  size_t arena_bytes() const {
    const size_t rows = size_t{ranks_} * settings_.tokens;
    const size_t per_row =
        kShortHidden * 2 + 4 * (settings_.hidden / kScaleChannels) + settings_.topk * 8 + 64;
    return 2 * rows * per_row + (size_t{256} << 20);
  }
  uint32_t slot_bytes(uint32_t row) const { return (row + 4 + 12 * settings_.topk + 15) / 16 * 16; }

  /// Returns the rows of a BF16 ring that stand for a ring of so many bytes of full rows.
  uint32_t ring_rows(bool fp8) const {
    const uint32_t links = hosts_ - 1;
    constexpr uint32_t kMebibyte = 1 << 20;
    uint32_t bytes = std::min(std::clamp(8 * kMebibyte / links, kMebibyte, 4 * kMebibyte),
                              32 * kMebibyte / links);
    if (settings_.ring_kib != 0) bytes = settings_.ring_kib << 10;
    const uint32_t scales = fp8 ? 4 * (settings_.hidden / kScaleChannels) : 0;
    const uint32_t full = slot_bytes((fp8 ? 1 : 2) * settings_.hidden + scales);
    const uint32_t in_memory = slot_bytes((fp8 ? 1 : 2) * kShortHidden + scales);
    const uint32_t capacity = std::min(bytes / full, internode::kSlotsMax);
    return (capacity * in_memory + slot_bytes(2 * kShortHidden) - 1) / slot_bytes(2 * kShortHidden);
  }

  void exchange(World& world, bool fp8, bool combines, const Sms& sms) {
    const uint32_t rank = world.rank(), tokens = settings_.tokens, topk = settings_.topk;
    Accelerator& accelerator = accelerator_of(world);
    ExpertParallel exchange(world,
                            {.experts = routed_.experts,
                             .hidden = kShortHidden,
                             .topk = topk,
                             .tokens_max = tokens,
                             .sms = sms.dispatch,
                             .sms_max = std::max(sms.dispatch, sms.combine),
                             .tuning = {.movers = settings_.movers, .ring_rows = ring_rows(fp8)}});
    const std::vector<int64_t> ids = choices_of(routed_, rank);
    const uint32_t bytes = fp8 ? 1 : 2;
    const auto rows = allocated(accelerator, size_t{tokens} * kShortHidden * bytes);
    const auto indices = allocated(accelerator, ids.size() * sizeof(int64_t));
    std::memcpy(indices.get(), ids.data(), ids.size() * sizeof(int64_t));
    auto* const values = static_cast<uint16_t*>(rows.get());
    for (size_t i = 0; !fp8 && i < size_t{tokens} * kShortHidden; ++i)
      values[i] = value_of(static_cast<uint32_t>(i / kShortHidden));
    const uint32_t words = fp8 ? settings_.hidden / kScaleChannels : 0;
    const auto scales = allocated(accelerator, size_t{tokens} * std::max(words, 1u) * 4);
    DispatchInput input{.x = {rows.get(),
                              fp8 ? DataType::float8_e4m3fn : DataType::bfloat16,
                              {tokens, kShortHidden}},
                        .topk_idx = {indices.get(), DataType::int64, {tokens, topk}}};
    if (fp8) input.scales = {scales.get(), DataType::uint32, {tokens, words}};
    const Received received = exchange.dispatch(input);
    if (combines) {
      const auto out = allocated(accelerator, size_t{tokens} * kShortHidden * 2);
      exchange.combine({.y = received.x, .sms = sms.combine}, *received.route,
                       {.x = {out.get(), DataType::bfloat16, {tokens, kShortHidden}}});
      check_sums(static_cast<const uint16_t*>(out.get()), ids);
    }
    exchange.wait();
    world.barrier("measured");
  }

  /// Small whole numbers, so that sums of them are exact.
  static uint16_t value_of(uint32_t token) { return to_bf16(static_cast<float>(1 + token % 7)); }
  static uint16_t to_bf16(float value) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, 4);
    return static_cast<uint16_t>(bits >> 16);
  }

  /// Each rank returns its rows, so a sum is the row times the number of its ranks.
  void check_sums(const uint16_t* out, const std::vector<int64_t>& ids) const {
    const uint32_t per_rank = routed_.experts_per_rank();
    for (uint32_t token = 0; token < settings_.tokens; ++token) {
      std::set<int64_t> to;
      for (uint32_t choice = 0; choice < settings_.topk; ++choice)
        to.insert(ids[size_t{token} * settings_.topk + choice] / per_rank);
      const uint16_t expected =
          to_bf16(static_cast<float>((1 + token % 7) * static_cast<uint32_t>(to.size())));
      for (uint32_t column = 0; column < kShortHidden; ++column)
        if (out[size_t{token} * kShortHidden + column] != expected)
          throw InternalError(fmt::format("the sum of token {} is wrong", token));
    }
  }

  /// Runs a call of all ranks in virtual time.
  void run(std::vector<std::vector<Launched>>& launches) {
    const bool combines = launches[0][0].kernel == &internode::combine_kernel.entry;
    CallFacts facts;
    Lengths& lengths = facts.lengths;
    internode::SlotLayout slot{};
    for (auto& of_rank : launches) {
      Launched& launched = of_rank[0];
      const internode::Rails& rails = rails_of(launched, combines);
      slot = rails.slot;
      last_.capacity = rails.capacity;
      last_.chunk = rails.chunk;
      if (!combines) continue;
      const auto* const base = reinterpret_cast<const std::byte*>(rails.tables.written(0));
      const uint32_t stride = 2 * internode::kSlotsMax * sizeof(uint64_t);
      facts.marks.push_back({.written = base,
                             .read = nullptr,
                             .end = base + size_t{rails.tables.links} * stride,
                             .stride = stride});
      auto& params = *reinterpret_cast<internode::CombineParams*>(launched.params.data());
      lengths.full_part = std::min(settings_.hidden * 2, internode::kPartBytesMax);
      const uint32_t parts = (settings_.hidden * 2 + lengths.full_part - 1) / lengths.full_part;
      lengths.part = (slot.row_bytes / parts + 15) / 16 * 16;
      params.part_bytes = lengths.part;
      // As many as full parts leave room for.
      constexpr uint32_t kSharedBytes = 220 << 10;
      params.parts = std::min(params.parts, kSharedBytes / (params.movers * lengths.full_part));
    }
    lengths.row = slot.row_bytes;
    lengths.slot = slot.bytes();
    lengths.full_row = slot.row_bytes / kShortHidden * settings_.hidden;
    lengths.full_slot = lengths.slot - lengths.row + lengths.full_row;
    if (settings_.slow_rail < ranks_) {
      facts.rates.assign(ranks_, 1);
      facts.rates[settings_.slow_rail] = 0.5;
    }
    for (const auto& of_rank : launches) {
      const WaitContext& wait = wait_of(of_rank[0], combines);
      facts.free_words.emplace_back(wait.failed, wait.abort_flag);
    }
    const std::vector<Time> ended = world_.machine().run(launches, facts);
    const uint32_t capacity = last_.capacity, chunk = last_.chunk;
    last_ = {.us = static_cast<double>(*std::ranges::max_element(ended)) * 1e-6,
             .capacity = capacity,
             .chunk = chunk};
    const Wire& wire = world_.wire();
    double most = 0;
    for (uint32_t rank = 0; rank < ranks_; ++rank) {
      most = std::max({most, wire.bytes_out(rank), wire.bytes_in(rank)});
      last_.bytes_mean += wire.bytes_out(rank) / ranks_;
      last_.messages = std::max(last_.messages, wire.messages(rank));
      last_.first_put_us =
          std::max(last_.first_put_us, static_cast<double>(wire.first_put(rank)) * 1e-6);
      last_.last_slots_us =
          std::max(last_.last_slots_us, static_cast<double>(wire.last_slots(rank)) * 1e-6);
      last_.storing = std::max(last_.storing, world_.machine().busy_storing(rank));
    }
    last_.waits = world_.machine().waits(0);
    last_.floor_us = static_cast<double>(world_.costs().on_link(most)) * 1e-6;
    last_.slot_over_row =
        static_cast<double>(lengths.full_slot) / (lengths.full_row + 4.0 * slot.scale_words);
  }

  static const WaitContext& wait_of(const Launched& launched, bool combines) {
    if (combines)
      return reinterpret_cast<const internode::CombineParams*>(launched.params.data())
          ->combine.call.wait_context;
    return reinterpret_cast<const internode::DispatchParams*>(launched.params.data())
        ->dispatch.call.wait_context;
  }
  static const internode::Rails& rails_of(const Launched& launched, bool combines) {
    if (combines)
      return reinterpret_cast<const internode::CombineParams*>(launched.params.data())->rails;
    return reinterpret_cast<const internode::DispatchParams*>(launched.params.data())->rails;
  }

  const Settings& settings_;
  const RoutedShape routed_;
  const uint32_t hosts_, ranks_;
  ModelledWorld world_;
  Modelled last_;
};

std::string name_of(const Settings& settings, const std::string& call) {
  std::string name = call;
  std::ranges::replace(name, '-', ' ');
  name += " model";
  if (settings.routing != "uniform") name += ", " + settings.routing;
  if (settings.slow_rail != UINT32_MAX) name += ", a slow rail";
  return name;
}

Ledger::Json row_of(const Settings& settings, const std::string& name, const RoutedShape& shape,
                    uint32_t sms) {
  return {{"case", name},
          {"gpus", 0},
          {"ranks", shape.ranks()},
          {"tokens", shape.tokens},
          {"hidden", settings.hidden},
          {"sms", sms},
          {"unit", "us"}};
}
Ledger::Json spread(double us) {
  const double rounded = std::round(us * 100) / 100;
  return {{"median", rounded}, {"min", rounded}, {"max", rounded}};
}

void print_throughput_heads() {
  fmt::print("{:<22}{:>6}{:>8}{:>6}{:>10}{:>10}{:>8}{:>10}{:>8}{:>8}{:>7}{:>7}{:>8}{:>8}\n", "case",
             "ranks", "tokens", "sms", "us", "floor us", "link %", "fixed us", "GB/s", "slots",
             "stores", "put us", "last us", "run s");
}

void run_throughput(const Settings& settings, const std::string& call, Model& model,
                    const RoutedShape& shape, Ledger& ledger) {
  const Modelled result = model.measure(call);
  const Sms sms = sms_of(settings, shape.hosts);
  const uint32_t of_call = call == "combine-bf16" ? sms.combine : sms.dispatch;
  const std::string name = name_of(settings, call);
  fmt::print(
      "{:<22}{:>6}{:>8}{:>6}{:>10.1f}{:>10.1f}{:>8.1f}{:>10.1f}{:>8.2f}{:>8}{:>7.2f}{:>7.1f}"
      "{:>8.1f}{:>8.1f}\n",
      name, shape.ranks(), shape.tokens, of_call, result.us, result.floor_us,
      100 * result.floor_us / result.us, result.us - result.floor_us,
      result.bytes_mean / result.us * 1e-3, result.capacity, result.storing, result.first_put_us,
      result.last_slots_us, result.seconds);
  for (const WaitOfRole& wait : settings.shows_waits ? result.waits : std::vector<WaitOfRole>{})
    fmt::print("    warp {:>2} {:<34} most {:>8.1f} mean {:>8.1f} until {:>8.1f} us\n", wait.warp,
               internode::phase_names()[wait.phase], wait.most_us, wait.mean_us, wait.until_us);
  Ledger::Json row = row_of(settings, name, shape, of_call);
  row["ours"] = spread(result.us);
  row["peer"] = nullptr;
  row["floor"] = std::round(result.floor_us * 100) / 100;
  row["bytes_over_rows"] = std::round(result.slot_over_row * 1e4) / 1e4;
  row["ring_slots"] = result.capacity;
  ledger.add(row);
}

void run_low_latency(const Settings& settings, const RoutedShape& shape, Ledger& ledger) {
  // Threads of all ranks are fibers at once: some 8 KiB each.
  const uint32_t chosen = shape.ranks() <= 16 ? 24 : shape.ranks() <= 32 ? 16 : 8;
  const auto begun = std::chrono::steady_clock::now();
  const LowLatencyTimes times =
      model_low_latency({.routed = shape,
                         .hidden = settings.hidden,
                         .sms = settings.low_latency_sms != 0 ? settings.low_latency_sms : chosen});
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
  const auto add = [&](const std::string& call, const LowLatencyTime& time) {
    const std::string name = name_of(settings, call);
    fmt::print("{:<36}{:>6}{:>8}{:>6}{:>10.1f} us, wire {:.1f} us, {:.2f} of wire + 3 us\n", name,
               shape.ranks(), shape.tokens, times.sms, time.us, time.wire_us,
               time.us / (time.wire_us + 3));
    Ledger::Json row = row_of(settings, name, shape, times.sms);
    row["ours"] = spread(time.us);
    row["peer"] = nullptr;
    row["floor"] = std::round(time.wire_us * 100) / 100;
    ledger.add(row);
  };
  add("low latency dispatch fp8", times.dispatch);
  add("low latency combine bf16", times.combine);
  fmt::print("    {:.0f} s\n", took.count());
}

/// Published rates of DeepEP V1 on H800 with ConnectX-7, of rows as it counts them.
double published_gb_s(uint32_t ranks) {
  return ranks == 16 ? 43 : ranks == 32 ? 58 : ranks == 64 ? 51 : 0;
}

void run_deep_ep_v1(const Settings& settings, const RoutedShape& shape, Ledger& ledger) {
  const Costs costs;
  const DeepEpV1 config = DeepEpV1::published(shape.ranks());
  for (const bool fp8 : {true, false}) {
    const uint32_t bytes =
        fp8 ? settings.hidden + 4 * (settings.hidden / kScaleChannels) : 2 * settings.hidden;
    const DeepEpV1Time time = model_deep_ep_v1(config, shape, bytes, costs);
    const std::string name =
        name_of(settings, fp8 ? "dispatch-fp8" : "dispatch-bf16") + ", protocol of DeepEP V1";
    fmt::print(
        "{:<52}{:>6}{:>8}{:>6}{:>10.1f} us, floor {:.1f}, {:.2f} GB/s as counted, {:.2f} "
        "over the link\n",
        name, shape.ranks(), shape.tokens, config.sms, time.us, time.floor_us, time.counted_gb_s,
        time.over_link_gb_s);
    Ledger::Json row = row_of(settings, name, shape, config.sms);
    row["ours"] = nullptr;
    row["peer"] = spread(time.us);
    row["peer"]["name"] = "deep_ep 1.2.1, modelled";
    row["floor"] = std::round(time.floor_us * 100) / 100;
    const double published = published_gb_s(shape.ranks());
    if (fp8 && published != 0 && settings.routing == "group-limited" && settings.tokens == 4096)
      row["published"] = std::round(time.us * time.counted_gb_s / published * 100) / 100;
    ledger.add(row);
  }
}

void run(const Settings& settings) {
  Ledger ledger(settings.output,
                {{"gpu", "modelled"}, {"gpus", 0}, {"link_gb_s", 50}, {"latency_us", 3}});
  bool heads = false;
  for (const uint32_t hosts : settings.hosts) {
    const RoutedShape shape = routed_of(settings, hosts);
    std::optional<Model> model;
    for (const std::string& call : settings.calls) {
      if (call == "low-latency") {
        run_low_latency(settings, shape, ledger);
      } else if (call == "deep-ep-v1") {
        run_deep_ep_v1(settings, shape, ledger);
      } else {
        if (!std::exchange(heads, true)) print_throughput_heads();
        if (!model) model.emplace(settings, hosts);
        run_throughput(settings, call, *model, shape, ledger);
      }
      std::fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace tokenyard::bench

int main(int count, char** arguments) {
  using namespace tokenyard::bench;
  Settings settings;
  bool smoke = asks_for_smoke(count, arguments);
  if (smoke) {
    settings.hosts = {2};
    settings.locals = 1;
    settings.tokens = 64;
    settings.experts = 16;
    settings.dispatch_sms = settings.combine_sms = settings.low_latency_sms = 2;
    settings.calls.emplace_back("low-latency");
  }
  CLI::App app("Models exchanges between hosts in virtual time", "./run bench across_hosts_model");
  app.option_defaults()->always_capture_default();
  app.add_option("--hosts", settings.hosts, "hosts; several to compare")
      ->delimiter(',')
      ->check(in_range<uint32_t>(2, 32));
  app.add_option("--locals", settings.locals, "ranks per host")->check(in_range<uint32_t>(1, 8));
  app.add_option("--tokens", settings.tokens, "tokens per rank")
      ->check(in_range<uint32_t>(1, 65536));
  app.add_option("--hidden", settings.hidden, "elements of a row")
      ->check(in_range<uint32_t>(128, 16384));
  app.add_option("--experts", settings.experts,
                 "experts of all ranks; 0: 256, or 288 where ranks do not divide those")
      ->check(in_range<uint32_t>(0, 4096));
  app.add_option("--dispatch-sms", settings.dispatch_sms, "multiprocessors; 0: those of the goals")
      ->check(in_range<uint32_t>(0, 132));
  app.add_option("--combine-sms", settings.combine_sms, "the same of combine")
      ->check(in_range<uint32_t>(0, 132));
  app.add_option("--ring-kib", settings.ring_kib, "KiB per ring; 0: chosen")
      ->check(in_range<uint32_t>(0, 65536));
  app.add_option("--movers", settings.movers, "warps per block that move rows; 0: chosen")
      ->check(in_range<uint32_t>(0, 16));
  app.add_option("--slow-rail", settings.slow_rail, "a rank whose link has half of the rate");
  app.add_option("--routing", settings.routing,
                 "how tokens choose experts; zipf: exponent 1.2, group-limited: 4 hosts")
      ->check(CLI::IsMember(std::vector<std::string>{"uniform", "zipf", "group-limited"}));
  app.add_option("--low-latency-sms", settings.low_latency_sms,
                 "multiprocessors of low latency; 0: chosen")
      ->check(in_range<uint32_t>(0, 132));
  app.add_option("--calls", settings.calls,
                 "dispatch-bf16, dispatch-fp8, combine-bf16, low-latency, deep-ep-v1")
      ->delimiter(',')
      ->check(CLI::IsMember(std::vector<std::string>{"dispatch-bf16", "dispatch-fp8",
                                                     "combine-bf16", "low-latency", "deep-ep-v1"}));
  app.add_flag("--waits", settings.shows_waits, "print what rank 0's warps waited for");
  app.add_option("--output", settings.output,
                 "JSON file to add rows to, such as bench/results/across_hosts.json");
  app.add_flag("--smoke", smoke, "a small run, as a smoke test");
  if (const auto status = exit_of_parse(app, count, arguments)) return *status;
  return exit_of_run([&] { run(settings); });
}
