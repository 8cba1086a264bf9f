// The first bytes of a connection, from a process that may know nothing of the job.
#include "net/handshake.hpp"

#include "fuzz/fuzz.hpp"

namespace tokenyard::net {
namespace {

using fuzz::Input;
using fuzz::require;

void feed(Handshake& handshake, std::span<const std::byte> bytes) {
  while (!handshake.done()) {
    const size_t wanted = handshake.wanted();
    // The header says so: a stranger has at most this much read before it is refused.
    require(wanted > 0 && wanted <= 112, "a handshake's step reads 1 to 112 bytes");
    if (bytes.size() < wanted) return;
    handshake.receive(bytes.first(wanted));
    bytes = bytes.subspan(wanted);
    (void)handshake.take_output();
  }
}

/// Lets two ends speak, with some bytes of what they say changed.
void speak(Input& input, Handshake& dialler, Handshake& acceptor, bool& changed) {
  for (int step = 0; step < 8; ++step) {
    Handshake& from = step % 2 == 0 ? dialler : acceptor;
    Handshake& to = step % 2 == 0 ? acceptor : dialler;
    std::vector<std::byte> said = from.take_output();
    if (!said.empty() && input.flag()) {
      const auto flipped = input.number<std::byte>();
      said[input.number<uint8_t>() % said.size()] ^= flipped;
      changed = changed || flipped != std::byte{};
    }
    std::span<const std::byte> rest = said;
    while (!to.done() && to.wanted() <= rest.size()) {
      const size_t wanted = to.wanted();
      to.receive(rest.first(wanted));
      rest = rest.subspan(wanted);
    }
  }
}

void run(Input input) {
  const Key key("the secret of a job", "fuzz");
  const Introduction one{.purpose = Purpose::member, .job = 7, .self = {1, 11}, .epoch = 3};
  const Introduction two{.purpose = Purpose::member, .job = 7, .self = {2, 22}, .epoch = 3};
  const bool to_dialler = input.flag();
  if (input.flag()) {
    Handshake alone(to_dialler ? Handshake::Side::dialler : Handshake::Side::acceptor, key, one);
    feed(alone, input.rest());
    require(!alone.done(), "no handshake ends well without the secret");
    return;
  }
  Handshake dialler(Handshake::Side::dialler, key, one);
  Handshake acceptor(Handshake::Side::acceptor, key, two);
  bool changed = false;
  speak(input, dialler, acceptor, changed);
  require(!(changed && dialler.done() && acceptor.done()),
          "a handshake with a changed byte fails on one side");
  if (!changed) require(dialler.done() && acceptor.done(), "an honest handshake succeeds");
}

}  // namespace
}  // namespace tokenyard::net

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    tokenyard::net::run({data, size});
  } catch (const tokenyard::net::ProtocolError&) {
    // The peer is refused.
  }
  return 0;
}
