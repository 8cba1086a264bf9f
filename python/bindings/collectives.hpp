/// Python's handles of a job, its groups and their operations.
///
/// Every call into the library releases the interpreter lock, even a quick one: the library's
/// threads take that lock while they hold locks of their own.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "forks.hpp"
#include "tokenyard/collectives.hpp"

namespace tokenyard::python {

/// Throws InvalidArgument in a fork, where no thread of the library runs.
[[noreturn]] void refuse_fork();

/// Shared by calls in progress, so that `close` on one thread does not destroy it under another.
class CollectivesHandle {
 public:
  explicit CollectivesHandle(std::unique_ptr<Collectives> collectives);
  ~CollectivesHandle() { close(); }
  CollectivesHandle(const CollectivesHandle&) = delete;
  CollectivesHandle& operator=(const CollectivesHandle&) = delete;

  /// Returns the job. Throws InvalidArgument once closed, and in a fork of the process that made
  /// it.
  std::shared_ptr<Collectives> get() const;
  bool closed() const { return collectives_ == nullptr; }
  /// Ends every wait; the job's threads end with the last call in progress.
  void close();

 private:
  std::shared_ptr<Collectives> collectives_;
  Forks made_;
};

/// Destroys a copy of a group without the interpreter lock; leaks it in a fork of the process that
/// made it.
struct DropGroup {
  Forks made;
  void operator()(Group* group) const;
};

class GroupHandle {
 public:
  explicit GroupHandle(Group group) : group_(new Group(std::move(group)), DropGroup{}) {}
  /// Returns the group. Throws InvalidArgument in a fork of the process that made it.
  Group& group() const {
    if (made_.since()) refuse_fork();
    return *group_;
  }

 private:
  std::shared_ptr<Group> group_;
  Forks made_;
};

/// The bytes of an array of any dtype; nanobind does not know the dtypes of ml_dtypes.
template <class Byte>
using Bytes = nanobind::ndarray<Byte, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
template <class Byte>
using TypedBytes = std::vector<std::pair<Bytes<Byte>, DataType>>;

/// An operation and its arrays, which live until it is done, even if no caller waits.
class WorkHandle {
 public:
  struct Arrays {
    TypedBytes<const uint8_t> in;
    TypedBytes<uint8_t> out;
  };
  WorkHandle(Work work, Arrays arrays) : work_(std::move(work)), arrays_(std::move(arrays)) {}
  ~WorkHandle();
  WorkHandle(WorkHandle&& other) noexcept
      : work_(std::exchange(other.work_, std::nullopt)),
        arrays_(std::move(other.arrays_)),
        made_(other.made_) {}
  WorkHandle& operator=(WorkHandle&&) = delete;

  /// Returns the operation. Throws InvalidArgument in a fork of the process that made it.
  Work& work() {
    if (made_.since()) refuse_fork();
    return *work_;
  }

 private:
  std::optional<Work> work_;
  Arrays arrays_;
  Forks made_;
};

}  // namespace tokenyard::python
