#include "simt/fiber.hpp"

#include <boost/context/detail/fcontext.hpp>

#include "simt/sanitizers.hpp"

#if TOKENYARD_TSAN
#include <sanitizer/tsan_interface.h>
#endif
#if TOKENYARD_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace tokenyard::simt {

namespace {

using boost::context::detail::fcontext_t;
using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

constexpr uint64_t kCanary = 0x746f6b656e796172;
constexpr size_t kCanaryWords = 8;
constexpr size_t kStacksPerSlab = 256;
// Offset in its page at which a stack ends and the next one's canary begins, so that a canary
// needs no page of its own.
constexpr size_t kPage = 4096, kFirstStack = kPage - 256;
static_assert(kCanaryWords * sizeof(uint64_t) <= kPage - kFirstStack);

}  // namespace

std::byte* StackPool::take() {
  if (free_.empty()) {
    slabs_.push_back(Mapping::anonymous(stack_bytes_ * kStacksPerSlab + kPage));
    for (size_t i = kStacksPerSlab; i-- > 0;)
      free_.push_back(slabs_.back().base() + kFirstStack + i * stack_bytes_);
  }
  std::byte* stack = free_.back();
  free_.pop_back();
  auto* words = reinterpret_cast<uint64_t*>(stack);
  for (size_t i = 0; i < kCanaryWords; ++i) words[i] = kCanary;
  return stack;
}

/// Switches into and out of a fiber. Neither inlined nor instrumented, because their frames begin
/// on one stack and end on the other.
struct Fiber::Switch {
#if TOKENYARD_TSAN
#define TOKENYARD_BARE __attribute__((noinline, no_sanitize("thread")))
#else
#define TOKENYARD_BARE __attribute__((noinline))
#endif

  TOKENYARD_BARE static void in(Fiber& fiber) {
#if TOKENYARD_ASAN
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, fiber.stack_, fiber.pool_.stack_bytes());
#endif
#if TOKENYARD_TSAN
    // A switch counts as synchronisation: ThreadSanitizer looks for races between real threads, and
    // the simulator for those between fibers.
    fiber.sanitizer_outside_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(fiber.sanitizer_fiber_, 0);
#endif
    fiber.inside_ = jump_fcontext(fiber.inside_, &fiber).fctx;
#if TOKENYARD_ASAN
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
  }

  TOKENYARD_BARE static void out(Fiber& fiber) {
#if TOKENYARD_ASAN
    __sanitizer_start_switch_fiber(fiber.ended_ ? nullptr : &fiber.fake_stack_,
                                   fiber.outside_stack_, fiber.outside_stack_bytes_);
#endif
#if TOKENYARD_TSAN
    __tsan_switch_to_fiber(fiber.sanitizer_outside_, 0);
#endif
    fiber.outside_ = jump_fcontext(fiber.outside_, nullptr).fctx;
#if TOKENYARD_ASAN
    __sanitizer_finish_switch_fiber(fiber.fake_stack_, &fiber.outside_stack_,
                                    &fiber.outside_stack_bytes_);
#endif
  }

  TOKENYARD_BARE static void first(transfer_t from) {
    Fiber& fiber = *static_cast<Fiber*>(from.data);
    fiber.outside_ = from.fctx;
#if TOKENYARD_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &fiber.outside_stack_, &fiber.outside_stack_bytes_);
#endif
    enter(fiber);
    out(fiber);
    __builtin_unreachable();  // An ended fiber is never resumed.
  }
};

void Fiber::enter(Fiber& self) {
  self.body_();
  self.ended_ = true;
}

Fiber::Fiber(StackPool& pool, std::function<void()> body)
    : stack_(pool.take()), pool_(pool), body_(std::move(body)) {
  inside_ = make_fcontext(stack_ + pool.stack_bytes(), pool.stack_bytes(), &Switch::first);
#if TOKENYARD_TSAN
  sanitizer_fiber_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#if TOKENYARD_TSAN
  __tsan_destroy_fiber(sanitizer_fiber_);
#endif
#if TOKENYARD_ASAN
  __asan_unpoison_memory_region(stack_, pool_.stack_bytes());
#endif
  pool_.give_back(stack_);
}

void Fiber::resume() {
  Switch::in(*this);
}

void Fiber::yield() {
  Switch::out(*this);
}

bool Fiber::stack_is_whole() const {
  const auto* words = reinterpret_cast<const uint64_t*>(stack_);
  for (size_t i = 0; i < kCanaryWords; ++i)
    if (words[i] != kCanary) return false;
  return true;
}

bool Fiber::on_stack(const void* address) const {
  const auto* byte = static_cast<const std::byte*>(address);
  return byte >= stack_ && byte < stack_ + pool_.stack_bytes();
}

}  // namespace tokenyard::simt
