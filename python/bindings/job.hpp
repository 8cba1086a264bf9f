/// Python's handles of a job.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <utility>

#include "forks.hpp"
#include "tokenyard/job.hpp"

namespace tokenyard::python {

/// Throws InvalidArgument in a fork, where no thread of the library runs.
[[noreturn]] void refuse_fork();

/// Returns what a name stands for; `raise` cannot be an enumerator in Python. Throws
/// InvalidArgument.
OnFailure on_failure_of(const std::string& name);

/// One of the handles that share a job, with each other and with its worlds. Shared by calls in
/// progress, so that `close` on one thread does not destroy it under another.
class JobHandle {
 public:
  /// `founds`: whether the end of this handle is that of the rank's membership.
  JobHandle(std::shared_ptr<Job> job, bool founds) : job_(std::move(job)), founds_(founds) {}
  ~JobHandle() { close(); }
  JobHandle(const JobHandle&) = delete;
  JobHandle& operator=(const JobHandle&) = delete;

  /// Returns the job. Throws InvalidArgument once closed, and in a fork of the process that made
  /// it.
  std::shared_ptr<Job> get() const;
  bool closed() const { return job_ == nullptr; }
  /// Drops this handle's share. If it founds the membership, ends every wait for operations; the
  /// job's threads end with the last call in progress, or world.
  void close();

 private:
  std::shared_ptr<Job> job_;
  const bool founds_;
  Forks made_;
};

/// Calls `call(job)` without the interpreter lock, and drops the job without it: that may be the
/// end of the job, which waits for threads that take the lock.
template <class Call>
auto unlocked(const JobHandle& self, Call&& call) {
  std::shared_ptr<Job> job = self.get();
  const nanobind::gil_scoped_release unlocked;
  const std::shared_ptr<Job> held = std::move(job);
  return call(*held);
}

}  // namespace tokenyard::python
