// Models an exchange between hosts: the kernels themselves, of all ranks, in virtual time, over
// links of a rate and a latency. Multiprocessors store, load and hand over as fast as was measured
// (across_hosts_model/costs.hpp). Rows are short in memory and charged in full.
//
//   ./run bench across_hosts_model
//   ./run bench across_hosts_model --hosts 8 --tokens 1024 --calls dispatch-fp8
//   ./run bench across_hosts_model --smoke
//
// A time is from the start of the kernels to the end of the last rank's: launches and events are
// not in the model. The floor is what the busiest rank sends or receives, at the rate that is left
// after headers. Bytes count only if they cross a link.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>
#include <random>
#include <set>
#include <thread>

#include "bench/across_hosts_model/model_accelerator.hpp"
#include "bench/harness/command_line.hpp"
#include "bench/harness/each_rank.hpp"
#include "expert_parallel/internode/kernels/combine.hpp"
#include "expert_parallel/internode/kernels/dispatch.hpp"
#include "expert_parallel/internode/kernels/phase.hpp"
#include "fabric/host/in_process_fabric.hpp"
#include "fabric/world_access.hpp"
#include "tokenyard/expert_parallel.hpp"
#include "world/in_process.hpp"

namespace tokenyard::bench {
namespace {

struct Settings {
  std::vector<uint32_t> hosts{2, 4, 8};
  uint32_t locals = 8, tokens = 4096, hidden = 7168, experts = 256, topk = 8;
  uint32_t dispatch_sms = 0, combine_sms = 0;  ///< 0: as for this number of hosts
  uint32_t ring_kib = 0, movers = 0;           ///< 0: chosen
  uint32_t slow_rank = UINT32_MAX;             ///< its link has half of the rate
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
        hosts_(hosts),
        ranks_(hosts * settings.locals),
        wire_(ranks_, 4, costs_),
        machine_(costs_, wire_),
        calls_(ranks_, [this](std::vector<Launched>& launches) { run(launches); }) {
    for (uint32_t rank = 0; rank < ranks_; ++rank)
      accelerators_.push_back(std::make_shared<ModelAccelerator>(calls_, rank));
    std::vector<uint32_t> host_of;
    for (uint32_t rank = 0; rank < ranks_; ++rank) host_of.push_back(rank / settings.locals);
    const size_t rows = size_t{ranks_} * settings.tokens;
    const size_t per_row =
        kShortHidden * 2 + 4 * (settings.hidden / kScaleChannels) + settings.topk * 8 + 64;
    worlds_ =
        join_all(accelerators_, std::make_shared<InProcessFabric>(host_of),
                 {.timeout = std::chrono::hours(10),
                  .arena_bytes = 2 * rows * per_row + (size_t{256} << 20)},
                 {}, [this](const NetworkPlace& place, TimePoint) { return wire_.network(place); });
  }

  /// Dispatches tokens, or combines what a dispatch has brought.
  Modelled measure(const std::string& call) {
    const bool fp8 = call == "dispatch-fp8", combines = call == "combine-bf16";
    const Sms sms = sms_of(settings_, hosts_);
    const auto begun = std::chrono::steady_clock::now();
    std::vector<std::jthread> threads;
    std::vector<std::exception_ptr> thrown(ranks_);
    for (uint32_t rank = 0; rank < ranks_; ++rank)
      threads.emplace_back([&, rank] {
        try {
          exchange(*worlds_[rank], fp8, combines, sms);
        } catch (...) {
          thrown[rank] = std::current_exception();
        }
      });
    threads.clear();
    for (const auto& error : thrown)
      if (error) std::rethrow_exception(error);
    last_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    return last_;
  }

 private:
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
                            {.experts = settings_.experts,
                             .hidden = kShortHidden,
                             .topk = topk,
                             .tokens_max = tokens,
                             .sms = sms.dispatch,
                             .sms_max = std::max(sms.dispatch, sms.combine),
                             .tuning = {.movers = settings_.movers, .ring_rows = ring_rows(fp8)}});
    std::mt19937 random(rank + 1);
    std::vector<int64_t> ids(size_t{tokens} * topk);
    for (uint32_t token = 0; token < tokens; ++token) {
      std::set<int64_t> chosen;
      while (chosen.size() < topk) chosen.insert(random() % settings_.experts);
      std::copy(chosen.begin(), chosen.end(), ids.begin() + size_t{token} * topk);
    }
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
    const uint32_t per_rank = settings_.experts / ranks_;
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

  static std::shared_ptr<void> allocated(Accelerator& accelerator, size_t bytes) {
    return {accelerator.allocate(bytes), [&accelerator](void* at) { accelerator.free(at); }};
  }

  /// Runs a call of all ranks in virtual time.
  void run(std::vector<Launched>& launches) {
    const bool combines = launches[0].kernel == &internode::combine_kernel.entry;
    std::vector<RowMarks> marks;
    Lengths lengths;
    internode::SlotLayout slot{};
    for (Launched& launched : launches) {
      const internode::Rails& rails = rails_of(launched, combines);
      slot = rails.slot;
      last_.capacity = rails.capacity;
      last_.chunk = rails.chunk;
      if (!combines) continue;
      const auto* const base = reinterpret_cast<const std::byte*>(rails.tables.written(0));
      const uint32_t stride = 2 * internode::kSlotsMax * sizeof(uint64_t);
      marks.push_back({.written = base,
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
    std::vector<double> rates;
    if (settings_.slow_rank < ranks_) {
      rates.assign(ranks_, 1);
      rates[settings_.slow_rank] = 0.5;
    }
    std::vector<std::pair<const void*, const void*>> free_words;
    for (const Launched& launched : launches) {
      const WaitContext& wait = wait_of(launched, combines);
      free_words.emplace_back(wait.failed, wait.abort_flag);
    }
    const std::vector<Time> ended = machine_.run(launches, lengths, marks, rates, free_words);
    const uint32_t capacity = last_.capacity, chunk = last_.chunk;
    last_ = {.us = static_cast<double>(*std::ranges::max_element(ended)) * 1e-6,
             .capacity = capacity,
             .chunk = chunk};
    double most = 0;
    for (uint32_t rank = 0; rank < ranks_; ++rank) {
      most = std::max({most, wire_.bytes_out(rank), wire_.bytes_in(rank)});
      last_.bytes_mean += wire_.bytes_out(rank) / ranks_;
      last_.messages = std::max(last_.messages, wire_.messages(rank));
      last_.first_put_us =
          std::max(last_.first_put_us, static_cast<double>(wire_.first_put(rank)) * 1e-6);
      last_.last_slots_us =
          std::max(last_.last_slots_us, static_cast<double>(wire_.last_slots(rank)) * 1e-6);
      last_.storing = std::max(last_.storing, machine_.busy_storing(rank));
    }
    last_.waits = machine_.waits(0);
    last_.floor_us = static_cast<double>(costs_.on_link(most)) * 1e-6;
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
  const uint32_t hosts_, ranks_;
  const Costs costs_;
  Wire wire_;
  Machine machine_;
  Calls calls_;
  std::vector<std::shared_ptr<Accelerator>> accelerators_;
  std::vector<std::unique_ptr<World>> worlds_;
  Modelled last_;
};

std::string name_of(const std::string& call) {
  std::string name = call;
  std::ranges::replace(name, '-', ' ');
  return name + " model";
}

void run(const Settings& settings) {
  std::vector<std::string> lines;
  fmt::print("{:<22}{:>6}{:>8}{:>6}{:>10}{:>10}{:>8}{:>10}{:>8}{:>8}{:>7}{:>7}{:>8}{:>8}\n", "case",
             "ranks", "tokens", "sms", "us", "floor us", "link %", "fixed us", "GB/s", "slots",
             "stores", "put us", "last us", "run s");
  for (const uint32_t hosts : settings.hosts) {
    Model model(settings, hosts);
    const uint32_t ranks = hosts * settings.locals;
    for (const std::string& call : settings.calls) {
      const Modelled result = model.measure(call);
      const bool combines = call == "combine-bf16";
      const Sms sms = sms_of(settings, hosts);
      const uint32_t of_call = combines ? sms.combine : sms.dispatch;
      fmt::print(
          "{:<22}{:>6}{:>8}{:>6}{:>10.1f}{:>10.1f}{:>8.1f}{:>10.1f}{:>8.2f}{:>8}{:>7.2f}{:>7.1f}"
          "{:>8.1f}{:>8.1f}\n",
          name_of(call), ranks, settings.tokens, of_call, result.us, result.floor_us,
          100 * result.floor_us / result.us, result.us - result.floor_us,
          result.bytes_mean / result.us * 1e-3, result.capacity, result.storing,
          result.first_put_us, result.last_slots_us, result.seconds);
      for (const WaitOfRole& wait : settings.shows_waits ? result.waits : std::vector<WaitOfRole>{})
        fmt::print("    warp {:>2} {:<34} most {:>8.1f} mean {:>8.1f} until {:>8.1f} us\n",
                   wait.warp, internode::phase_names()[wait.phase], wait.most_us, wait.mean_us,
                   wait.until_us);
      std::fflush(stdout);
      lines.push_back(fmt::format(
          R"({{"case":"{}","gpus":0,"ranks":{},"tokens":{},"hidden":{},"sms":{},"unit":"us",)"
          R"("ours":{{"median":{:.2f},"min":{:.2f},"max":{:.2f}}},"peer":null,"floor":{:.2f},)"
          R"("bytes_over_rows":{:.4f},"ring_slots":{}}})",
          name_of(call), ranks, settings.tokens, settings.hidden, of_call, result.us, result.us,
          result.us, result.floor_us, result.slot_over_row, result.capacity));
    }
  }
  if (settings.output.empty()) return;
  std::ofstream file(settings.output);
  const std::time_t now = std::time(nullptr);
  char date[11] = {};
  std::strftime(date, sizeof date, "%Y-%m-%d", std::gmtime(&now));
  file << fmt::format(
      R"({{"environment":{{"gpu":"modelled","gpus":0,"link_gb_s":50,"latency_us":3,"date":"{}"}},)",
      date);
  file << "\n\"rows\":[\n";
  for (size_t i = 0; i < lines.size(); ++i)
    file << lines[i] << (i + 1 < lines.size() ? ",\n" : "\n");
  file << "]}\n";
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
    settings.dispatch_sms = settings.combine_sms = 2;
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
  app.add_option("--experts", settings.experts, "experts of all ranks")
      ->check(in_range<uint32_t>(1, 4096));
  app.add_option("--dispatch-sms", settings.dispatch_sms, "multiprocessors; 0: those of the goals")
      ->check(in_range<uint32_t>(0, 132));
  app.add_option("--combine-sms", settings.combine_sms, "the same of combine")
      ->check(in_range<uint32_t>(0, 132));
  app.add_option("--ring-kib", settings.ring_kib, "KiB per ring; 0: chosen")
      ->check(in_range<uint32_t>(0, 65536));
  app.add_option("--movers", settings.movers, "warps per block that move rows; 0: chosen")
      ->check(in_range<uint32_t>(0, 16));
  app.add_option("--slow-rank", settings.slow_rank, "a rank whose link has half of the rate");
  app.add_option("--calls", settings.calls, "dispatch-bf16, dispatch-fp8, combine-bf16")
      ->delimiter(',');
  app.add_flag("--waits", settings.shows_waits, "print what rank 0's warps waited for");
  app.add_option("--output", settings.output,
                 "JSON file to write, such as bench/results/across_hosts.json");
  app.add_flag("--smoke", smoke, "a small run, as a smoke test");
  if (const auto status = exit_of_parse(app, count, arguments)) return *status;
  return exit_of_run([&] { run(settings); });
}
