/// Converts Python's values to the bytes of a task's Args.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string>
#include <vector>

#include "task_graph.hpp"

namespace tokenyard::python {

/// Arguments by field name: pieces or None, integers, numbers, and events as 1-tuples of their id.
/// Throws InvalidArgument naming the argument. The graph keeps the pieces' memory alive.
class TaskArgs {
 public:
  TaskArgs(TaskGraph& graph, const mk::TaskType& type, const std::string& task,
           const nb::dict& values);

  const std::vector<std::byte>& bytes() const { return bytes_; }
  /// Returns the pieces among the arguments; their names point into the task type.
  const std::vector<mk::ArgPiece>& pieces() const { return pieces_; }

 private:
  void put(const mk::ArgField& field, const nb::object& value);
  void put_piece(const mk::ArgField& field, const nb::object& value);
  [[noreturn]] void refuse(const mk::ArgField& field, const char* expected,
                           const nb::object& seen) const;

  TaskGraph& graph_;
  const mk::TaskType& type_;
  const std::string& task_;
  std::vector<std::byte> bytes_;
  std::vector<mk::ArgPiece> pieces_;
  std::vector<Piece> named_;
};

}  // namespace tokenyard::python
