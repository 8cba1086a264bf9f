#pragma once

#include "device/bulk.hpp"
#include "device/host/here.hpp"
#include "device/host/machine.hpp"

namespace tokenyard {

TOKENYARD_DEVICE CachePolicy evict_first() {
  return {};
}
TOKENYARD_DEVICE CachePolicy evict_last() {
  return {};
}
TOKENYARD_DEVICE CachePolicy evict_normal() {
  return {};
}

TOKENYARD_DEVICE void Completion::init(uint32_t arrivals) {
  host_body::machine().completion_init(this, arrivals, host_body::here());
}
TOKENYARD_DEVICE void Completion::arrive_expect(uint32_t bytes) {
  host_body::machine().completion_arrive(this, bytes, host_body::here());
}
TOKENYARD_DEVICE void Completion::arrive() {
  host_body::machine().completion_arrive(this, 0, host_body::here());
}
TOKENYARD_DEVICE bool Completion::done(uint32_t parity) {
  return host_body::machine().completion_done(this, parity, host_body::here());
}

TOKENYARD_DEVICE bool Completion::done_now(uint32_t parity) {
  return done(parity);
}

TOKENYARD_DEVICE void fence_async() {
  host_body::machine().fence_async(host_body::here());
}

TOKENYARD_DEVICE void fence_async_shared() {
  host_body::machine().fence_async(host_body::here());
}

namespace bulk {

TOKENYARD_DEVICE void load(void* to_shared, const void* from, uint32_t bytes,
                           Completion& completion, CachePolicy) {
  host_body::machine().bulk_load(to_shared, from, bytes, &completion, host_body::here());
}
TOKENYARD_DEVICE void load(void* to_shared, Peer<const std::byte> from, uint32_t bytes,
                           Completion& completion, CachePolicy) {
  host_body::machine().bulk_load(to_shared, from.address(), bytes, &completion, host_body::here());
}
TOKENYARD_DEVICE void store(void* to, const void* from_shared, uint32_t bytes, CachePolicy) {
  host_body::machine().bulk_store(to, from_shared, bytes, host_body::here());
}
TOKENYARD_DEVICE void store(Peer<std::byte> to, const void* from_shared, uint32_t bytes,
                            CachePolicy) {
  host_body::machine().bulk_store(to.address(), from_shared, bytes, host_body::here());
}
TOKENYARD_DEVICE void commit() {
  host_body::machine().bulk_commit(host_body::here());
}
template <int groups>
TOKENYARD_DEVICE void wait_read() {
  host_body::machine().bulk_wait(groups, true, host_body::here());
}
template <int groups>
TOKENYARD_DEVICE void wait() {
  host_body::machine().bulk_wait(groups, false, host_body::here());
}

}  // namespace bulk

}  // namespace tokenyard
