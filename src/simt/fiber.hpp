/// A stack and a place in it: what an executor switches between.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace tokenyard::simt {

/// Stacks, kept for reuse: making one costs more than running on it. Memory is taken from the
/// system when a stack is first touched. Stacks have no guard pages, which the kernel's limit on
/// mappings would end at 32,754 fibers; a canary at the far end of each is looked at when its fiber
/// begins to wait for something to happen, and when it ends.
class StackPool {
 public:
  explicit StackPool(size_t stack_bytes) : stack_bytes_(stack_bytes) {}
  ~StackPool();
  StackPool(const StackPool&) = delete;
  StackPool& operator=(const StackPool&) = delete;

  std::byte* take();  ///< the lowest address
  void give_back(std::byte* stack) { free_.push_back(stack); }
  size_t stack_bytes() const { return stack_bytes_; }

 private:
  struct Slab {
    std::byte* base;
    size_t bytes;
  };
  size_t stack_bytes_;
  std::vector<Slab> slabs_;
  std::vector<std::byte*> free_;
};

/// Runs `body` on a stack of its own. Resumed by one thread only, which gets control back when the
/// body yields or ends. A fiber that is destroyed before its end is abandoned: nothing is unwound.
class Fiber {
 public:
  /// `body` must not throw.
  Fiber(StackPool& pool, std::function<void()> body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  void resume();  ///< from outside; returns at the next yield or at the end
  void yield();   ///< from inside
  bool ended() const { return ended_; }
  /// False once the fiber has written past the end of its stack.
  bool stack_is_whole() const;
  /// False if it has stopped past the end: no more than a look at where.
  bool is_within_stack() const { return inside_ > stack_; }
  bool on_stack(const void* address) const;

 private:
  struct Switch;
  static void enter(Fiber& self);

  std::byte* stack_;
  void* inside_ = nullptr;   ///< where the fiber stopped
  void* outside_ = nullptr;  ///< where its resumer stands
  bool ended_ = false;
  StackPool& pool_;
  std::function<void()> body_;
  // What the sanitizers know this fiber, its resumer, and the resumer's stack by.
  void* sanitizer_fiber_ = nullptr;
  void* sanitizer_outside_ = nullptr;
  void* fake_stack_ = nullptr;
  const void* outside_stack_ = nullptr;
  size_t outside_stack_bytes_ = 0;
};

}  // namespace tokenyard::simt
