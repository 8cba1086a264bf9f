/// Checks of arguments that torch passes on; an InvalidArgument names the argument.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace tokenyard::torch_backend {

/// An argument, or one item of a list, by its name in torch's documentation.
struct Argument {
  const char* name;
  std::optional<size_t> index = std::nullopt;

  std::string text() const { return index ? c10::str(name, "[", *index, "]") : name; }
};

/// Throws tokenyard.InvalidArgument, a ValueError.
[[noreturn]] inline void refuse(const Argument& argument, const std::string& expected,
                                const std::string& seen) {
  const pybind11::gil_scoped_acquire locked;
  const pybind11::object error = pybind11::module_::import("tokenyard.errors")
                                     .attr("invalid")(argument.text(), expected, seen);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw pybind11::error_already_set();
}

/// Returns `value`. Throws InvalidArgument unless it is in [smallest, largest].
inline int64_t in_range(const Argument& argument, int64_t value, int64_t smallest,
                        int64_t largest) {
  if (value < smallest || value > largest)
    refuse(argument, c10::str("an integer from ", smallest, " to ", largest), c10::str(value));
  return value;
}

/// Longer than any wait. Added to the current time it still fits in nanoseconds.
constexpr std::chrono::milliseconds kTimeoutMax = std::chrono::seconds(1'000'000'000);

/// Returns the timeout of an operation in nanoseconds. Throws InvalidArgument if out of range.
inline std::chrono::nanoseconds nanoseconds_of(std::chrono::milliseconds timeout) {
  if (timeout.count() <= 0 || timeout >= kTimeoutMax)
    refuse({"timeout"}, "seconds, more than 0 and less than 1e9",
           c10::str(std::chrono::duration<double>(timeout).count()));
  return timeout;
}

/// Returns the only item of a list.
template <class Item>
Item& only(std::vector<Item>& items) {
  TORCH_CHECK_VALUE(items.size() == 1, "requires a single tensor or list of them, not ",
                    items.size());
  return items.front();
}

/// Returns the root's list of tensors; on other ranks an empty list.
inline std::vector<at::Tensor> list_on_root(std::vector<std::vector<at::Tensor>>& lists,
                                            bool root) {
  if (root) return only(lists);
  TORCH_CHECK_VALUE(lists.empty() || (lists.size() == 1 && lists.front().empty()),
                    "requires no list of tensors on ranks other than the root");
  return {};
}

}  // namespace tokenyard::torch_backend
