#include "bench/across_hosts/one_gpu.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "bench/across_hosts/one_gpu_exchange.hpp"
#include "bench/harness/report.hpp"
#include "bench/harness/workload.hpp"

namespace tokenyard::bench {

namespace {

/// Multiprocessors as the goals name them.
uint32_t sms_of(const OneGpuSettings& settings, uint32_t hosts, bool combines) {
  if (!settings.sms.empty()) return settings.sms[0];
  if (hosts <= 3) return combines ? 16 : 12;
  if (hosts <= 6) return 8;
  return combines ? 6 : 4;
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
    double wire = 0, idle_out = 0, idle_in = 0, out = 0, in = 0, greeting = 0, credit = 0;
    for (uint32_t i = 0; i <= settings_.calls; ++i) {
      const bool last = i == settings_.calls;
      if (last) exchange_.poison(name.starts_with("combine"));
      call();
      if (i == 0) continue;
      times.push_back(exchange_.us);
      wire += exchange_.wire_us / settings_.calls;
      idle_out += exchange_.outcome.idle_out_us / settings_.calls;
      idle_in += exchange_.outcome.idle_in_us / settings_.calls;
      out += exchange_.outcome.bytes_out / settings_.calls;
      in += exchange_.outcome.bytes_in / settings_.calls;
      greeting += exchange_.greeting_us() / settings_.calls;
      credit += exchange_.credit_us() / settings_.calls;
      if (last) check();
    }
    const Spread spread = spread_of(times);
    report_.add({.name = name + (settings_.pinned ? " one gpu, pinned rings" : " one gpu"),
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
        "{:.1f} MiB of rings; the first greeting {:.1f} us after the launch, the last credit "
        "{:.1f} "
        "after the last slot\n",
        100 * wire / spread.median, spread.median - wire, out / spread.median * 1e-3,
        in / spread.median * 1e-3, idle_out, idle_in, exchange_.outcome.puts,
        exchange_.outcome.first_slots, exchange_.capacity, exchange_.chunk,
        static_cast<double>(exchange_.ring_bytes) / (1 << 20), greeting, credit);
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
    OneRankWorld world(scene, settings.device, settings.pinned,
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
