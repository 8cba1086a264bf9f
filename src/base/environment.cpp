#include "base/environment.hpp"

#include <unistd.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string_view>

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

std::optional<bool> yes_or_no(const char* name) {
  const auto value = text(name);
  if (!value) return std::nullopt;
  if (*value != "0" && *value != "1") throw InvalidArgument(name, "1 or 0", "'" + *value + "'");
  return *value == "1";
}

std::optional<double> seconds(const char* name) {
  const auto value = text(name);
  if (!value) return std::nullopt;
  char* stopped = nullptr;
  const double parsed = std::strtod(value->c_str(), &stopped);
  if (*stopped != '\0' || !std::isfinite(parsed) || parsed <= 0)
    throw InvalidArgument(name, "a number of seconds above 0", "'" + *value + "'");
  return parsed;
}

constexpr std::string_view kNetworkPrefix = "TOKENYARD_NETWORK_";
constexpr std::array<std::string_view, 14> kNetworkVariables = {
    "INTERFACES", "PORTS",      "CONNECTIONS", "QUEUES",        "QUEUE_DEPTH",
    "TIMEOUT",    "GPU_MEMORY", "GID_INDEX",   "TRAFFIC_CLASS", "SERVICE_LEVEL",
    "PKEY",       "MTU",        "RETRY_COUNT", "RETRY_TIMEOUT"};

void refuse_unknown_network_variables() {
  for (char** each = environ; each != nullptr && *each != nullptr; ++each) {
    std::string_view name(*each);
    name = name.substr(0, name.find('='));
    if (!name.starts_with(kNetworkPrefix)) continue;
    std::string known;
    for (const std::string_view ending : kNetworkVariables) {
      if (name.substr(kNetworkPrefix.size()) == ending) {
        known.clear();
        break;
      }
      known += (known.empty() ? "" : ", ") + std::string(kNetworkPrefix) + std::string(ending);
    }
    if (!known.empty())
      throw InvalidArgument(std::string(name), "a variable that exists: " + known, "another name");
  }
}

}  // namespace

Environment Environment::read() {
  return {.rank = number<uint32_t>("RANK"),
          .world_size = number<uint32_t>("WORLD_SIZE"),
          .local_rank = number<uint32_t>("LOCAL_RANK"),
          .address = text("MASTER_ADDR"),
          .port = number<uint16_t>("MASTER_PORT")};
}

SecretEnvironment SecretEnvironment::read() {
  return {.secret = given("TOKENYARD_SECRET"), .file = given("TOKENYARD_SECRET_FILE")};
}

NetworkEnvironment NetworkEnvironment::read() {
  refuse_unknown_network_variables();
  return {.transport = text("TOKENYARD_NETWORK"),
          .interfaces = text("TOKENYARD_NETWORK_INTERFACES"),
          .ports = text("TOKENYARD_NETWORK_PORTS"),
          .connections = number<uint32_t>("TOKENYARD_NETWORK_CONNECTIONS"),
          .queues = number<uint32_t>("TOKENYARD_NETWORK_QUEUES"),
          .queue_depth = number<uint32_t>("TOKENYARD_NETWORK_QUEUE_DEPTH"),
          .timeout_s = seconds("TOKENYARD_NETWORK_TIMEOUT"),
          .gpu_memory = yes_or_no("TOKENYARD_NETWORK_GPU_MEMORY"),
          .gid_index = number<uint32_t>("TOKENYARD_NETWORK_GID_INDEX"),
          .traffic_class = number<uint32_t>("TOKENYARD_NETWORK_TRAFFIC_CLASS"),
          .service_level = number<uint32_t>("TOKENYARD_NETWORK_SERVICE_LEVEL"),
          .pkey = text("TOKENYARD_NETWORK_PKEY"),
          .mtu = number<uint32_t>("TOKENYARD_NETWORK_MTU"),
          .retry_count = number<uint32_t>("TOKENYARD_NETWORK_RETRY_COUNT"),
          .retry_timeout = number<uint32_t>("TOKENYARD_NETWORK_RETRY_TIMEOUT")};
}

std::optional<std::string> domain_name() {
  return text("TOKENYARD_DOMAIN");
}

std::optional<std::string> host_name() {
  return text("TOKENYARD_HOST_NAME");
}

std::optional<std::string> cuda_visible_devices() {
  return given("CUDA_VISIBLE_DEVICES");
}

std::optional<std::string> runtime_directory() {
  return text("XDG_RUNTIME_DIR");
}

std::optional<std::string> nccl_queue_size() {
  return text("NCCL_GIN_PROXY_QUEUE_SIZE");
}

std::optional<std::string> log_level() {
  return text("TOKENYARD_LOG");
}

bool understands_escapes(int descriptor) {
  return ::isatty(descriptor) != 0 && text("TERM").value_or("dumb") != "dumb";
}

}  // namespace tokenyard
