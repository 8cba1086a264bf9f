/// Runs many independent tasks in child processes, so that a crash fails one task only.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_descriptor.hpp"
#include "base/mapping.hpp"

namespace tokenyard::simulation {

class ForkedJobs {
 public:
  using Work = std::function<std::string(uint64_t task)>;  ///< runs in a child
  struct Result {
    uint64_t task;
    std::string crash;  ///< "Segmentation fault"; empty if the task finished
    std::string text;   ///< Work's result; after a crash, its last note
    int signal = 0;     ///< that killed the task; 0 if none did
  };
  /// Runs in the parent. Returns false to end the run and drop the tasks in progress.
  using OnResult = std::function<bool(const Result&)>;

  ForkedJobs(uint32_t jobs, Work work);
  ~ForkedJobs();

  /// Runs tasks 0 .. tasks-1, started in that order. Calls `on_pause` every half second.
  void run(uint64_t tasks, const OnResult& on_result, const std::function<bool()>& on_pause);
  /// Called by a task: replaces its note, which is reported if it crashes. Only the first
  /// kNoteBytes are kept.
  void note(std::string_view text);
  static constexpr size_t kNoteBytes = 8192;

 private:
  struct Worker {
    int process = -1;
    FileDescriptor pipe{};  ///< this process's end, which reads
    std::string received;
  };
  static constexpr size_t kWorkersMax = 256;
  struct Note {
    std::atomic<size_t> bytes;  ///< 0 while the text is being written
    char text[kNoteBytes];
  };
  /// The memory that parent and children share.
  struct Board {
    std::atomic<uint64_t> next;                  ///< task to start
    std::atomic<uint64_t> current[kWorkersMax];  ///< each worker's task
    Note notes[kWorkersMax];                     ///< each worker's note
  };

  void start(size_t worker, uint64_t tasks);
  [[noreturn]] void work(size_t worker, uint64_t tasks, const FileDescriptor& pipe);
  bool receive(size_t worker, const OnResult& on_result);
  void stop();

  Work work_;
  std::vector<Worker> workers_;
  size_t me_ = 0;  ///< in a child: its index among the workers
  Mapping shared_;
  Board* board_;
};

}  // namespace tokenyard::simulation
