/// How the ranks of a job find one another:
///
///   1. every rank opens a listener for its peers, on any port;
///   2. rank 0 listens at the agreed address; the others connect, and try again until it does;
///   3. each says hello: job, rank, number of ranks, port of its listener. Rank 0 answers with
///      progress (who is missing), or a refusal (and why);
///   4. once all have come, rank 0 sends everybody the directory: where each rank listens, and a
///      session number that no other world has.
///
/// Rank 0 serves every connection by itself (rendezvous_listener.hpp), gives it a few seconds to
/// say hello, and turns away whoever does not belong: strangers, other versions, other jobs, other
/// sizes, a rank that has come already. A rank that goes away before everybody has come may come
/// again.
#pragma once

#include <string>
#include <vector>

#include "fabric/tcp/frame_stream.hpp"
#include "fabric/tcp/progress.hpp"
#include "net/listener.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard::tcp {

/// What a rank knows when it sets out.
struct Attendance {
  Rendezvous where;
  uint16_t listener_port = 0;
};

struct Directory {
  uint64_t session = 0;
  /// [ranks] An unspecified address is that of rank 0, as whoever reads this reached it.
  std::vector<Endpoint> listeners;
};

/// What a refused rank is told.
struct Refusal {
  std::string argument, expected, seen;
  bool come_again = false;  ///< it may be let in later
};

/// A listener where `host` says: on loopback for a loopback name, else on every interface, since a
/// host's own name often resolves to an address that others cannot reach. `port` 0: any.
/// Throws std::system_error.
net::Listener listen(const asio::any_io_executor& executor, const std::string& host, uint16_t port);

/// Rank 0's part: waits for every other rank. Goes on refusing latecomers for a while after that.
awaitable<Directory> host_rendezvous(Attendance self, Progress& progress);
/// Everybody else's. Throws InvalidArgument with rank 0's reason if it is refused.
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
// Each throws net::ProtocolError for a payload that is not what its kind says.
Hello read_hello(const Frame& frame);
std::vector<uint32_t> read_progress(const Frame& frame);
Directory read_connect_reply(const Frame& frame);
Refusal read_refusal(const Frame& frame);

}  // namespace tokenyard::tcp
