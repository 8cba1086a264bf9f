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

/// Bytes before the first place: the word, alone in its cache line.
constexpr size_t kHeaderBytes = 64;
/// Room for the number of bytes, and for a verdict on so many ranks (message_codec.cpp).
constexpr uint64_t kPlaceWordsMin = 128, kPlaceWordsPerRank = 4;
constexpr uint32_t kPlaceBits = 16;

uint64_t words_of_place(uint32_t ranks) {
  return kPlaceWordsMin + kPlaceWordsPerRank * ranks;
}

size_t register_bytes(uint32_t ranks) {
  return kHeaderBytes + 2 * size_t{ranks} * words_of_place(ranks) * sizeof(uint64_t);
}

}  // namespace

FileDescriptor SharedRegister::make(uint32_t ranks) {
  return make_sealed_memory("tokenyard-register", register_bytes(ranks));
}

SharedRegister::SharedRegister(const FileDescriptor& memory, uint32_t rank, uint32_t ranks)
    : rank_(rank), ranks_(ranks) {
  static_assert(std::atomic_ref<Word>::is_always_lock_free, "shared between processes");
  if (sealed_bytes(memory) != register_bytes(ranks)) {
    throw InvalidArgument("register", fmt::format("a sealed one for {} ranks", ranks),
                          "another kind of file");
  }
  void* const base =
      mmap(nullptr, register_bytes(ranks), PROT_READ | PROT_WRITE, MAP_SHARED, memory.native(), 0);
  if (base == MAP_FAILED) os_failed("mmap of a register");
  base_ = static_cast<std::byte*>(base);
}

SharedRegister::~SharedRegister() {
  munmap(base_, register_bytes(ranks_));
}

SharedRegister::Word* SharedRegister::word() const {
  return reinterpret_cast<Word*>(base_);
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
    const uint64_t own = 2 * uint64_t{rank_};
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
