// Messages of the membership protocol: their decoding, and one member that hears them. Members are
// authenticated, not proved correct: a message that a correct member cannot send may end this
// member's part with an InternalError, but never in a crash or in memory that is not its own.
#include <chrono>

#include "fuzz/fuzz.hpp"
#include "membership/membership.hpp"
#include "membership/message_codec.hpp"

namespace tokenyard::membership {
namespace {

using fuzz::Input;

/// Slot 0 of three, which hears the messages of the others.
class OneMember {
 public:
  void hear(uint32_t slot, const Message& message) {
    membership_.receive(slot < 3 ? founders_[slot] : Member{2, 99}, message, now_);
    obey();
  }
  void pass(Instant time) {
    now_ += time;
    membership_.tick(now_);
    obey();
  }
  bool is_over() const { return over_; }

 private:
  void obey() {
    for (Effect& effect : membership_.take_effects()) {
      if (const auto* send = std::get_if<Send>(&effect)) {
        const auto bytes = encode(send->message);
        fuzz::require(decode_message(bytes).has_value(), "a member's messages can be decoded");
      }
      if (std::holds_alternative<Freeze>(effect)) freeze_ = true;
      over_ =
          over_ || std::holds_alternative<Fenced>(effect) || std::holds_alternative<Left>(effect);
    }
    if (std::exchange(freeze_, false) && !over_) {
      membership_.frozen({{.group = 0, .slots = {0, 1, 2}, .committed = 4, .begun = 5}}, now_);
      obey();
    }
  }

  const std::vector<Member> founders_{{0, 10}, {1, 11}, {2, 12}};
  Membership membership_{founders_[0], View{.epoch = 1, .slots = 3, .members = founders_},
                         MembershipOptions{.heartbeat = std::chrono::milliseconds(50),
                                           .silence = std::chrono::milliseconds(400),
                                           .ballot = std::chrono::milliseconds(20),
                                           .witness = true}};
  Instant now_{};
  bool freeze_ = false, over_ = false;
};

void run(Input input) {
  OneMember member;
  while (!input.empty() && !member.is_over()) {
    switch (input.up_to(4)) {
      case 0:
        member.pass(std::chrono::milliseconds(input.number<uint8_t>()));
        break;
      case 1: {
        const auto bytes = input.bytes(input.number<uint16_t>());
        if (const auto verdict = decode_verdict(bytes))
          fuzz::require_same_bytes(encode(*verdict), bytes, "a verdict reads as it was written");
        break;
      }
      case 2: {
        const auto bytes = input.bytes(input.number<uint16_t>());
        if (const auto seen = decode_witness(bytes))
          fuzz::require_same_bytes(encode(*seen), bytes, "a witness reads as it was written");
        break;
      }
      default: {
        const uint32_t from = 1 + input.up_to(2);
        const auto bytes = input.bytes(input.number<uint16_t>());
        const auto message = decode_message(bytes);
        if (!message) break;
        fuzz::require_same_bytes(encode(*message), bytes, "a message reads as it was written");
        member.hear(from, *message);
      }
    }
  }
}

}  // namespace
}  // namespace tokenyard::membership

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    tokenyard::membership::run({data, size});
  } catch (const tokenyard::InternalError&) {
    // An invariant that a correct member would have kept.
  }
  return 0;
}
