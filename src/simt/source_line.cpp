#include "simt/source_line.hpp"

#include <dlfcn.h>
#include <fmt/core.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>

namespace tokenyard::simt {

namespace {

bool is_word(const std::string& location) {
  return location.find("/device/host/") != std::string::npos;
}

/// Turns "/a/b/c.hpp:12 (discriminator 3)" into "c.hpp:12".
std::string shorten(std::string location) {
  location.erase(std::min(location.find(" ("), location.size()));
  return location.substr(location.rfind('/') + 1);
}

/// Returns the path of the file that holds an address, for other programs to open. For the main
/// program dladdr gives the name by which it was started, which may have been found through PATH.
std::string file_of(const Dl_info& info) {
  std::error_code missing;
  if (std::filesystem::exists(info.dli_fname, missing)) return info.dli_fname;
  return std::filesystem::read_symlink("/proc/self/exe", missing).string();
}

/// Returns the full location of the innermost line outside the words; empty if it is unknown.
std::string locate(host_body::CodeAddress where) {
  Dl_info info{};
  if (!where || !dladdr(where, &info) || !info.dli_fname) return {};
  // The minus 1 is because a return address belongs to the line of the call before it. Addresses in
  // position-independent files are relative to where the file was loaded.
  const auto offset =
      reinterpret_cast<uintptr_t>(where) - 1 - reinterpret_cast<uintptr_t>(info.dli_fbase);
  const std::string command =
      fmt::format("addr2line -i -e '{}' {:#x} 2>/dev/null", file_of(info), offset);
  std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  if (!pipe) return {};
  std::array<char, 1024> buffer;
  std::string innermost, outside;
  while (fgets(buffer.data(), buffer.size(), pipe.get())) {
    std::string line(buffer.data());
    line.erase(line.find_last_not_of('\n') + 1);
    if (line.empty() || line[0] == '?') continue;
    if (innermost.empty()) innermost = line;
    if (outside.empty() && !is_word(line)) outside = line;
  }
  return outside.empty() ? innermost : outside;
}

}  // namespace

std::string source_line(host_body::CodeAddress where) {
  const std::string location = locate(where);
  return location.empty() ? fmt::format("{}", where) : shorten(location);
}

bool same_place(host_body::CodeAddress a, host_body::CodeAddress b) {
  if (a == b) return true;
  // Shared by the ranks of a process, because code locations are the same for all.
  static std::mutex mutex;
  static std::map<host_body::CodeAddress, std::string> known;
  const std::scoped_lock lock(mutex);
  const auto look_up = [](host_body::CodeAddress where) -> const std::string& {
    const auto [entry, is_new] = known.try_emplace(where);
    if (is_new) entry->second = shorten(locate(where));
    return entry->second;
  };
  const std::string &one = look_up(a), &other = look_up(b);
  return one.empty() || other.empty() || one == other;
}

}  // namespace tokenyard::simt
