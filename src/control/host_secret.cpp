#include "control/host_secret.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <span>

#include "base/environment.hpp"
#include "base/file_descriptor.hpp"
#include "base/os_failure.hpp"
#include "net/key.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::control {

namespace {

constexpr const char* kName = "secret";
constexpr size_t kShortest = 16, kLongest = 4096;
constexpr size_t kRandomBytes = 32;
constexpr mode_t kOwnerOnly = 0600, kOwnersFolder = 0700, kOthers = 077;

[[noreturn]] void secret_failed(const std::string& call, const std::string& path) {
  const int code = errno;
  os_failed(fmt::format("{} of {}", call, path), code);
}

/// Requires that nobody but this user can have written it, or can read it.
void require_private(const std::string& argument, const FileDescriptor& file,
                     const std::string& path, mode_t kind) {
  struct stat status {};
  if (fstat(file.native(), &status) != 0) secret_failed("fstat", path);
  const bool is_kind = (status.st_mode & S_IFMT) == kind;
  const bool is_ours = status.st_uid == geteuid() || (kind == S_IFREG && status.st_uid == 0);
  if (is_kind && is_ours && (status.st_mode & kOthers) == 0) return;
  throw InvalidArgument(
      argument,
      fmt::format("a {} of this user that nobody else may read, or the job's secret given "
                  "otherwise (TOKENYARD_SECRET_FILE)",
                  kind == S_IFDIR ? "folder" : "file"),
      fmt::format("{} of user {} with mode {:04o}", path, status.st_uid, status.st_mode & 07777));
}

std::string content_of(const std::string& argument, const FileDescriptor& file,
                       const std::string& path) {
  require_private(argument, file, path, S_IFREG);
  std::array<char, kLongest + 2> bytes;  // A longest one and its end of line.
  const ssize_t count = read(file.native(), bytes.data(), bytes.size());
  if (count < 0) secret_failed("read", path);
  const std::string_view text(bytes.data(), static_cast<size_t>(count));
  return checked_secret(argument, text, " in " + path);
}

/// A launcher may pass on the XDG_RUNTIME_DIR of another machine, or of another user (sudo -E).
bool is_own_folder(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == geteuid();
}

std::string folder_path() {
  const auto runtime = runtime_directory();
  if (runtime && is_own_folder(*runtime)) return *runtime + "/tokenyard";
  return fmt::format("/tmp/tokenyard-{}", geteuid());
}

std::string drawn() {
  std::array<std::byte, kRandomBytes> random;
  net::fill_randomly(random);
  std::string text;
  for (const std::byte byte : random) text += fmt::format("{:02x}", std::to_integer<int>(byte));
  return text + "\n";
}

/// Writes a secret under its name unless one is there. The name is linked to a whole file: another
/// process that is faster has linked it first, and both read that one.
void draw_in(const FileDescriptor& folder, const std::string& path) {
  const std::string beside = fmt::format("{}.{}.{:016x}", kName, getpid(), net::random_number());
  const FileDescriptor file(openat(folder.native(), beside.c_str(),
                                   O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                                   kOwnerOnly));
  if (!file) secret_failed("open", path + "/" + beside);
  const std::string text = drawn();
  errno = ENOSPC;  // Of a write that stops short.
  // On disk before it has its name: no crash leaves an empty secret.
  const bool whole = write(file.native(), text.data(), text.size()) == ssize_t(text.size()) &&
                     fsync(file.native()) == 0;
  const bool linked =
      whole &&
      (linkat(folder.native(), beside.c_str(), folder.native(), kName, 0) == 0 || errno == EEXIST);
  const int code = errno;
  unlinkat(folder.native(), beside.c_str(), 0);
  errno = code;
  if (!linked) secret_failed("write", path + "/" + kName);
}

}  // namespace

std::string host_secret() {
  const std::string path = folder_path(), name = path + "/" + kName;
  if (mkdir(path.c_str(), kOwnersFolder) != 0 && errno != EEXIST) secret_failed("mkdir", path);
  const FileDescriptor folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder) secret_failed("open", path);
  require_private("secret", folder, path, S_IFDIR);
  for (bool again = true;; again = false) {
    const FileDescriptor file(
        openat(folder.native(), kName, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (file) return content_of("secret", file, name);
    if (errno != ENOENT || !again) secret_failed("open", name);
    draw_in(folder, path);
  }
}

std::string checked_secret(const std::string& argument, std::string_view text,
                           const std::string& place) {
  constexpr const char* kSpace = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpace), last = text.find_last_not_of(kSpace);
  const std::string secret(first == text.npos ? "" : text.substr(first, last - first + 1));
  if (secret.size() >= kShortest && secret.size() <= kLongest) return secret;
  throw InvalidArgument(argument, fmt::format("a secret of {} to {} bytes", kShortest, kLongest),
                        fmt::format("{} bytes{}", secret.size(), place));
}

std::string secret_in_file(const std::string& argument, const std::string& path) {
  // Without O_NONBLOCK, a pipe with no writer would keep this waiting.
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!file) secret_failed("open", path);
  return content_of(argument, file, path);
}

std::optional<std::string> secret_in_environment() {
  constexpr const char *kText = "TOKENYARD_SECRET", *kFile = "TOKENYARD_SECRET_FILE";
  const SecretEnvironment environment = SecretEnvironment::read();
  std::optional<std::string> direct;
  if (environment.secret) direct = checked_secret(kText, *environment.secret);
  if (!environment.file) return direct;
  std::string in_file = secret_in_file(kFile, *environment.file);
  if (direct && *direct != in_file) {
    throw InvalidArgument(
        kText, "the secret that TOKENYARD_SECRET_FILE holds; set only one of them", "another one");
  }
  return in_file;
}

std::string required_secret(const std::string& given) {
  if (!given.empty()) return given;
  if (auto own = secret_in_environment()) return *std::move(own);
  throw InvalidArgument("secret",
                        "the job's secret, or TOKENYARD_SECRET_FILE or TOKENYARD_SECRET in the "
                        "environment (make one by openssl rand -hex 16)",
                        "none of them");
}

}  // namespace tokenyard::control
