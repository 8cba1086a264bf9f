/// Fibers: stacks with a saved position, between which an executor switches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/mapping.hpp"

namespace tokenyard::simt {

/// A pool of stacks for reuse, because making a stack costs more than running on it. The system
/// provides its memory when it is first touched. Stacks have no guard pages: the kernel's limit on
/// mappings would allow only 32,754 fibers. Instead, a canary at the far end of each is checked
/// when its fiber begins to wait for something to happen, and when it ends.
class StackPool {
 public:
  explicit StackPool(size_t stack_bytes) : stack_bytes_(stack_bytes) {}
  StackPool(const StackPool&) = delete;
  StackPool& operator=(const StackPool&) = delete;

  std::byte* take();  ///< returns the stack's lowest address
  void give_back(std::byte* stack) { free_.push_back(stack); }
  size_t stack_bytes() const { return stack_bytes_; }

 private:
  size_t stack_bytes_;
  std::vector<Mapping> slabs_;
  std::vector<std::byte*> free_;
};

/// Runs `body` on a stack of its own. Only one thread may resume it; control returns there when the
/// body yields or ends. A fiber destroyed before its end is abandoned: its stack is not unwound.
class Fiber {
 public:
  /// `body` must not throw.
  Fiber(StackPool& pool, std::function<void()> body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  void resume();  ///< called from outside; returns at the fiber's next yield or at its end
  void yield();   ///< called from inside
  bool ended() const { return ended_; }
  /// Returns false once the fiber has written past the end of its stack.
  bool stack_is_whole() const;
  /// Returns false if the fiber was suspended past the end of its stack; cheaper, and weaker.
  bool is_within_stack() const { return inside_ > stack_; }
  bool on_stack(const void* address) const;

 private:
  struct Switch;
  static void enter(Fiber& self);

  std::byte* stack_;
  void* inside_ = nullptr;   ///< context of the suspended fiber
  void* outside_ = nullptr;  ///< context of its resumer
  bool ended_ = false;
  StackPool& pool_;
  std::function<void()> body_;
  // The sanitizers' handles of this fiber, of its resumer, and of the resumer's stack.
  void* sanitizer_fiber_ = nullptr;
  void* sanitizer_outside_ = nullptr;
  void* fake_stack_ = nullptr;
  const void* outside_stack_ = nullptr;
  size_t outside_stack_bytes_ = 0;
};

}  // namespace tokenyard::simt
