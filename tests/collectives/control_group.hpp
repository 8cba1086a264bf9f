/// A real memory control group below this process's own, with a limit. Removed at the end, when no
/// process may be in it.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tokenyard/error.hpp"

namespace tokenyard::collectives {

class ControlGroup {
 public:
  explicit ControlGroup(size_t limit_bytes) {
    std::ifstream membership("/proc/self/cgroup");
    for (std::string line; std::getline(membership, line);) {
      const size_t at = line.find(":memory:/");
      if (at == std::string::npos) continue;
      path_ =
          "/sys/fs/cgroup/memory/" + line.substr(at + 9) + "/tokenyard-" + std::to_string(getpid());
    }
    std::error_code error;
    if (path_.empty() || !std::filesystem::create_directory(path_, error)) {
      path_.clear();
    } else if (!write("memory.limit_in_bytes", std::to_string(limit_bytes))) {
      rmdir(path_.c_str());
      path_.clear();
    }
  }
  ~ControlGroup() {
    if (exists()) rmdir(path_.c_str());
  }
  ControlGroup(const ControlGroup&) = delete;
  ControlGroup& operator=(const ControlGroup&) = delete;

  /// Returns false if no group can be made: version 2, or not root.
  bool exists() const { return !path_.empty(); }
  /// Moves the calling process into the group. Memory that it held before is not counted.
  void enter() const {
    if (!write("cgroup.procs", std::to_string(getpid()))) throw OsError("cgroup.procs", 0, "");
  }

 private:
  bool write(const std::string& file, const std::string& text) const {
    return static_cast<bool>(std::ofstream(path_ / file) << text << std::flush);
  }

  std::filesystem::path path_;
};

}  // namespace tokenyard::collectives
