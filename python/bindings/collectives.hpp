/// Python's handles of groups and their operations.
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
#include "job.hpp"
#include "tokenyard/collectives.hpp"

namespace tokenyard::python {

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
