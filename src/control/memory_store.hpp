/// A store in the memory of its process, for a job of one process that nobody else joins.
#pragma once

#include <map>
#include <mutex>

#include "control/store.hpp"

namespace tokenyard::control {

class MemoryStore final : public Store {
 public:
  std::optional<Value> get(const std::string& key) override {
    const std::lock_guard lock(mutex_);
    const auto entry = values_.find(key);
    return entry == values_.end() ? std::nullopt : std::optional(entry->second);
  }
  void set(const std::string& key, const Value& value) override {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
  }
  Value compare_and_set(const std::string& key, const std::optional<Value>& expected,
                        const Value& desired) override {
    const std::lock_guard lock(mutex_);
    const auto entry = values_.find(key);
    if (entry == values_.end()) {
      if (expected) return {};
      return values_[key] = desired;
    }
    if (expected && *expected == entry->second) entry->second = desired;
    return entry->second;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, Value> values_;
};

}  // namespace tokenyard::control
