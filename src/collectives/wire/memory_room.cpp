#include "collectives/wire/memory_room.hpp"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace tokenyard::collectives {

namespace {

constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();

/// The number in a file; nothing if there is none ("max", or no such file).
std::optional<size_t> number_in(const std::filesystem::path& file) {
  std::ifstream in(file);
  size_t number = 0;
  if (in >> number) return number;
  return std::nullopt;
}

/// The value of a name in a file of "name value" lines; 0 if it is not there.
size_t value_in(const std::filesystem::path& file, const std::string& wanted) {
  std::ifstream in(file);
  std::string name;
  size_t value = 0;
  while (in >> name >> value) {
    if (name == wanted) return value;
  }
  return 0;
}

size_t room_of(const std::filesystem::path& group) {
  const auto limit = number_in(group / "memory.max");
  const auto used = number_in(group / "memory.current");
  if (!limit || !used) return kNoLimit;
  const size_t held = *used - std::min(*used, value_in(group / "memory.stat", "inactive_file"));
  return *limit - std::min(*limit, held);
}

/// The group's path below the root of the second version's hierarchy: the line that begins "0::/".
std::filesystem::path group_in(const std::filesystem::path& membership) {
  std::ifstream in(membership);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("0::/")) return line.substr(4);
  }
  return {};
}

}  // namespace

size_t memory_room(const std::filesystem::path& groups, const std::filesystem::path& membership) {
  size_t room = kNoLimit;
  std::filesystem::path group = groups;
  room = std::min(room, room_of(group));
  for (const auto& part : group_in(membership)) {  // A limit may lie on any of the groups above.
    group /= part;
    room = std::min(room, room_of(group));
  }
  return room;
}

}  // namespace tokenyard::collectives
