#include "control/shared_register.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/os_failure.hpp"
#include "base/sealed_memory.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::control {

namespace {

/// Bytes before the first place.
constexpr size_t kHeaderBytes = 64;
/// Indices of the header's words behind the first.
constexpr size_t kRanks = 1, kWriters = 2;
/// Processes that may come later, in place of ranks or beside them. Places take memory only once
/// they are written.
constexpr uint64_t kNewcomersMax = 1024;
/// Room for the number of bytes, and for a verdict on so many ranks (message_codec.cpp).
constexpr uint64_t kPlaceWordsMin = 128, kPlaceWordsPerRank = 4;
constexpr uint32_t kPlaceBits = 16;

uint64_t words_of_place(uint32_t ranks) {
  return kPlaceWordsMin + kPlaceWordsPerRank * ranks;
}

size_t register_bytes(uint32_t ranks) {
  return kHeaderBytes + 2 * (ranks + kNewcomersMax) * words_of_place(ranks) * sizeof(uint64_t);
}

std::byte* map_register(const FileDescriptor& memory, size_t bytes) {
  void* const base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.native(), 0);
  if (base == MAP_FAILED) os_failed("mmap of a register");
  return static_cast<std::byte*>(base);
}

}  // namespace

FileDescriptor SharedRegister::make(uint32_t ranks) {
  FileDescriptor memory = make_sealed_memory("tokenyard-register", register_bytes(ranks));
  std::byte* const base = map_register(memory, kHeaderBytes);
  reinterpret_cast<Word*>(base)[kRanks] = ranks;
  munmap(base, kHeaderBytes);
  return memory;
}

SharedRegister::SharedRegister(const FileDescriptor& memory) {
  static_assert(std::atomic_ref<Word>::is_always_lock_free, "shared between processes");
  const size_t bytes = sealed_bytes(memory).value_or(0);
  const auto refuse = [] {
    throw InvalidArgument("register", "sealed memory made as one", "another kind of file");
  };
  if (bytes < register_bytes(0)) refuse();
  base_ = map_register(memory, bytes);
  ranks_ = static_cast<uint32_t>(*header(kRanks));
  const bool is_one = register_bytes(ranks_) == bytes;
  if (is_one) writer_ = std::atomic_ref<Word>(*header(kWriters)).fetch_add(1);
  if (is_one && writer_ < ranks_ + kNewcomersMax) return;
  munmap(base_, bytes);
  if (!is_one) refuse();
  os_failed("mapping a register that many processes have mapped", ENOSPC);
}

SharedRegister::~SharedRegister() {
  munmap(base_, register_bytes(ranks_));
}

SharedRegister::Word* SharedRegister::header(size_t number) const {
  return reinterpret_cast<Word*>(base_) + number;
}

SharedRegister::Word* SharedRegister::place(uint64_t number) const {
  return reinterpret_cast<Word*>(base_ + kHeaderBytes) + number * words_of_place(ranks_);
}

std::pair<std::optional<Store::Value>, SharedRegister::Word> SharedRegister::read() const {
  const std::atomic_ref<Word> names(*word());
  for (;;) {
    const Word seen = names.load(std::memory_order_acquire);
    const uint64_t named = seen & ((Word{1} << kPlaceBits) - 1);
    if (named == 0) return {std::nullopt, seen};
    Word* const from = place(named - 1);
    const uint64_t bytes = std::atomic_ref<Word>(from[0]).load(std::memory_order_relaxed);
    const uint64_t bytes_max = (words_of_place(ranks_) - 1) * sizeof(Word);
    Value value(std::min(bytes, bytes_max));
    for (uint64_t at = 0; at < value.size(); at += sizeof(Word)) {
      const Word part =
          std::atomic_ref<Word>(from[1 + at / sizeof(Word)]).load(std::memory_order_relaxed);
      std::memcpy(value.data() + at, &part, std::min<uint64_t>(sizeof part, value.size() - at));
    }
    // If a load above saw a later write, the word seen below is later, too.
    std::atomic_thread_fence(std::memory_order_acquire);
    if (names.load(std::memory_order_relaxed) == seen) return {std::move(value), seen};
  }
}

void SharedRegister::write(uint64_t number, const Value& value) {
  Word* const to = place(number);
  std::atomic_thread_fence(std::memory_order_release);
  std::atomic_ref<Word>(to[0]).store(value.size(), std::memory_order_relaxed);
  for (uint64_t at = 0; at < value.size(); at += sizeof(Word)) {
    Word part = 0;
    std::memcpy(&part, value.data() + at, std::min<uint64_t>(sizeof part, value.size() - at));
    std::atomic_ref<Word>(to[1 + at / sizeof(Word)]).store(part, std::memory_order_relaxed);
  }
}

std::optional<Store::Value> SharedRegister::get(const std::string&) {
  return read().first;
}

void SharedRegister::set(const std::string& key, const Value& value) {
  while (compare_and_set(key, get(key), value) != value) {
  }
}

Store::Value SharedRegister::compare_and_set(const std::string&,
                                             const std::optional<Value>& expected,
                                             const Value& desired) {
  if (desired.size() > (words_of_place(ranks_) - 1) * sizeof(Word)) {
    throw OsError("writing the shared register", ENOSPC, "the value is too large");
  }
  const std::lock_guard lock(mutex_);
  for (;;) {
    auto [value, seen] = read();
    if (value != expected) return value.value_or(Value{});
    const uint64_t named = seen & ((Word{1} << kPlaceBits) - 1);
    const uint64_t own = 2 * writer_;
    const uint64_t number = named == own + 1 ? own + 1 : own;
    write(number, desired);
    const Word next = ((seen >> kPlaceBits) + 1) << kPlaceBits | (number + 1);
    if (std::atomic_ref<Word>(*word()).compare_exchange_strong(seen, next,
                                                               std::memory_order_acq_rel)) {
      return desired;
    }
  }
}

}  // namespace tokenyard::control
