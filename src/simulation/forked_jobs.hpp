/// Runs many independent tasks in child processes, so that one that crashes fails alone.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tokenyard::simulation {

class ForkedJobs {
 public:
  using Work = std::function<std::string(uint64_t task)>;  ///< runs in a child
  struct Result {
    uint64_t task;
    std::string crash;  ///< "Segmentation fault"; empty if the task came to its end
    std::string text;   ///< what Work returned
  };
  /// In the parent. False ends the run: what is under way is dropped.
  using OnResult = std::function<bool(const Result&)>;

  ForkedJobs(uint32_t jobs, Work work);
  ~ForkedJobs();

  /// Tasks 0 .. tasks-1, in order of their start. Calls `on_pause` every half second.
  void run(uint64_t tasks, const OnResult& on_result, const std::function<bool()>& on_pause);

 private:
  struct Worker {
    int process = -1, pipe = -1;
    std::string received;
  };
  /// What parent and children share.
  struct Board {
    std::atomic<uint64_t> next;
    std::atomic<uint64_t> current[256];  ///< the task of each worker
  };

  void start(size_t worker, uint64_t tasks);
  [[noreturn]] void work(size_t worker, uint64_t tasks, int pipe);
  bool receive(size_t worker, const OnResult& on_result);
  void stop();

  Work work_;
  std::vector<Worker> workers_;
  Board* board_;
};

}  // namespace tokenyard::simulation
