#include "fabric/network/network_stream.hpp"

#include "device/owned_event.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {

void NetworkStream::finish() const {
  const OwnedEvent end(accelerator_, accelerator_.record(stream_));
  const auto until = accelerator_.now() + timeout_ + std::chrono::seconds(30);
  if (!accelerator_.wait_until(until, [&] { return accelerator_.done(end.get()); }))
    throw InternalError("network: a copy or kernel on its stream did not end");
}

}  // namespace tokenyard
