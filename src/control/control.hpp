/// The control plane of one process: a thread that keeps it in touch with the others of its job,
/// whatever its other threads do. It alone sends heartbeats, so a rank whose main thread is stuck
/// still lives.
///
///     Control control(options);                    // listens; others cannot know yet
///     ... make the transport, and the participant over both ...
///     control.found(participant, contact);         // or join; the participant has its first view
///     ...
///     control.stop();                              // goodbye
///
/// Founders meet in a store (rendezvous.hpp), and need it no more once they have, but for the
/// witness and for newcomers. Newcomers find a member there, and are told the rest.
///
/// No signal handlers, and no SIGPIPE; nothing is inherited by programs that this process starts.
#pragma once

#include <asio.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "control/control_endpoint.hpp"
#include "control/control_loop.hpp"
#include "control/options.hpp"
#include "control/participant.hpp"
#include "control/rendezvous.hpp"
#include "control/status_board.hpp"
#include "control/store_server.hpp"

namespace tokenyard::control {

class Control final : public MembershipControl {
 public:
  /// Throws OsError if it cannot listen, InvalidArgument for a store that is none.
  explicit Control(ControlOptions options);
  /// As `stop`.
  ~Control() override;

  Member self() const { return own_.member; }
  /// Where others reach this process.
  const std::string& address() const { return own_.address; }

  /// Meets the other founders, and begins epoch 1 with them: the participant, which must live until
  /// `stop`, has had its first `install` when this returns. Throws PeerTimeout naming one that did
  /// not come, InvalidArgument if ranks were told different sizes or two the same rank, OsError if
  /// the store cannot be reached.
  void found(Participant& participant, Contact contact);
  /// Begins epoch 1 with every other slot empty, and meets nobody: no store is asked.
  void found_alone(Participant& participant, Contact contact);
  /// Asks to be admitted into its slot, and waits until it has been: until the members have called
  /// `admit` for it, and agreed. Throws PeerTimeout, Fenced, OsError.
  void join(Participant& participant, Contact contact);

  // Any thread, after `found` or `join`.
  void report_timeout(const TimeoutReport& timeout_report, Epoch seen_in) override;
  void admit(const std::vector<Slot>& slots, Epoch seen_in) override;
  void withdraw(const std::vector<Slot>& slots) override;
  void evict(const Member& member) override;
  void recover(bool wanted = true) override;
  void drain() override;
  void leave() override;
  View view() const;
  std::vector<Slot> recovers_late() const override;
  /// Newcomers that would like to be admitted.
  std::vector<Member> waiting() const;
  /// Connections that were turned away, and messages that were none.
  uint64_t refused() const { return loop_->refused(); }

  /// Says goodbye, waits until nobody counts on this process any more, and ends the thread. The
  /// participant is not called after that.
  ///
  /// Whoever answers is waited for, however slow the machine: hanging up on it would look like a
  /// death. The dead and the silent are got over as ever. It gives up where those that answer have
  /// been too few to agree for as long as one may be silent, and after the job's timeout.
  void stop();

 private:
  using Clock = std::chrono::steady_clock;

  static std::shared_ptr<Store> open_store(const ControlOptions& options);
  void start(Participant& participant, Contact contact, net::Purpose purpose);
  void run();
  template <class Body>
  void post(Body body);
  void await_farewell();

  using Look = std::function<bool(std::optional<Rendezvous>&)>;
  using GiveUp = void (Control::*)(Clock::time_point start) const;
  /// Looks at the store, ever less often, until `look` says true or the time is up; after a store
  /// that failed it begins without a rendezvous again. Then throws what was wrong with the store,
  /// else what `give_up` does.
  void poll_until(const Look& look, GiveUp give_up);
  /// One look at the store as a founder. True once this process is a member.
  bool try_to_found(Rendezvous& rendezvous);
  /// The founders, if one of every slot is linked with this process.
  std::optional<View> complete(const Rendezvous& rendezvous) const;
  void begin(Rendezvous& rendezvous, const View& first);
  void await_first_view();
  /// Takes note of the cards in the store of those it is not linked with.
  void poll_others(const Rendezvous& rendezvous, uint32_t slots);
  bool joined(Rendezvous& rendezvous);
  [[noreturn]] void give_up_founding(Clock::time_point start) const;
  [[noreturn]] void give_up_joining(Clock::time_point start) const;
  std::string meeting_place() const;

  const ControlOptions options_;
  ControlEndpoint own_;
  std::unique_ptr<StoreServer> served_;
  std::shared_ptr<Store> store_;
  StatusBoard status_board_;
  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::unique_ptr<ControlLoop> loop_;
  std::thread thread_;
  std::map<Member, ControlEndpoint> acquaint_;  ///< seen in the store
};

}  // namespace tokenyard::control
