/// A witness's register in memory that the ranks of one host share. It survives the death of any of
/// them, also in the middle of a write, and needs no clean-up: the memory has no name.
///
///     word       version << 16 | place + 1        0: never written
///     ranks      of the job when it was made
///     writers    processes that have mapped it
///     places     two per writer: the value that the word names, and room for its next one
///
/// A process writes its value into one of its places that the word does not name, and then changes
/// the word by compare-and-swap. A reader copies the place and reads the word again: if it has
/// changed, the place may have been written meanwhile, and the reader starts anew.
///
/// Invariant: only its process writes a place, and never the one that the word names. So a process
/// that dies while it writes has changed nothing that anybody reads; nor has one that was stopped,
/// and wakes beside the process that has replaced it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/file_descriptor.hpp"
#include "control/store.hpp"

namespace tokenyard::control {

/// Holds the value of one key; all processes use the same one.
class SharedRegister final : public Store {
 public:
  /// Returns memory for a register of `ranks` ranks. One rank makes it and passes it to the others.
  /// Throws OsError.
  static FileDescriptor make(uint32_t ranks);
  /// Maps the memory. Throws OsError, also if too many processes have, or InvalidArgument if it is
  /// no such memory.
  explicit SharedRegister(const FileDescriptor& memory);
  ~SharedRegister() override;
  SharedRegister(const SharedRegister&) = delete;
  SharedRegister& operator=(const SharedRegister&) = delete;

  std::optional<Value> get(const std::string& key) override;
  void set(const std::string& key, const Value& value) override;
  /// Throws OsError if the value is larger than a place.
  Value compare_and_set(const std::string& key, const std::optional<Value>& expected,
                        const Value& desired) override;

 private:
  using Word = uint64_t;

  Word* header(size_t number) const;
  Word* word() const { return header(0); }
  Word* place(uint64_t number) const;
  /// Returns the value and the word that names it.
  std::pair<std::optional<Value>, Word> read() const;
  void write(uint64_t number, const Value& value);

  std::mutex mutex_;  ///< of this process's threads
  std::byte* base_ = nullptr;
  uint32_t ranks_ = 0;
  uint64_t writer_ = 0;
};

}  // namespace tokenyard::control
