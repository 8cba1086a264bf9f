#include "control/rendezvous.hpp"

#include <fmt/format.h>

#include <charconv>

#include "membership/message_codec.hpp"
#include "net/key.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::control {

namespace {

constexpr const char* kGeneration = "generation";

Store::Value value_of(uint64_t number) {
  const std::string text = fmt::format("{}", number);
  const auto bytes = net::as_bytes(text);
  return {bytes.begin(), bytes.end()};
}

uint64_t number_in(const Store::Value& value) {
  uint64_t number = 0;
  const auto* const text = reinterpret_cast<const char*>(value.data());
  const auto read = std::from_chars(text, text + value.size(), number);
  if (read.ec == std::errc() && read.ptr == text + value.size()) return number;
  throw OsError("reading the store", 0, "the value of 'generation' is no number");
}

}  // namespace

void Rendezvous::come(const ControlEndpoint& own) {
  std::optional<Store::Value> newest = store_->get(kGeneration);
  for (;;) {
    if (newest) {
      generation_ = number_in(*newest);
      if (!roster()) break;
    }
    const Store::Value next = value_of(newest ? generation_ + 1 : 1);
    newest = store_->compare_and_set(kGeneration, newest, next);
  }
  store_->set(slot_key(own.member.slot), encode(own));
}

bool Rendezvous::find_founded() {
  const uint64_t newest = newest_generation();
  const uint64_t oldest = newest > kGenerationsBack ? newest - kGenerationsBack : 1;
  for (generation_ = newest; generation_ >= oldest; --generation_) {
    if (roster()) return true;
  }
  generation_ = 0;
  return false;
}

std::optional<ControlEndpoint> Rendezvous::look(Slot slot) const {
  const auto value = store_->get(slot_key(slot));
  if (!value) return std::nullopt;
  auto endpoint = decode_endpoint(*value);
  if (endpoint && endpoint->member.slot != slot)
    return std::nullopt;  // not ours: treated as absent
  return endpoint;
}

std::optional<View> Rendezvous::roster() const {
  const auto value = store_->get(key("roster"));
  if (!value) return std::nullopt;
  const auto verdict = membership::decode_verdict(*value);
  if (!verdict) throw OsError("reading the store", 0, "the roster cannot be decoded");
  return verdict->next;
}

void Rendezvous::propose(const View& view) {
  store_->compare_and_set(key("roster"), std::nullopt,
                          encode(Verdict{.next = view, .groups = {}, .lost = {}, .left = {}}));
}

void Rendezvous::keep_witness_elsewhere() {
  store_->set(key("witness_at"), value_of(1));
}

bool Rendezvous::is_witness_elsewhere() const {
  return store_->get(key("witness_at")).has_value();
}

void Rendezvous::announce(const ControlEndpoint& own) {
  store_->set(slot_key(own.member.slot), encode(own));
}

std::string Rendezvous::key(const std::string& name) const {
  return fmt::format("{}/{}", generation_, name);
}

std::string Rendezvous::slot_key(Slot slot) const {
  return key(fmt::format("slot/{}", slot));
}

uint64_t Rendezvous::newest_generation() const {
  const auto newest = store_->get(kGeneration);
  return newest ? number_in(*newest) : 0;
}

}  // namespace tokenyard::control
