/// Tightens a limit of this process for its own lifetime.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

namespace tokenyard::collectives {

class ResourceLimit {
 public:
  ResourceLimit(__rlimit_resource which, rlim_t value) : which_(which) {
    getrlimit(which_, &before_);
    const rlimit now{value, before_.rlim_max};
    EXPECT_EQ(setrlimit(which_, &now), 0);
  }
  ~ResourceLimit() { setrlimit(which_, &before_); }
  ResourceLimit(const ResourceLimit&) = delete;
  ResourceLimit& operator=(const ResourceLimit&) = delete;

 private:
  __rlimit_resource which_;
  rlimit before_{};
};

/// Returns the limit on descriptors under which no new one can be opened.
inline rlim_t no_more_descriptors() {
  const int lowest_free = dup(0);
  close(lowest_free);
  return static_cast<rlim_t>(lowest_free);
}

}  // namespace tokenyard::collectives
