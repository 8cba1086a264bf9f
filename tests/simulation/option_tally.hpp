/// Counts, over the seeds of a sweep, the runs that drew each value of each option.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>

namespace tokenyard::simulation {

class OptionTally {
 public:
  /// Adds a run. `options` is "name = value, name = [1, 2], ...", as SeedRun keeps them. A name may
  /// occur more than once, with equal or different values; a run counts once per value.
  void add(std::string_view options) {
    std::set<std::pair<std::string, std::string>> seen;
    while (!options.empty()) {
      const size_t end = end_of_first(options);
      const std::string_view option = options.substr(0, end);
      const size_t equals = option.find(" = ");
      if (equals != std::string_view::npos)
        seen.emplace(option.substr(0, equals), option.substr(equals + 3));
      options.remove_prefix(end == options.size() ? end : end + kSeparator.size());
    }
    for (const auto& [name, value] : seen) ++runs_[name][value];
  }

  /// Returns one line per option: each value with its number of runs, or the number of values.
  std::string text() const {
    std::string text;
    for (const auto& [name, values] : runs_) {
      text += fmt::format("{:<18}", name);
      if (values.size() > kValuesShown) {
        text += fmt::format(" {} different values\n", values.size());
        continue;
      }
      for (const auto& [value, runs] : values) text += fmt::format(" {}: {};", value, runs);
      text.back() = '\n';
    }
    return text;
  }

 private:
  static constexpr std::string_view kSeparator = ", ";
  static constexpr size_t kValuesShown = 24;

  /// Returns the end of the first option. Separators inside brackets are part of its value.
  static size_t end_of_first(std::string_view options) {
    int depth = 0;
    for (size_t at = 0; at < options.size(); ++at) {
      if (options[at] == '[') ++depth;
      if (options[at] == ']') --depth;
      if (depth == 0 && options.substr(at, kSeparator.size()) == kSeparator) return at;
    }
    return options.size();
  }

  std::map<std::string, std::map<std::string, uint32_t>> runs_;  ///< by name, by value
};

}  // namespace tokenyard::simulation
