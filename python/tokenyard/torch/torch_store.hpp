/// torch's store, lent to the core: where ranks find one another, and the witness's memory.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>
#include <vector>

#include "core_table.hpp"

namespace tokenyard::torch_backend {

/// Values begin with a byte of our own: c10d's compareSet takes an empty value for no key at all.
class TorchStore {
 public:
  /// A connection of its own: whoever waits in the program's must not keep the control thread.
  explicit TorchStore(const c10::intrusive_ptr<c10d::Store>& store) : store_(store->clone()) {
    store_->setTimeout(std::chrono::seconds(5));
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
      return call(*static_cast<TorchStore*>(context)->store_);
    } catch (const std::exception& error) {
      const std::string sentence = error.what();
      take(taker, sentence.data(), sentence.size());
      return -1;
    }
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

  const c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace tokenyard::torch_backend
