#include "own_store.hpp"

#include <cerrno>

#include "core_table.hpp"
#include "tokenyard/error.hpp"

namespace nb = nanobind;

namespace tokenyard::python {
namespace {

using Bytes = core::Store::Bytes;

class OwnStore final : public control::Store {
 public:
  explicit OwnStore(const core::Store& functions) : store_(functions) {}
  ~OwnStore() override { store_.drop(store_.context); }
  OwnStore(const OwnStore&) = delete;
  OwnStore& operator=(const OwnStore&) = delete;

  std::optional<Value> get(const std::string& key) override {
    Value value;
    const int found = checked("get", value, store_.get(store_.context, of(key), &take, &value));
    return found ? std::optional(std::move(value)) : std::nullopt;
  }

  void set(const std::string& key, const Value& value) override {
    Value said;
    checked("set", said, store_.set(store_.context, of(key), of(value), &take, &said));
  }

  Value compare_and_set(const std::string& key, const std::optional<Value>& expected,
                        const Value& desired) override {
    Value value;
    const Bytes wanted = expected ? of(*expected) : Bytes{};
    checked("compare_and_set", value,
            store_.compare_and_set(store_.context, of(key), expected ? &wanted : nullptr,
                                   of(desired), &take, &value));
    return value;
  }

 private:
  static Bytes of(const std::string& text) { return {text.data(), text.size()}; }
  static Bytes of(const Value& value) { return {value.data(), value.size()}; }

  static void take(void* taker, const void* data, uint64_t bytes) {
    const auto* first = static_cast<const std::byte*>(data);
    static_cast<Value*>(taker)->assign(first, first + bytes);
  }

  static int checked(const char* call, const Value& said, int result) {
    if (result >= 0) return result;
    throw OsError(std::string("store: ") + call, EIO,
                  std::string(reinterpret_cast<const char*>(said.data()), said.size()));
  }

  core::Store store_;
};

}  // namespace

std::shared_ptr<control::Store> own_store_of(const nb::object& capsule) {
  auto* functions =
      static_cast<core::Store*>(PyCapsule_GetPointer(capsule.ptr(), core::kStoreCapsule));
  if (functions == nullptr) throw nb::python_error();
  if (functions->drop == nullptr) throw InvalidArgument("own_store", "a new store", "a used one");
  auto store = std::make_shared<OwnStore>(*functions);
  functions->drop = nullptr;  // The capsule's destructor checks it.
  return store;
}

}  // namespace tokenyard::python
