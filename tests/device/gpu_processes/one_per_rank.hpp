/// Programs whose tests run each rank in a process of its own: the program starts itself.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "fabric/free_port.hpp"

namespace tokenyard::test {

/// A rank's number and its task.
struct Role {
  uint32_t rank = 0, size = 0;
  uint16_t port = 0;
  std::string act;
};

/// Starts this program once per rank, with `more` arguments. Returns exit statuses by rank; 128 +
/// signal for a killed rank, also if it overran the 90 s here.
inline std::vector<int> run_processes(uint32_t ranks, const std::string& act,
                                      const std::vector<std::string>& more = {}) {
  const std::string port = std::to_string(free_port()), size = std::to_string(ranks);
  std::vector<pid_t> processes;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    std::vector<std::string> words{
        "/proc/self/exe", "--rank", std::to_string(rank), "--size", size, "--port", port,
        "--act",          act};
    words.insert(words.end(), more.begin(), more.end());
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    pid_t process = 0;
    if (posix_spawn(&process, "/proc/self/exe", nullptr, nullptr, arguments.data(), environ) != 0)
      throw std::runtime_error("posix_spawn failed");
    processes.push_back(process);
  }
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(90);
  std::vector<int> statuses;
  for (const pid_t process : processes) {
    int status = 0;
    while (waitpid(process, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > until) kill(process, SIGKILL);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    statuses.push_back(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
  }
  return statuses;
}

/// Runs the tests, or one rank of a test by `play`.
template <class Play>
int run_program(CLI::App& program, int argc, char** argv, const Play& play) {
  testing::InitGoogleTest(&argc, argv);
  Role role;
  program.add_option("--rank", role.rank);
  program.add_option("--size", role.size);
  program.add_option("--port", role.port);
  program.add_option("--act", role.act);
  CLI11_PARSE(program, argc, argv);
  if (role.act.empty()) return RUN_ALL_TESTS();
  try {
    return play(role);
  } catch (const std::exception& error) {
    std::cerr << "rank " << role.rank << ": " << error.what() << "\n";
    return 1;
  }
}

}  // namespace tokenyard::test
