#include "bench/harness/report.hpp"
#include "fabric/world_access.hpp"

#include <fmt/chrono.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "device/accelerator.hpp"

namespace tokenyard::bench {

namespace {

/// Returns the first line that a command prints, for a result file; empty if it fails.
std::string first_line_of(const char* command) {
  std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command, "r"), pclose);
  std::array<char, 256> line{};
  if (!pipe || !fgets(line.data(), line.size(), pipe.get())) return "";
  std::string text = line.data();
  text.erase(text.find_last_not_of('\n') + 1);
  return text;
}

std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

}  // namespace

Spread spread_of(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return {samples[samples.size() / 2], samples.front(), samples.back()};
}

Report::Report(std::string name, const World& world)
    : name_(std::move(name)), gpu_(accelerator_of(world).name()) {}

void Report::add(const Row& row) {
  const std::string floor =
      row.peer        ? fmt::format("{:8.1f} {:6.2f}x", row.peer->times.median,
                                    row.ours.median / row.peer->times.median)
      : row.floor > 0 ? fmt::format("{:8.1f} {:6.2f}x", row.floor, row.ours.median / row.floor)
                      : "";
  if (rows_.empty())
    fmt::print("{:<34}{:>6}{:>8}{:>8}{:>5}{:>10}{:>10}{:>10}{:>9} {:>7}\n", "case (us)", "ranks",
               "tokens", "hidden", "sms", "median", "min", "max",
               row.peer ? row.peer->name : "floor", "ratio");
  fmt::print("{:<34}{:>6}{:>8}{:>8}{:>5}{:>10.1f}{:>10.1f}{:>10.1f} {}\n", row.name, row.ranks,
             row.tokens, row.hidden, row.sms, row.ours.median, row.ours.min, row.ours.max, floor);
  std::fflush(stdout);
  rows_.push_back(row);
}

void Report::finish(const std::string& path) const {
  if (path.empty()) return;
  uint32_t most_gpus = 0;
  for (const Row& row : rows_) most_gpus = std::max(most_gpus, row.gpus);
  const nlohmann::ordered_json environment = {
      {"gpu", gpu_},
      {"gpus", most_gpus},
      {"driver",
       first_line_of("nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null")},
      {"cuda",
       first_line_of("nvcc --version 2>/dev/null | sed -n 's/.*release \\([0-9.]*\\).*/\\1/p'")},
      {"cpu", processor()},
      {"commit", first_line_of("git rev-parse --short HEAD 2>/dev/null")},
      {"date", fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)))},
  };
  // One row per line, so that a new measurement changes only its own lines.
  std::ofstream file(path);
  file << R"({"environment":)" << environment.dump() << ",\n"
       << R"("rows":[)";
  const char* before = "\n";
  for (const Row& row : rows_) {
    nlohmann::ordered_json of_row = {
        {"case", row.name},
        {"gpus", row.gpus},
        {"ranks", row.ranks},
        {"tokens", row.tokens},
        {"hidden", row.hidden},
        {"sms", row.sms},
        {"unit", "us"},
        {"ours", {{"median", row.ours.median}, {"min", row.ours.min}, {"max", row.ours.max}}},
        {"peer", nullptr},
        {"floor", row.floor}};
    if (row.peer) {
      const Spread& times = row.peer->times;
      of_row["peer"] = {{"name", row.peer->name},
                        {"median", times.median},
                        {"min", times.min},
                        {"max", times.max}};
    }
    for (const Moment& moment : row.moments)
      of_row["moments"][moment.name] = {moment.first, moment.middle, moment.last};
    file << before << of_row.dump();
    before = ",\n";
  }
  file << "\n]}\n";
  if (!file.flush()) throw std::runtime_error(fmt::format("--output: cannot write {}", path));
  fmt::print("written: {}\n", path);
}

}  // namespace tokenyard::bench
