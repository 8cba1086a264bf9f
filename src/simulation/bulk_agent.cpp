#include "simulation/bulk_agent.hpp"

#include <algorithm>
#include <cstring>

namespace tokenyard::simulation {

void BulkAgent::add(Copy copy, uint32_t bytes, Random& random) {
  copy.bytes.resize(bytes);
  copy.first = random.below(std::max(1u, copy.pieces()));
  copies_.push_back(std::make_unique<Copy>(std::move(copy)));
}

bool BulkAgent::stores_done(Slot issuer, uint32_t group, bool sources_only) const {
  return std::none_of(copies_.begin(), copies_.end(), [&](const auto& copy) {
    return copy->issuer == issuer && copy->completion == nullptr && copy->group <= group &&
           (!sources_only || copy->read < copy->pieces());
  });
}

/// Advances a copy by `pieces` reads or writes. All reads precede the first write, because the
/// longest delays find the most bugs.
void BulkAgent::advance(Copy& copy, uint32_t pieces) {
  const uint32_t all = copy.pieces();
  for (; pieces > 0 && copy.written < all; --pieces) {
    const bool reading = copy.read < all;
    uint32_t& count = reading ? copy.read : copy.written;
    const size_t offset = size_t{(copy.first + count) % all} * kCellBytes;
    if (reading) {
      std::memcpy(copy.bytes.data() + offset, copy.from + offset, kCellBytes);
    } else {
      std::memcpy(copy.to + offset, copy.bytes.data() + offset, kCellBytes);
    }
    ++count;
  }
}

void BulkAgent::finish(size_t index) {
  const std::unique_ptr<Copy> copy = std::move(copies_[index]);
  copies_.erase(copies_.begin() + static_cast<std::ptrdiff_t>(index));
  if (copy->completion == nullptr) return;
  CompletionState* const state = completions_.find(copy->completion);
  if (state != nullptr) completions_.complete(*state, static_cast<uint32_t>(copy->bytes.size()));
}

bool BulkAgent::step(bool idle, const Chance& chance) {
  if (copies_.empty()) return false;
  const Policy& policy = chance.policy;
  const bool lazy =
      policy.delivery == Delivery::newest_first || policy.delivery == Delivery::random_idle;
  if (!idle && (lazy || !chance.random.chance(policy.land_per_1024))) return false;
  const size_t index = policy.delivery == Delivery::newest_first
                           ? copies_.size() - 1
                           : chance.random.below(static_cast<uint32_t>(copies_.size()));
  Copy& copy = *copies_[index];
  if (!idle && policy.delivery == Delivery::clogged && copy.from_rank == policy.clogged_from &&
      copy.to_rank == policy.clogged_to)
    return false;
  advance(copy, 1 + chance.random.below(2 * copy.pieces()));
  if (copy.written == copy.pieces()) finish(index);
  return true;
}

void BulkAgent::finish_stores(Slot issuer) {
  for (size_t index = 0; index < copies_.size();) {
    Copy& copy = *copies_[index];
    if (copy.issuer != issuer || copy.completion != nullptr) {
      ++index;
      continue;
    }
    advance(copy, 2 * copy.pieces());
    finish(index);
  }
}

uint32_t BulkAgent::drop_loads(const void* base, size_t bytes) {
  const auto* const begin = static_cast<const std::byte*>(base);
  return static_cast<uint32_t>(std::erase_if(copies_, [&](const auto& copy) {
    return copy->completion != nullptr && copy->to >= begin && copy->to < begin + bytes;
  }));
}

void BulkAgent::stop(uint32_t rank, InFlight fate, Random& random) {
  std::erase_if(copies_, [&](const auto& copy) {
    if (copy->issuer_rank != rank) return false;
    if (fate == InFlight::land) advance(*copy, 2 * copy->pieces());
    if (fate == InFlight::tear) advance(*copy, random.below(2 * copy->pieces() + 1));
    return true;
  });
}

}  // namespace tokenyard::simulation
