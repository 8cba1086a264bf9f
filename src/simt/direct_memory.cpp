#include "simt/direct_memory.hpp"

#include <fmt/core.h>

#include <cstring>
#include <type_traits>

#include "simt/misuse.hpp"
#include "simt/read_modify_write.hpp"
#include "simt/sanitizers.hpp"
#include "simt/source_line.hpp"

#if TOKENYARD_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace tokenyard::simt {

namespace {

using Wide = unsigned __int128;

/// Calls `body` with a value of the unsigned type of `bytes` bytes.
template <class Body>
void by_size(uint32_t bytes, Body body) {
  switch (bytes) {
    case 1:
      return body(uint8_t{});
    case 2:
      return body(uint16_t{});
    case 4:
      return body(uint32_t{});
    case 8:
      return body(uint64_t{});
    case 16:
      return body(Wide{});
    default:
      throw InternalError(fmt::format("an access of {} bytes", bytes));
  }
}

int cpu_order(Order order) {
  switch (order) {
    case Order::weak:
    case Order::relaxed:
      return __ATOMIC_RELAXED;
    case Order::acquire:
      return __ATOMIC_ACQUIRE;
    case Order::release:
      return __ATOMIC_RELEASE;
    case Order::acq_rel:
      return __ATOMIC_ACQ_REL;
  }
  return __ATOMIC_SEQ_CST;
}

/// ThreadSanitizer does not model fences, so it reports accesses that they order as races. These
/// annotations order everything before a release fence before all later acquires, and everything
/// before any release before all later acquire fences, by any thread. It may then miss races, which
/// the simulator finds, but reports no false ones.
class FencesForSanitizer {
 public:
#if TOKENYARD_TSAN
  /// Called before an access or fence that releases, and after one that acquires.
  static void access_releases() { __tsan_release(&released_); }
  static void access_acquires() { __tsan_acquire(&fenced_); }
  static void fence_releases() {
    __tsan_release(&released_);
    __tsan_release(&fenced_);
  }
  static void fence_acquires() { __tsan_acquire(&released_); }

 private:
  static inline char released_ = 0, fenced_ = 0;
#else
  static void access_releases() {}
  static void access_acquires() {}
  static void fence_releases() {}
  static void fence_acquires() {}
#endif
};

bool releases(Order order) {
  return order == Order::release || order == Order::acq_rel;
}
bool acquires(Order order) {
  return order == Order::acquire || order == Order::acq_rel;
}

// Atomic 16-byte accesses use cmpxchg16b, the only one that every x86-64 CPU since 2006 guarantees.
// It writes even to load, so the memory must be writable, which arenas are.
Wide exchange_if_equal(Wide* at, Wide expected, Wide desired) {
  return __sync_val_compare_and_swap(at, expected, desired);
}
Wide load_wide(const Wide* from) {
  return exchange_if_equal(const_cast<Wide*>(from), 0, 0);
}
void store_wide(Wide* to, Wide value) {
  for (Wide seen = load_wide(to);;) {
    const Wide old = exchange_if_equal(to, seen, value);
    if (old == seen) return;
    seen = old;
  }
}

/// The state of a Completion, in its eight bytes.
struct Phase {
  int32_t bytes;           ///< expected but not loaded; negative if loads precede their arrival
  uint32_t parity : 1;     ///< of the current phase
  uint32_t arrivals : 11;  ///< per phase
  uint32_t pending : 11;   ///< arrivals missing in the current phase
  uint32_t valid : 9;      ///< kValid once initialised

  /// Must be called after each arrival and each load.
  void end_if_complete() {
    if (pending > 0 || bytes != 0) return;
    parity ^= 1;
    pending = arrivals;
  }
};
constexpr uint32_t kValid = 0x15a;
constexpr uint32_t kArrivalsMax = 1024;
static_assert(sizeof(Phase) == 8);

Phase& phase_of(void* completion, CodeAddress where) {
  Phase& phase = *static_cast<Phase*>(completion);
  if (phase.valid != kValid)
    throw KernelMisuse(
        fmt::format("a Completion is used at {} before its init", source_line(where)));
  return phase;
}

void check_bulk(const void* to, const void* from, uint32_t bytes, CodeAddress where) {
  const auto misaligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 != 0; };
  if (bytes % 16 != 0 || misaligned(to) || misaligned(from))
    throw KernelMisuse(
        fmt::format("a bulk copy of {} bytes from {} to {} at {}: all three must be "
                    "multiples of 16",
                    bytes, from, to, source_line(where)));
}

}  // namespace

void DirectMemory::load(const ThreadName&, const void* from, void* value, uint32_t bytes,
                        Order order, Scope, CodeAddress) {
  by_size(bytes, [&](auto sized) {
    using T = decltype(sized);
    T loaded;
    if constexpr (sizeof(T) == 16) {
      if (order == Order::weak)
        std::memcpy(&loaded, from, 16);
      else
        loaded = load_wide(static_cast<const Wide*>(from));
    } else if (order == Order::acquire) {
      loaded = __atomic_load_n(static_cast<const T*>(from), __ATOMIC_ACQUIRE);
    } else {
      loaded = __atomic_load_n(static_cast<const T*>(from), __ATOMIC_RELAXED);
    }
    std::memcpy(value, &loaded, sizeof(T));
  });
  if (acquires(order)) FencesForSanitizer::access_acquires();
}

void DirectMemory::store(const ThreadName&, void* to, const void* value, uint32_t bytes,
                         Order order, Scope, CodeAddress) {
  if (releases(order)) FencesForSanitizer::access_releases();
  ++progress_;
  by_size(bytes, [&](auto sized) {
    using T = decltype(sized);
    T stored;
    std::memcpy(&stored, value, sizeof(T));
    if constexpr (sizeof(T) == 16) {
      if (order == Order::weak)
        std::memcpy(to, &stored, 16);
      else
        store_wide(static_cast<Wide*>(to), stored);
    } else if (order == Order::release) {
      __atomic_store_n(static_cast<T*>(to), stored, __ATOMIC_RELEASE);
    } else {
      __atomic_store_n(static_cast<T*>(to), stored, __ATOMIC_RELAXED);
    }
  });
}

void DirectMemory::modify(const ThreadName&, Modify what, void* at, const void* operand, void* old,
                          uint32_t bytes, Order order, Scope, CodeAddress) {
  if (releases(order)) FencesForSanitizer::access_releases();
  by_size(bytes, [&](auto sized) {
    using T = decltype(sized);
    if constexpr (sizeof(T) == 4 || sizeof(T) == 8) {
      T by, seen = __atomic_load_n(static_cast<T*>(at), __ATOMIC_RELAXED);
      std::memcpy(&by, operand, sizeof(T));
      while (!__atomic_compare_exchange_n(static_cast<T*>(at), &seen, modified(what, seen, by),
                                          false, cpu_order(order), __ATOMIC_RELAXED)) {
      }
      // An update that changes nothing is no progress, or a thread that polls by it never sleeps.
      if (modified(what, seen, by) != seen) ++progress_;
      if (old) std::memcpy(old, &seen, sizeof(T));
    } else {
      throw InternalError(fmt::format("a read-modify-write of {} bytes", sizeof(T)));
    }
  });
  if (acquires(order)) FencesForSanitizer::access_acquires();
}

void DirectMemory::compare_exchange(const ThreadName&, void* at, const void* expected,
                                    const void* desired, void* old, uint32_t bytes, Order order,
                                    Scope, CodeAddress) {
  if (releases(order)) FencesForSanitizer::access_releases();
  ++progress_;
  by_size(bytes, [&](auto sized) {
    using T = decltype(sized);
    T seen, wanted;
    std::memcpy(&seen, expected, sizeof(T));
    std::memcpy(&wanted, desired, sizeof(T));
    if constexpr (sizeof(T) == 16) {
      seen = exchange_if_equal(static_cast<Wide*>(at), seen, wanted);
    } else {
      const int failure = acquires(order) ? __ATOMIC_ACQUIRE : __ATOMIC_RELAXED;
      __atomic_compare_exchange_n(static_cast<T*>(at), &seen, wanted, false, cpu_order(order),
                                  failure);
    }
    std::memcpy(old, &seen, sizeof(T));
  });
  if (acquires(order)) FencesForSanitizer::access_acquires();
}

void DirectMemory::fence(const ThreadName&, Fence kind, Scope, CodeAddress) {
  if (kind != Fence::release) FencesForSanitizer::fence_acquires();
  if (kind != Fence::acquire) FencesForSanitizer::fence_releases();
  switch (kind) {
    case Fence::acquire:
      return __atomic_thread_fence(__ATOMIC_ACQUIRE);
    case Fence::release:
      return __atomic_thread_fence(__ATOMIC_RELEASE);
    case Fence::acq_rel:
      return __atomic_thread_fence(__ATOMIC_ACQ_REL);
    case Fence::sequential:
      return __atomic_thread_fence(__ATOMIC_SEQ_CST);
  }
}

void DirectMemory::completion_init(const ThreadName&, void* completion, uint32_t arrivals,
                                   CodeAddress where) {
  if (arrivals == 0 || arrivals > kArrivalsMax)
    throw KernelMisuse(fmt::format("Completion::init with {} arrivals at {}: pass 1 to {}",
                                   arrivals, source_line(where), kArrivalsMax));
  *static_cast<Phase*>(completion) = {
      .bytes = 0, .parity = 0, .arrivals = arrivals, .pending = arrivals, .valid = kValid};
}

void DirectMemory::completion_arrive(const ThreadName&, void* completion, uint32_t expected_bytes,
                                     CodeAddress where) {
  Phase& phase = phase_of(completion, where);
  if (phase.pending == 0)
    throw KernelMisuse(fmt::format("more than {} arrivals in a phase of the Completion at {}",
                                   +phase.arrivals, source_line(where)));
  phase.bytes += static_cast<int32_t>(expected_bytes);
  phase.pending -= 1;
  phase.end_if_complete();
  ++progress_;
}

bool DirectMemory::completion_done(const ThreadName&, void* completion, uint32_t parity,
                                   CodeAddress where) {
  return phase_of(completion, where).parity != (parity & 1);
}

void DirectMemory::bulk_load(const ThreadName&, void* to_shared, const void* from, uint32_t bytes,
                             void* completion, CodeAddress where) {
  Phase& phase = phase_of(completion, where);
  check_bulk(to_shared, from, bytes, where);
  std::memcpy(to_shared, from, bytes);
  phase.bytes -= static_cast<int32_t>(bytes);
  phase.end_if_complete();
  ++progress_;
}

void DirectMemory::bulk_store(const ThreadName&, void* to, const void* from_shared, uint32_t bytes,
                              CodeAddress where) {
  check_bulk(to, from_shared, bytes, where);
  std::memcpy(to, from_shared, bytes);
  ++progress_;
}

}  // namespace tokenyard::simt
