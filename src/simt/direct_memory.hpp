/// The CPU's own memory, for ranks that are threads or processes. Orders become C++ orders, every
/// scope means the whole machine, and bulk copies complete when they are issued.
#pragma once

#include "simt/memory.hpp"

namespace tokenyard::simt {

class DirectMemory : public Memory {
 public:
  void grid_begins(uint32_t, uint32_t, std::span<const ThreadName>) override {}
  void thread_ends(const ThreadName&) override {}
  void grid_ends(uint32_t, uint32_t) override {}
  void synchronise(std::span<const ThreadName* const>,
                   std::span<const ThreadName* const>) override {}

  void load(const ThreadName& me, const void* from, void* value, uint32_t bytes, Order order,
            Scope scope, CodeAddress where) override;
  void store(const ThreadName& me, void* to, const void* value, uint32_t bytes, Order order,
             Scope scope, CodeAddress where) override;
  void modify(const ThreadName& me, Modify what, void* at, const void* operand, void* old,
              uint32_t bytes, Order order, Scope scope, CodeAddress where) override;
  void compare_exchange(const ThreadName& me, void* at, const void* expected, const void* desired,
                        void* old, uint32_t bytes, Order order, Scope scope,
                        CodeAddress where) override;
  void fence(const ThreadName& me, Fence kind, Scope scope, CodeAddress where) override;

  void completion_init(const ThreadName& me, void* completion, uint32_t arrivals,
                       CodeAddress where) override;
  void completion_arrive(const ThreadName& me, void* completion, uint32_t expected_bytes,
                         CodeAddress where) override;
  bool completion_done(const ThreadName& me, void* completion, uint32_t parity,
                       CodeAddress where) override;
  void fence_async(const ThreadName&, CodeAddress) override {}
  void bulk_load(const ThreadName& me, void* to_shared, const void* from, uint32_t bytes,
                 void* completion, CodeAddress where) override;
  void bulk_store(const ThreadName& me, void* to, const void* from_shared, uint32_t bytes,
                  CodeAddress where) override;
  void bulk_commit(const ThreadName&, CodeAddress) override {}
  bool bulk_wait(const ThreadName&, uint32_t, bool, CodeAddress) override { return true; }

  void plain_access(const ThreadName&, const void*, uint32_t, bool, CodeAddress) override {}
  bool step() override { return false; }
  uint64_t progress() const override { return progress_; }
  bool is_plain() const override { return true; }

 private:
  uint64_t progress_ = 0;  ///< of this rank alone; peers' stores are noticed by polling
};

}  // namespace tokenyard::simt
