#include "net/payload.hpp"

#include "base/little_endian.hpp"

namespace tokenyard::net {

void PayloadWriter::number(uint64_t value) {
  const auto bytes = little_endian(value);
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

void PayloadWriter::text(std::string_view text) {
  number(text.size());
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  bytes_.insert(bytes_.end(), begin, begin + text.size());
}

uint64_t PayloadReader::number() {
  if (rest_.size() < sizeof(uint64_t)) {
    ok_ = false;
    rest_ = {};
    return 0;
  }
  return take_number<uint64_t>(rest_);
}

std::string PayloadReader::text() {
  const uint64_t bytes = number();
  if (bytes > rest_.size()) {
    ok_ = false;
    rest_ = {};
    return "";
  }
  std::string text(reinterpret_cast<const char*>(rest_.data()), bytes);
  rest_ = rest_.subspan(bytes);
  return text;
}

}  // namespace tokenyard::net
