/// Archives (base/archive.hpp) made of invented bytes, with the header that the bytes need to be
/// read at all.
#pragma once

#include <cstring>

#include "base/archive.hpp"
#include "fuzz/fuzz.hpp"

namespace tokenyard::fuzz {

/// Returns `body` after a header with the mark of `kind_of`, an archive of the wanted kind.
inline std::vector<std::byte> archive_of(std::span<const std::byte> kind_of,
                                         std::span<const std::byte> body) {
  ArchiveHeader header;
  std::memcpy(&header, kind_of.data(), sizeof header);
  header.bytes = body.size();
  header.checksum = fnv1a(body);
  const auto front = std::as_bytes(std::span(&header, 1));
  std::vector<std::byte> archive(front.begin(), front.end());
  archive.insert(archive.end(), body.begin(), body.end());
  return archive;
}

}  // namespace tokenyard::fuzz
