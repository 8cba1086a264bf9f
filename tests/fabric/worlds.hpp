/// Runs a program as every rank of a world: as threads of this process, or as processes.
#pragma once

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "fabric/free_port.hpp"
#include "fabric/meeting_place.hpp"
#include "fabric/ranks.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard {

using Program = std::function<void(World&)>;

/// Runs ranks as child processes, which die with this one.
class RankProcesses {
 public:
  /// Runs `program(rank)` in a child per rank; a child exits with 0 if it returns, else prints the
  /// exception and exits with 1. This process must have no other threads.
  RankProcesses(uint32_t ranks, const std::function<void(uint32_t)>& program) {
    const pid_t parent = getpid();
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      const pid_t child = fork();
      if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(2);  // The parent died before prctl took effect.
        _exit(run(rank, program));
      }
      children_.push_back(child);
    }
  }
  ~RankProcesses() {
    for (const pid_t child : children_) {
      if (child <= 0) continue;
      ::kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
  }
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  void signal(uint32_t rank, int number) { ::kill(children_.at(rank), number); }
  pid_t process(uint32_t rank) const { return children_.at(rank); }
  /// Returns how the rank ended: its exit status, or 128 + the signal; -1 if it does not end.
  int wait(uint32_t rank) {
    int status = 0;
    const bool ended = eventually(
        [&] { return waitpid(children_.at(rank), &status, WNOHANG) == children_[rank]; });
    if (!ended) return -1;
    children_[rank] = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  /// Waits until the rank has stopped (SIGSTOP); returns false if it does not.
  bool stops(uint32_t rank) const {
    return eventually([&] {
      siginfo_t change{};
      // WNOWAIT leaves the status for later waits.
      return waitid(P_PID, static_cast<id_t>(children_.at(rank)), &change,
                    WSTOPPED | WNOHANG | WNOWAIT) == 0 &&
             change.si_pid != 0;
    });
  }

 private:
  static bool eventually(const std::function<bool()>& holds) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(100);
    while (!holds()) {
      if (std::chrono::steady_clock::now() >= until) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return true;
  }
  static int run(uint32_t rank, const std::function<void(uint32_t)>& program) {
    try {
      program(rank);
      return 0;
    } catch (const std::exception& error) {
      fmt::print(stderr, "rank {}: {}\n", rank, error.what());
      return 1;
    }
  }

  std::vector<pid_t> children_;
};

/// One way to run a world. Throws if a rank's program throws.
struct WorldKind {
  std::string name;
  std::function<void(uint32_t ranks, const WorldOptions& options, const Program& program)> run;
};

inline void run_threads(const std::string& device, uint32_t ranks, const WorldOptions& options,
                        const Program& program) {
  auto worlds = World::in_process(ranks, device, options);
  on_every_rank(ranks, [&](uint32_t rank) {
    const std::unique_ptr<World> mine = std::move(worlds[rank]);
    program(*mine);
  });
}

inline void run_processes(const std::string& device, uint32_t ranks, const WorldOptions& options,
                          const Program& program) {
  const uint16_t port = free_port();
  RankProcesses processes(ranks, [&](uint32_t rank) {
    const auto world = connect_world(
        {.port = port, .rank = rank, .size = ranks, .local_rank = rank}, device, options);
    program(*world);
  });
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const int status = processes.wait(rank);
    if (status != 0) throw std::runtime_error(fmt::format("rank {} ended with {}", rank, status));
  }
}

}  // namespace tokenyard
