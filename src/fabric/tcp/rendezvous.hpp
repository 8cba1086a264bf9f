/// How the ranks of a job find one another:
///
///   1. every rank opens a listener for its peers, on any port;
///   2. rank 0 listens at the agreed address; the others connect, and retry until it does;
///   3. each sends a hello: job, rank, number of ranks, port of its listener. Rank 0 answers with
///      progress (which ranks are missing), or a refusal (with the reason);
///   4. once all are connected, rank 0 sends every rank the directory: the address of each rank's
///      listener, and a session number that no other world has.
///
/// Rank 0 serves each connection independently (rendezvous_listener.hpp), gives it a few seconds to
/// say hello, and refuses any that does not belong: foreign programs, other versions, other jobs,
/// other sizes, a rank that is already connected. A rank that disconnects before all are there may
/// come again.
#pragma once

#include <string>
#include <vector>

#include "fabric/tcp/frame_stream.hpp"
#include "fabric/tcp/progress.hpp"
#include "net/listener.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard::tcp {

/// A rank's input to the rendezvous.
struct Attendance {
  Rendezvous where;
  uint16_t listener_port = 0;
};

struct Directory {
  uint64_t session = 0;
  /// [ranks] An unspecified address stands for the one at which the reader reached rank 0.
  std::vector<Endpoint> listeners;
};

/// The reason that a refused rank receives.
struct Refusal {
  std::string argument, expected, seen;
  bool come_again = false;  ///< it may be accepted later
};

/// Opens a listener for `host`: on loopback for a loopback name, else on every interface, since a
/// host's own name often resolves to an address that others cannot reach. `port` 0 picks a free
/// one. Throws std::system_error.
net::Listener listen(const asio::any_io_executor& executor, const std::string& host, uint16_t port);

/// Runs rank 0's part: waits for every other rank. Keeps refusing latecomers for a while after
/// that.
awaitable<Directory> host_rendezvous(Attendance self, Progress& progress);
/// Runs another rank's part. Throws InvalidArgument with rank 0's reason if the rank is refused.
awaitable<Directory> attend_rendezvous(Attendance self, Progress& progress);

// The frames of a rendezvous.
Frame hello(const Attendance& self);
Frame progress_report(const Attendance& self, const std::vector<uint32_t>& missing);
Frame connect_reply(const Attendance& self, const Directory& directory);
Frame refusal(const Attendance& self, const Refusal& reason);
struct Hello {
  std::string job;
  uint16_t listener_port;
};
// Each throws net::ProtocolError for a frame of another kind, or a malformed payload.
Hello read_hello(const Frame& frame);
std::vector<uint32_t> read_progress(const Frame& frame);
Directory read_connect_reply(const Frame& frame);
Refusal read_refusal(const Frame& frame);

}  // namespace tokenyard::tcp
