/// What a call of a group that has stopped is told. It has not begun, so it does not fail as the
/// operation did that stopped the group: the class and the fields are the cause's, the sentence is
/// its own.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "tokenyard/error.hpp"

namespace tokenyard::collectives {

template <class Cause>
class Stopped final : public Cause {
 public:
  Stopped(const Cause& cause, std::string sentence)
      : Cause(cause), sentence_(std::move(sentence)) {}
  const char* what() const noexcept override { return sentence_.c_str(); }

 private:
  std::string sentence_;
};

/// The same error with another sentence; errors of classes that are not the package's stay as they
/// are.
std::exception_ptr with_sentence(const std::exception_ptr& cause, const std::string& sentence);

}  // namespace tokenyard::collectives
