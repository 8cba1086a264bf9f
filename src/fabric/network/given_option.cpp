#include "fabric/network/given_option.hpp"

#include <charconv>
#include <string_view>
#include <utility>

namespace tokenyard {

std::chrono::nanoseconds given_timeout(std::chrono::nanoseconds option,
                                       const std::optional<double>& variable_s,
                                       std::chrono::nanoseconds otherwise) {
  constexpr std::chrono::nanoseconds kUnset = std::chrono::nanoseconds::zero();
  if (option < kUnset)
    throw InvalidArgument("network.timeout", "more than 0", fmt::format("{} ns", option.count()));
  if (option != kUnset) return option;
  if (!variable_s) return otherwise;
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(std::min(*variable_s, 1e6)));
}

std::vector<std::string> interfaces_for(const GivenOption<std::string>& given,
                                        uint32_t local_rank) {
  std::vector<std::string> names;
  if (!given.value) return names;
  const auto refuse = [&](const std::string& expected) {
    throw InvalidArgument(given.name, expected, "'" + *given.value + "'");
  };
  std::string_view rest = *given.value;
  for (size_t comma = 0; comma != std::string_view::npos; rest = rest.substr(comma + 1)) {
    comma = rest.find(',');
    std::string name(rest.substr(0, comma));
    std::erase(name, ' ');
    bool counts = true;
    if (const size_t equals = name.find('='); equals != std::string::npos) {
      uint32_t number = 0;
      const char* const end = name.data() + equals;
      const auto [stopped, error] = std::from_chars(name.data(), end, number);
      if (error != std::errc() || stopped != end) refuse("a local rank before '=', as 2=eth0");
      counts = number == local_rank;
      name.erase(0, equals + 1);
    }
    if (name.empty()) refuse("names or addresses of interfaces, between commas");
    if (counts) {
      if (std::ranges::count(names, name) != 0) refuse("each interface once");
      names.push_back(std::move(name));
    }
    if (comma == std::string_view::npos) break;
  }
  if (names.empty()) refuse(fmt::format("an interface for local rank {}", local_rank));
  return names;
}

}  // namespace tokenyard
