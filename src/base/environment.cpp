#include "base/environment.hpp"

#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <limits>

#include "tokenyard/error.hpp"

namespace tokenyard {

namespace {

std::optional<std::string> given(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

std::optional<std::string> text(const char* name) {
  const auto value = given(name);
  return value && !value->empty() ? value : std::nullopt;
}

template <class Number>
std::optional<Number> number(const char* name) {
  const auto value = text(name);
  if (!value) return std::nullopt;
  Number parsed = 0;
  const char* end = value->data() + value->size();
  const auto [stopped, error] = std::from_chars(value->data(), end, parsed);
  if (error != std::errc() || stopped != end) {
    throw InvalidArgument(name,
                          "a number up to " + std::to_string(std::numeric_limits<Number>::max()),
                          "'" + *value + "'");
  }
  return parsed;
}

}  // namespace

Environment Environment::read() {
  return {.rank = number<uint32_t>("RANK"),
          .world_size = number<uint32_t>("WORLD_SIZE"),
          .local_rank = number<uint32_t>("LOCAL_RANK"),
          .address = text("MASTER_ADDR"),
          .port = number<uint16_t>("MASTER_PORT"),
          .secret = given("TOKENYARD_SECRET"),
          .secret_file = given("TOKENYARD_SECRET_FILE")};
}

std::optional<std::string> cuda_visible_devices() {
  return given("CUDA_VISIBLE_DEVICES");
}

std::optional<std::string> runtime_directory() {
  return text("XDG_RUNTIME_DIR");
}

std::optional<std::string> log_level() {
  return text("TOKENYARD_LOG");
}

bool understands_escapes(int descriptor) {
  return ::isatty(descriptor) != 0 && text("TERM").value_or("dumb") != "dumb";
}

}  // namespace tokenyard
