/// The check for programs that ranks run. It throws, since exceptions cross threads, processes and
/// the simulator alike.
#pragma once

#include <stdexcept>
#include <string>

namespace tokenyard::testing {

class BrokenContract : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline void promise(bool holds, const std::string& text) {
  if (!holds) throw BrokenContract(text);
}

}  // namespace tokenyard::testing
