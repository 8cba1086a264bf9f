/// How messages between ranks are encoded (base/byte_stream.hpp).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/byte_stream.hpp"
#include "fabric/mailbox.hpp"

namespace tokenyard {

void visit(auto& stream, MaybeConst<Message> auto& message) {
  stream.wide(message.kind, static_cast<uint64_t>(MessageKind::timeout_report));
  stream.wide(message.generation);
  stream.wide(message.sequence);
  stream.text(message.what);
  stream.list(message.slots, sizeof(uint32_t), [](auto& list, auto& slot) { list(slot); });
  stream.text(message.bytes);
}

}  // namespace tokenyard
