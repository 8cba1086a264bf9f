/// What a job's secret is used for: signing with HMAC-SHA256, so that who does not know the secret
/// cannot speak, and what was said cannot be said again elsewhere.
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
  /// Keys of different purposes say nothing about one another, nor about the secret.
  Key(std::string_view secret, std::string_view purpose);

  /// Of all parts, one after the other; whoever calls keeps their lengths unambiguous.
  Digest sign(std::initializer_list<std::span<const std::byte>> parts) const;
  /// A key that only who knows this one can make.
  Key derive(std::string_view label, std::initializer_list<std::span<const std::byte>> parts) const;

 private:
  explicit Key(const Digest& bytes) : bytes_(bytes) {}

  Digest bytes_;
};

/// Whether they are equal, in a time that does not tell where they differ.
bool same(std::span<const std::byte> left, std::span<const std::byte> right);

/// Fresh from the system. Throws OsError if it has none.
void fill_randomly(std::span<std::byte> bytes);
/// Never 0.
uint64_t random_number();

std::span<const std::byte> as_bytes(std::string_view text);

}  // namespace tokenyard::net
