/// Pointers into other ranks' memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/macros.hpp"

namespace tokenyard {

/// A pointer into memory of any rank, this one included, that other ranks can reach. It has neither
/// `operator*` nor a subscript, and only the words of memory.hpp, vector.hpp and bulk.hpp accept
/// it, so a remote access that the simulator could not see does not compile.
template <class T>
class Peer {
 public:
  Peer() = default;
  TOKENYARD_HOST_DEVICE explicit Peer(T* address) : address_(address) {}
  TOKENYARD_HOST_DEVICE Peer operator+(std::ptrdiff_t elements) const {
    return Peer(address_ + elements);
  }
  TOKENYARD_HOST_DEVICE explicit operator bool() const { return address_ != nullptr; }
  /// Returns a pointer to member `member` of the struct pointed to.
  template <class Member, class Struct>
  TOKENYARD_HOST_DEVICE Peer<Member> at(Member Struct::*member) const {
    return Peer<Member>(&(address_->*member));
  }
  template <class U>
  TOKENYARD_HOST_DEVICE Peer<U> as() const {
    return Peer<U>(reinterpret_cast<U*>(address_));
  }
  /// Returns the raw pointer; only for the words' bodies.
  TOKENYARD_HOST_DEVICE T* address() const { return address_; }

 private:
  T* address_ = nullptr;
};

/// One object per rank of a world, each at an address of its own. Borrows the table, which must
/// outlive the kernels that use it.
template <class T>
struct PeerArray {
  T* const* table = nullptr;  ///< [ranks] in memory that this rank's kernels read
  uint32_t self = 0;          ///< this rank

  TOKENYARD_DEVICE Peer<T> of(uint32_t rank) const { return Peer<T>(table[rank]); }
  TOKENYARD_DEVICE T* mine() const { return table[self]; }
};

}  // namespace tokenyard
