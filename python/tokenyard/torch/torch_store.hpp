/// torch's store for the core's control plane: the rendezvous, and the witness's memory.
#pragma once

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core_table.hpp"
#include "reachable.hpp"

namespace tokenyard::torch_backend {

/// Values begin with a marker byte: c10d's compareSet takes an empty value for a missing key.
class TorchStore {
 public:
  /// Opens a connection of its own, so that a wait on the program's cannot block the control
  /// thread.
  explicit TorchStore(const c10::intrusive_ptr<c10d::Store>& store)
      : store_(store->clone()), server_(server_of(store_)) {
    store_->setTimeout(kTimeout);
  }

  static core::Store functions(const c10::intrusive_ptr<c10d::Store>& store) {
    return {new TorchStore(store), &drop, &get, &set, &compare_and_set};
  }

 private:
  using Bytes = core::Store::Bytes;
  using Take = core::Store::Take;

  static void drop(void* context) { delete static_cast<TorchStore*>(context); }

  static int get(void* context, Bytes key, Take take, void* taker) {
    return guarded(context, take, taker, [&](c10d::Store& store) {
      const std::string name = name_of(key);
      if (!store.check({name})) return 0;
      give(store.get(name), take, taker);
      return 1;
    });
  }

  static int set(void* context, Bytes key, Bytes value, Take take, void* taker) {
    return guarded(context, take, taker, [&](c10d::Store& store) {
      store.set(name_of(key), marked(value));
      return 0;
    });
  }

  static int compare_and_set(void* context, Bytes key, const Bytes* expected, Bytes desired,
                             Take take, void* taker) {
    return guarded(context, take, taker, [&](c10d::Store& store) {
      const std::vector<uint8_t> wanted = expected ? marked(*expected) : std::vector<uint8_t>();
      give(store.compareSet(name_of(key), wanted, marked(desired)), take, taker);
      return 0;
    });
  }

  template <class Call>
  static int guarded(void* context, Take take, void* taker, Call&& call) {
    try {
      auto* self = static_cast<TorchStore*>(context);
      self->check_server();
      const int result = call(*self->store_);
      self->answered_ = Clock::now();
      self->answered_to_ = std::this_thread::get_id();
      return result;
    } catch (const std::exception& error) {
      const std::string sentence = error.what();
      take(taker, sentence.data(), sentence.size());
      return -1;
    }
  }

  /// Throws if the server is gone: torch's client would print a stack trace before it throws, and
  /// never reconnect. A server that has just answered this thread is not probed: probes that send
  /// nothing, one per call of a rendezvous, made torch's server answer others late, by its whole
  /// timeout. The witness, which asks after a death, has a thread of its own and so probes first.
  void check_server() {
    const bool fresh = Clock::now() - answered_.load() < kFresh;
    if (server_ == nullptr || (fresh && answered_to_.load() == std::this_thread::get_id())) return;
    if (!gone_) gone_ = !reachable(server_->getHost(), server_->getPort(), kTimeout);
    if (gone_)
      throw std::runtime_error(c10::str("torch's store at ", server_->getHost(), ":",
                                        server_->getPort(), " no longer answers"));
  }

  static c10::intrusive_ptr<c10d::TCPStore> server_of(
      const c10::intrusive_ptr<c10d::Store>& store) {
    c10::intrusive_ptr<c10d::Store> inner = store;
    while (const auto prefixed = c10::dynamic_intrusive_pointer_cast<c10d::PrefixStore>(inner))
      inner = prefixed->getUnderlyingStore();
    return c10::dynamic_intrusive_pointer_cast<c10d::TCPStore>(inner);
  }

  static std::string name_of(Bytes key) {
    return "tokenyard/" + std::string(static_cast<const char*>(key.data), key.size);
  }

  static std::vector<uint8_t> marked(Bytes value) {
    std::vector<uint8_t> result{1};
    const auto* first = static_cast<const uint8_t*>(value.data);
    result.insert(result.end(), first, first + value.size);
    return result;
  }

  static void give(const std::vector<uint8_t>& value, Take take, void* taker) {
    const size_t mark = value.empty() ? 0 : 1;
    take(taker, value.data() + mark, value.size() - mark);
  }

  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kTimeout{5};
  static constexpr std::chrono::milliseconds kFresh{100};  ///< an answer counts as recent

  const c10::intrusive_ptr<c10d::Store> store_;
  const c10::intrusive_ptr<c10d::TCPStore> server_;  // Null if the store has no server.
  std::atomic<bool> gone_ = false;
  std::atomic<Clock::time_point> answered_ = Clock::now();  // The clone has just connected.
  std::atomic<std::thread::id> answered_to_ = std::this_thread::get_id();
};

}  // namespace tokenyard::torch_backend
