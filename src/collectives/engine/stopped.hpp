/// Errors of calls in a group that has stopped. Such a call has not begun, so its error must not
/// claim that it failed like the operation that stopped the group: class and fields are the
/// cause's, the message is its own.
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

/// Returns the same error with another message; errors of foreign classes stay as they are.
std::exception_ptr with_sentence(const std::exception_ptr& cause, const std::string& sentence);

}  // namespace tokenyard::collectives
