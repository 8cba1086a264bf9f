#include "collectives/interfaces/undo.hpp"

#include <cstring>

#include "collectives/interfaces/streaming_copy.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::collectives {

void Undo::reserve(size_t bytes) {
  if (bytes > 0) log_ = pool_.take(bytes);
}

void Undo::save(const void* at, size_t bytes) {
  if (bytes > 0 && log_) copy_streaming(place_to_save(at, bytes), at, bytes);
}

std::byte* Undo::place_to_save(const void* at, size_t bytes) {
  if (log_bytes_ + bytes > log_.capacity()) throw InternalError("more was saved than was reserved");
  std::byte* const saved = log_.data() + log_bytes_;
  log_bytes_ += bytes;
  auto* place = static_cast<std::byte*>(const_cast<void*>(at));
  if (!saved_.empty() && static_cast<std::byte*>(saved_.back().at) + saved_.back().bytes == place) {
    saved_.back().bytes += bytes;
  } else {
    saved_.push_back({place, bytes});
  }
  return saved;
}

std::byte* Undo::scratch(size_t bytes) {
  return blocks_.emplace_back(pool_.take(bytes)).data();
}

void Undo::stage(void* place, const std::byte* result, size_t bytes) {
  staged_.push_back({place, result, bytes});
}

void Undo::commit() {
  for (const Staged& staged : staged_) {
    if (staged.bytes > 0) std::memcpy(staged.place, staged.result, staged.bytes);
  }
  end_streaming();
  forget();
}

void Undo::restore() {
  end_streaming();
  // Backwards: bytes that were saved twice get their first content.
  const std::byte* end = log_.data() + log_bytes_;
  for (auto saved = saved_.rbegin(); saved != saved_.rend(); ++saved) {
    end -= saved->bytes;
    std::memcpy(saved->at, end, saved->bytes);
  }
  forget();
}

void Undo::forget() {
  log_ = {};
  log_bytes_ = 0;
  saved_.clear();
  staged_.clear();
  blocks_.clear();
}

}  // namespace tokenyard::collectives
