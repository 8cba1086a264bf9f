#include "interrupt.hpp"

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace tokenyard::python {

using Time = std::chrono::steady_clock;

Interrupt::Interrupt()
    : main_thread_(nb::cast<unsigned long>(
          nb::module_::import_("threading").attr("main_thread")().attr("ident"))),
      next_look_(std::make_shared<std::atomic<Time::duration>>(Time::duration::zero())) {}

void Interrupt::operator()() const {
  if (PyThread_get_thread_ident() != main_thread_) return;
  const Time::duration now = Time::now().time_since_epoch();
  // Relaxed: an extra or slightly late check is harmless.
  if (now < next_look_->load(std::memory_order_relaxed)) return;
  next_look_->store(now + std::chrono::milliseconds(20), std::memory_order_relaxed);
  nb::gil_scoped_acquire locked;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

}  // namespace tokenyard::python
