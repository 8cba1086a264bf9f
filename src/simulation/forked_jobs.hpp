/// Runs many independent tasks in child processes, so that one that crashes fails alone.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tokenyard::simulation {

class ForkedJobs {
 public:
  using Work = std::function<std::string(uint64_t task)>;  ///< runs in a child
  struct Result {
    uint64_t task;
    std::string crash;  ///< "Segmentation fault"; empty if the task came to its end
    std::string text;   ///< what Work returned; after a crash, what it had noted last
    int signal = 0;     ///< that ended it
  };
  /// In the parent. False ends the run: what is under way is dropped.
  using OnResult = std::function<bool(const Result&)>;

  ForkedJobs(uint32_t jobs, Work work);
  ~ForkedJobs();

  /// Tasks 0 .. tasks-1, in order of their start. Calls `on_pause` every half second.
  void run(uint64_t tasks, const OnResult& on_result, const std::function<bool()>& on_pause);
  /// By a task: what is to be known of it if it does not come to its end, instead of what it noted
  /// before. Only so many bytes are kept.
  void note(std::string_view text);
  static constexpr size_t kNoteBytes = 8192;

 private:
  struct Worker {
    int process = -1, pipe = -1;
    std::string received;
  };
  static constexpr size_t kWorkersMax = 256;
  struct Note {
    std::atomic<size_t> bytes;  ///< 0 while the text is being written
    char text[kNoteBytes];
  };
  /// What parent and children share.
  struct Board {
    std::atomic<uint64_t> next;
    std::atomic<uint64_t> current[kWorkersMax];  ///< the task of each worker
    Note notes[kWorkersMax];                     ///< and what it has noted
  };

  void start(size_t worker, uint64_t tasks);
  [[noreturn]] void work(size_t worker, uint64_t tasks, int pipe);
  bool receive(size_t worker, const OnResult& on_result);
  void stop();

  Work work_;
  std::vector<Worker> workers_;
  size_t me_ = 0;  ///< in a child: which worker it is
  Board* board_;
};

}  // namespace tokenyard::simulation
