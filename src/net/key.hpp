/// Keys derived from a job's secret, and HMAC-SHA256 signatures under them. A signature proves that
/// the signer knows the secret, and binds the signed bytes to one purpose and one session.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

namespace tokenyard::net {

using Digest = std::array<std::byte, 32>;

class Key {
 public:
  /// Derives a key. Keys with different purposes reveal nothing about one another or the secret.
  Key(std::string_view secret, std::string_view purpose);

  /// Signs the concatenation of all parts. The caller makes their lengths unambiguous.
  Digest sign(std::initializer_list<std::span<const std::byte>> parts) const;
  /// Derives a key that only an owner of this one can compute.
  Key derive(std::string_view label, std::initializer_list<std::span<const std::byte>> parts) const;

 private:
  explicit Key(const Digest& bytes) : bytes_(bytes) {}

  Digest bytes_;
};

/// Compares in constant time, so that timing does not reveal the first difference.
bool same(std::span<const std::byte> left, std::span<const std::byte> right);

/// Fills `bytes` from the system's random source. Throws OsError if it fails.
void fill_randomly(std::span<std::byte> bytes);
/// Returns a random number other than 0.
uint64_t random_number();

std::span<const std::byte> as_bytes(std::string_view text);

}  // namespace tokenyard::net
