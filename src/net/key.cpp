#include "net/key.hpp"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <cerrno>
#include <vector>

#include "base/os_failure.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::net {

namespace {

Digest hmac(std::span<const std::byte> key, std::span<const std::byte> text) {
  Digest digest;
  unsigned int bytes = 0;
  const auto* done = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                          reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                          reinterpret_cast<unsigned char*>(digest.data()), &bytes);
  if (done == nullptr || bytes != digest.size()) throw InternalError("HMAC-SHA256 failed");
  return digest;
}

std::vector<std::byte> joined(std::initializer_list<std::span<const std::byte>> parts) {
  std::vector<std::byte> text;
  for (const auto part : parts) text.insert(text.end(), part.begin(), part.end());
  return text;
}

}  // namespace

Key::Key(std::string_view secret, std::string_view purpose)
    : bytes_(hmac(as_bytes(secret), as_bytes(purpose))) {}

Digest Key::sign(std::initializer_list<std::span<const std::byte>> parts) const {
  return hmac(bytes_, joined(parts));
}

Key Key::derive(std::string_view label,
                std::initializer_list<std::span<const std::byte>> parts) const {
  const auto rest = joined(parts);
  return Key(sign({as_bytes(label), rest}));
}

bool same(std::span<const std::byte> left, std::span<const std::byte> right) {
  return left.size() == right.size() && CRYPTO_memcmp(left.data(), right.data(), left.size()) == 0;
}

void fill_randomly(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = getrandom(bytes.data(), bytes.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) os_failed("getrandom");
    bytes = bytes.subspan(static_cast<size_t>(got));
  }
}

uint64_t random_number() {
  uint64_t number = 0;
  while (number == 0) fill_randomly(std::as_writable_bytes(std::span(&number, 1)));
  return number;
}

std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace tokenyard::net
