/// A store that is a directory which all ranks see. Every change of a key is a new file, numbered
/// from 1, and a hard link is what makes it: who links a number first has changed the key, and
/// nobody needs a lock that a stopped or killed process could keep.
///
///     DIRECTORY/JOB/KEY/1, 2, 3 ...     the highest number is what the key holds
///     DIRECTORY/JOB/.new/...            values that are being written
///
/// Old numbers stay: were one removed, a process that slept since it looked could take it again.
/// Values are small and change only with the membership.
#pragma once

#include <filesystem>
#include <string>

#include "control/store.hpp"

namespace tokenyard::control {

class FileStore final : public Store {
 public:
  /// Makes the directory if there is none. Throws InvalidArgument if the folder that it would lie
  /// in is missing, too; OsError.
  FileStore(const std::filesystem::path& directory, const std::string& job);

  std::optional<Value> get(const std::string& key) override;
  void set(const std::string& key, const Value& value) override;
  Value compare_and_set(const std::string& key, const std::optional<Value>& expected,
                        const Value& desired) override;

 private:
  struct Version {
    uint64_t number = 0;  ///< 0: there is no such key
    std::optional<Value> value;
  };

  std::filesystem::path directory_of(const std::string& key) const;
  Version latest(const std::string& key) const;
  /// Whether `value` became the version `number`; false if there was one already.
  bool publish(const std::string& key, uint64_t number, const Value& value) const;

  const std::filesystem::path directory_;
};

}  // namespace tokenyard::control
