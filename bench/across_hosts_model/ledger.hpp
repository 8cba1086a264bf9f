/// A results file that grows: a row replaces the one of the same case and shape, and each row is
/// written as soon as there is one.
#pragma once

#include <array>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "tokenyard/error.hpp"

namespace tokenyard::bench {

class Ledger {
 public:
  using Json = nlohmann::ordered_json;

  /// `path`: a file, which may exist; empty: none.
  Ledger(std::string path, Json environment)
      : path_(std::move(path)), environment_(std::move(environment)) {
    std::ifstream file(path_);
    if (path_.empty() || !file) return;
    const Json before = Json::parse(file);
    for (const Json& row : before.at("rows")) rows_.push_back(row);
  }

  void add(const Json& row) {
    if (path_.empty()) return;
    bool replaced = false;
    for (Json& other : rows_)
      if (same_shape(row, other)) {
        other = row;
        replaced = true;
      }
    if (!replaced) rows_.push_back(row);
    write();
  }

 private:
  static bool same_shape(const Json& a, const Json& b) {
    for (const char* name : {"case", "ranks", "tokens", "hidden", "sms"})
      if (a.value(name, Json()) != b.value(name, Json())) return false;
    return true;
  }

  void write() {
    const std::time_t now = std::time(nullptr);
    std::array<char, 11> date{};
    std::strftime(date.data(), date.size(), "%Y-%m-%d", std::gmtime(&now));
    environment_["date"] = date.data();
    std::ofstream file(path_);
    file << "{\"environment\":" << environment_.dump() << ",\n\"rows\":[\n";
    for (size_t i = 0; i < rows_.size(); ++i)
      file << rows_[i].dump() << (i + 1 < rows_.size() ? ",\n" : "\n");
    file << "]}\n";
    if (!file.flush()) throw InvalidArgument("--output", "a file that can be written", path_);
  }

  const std::string path_;
  Json environment_;
  std::vector<Json> rows_;
};

}  // namespace tokenyard::bench
