#include "simt/source_line.hpp"

#include <dlfcn.h>
#include <fmt/core.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <memory>

namespace tokenyard::simt {

namespace {

bool is_word(const std::string& location) {
  return location.find("/device/host/") != std::string::npos;
}

/// "/a/b/c.hpp:12 (discriminator 3)" to "c.hpp:12".
std::string shorten(std::string location) {
  location.erase(std::min(location.find(" ("), location.size()));
  return location.substr(location.rfind('/') + 1);
}

}  // namespace

std::string source_line(host_body::CodeAddress where) {
  const std::string address = fmt::format("{}", where);
  Dl_info info{};
  if (!where || !dladdr(where, &info) || !info.dli_fname) return address;
  // A return address belongs to the line of the call before it, hence the one less. Position
  // independent files count from where they were loaded.
  const auto offset =
      reinterpret_cast<uintptr_t>(where) - 1 - reinterpret_cast<uintptr_t>(info.dli_fbase);
  const std::string command =
      fmt::format("addr2line -i -e '{}' {:#x} 2>/dev/null", info.dli_fname, offset);
  std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  if (!pipe) return address;
  std::array<char, 1024> buffer;
  std::string innermost;
  while (fgets(buffer.data(), buffer.size(), pipe.get())) {
    std::string line(buffer.data());
    line.erase(line.find_last_not_of('\n') + 1);
    if (line.empty() || line[0] == '?') continue;
    if (innermost.empty()) innermost = line;
    if (!is_word(line)) return shorten(line);
  }
  return innermost.empty() ? address : shorten(innermost);
}

}  // namespace tokenyard::simt
