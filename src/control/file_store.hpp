/// A store in a directory that all ranks share. Each change of a key is a new file, numbered from
/// 1, published by a hard link: the process that links a number first has changed the key. So no
/// lock exists that a stopped or killed process could keep.
///
///     DIRECTORY/JOB/KEY/1, 2, 3 ...     the highest number holds the key's value
///     DIRECTORY/JOB/.new/...            values being written
///
/// Old numbers stay: if one were removed, a process that slept since it last looked could take the
/// number again. Values are small and change only with the membership.
#pragma once

#include <filesystem>
#include <string>

#include "control/store.hpp"

namespace tokenyard::control {

class FileStore final : public Store {
 public:
  /// Makes the directory if it does not exist. Throws InvalidArgument if its parent does not exist
  /// either, else OsError.
  FileStore(const std::filesystem::path& directory, const std::string& job);

  std::optional<Value> get(const std::string& key) override;
  void set(const std::string& key, const Value& value) override;
  Value compare_and_set(const std::string& key, const std::optional<Value>& expected,
                        const Value& desired) override;

 private:
  struct Version {
    uint64_t number = 0;  ///< 0: no such key
    std::optional<Value> value;
  };

  std::filesystem::path directory_of(const std::string& key) const;
  Version latest(const std::string& key) const;
  /// Publishes `value` as version `number`. Returns false if that version exists.
  bool publish(const std::string& key, uint64_t number, const Value& value) const;

  const std::filesystem::path directory_;
};

}  // namespace tokenyard::control
