#include "collectives/transports/cgroup_memory_limit.hpp"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace tokenyard::collectives {

namespace {

constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();

/// Returns the number in a file; nothing if there is none ("max", or no such file).
std::optional<size_t> number_in(const std::filesystem::path& file) {
  std::ifstream in(file);
  size_t number = 0;
  if (in >> number) return number;
  return std::nullopt;
}

/// Returns the value of a name in a file of "name value" lines; 0 if it is missing.
size_t value_in(const std::filesystem::path& file, const std::string& wanted) {
  std::ifstream in(file);
  std::string name;
  size_t value = 0;
  while (in >> name >> value) {
    if (name == wanted) return value;
  }
  return 0;
}

/// File and field names of the two versions of control groups.
struct Dialect {
  const char* limit;
  const char* used;
  const char* reclaimable;  ///< in memory.stat
};
constexpr Dialect kFirst{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr Dialect kSecond{"memory.max", "memory.current", "inactive_file"};

size_t room_of(const std::filesystem::path& group, const Dialect& dialect) {
  const auto limit = number_in(group / dialect.limit);
  const auto used = number_in(group / dialect.used);
  if (!limit || !used) return kNoLimit;
  const size_t held = *used - std::min(*used, value_in(group / "memory.stat", dialect.reclaimable));
  return *limit - std::min(*limit, held);
}

/// Returns the smallest room on the path: each group above may have a limit.
size_t room_on_the_way_to(const std::filesystem::path& group, std::filesystem::path at,
                          const Dialect& dialect) {
  size_t room = room_of(at, dialect);
  for (const auto& part : group) {
    at /= part;
    room = std::min(room, room_of(at, dialect));
  }
  return room;
}

}  // namespace

size_t cgroup_memory_limit(const std::filesystem::path& groups,
                           const std::filesystem::path& membership) {
  size_t room = kNoLimit;
  std::ifstream in(membership);
  // "number:controllers:/group"; version 2 has a single hierarchy and lists no controllers.
  for (std::string line; std::getline(in, line);) {
    const size_t controllers_at = line.find(':') + 1;
    const size_t group_at = line.find(":/", controllers_at);
    if (controllers_at == 0 || group_at == std::string::npos) continue;
    const std::string controllers = line.substr(controllers_at, group_at - controllers_at);
    const std::string group = line.substr(group_at + 2);
    if (controllers.empty()) {
      room = std::min(room, room_on_the_way_to(group, groups, kSecond));
    } else if (("," + controllers + ",").find(",memory,") != std::string::npos) {
      room = std::min(room, room_on_the_way_to(group, groups / "memory", kFirst));
    }
  }
  return room;
}

}  // namespace tokenyard::collectives
