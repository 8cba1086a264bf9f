#include "control/file_store.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <string_view>

#include "base/file_descriptor.hpp"
#include "base/os_failure.hpp"
#include "net/key.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::control {

namespace {

namespace fs = std::filesystem;

/// Limit of a value. Files are published whole, so a longer one is not ours.
constexpr size_t kValueMax = 1u << 20;

[[noreturn]] void fail(const char* call, const fs::path& path, int code) {
  os_failed(fmt::format("{} of the store's {}", call, path.string()), code);
}

/// Keeps letters and digits, so that the directory is readable.
std::string file_name(std::string_view key) {
  std::string name;
  for (const char character : key) {
    const bool plain = (character >= '0' && character <= '9') ||
                       (character >= 'a' && character <= 'z') ||
                       (character >= 'A' && character <= 'Z') || character == '-';
    if (plain) {
      name += character;
    } else {
      name += fmt::format("_{:02x}", static_cast<unsigned char>(character));
    }
  }
  return name.empty() ? "_" : name;
}

void write_whole(const fs::path& path, const Store::Value& value) {
  const FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) fail("open", path, errno);
  for (size_t done = 0; done < value.size();) {
    const ssize_t wrote = write(file.native(), value.data() + done, value.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) fail("write", path, wrote < 0 ? errno : ENOSPC);
    done += static_cast<size_t>(wrote);
  }
}

std::optional<Store::Value> read_whole(const fs::path& path) {
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file && errno == ENOENT) return std::nullopt;
  if (!file) fail("open", path, errno);
  Store::Value value;
  std::byte piece[4096];
  for (;;) {
    const ssize_t got = read(file.native(), piece, sizeof piece);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("read", path, errno);
    if (got == 0) return value;
    value.insert(value.end(), piece, piece + got);
    if (value.size() > kValueMax) fail("read", path, EFBIG);
  }
}

void make_directory(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) fail("mkdir", path, error.value());
}

/// Makes a directory whose parent exists. Making missing parents would hide a mistyped path: the
/// rank would wait there, and nobody would come.
void make_last_directory(const fs::path& path) {
  std::error_code error;
  fs::create_directory(path, error);
  if (error == std::errc::no_such_file_or_directory)
    throw InvalidArgument("store", "a directory whose parent exists", path.string());
  if (error) fail("mkdir", path, error.value());
}

/// Removes the draft, linked to its place or not.
struct Draft {
  fs::path path;
  ~Draft() { unlink(path.c_str()); }
};

}  // namespace

FileStore::FileStore(const fs::path& directory, const std::string& job)
    : directory_(directory / file_name(job)) {
  make_last_directory(directory);
  make_directory(directory_ / ".new");
}

fs::path FileStore::directory_of(const std::string& key) const {
  return directory_ / file_name(key);
}

FileStore::Version FileStore::latest(const std::string& key) const {
  const fs::path path = directory_of(key);
  Version version;
  std::error_code error;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    uint64_t number = 0;
    const auto read = std::from_chars(name.data(), name.data() + name.size(), number);
    if (read.ec == std::errc() && read.ptr == name.data() + name.size()) {
      version.number = std::max(version.number, number);
    }
  }
  if (error && error != std::errc::no_such_file_or_directory) fail("readdir", path, error.value());
  if (version.number > 0) version.value = read_whole(path / std::to_string(version.number));
  return version;
}

bool FileStore::publish(const std::string& key, uint64_t number, const Value& value) const {
  const fs::path path = directory_of(key);
  make_directory(path);
  const Draft draft{directory_ / ".new" / fmt::format("{:016x}", net::random_number())};
  write_whole(draft.path, value);
  const fs::path place = path / std::to_string(number);
  if (link(draft.path.c_str(), place.c_str()) == 0) return true;
  if (errno != EEXIST) fail("link", place, errno);
  // A network file system may have lost its reply to a successful link: then there are two links.
  struct stat facts {};
  return stat(draft.path.c_str(), &facts) == 0 && facts.st_nlink == 2;
}

std::optional<Store::Value> FileStore::get(const std::string& key) {
  return latest(key).value;
}

void FileStore::set(const std::string& key, const Value& value) {
  while (!publish(key, latest(key).number + 1, value)) {
    // Another process was faster. The key has moved on; the loop ends when the others do.
  }
}

Store::Value FileStore::compare_and_set(const std::string& key,
                                        const std::optional<Value>& expected,
                                        const Value& desired) {
  for (;;) {
    const Version version = latest(key);
    if (version.value != expected) return version.value.value_or(Value{});
    if (publish(key, version.number + 1, desired)) return desired;
  }
}

}  // namespace tokenyard::control
