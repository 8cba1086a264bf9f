#include <fmt/core.h>

#include <map>

#include "simt/executor.hpp"
#include "simt/source_line.hpp"

namespace tokenyard::simt {

namespace {

std::string awaited(const Thread& thread) {
  const Waiting& waiting = thread.waiting;
  switch (thread.blocked) {
    case Blocked::no:
      return "nothing";
    case Blocked::meeting:
      return fmt::format("lanes {:#010x} of its warp", waiting.lanes);
    case Blocked::barrier: {
      const BarrierState& barrier = thread.block->barriers[waiting.barrier];
      return fmt::format("barrier {}, {} of {} threads arrived", waiting.barrier,
                         barrier.arrived.size(), barrier.threads);
    }
    case Blocked::copies:
      return "its bulk copies";
    case Blocked::nap:
      return "the end of a nap";
    case Blocked::condition:
      return fmt::format("phase {} from rank {}: expected {}, seen {}", waiting.phase, waiting.rank,
                         waiting.expected, waiting.seen);
    case Blocked::host_wait:
      return "a host-side condition";
    case Blocked::stopped:
      return "nothing: its rank was stopped";
  }
  return "?";
}

/// Returns ascending thread numbers as text: "32..63" or "0 2 4".
std::string ranges(const std::vector<uint32_t>& threads) {
  std::string text;
  for (size_t i = 0; i < threads.size();) {
    size_t last = i;
    while (last + 1 < threads.size() && threads[last + 1] == threads[last] + 1) ++last;
    text +=
        (text.empty() ? "" : " ") + (last == i ? fmt::format("{}", threads[i])
                                               : fmt::format("{}..{}", threads[i], threads[last]));
    i = last + 1;
  }
  return text;
}

}  // namespace

std::string deadlock_report(std::span<const std::shared_ptr<Grid>> grids,
                            std::span<const std::unique_ptr<Thread>> programs) {
  std::string report = "deadlock: no thread can continue";
  std::map<host_body::CodeAddress, std::string> lines;  // Cached: each look-up starts a process.
  for (const auto& grid : grids) {
    for (const auto& block : grid->blocks) {
      std::map<std::string, std::vector<uint32_t>> groups;
      for (const auto& thread : block->threads) {
        if (thread->exited) continue;
        const auto where = thread->waiting.where;
        if (!lines.contains(where)) lines[where] = source_line(where);
        groups[awaited(*thread) + " at " + lines[where]].push_back(thread->name.thread);
      }
      for (const auto& [what, threads] : groups)
        report += fmt::format("\n  rank {} kernel {} block {} threads {}: {}", grid->rank,
                              grid->kernel->name, block->index, ranges(threads), what);
    }
  }
  for (const auto& program : programs) {
    if (!program->exited)
      report += fmt::format("\n  {}: {}", describe(*program), awaited(*program));
  }
  return report;
}

}  // namespace tokenyard::simt
