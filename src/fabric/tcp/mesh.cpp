#include "fabric/tcp/mesh.hpp"

#include <fmt/format.h>

#include "fabric/tcp/links.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::tcp {

namespace {

void check(const Rendezvous& where) {
  if (where.size == 0) throw InvalidArgument("size", "at least 1", "0");
  if (where.rank >= where.size) {
    throw InvalidArgument("rank", fmt::format("below {}", where.size),
                          fmt::format("{}", where.rank));
  }
  if (where.job.empty() || where.job.size() > 256) {
    throw InvalidArgument("job", "a name of 1 to 256 bytes",
                          fmt::format("{} bytes", where.job.size()));
  }
  if (where.size > 1 && where.port == 0) {
    throw InvalidArgument("port", "a port that all ranks know", "0");
  }
}

}  // namespace

std::shared_ptr<TcpMesh> TcpMesh::connect(const Rendezvous& where, Accelerator& accelerator,
                                          TimePoint until) {
  check(where);
  std::shared_ptr<TcpMesh> mesh(new TcpMesh(where));
  if (where.size == 1) return mesh;
  const TimePoint start = accelerator.now();
  try {
    mesh->links_ = std::make_unique<Links>(where, mesh->mailbox_);
    if (!accelerator.wait_until(until, [&] { return mesh->links_->assembled(); })) {
      const std::chrono::duration<double> waited = accelerator.now() - start;
      throw mesh->links_->progress().timeout(waited.count());
    }
  } catch (const std::system_error& error) {
    throw OsError("listen for ranks", error.code().value(), error.code().message());
  }
  return mesh;
}

TcpMesh::TcpMesh(const Rendezvous& where) : where_(where), mailbox_(where.size) {}
TcpMesh::~TcpMesh() = default;

void TcpMesh::leave() {
  throw Unsupported("leave", "a process says goodbye only when its mesh is destroyed");
}

void TcpMesh::send(uint32_t to, const Message& message) {
  if (message.bytes.size() > kPayloadMax || message.what.size() > kWhatMax) {
    throw InvalidArgument("bytes", fmt::format("at most {} per rank", kPayloadMax),
                          fmt::format("{}", message.bytes.size()));
  }
  const auto kind =
      message.kind == MessageKind::rebuild ? FrameKind::rebuild : FrameKind::collective;
  links_->send(to, Frame{FrameHeader{.kind = static_cast<uint16_t>(kind),
                                     .generation = message.generation,
                                     .sequence = message.sequence},
                         message.what, message.bytes});
}

void TcpMesh::expel(uint32_t slot) {
  links_->expel(slot);
}

std::vector<std::string> TcpMesh::refusals() const {
  return links_ ? links_->progress().refusals() : std::vector<std::string>{};
}

}  // namespace tokenyard::tcp
