// The functions that the compiler's ThreadSanitizer pass calls at each access of a checked kernel.
// No sanitizer is behind them: the calls go to the memory of the simulated run, which ignores
// accesses by other code. In a build with the real sanitizer this file is empty.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "simt/executor.hpp"

#if defined(__SANITIZE_THREAD__)
#define TOKENYARD_REAL_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TOKENYARD_REAL_SANITIZER 1
#endif
#endif

#ifndef TOKENYARD_REAL_SANITIZER

namespace {

void report(const void* address, size_t bytes, bool write, void* caller) {
  tokenyard::simt::Executor* const executor = tokenyard::simt::Executor::current();
  if (executor == nullptr || executor->kernel_thread() == nullptr) return;
  executor->plain_access(address, static_cast<uint32_t>(bytes), write,
                         __builtin_extract_return_addr(caller));
}

}  // namespace

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_ignore_thread_begin() {}
void __tsan_ignore_thread_end() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

#define TOKENYARD_ACCESS(name, bytes, write)                    \
  void __tsan_##name(void* address) {                           \
    report(address, bytes, write, __builtin_return_address(0)); \
  }
#define TOKENYARD_ACCESSES(bytes)                                \
  TOKENYARD_ACCESS(read##bytes, bytes, false)                    \
  TOKENYARD_ACCESS(write##bytes, bytes, true)                    \
  TOKENYARD_ACCESS(unaligned_read##bytes, bytes, false)          \
  TOKENYARD_ACCESS(unaligned_write##bytes, bytes, true)          \
  TOKENYARD_ACCESS(volatile_read##bytes, bytes, false)           \
  TOKENYARD_ACCESS(volatile_write##bytes, bytes, true)           \
  TOKENYARD_ACCESS(unaligned_volatile_read##bytes, bytes, false) \
  TOKENYARD_ACCESS(unaligned_volatile_write##bytes, bytes, true) \
  TOKENYARD_ACCESS(read_write##bytes, bytes, true)               \
  TOKENYARD_ACCESS(unaligned_read_write##bytes, bytes, true)
TOKENYARD_ACCESSES(1)
TOKENYARD_ACCESSES(2)
TOKENYARD_ACCESSES(4)
TOKENYARD_ACCESSES(8)
TOKENYARD_ACCESSES(16)

void __tsan_read_range(void* address, size_t bytes) {
  report(address, bytes, false, __builtin_return_address(0));
}
void __tsan_write_range(void* address, size_t bytes) {
  report(address, bytes, true, __builtin_return_address(0));
}
void* __tsan_memcpy(void* to, const void* from, size_t bytes) {
  report(from, bytes, false, __builtin_return_address(0));
  report(to, bytes, true, __builtin_return_address(0));
  return std::memcpy(to, from, bytes);
}
void* __tsan_memmove(void* to, const void* from, size_t bytes) {
  report(from, bytes, false, __builtin_return_address(0));
  report(to, bytes, true, __builtin_return_address(0));
  return std::memmove(to, from, bytes);
}
void* __tsan_memset(void* to, int byte, size_t bytes) {
  report(to, bytes, true, __builtin_return_address(0));
  return std::memset(to, byte, bytes);
}

// Kernels use no C++ atomics. Host code of suites does; its atomics only have to work.
void __tsan_atomic_thread_fence(int) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
void __tsan_atomic_signal_fence(int) {
  __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

#define TOKENYARD_FETCH(bits, what)                                                            \
  uint##bits##_t __tsan_atomic##bits##_fetch_##what(volatile void* at, uint##bits##_t operand, \
                                                    int) {                                     \
    return __atomic_fetch_##what(static_cast<volatile uint##bits##_t*>(at), operand,           \
                                 __ATOMIC_SEQ_CST);                                            \
  }
#define TOKENYARD_ATOMICS(bits)                                                                    \
  uint##bits##_t __tsan_atomic##bits##_load(const volatile void* at, int) {                        \
    return __atomic_load_n(static_cast<const volatile uint##bits##_t*>(at), __ATOMIC_SEQ_CST);     \
  }                                                                                                \
  void __tsan_atomic##bits##_store(volatile void* at, uint##bits##_t value, int) {                 \
    __atomic_store_n(static_cast<volatile uint##bits##_t*>(at), value, __ATOMIC_SEQ_CST);          \
  }                                                                                                \
  uint##bits##_t __tsan_atomic##bits##_exchange(volatile void* at, uint##bits##_t value, int) {    \
    return __atomic_exchange_n(static_cast<volatile uint##bits##_t*>(at), value,                   \
                               __ATOMIC_SEQ_CST);                                                  \
  }                                                                                                \
  bool __tsan_atomic##bits##_compare_exchange_strong(volatile void* at, void* expected,            \
                                                     uint##bits##_t desired, int, int) {           \
    return __atomic_compare_exchange_n(static_cast<volatile uint##bits##_t*>(at),                  \
                                       static_cast<uint##bits##_t*>(expected), desired, false,     \
                                       __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                        \
  }                                                                                                \
  bool __tsan_atomic##bits##_compare_exchange_weak(                                                \
      volatile void* at, void* expected, uint##bits##_t desired, int success, int failure) {       \
    return __tsan_atomic##bits##_compare_exchange_strong(at, expected, desired, success, failure); \
  }                                                                                                \
  TOKENYARD_FETCH(bits, add)                                                                       \
  TOKENYARD_FETCH(bits, sub)                                                                       \
  TOKENYARD_FETCH(bits, and)                                                                       \
  TOKENYARD_FETCH(bits, or)                                                                        \
  TOKENYARD_FETCH(bits, xor)                                                                       \
  TOKENYARD_FETCH(bits, nand)
TOKENYARD_ATOMICS(8)
TOKENYARD_ATOMICS(16)
TOKENYARD_ATOMICS(32)
TOKENYARD_ATOMICS(64)

}  // extern "C"

#endif
