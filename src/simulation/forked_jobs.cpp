#include "simulation/forked_jobs.hpp"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <new>

#include "base/os_failure.hpp"

namespace tokenyard::simulation {
namespace {

constexpr uint64_t kNoTask = ~uint64_t{0};

struct Header {
  uint64_t task, bytes;
};

/// Returns false if the reader has closed the pipe.
bool write_all(int pipe, const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(pipe, at, bytes);
    if (written < 0) return false;
    at += written;
    bytes -= static_cast<size_t>(written);
  }
  return true;
}

}  // namespace

ForkedJobs::ForkedJobs(uint32_t jobs, Work work)
    : work_(std::move(work)),
      workers_(std::clamp<size_t>(jobs, 1, kWorkersMax)),
      shared_(Mapping::with_children(sizeof(Board))),
      board_(new(shared_.base()) Board{}) {}

ForkedJobs::~ForkedJobs() {
  stop();
}

void ForkedJobs::start(size_t worker, uint64_t tasks) {
  int ends[2];
  if (::pipe(ends) != 0) os_failed("pipe");
  FileDescriptor reader(ends[0]), writer(ends[1]);
  board_->current[worker] = kNoTask;
  ::fflush(nullptr);  // Otherwise every child would print the buffered output again.
  const int process = ::fork();
  if (process < 0) os_failed("fork");
  if (process == 0) {
    reader.close();
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    work(worker, tasks, writer);
  }
  workers_[worker] = {process, std::move(reader), ""};
}

void ForkedJobs::note(std::string_view text) {
  Note& note = board_->notes[me_];
  note.bytes = 0;
  note.bytes = text.copy(note.text, kNoteBytes);
}

void ForkedJobs::work(size_t worker, uint64_t tasks, const FileDescriptor& pipe) {
  me_ = worker;
  while (true) {
    const uint64_t task = board_->next++;
    if (task >= tasks) ::_exit(0);
    board_->current[worker] = task;
    note("");
    const std::string text = work_(task);
    const Header header{task, text.size()};
    if (!write_all(pipe.native(), &header, sizeof header) ||
        !write_all(pipe.native(), text.data(), text.size()))
      ::_exit(1);
    board_->current[worker] = kNoTask;
  }
}

/// Receives results from a worker. Returns false if the run must end.
bool ForkedJobs::receive(size_t index, const OnResult& on_result) {
  Worker& worker = workers_[index];
  char buffer[65536];
  const ssize_t bytes = ::read(worker.pipe.native(), buffer, sizeof buffer);
  if (bytes > 0) {
    worker.received.append(buffer, static_cast<size_t>(bytes));
    Header header;
    while (worker.received.size() >= sizeof header) {
      memcpy(&header, worker.received.data(), sizeof header);
      if (worker.received.size() < sizeof header + header.bytes) break;
      const Result result{header.task, "", worker.received.substr(sizeof header, header.bytes)};
      worker.received.erase(0, sizeof header + header.bytes);
      if (!on_result(result)) return false;
    }
    return true;
  }
  // The worker has ended: no tasks were left, or its task crashed.
  worker.pipe.close();
  int status = 0;
  ::waitpid(worker.process, &status, 0);
  worker = {};
  const uint64_t task = board_->current[index];
  if (task == kNoTask || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) return true;
  const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  const std::string how =
      signal != 0 ? strsignal(signal) : "exit status " + std::to_string(WEXITSTATUS(status));
  const Note& note = board_->notes[index];
  return on_result({task, how, std::string(note.text, note.bytes), signal});
}

void ForkedJobs::run(uint64_t tasks, const OnResult& on_result,
                     const std::function<bool()>& on_pause) {
  board_->next = 0;
  bool more = true;
  auto paused = std::chrono::steady_clock::now();
  while (more) {
    for (size_t worker = 0; worker < workers_.size(); ++worker)
      if (workers_[worker].process < 0 && board_->next < tasks) start(worker, tasks);
    std::vector<pollfd> waiting;
    std::vector<size_t> owners;
    for (size_t worker = 0; worker < workers_.size(); ++worker) {
      if (workers_[worker].process < 0) continue;
      waiting.push_back({workers_[worker].pipe.native(), POLLIN, 0});
      owners.push_back(worker);
    }
    if (waiting.empty()) break;
    ::poll(waiting.data(), waiting.size(), 500);
    for (size_t index = 0; more && index < waiting.size(); ++index)
      if (waiting[index].revents != 0) more = receive(owners[index], on_result);
    const auto now = std::chrono::steady_clock::now();
    if (more && now - paused > std::chrono::milliseconds(500)) {
      paused = now;
      more = on_pause();
    }
  }
  stop();
}

void ForkedJobs::stop() {
  for (Worker& worker : workers_) {
    if (worker.process < 0) continue;
    ::kill(worker.process, SIGKILL);
    worker.pipe.close();
    ::waitpid(worker.process, nullptr, 0);
    worker = {};
  }
}

}  // namespace tokenyard::simulation
