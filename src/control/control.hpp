/// The control plane of one process: a thread that keeps it in touch with the other processes of
/// its job, whatever its other threads do. It alone sends heartbeats, so a rank whose main thread
/// is stuck still counts as alive.
///
///     Control control(options);                    // listens; the others cannot know yet
///     ... make the transport, and the participant over both ...
///     control.found(participant, contact);         // or join; the participant has its first view
///     ...
///     control.stop();                              // goodbye
///
/// Founders meet in a store (rendezvous.hpp); afterwards only the witness and newcomers need it. A
/// newcomer finds one member there, which tells it the rest.
///
/// Installs no signal handlers and raises no SIGPIPE; programs that this process starts inherit
/// nothing.
#pragma once

#include <asio.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/log.hpp"
#include "control/control_endpoint.hpp"
#include "control/control_loop.hpp"
#include "control/options.hpp"
#include "control/participant.hpp"
#include "control/rendezvous.hpp"
#include "control/status_board.hpp"
#include "control/store_server.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::control {

class Control final : public MembershipControl, public RankControl {
 public:
  /// `inbox` takes the messages that other ranks `send`, if there are any; it must live until
  /// `stop`. Throws OsError if it cannot listen, InvalidArgument if the store's address or the
  /// level of lines (TOKENYARD_LOG) is invalid.
  explicit Control(ControlOptions options, Inbox* inbox = nullptr);
  /// Calls `stop`.
  ~Control() override;

  Member self() const { return own_.member; }

  /// Meets the other founders and begins epoch 1 with them. On return the participant has had its
  /// first `install`; it must live until `stop`. Throws PeerTimeout naming a missing rank,
  /// InvalidArgument if ranks were given different sizes or two were given the same rank, OsError
  /// if the store cannot be reached.
  void found(Participant& participant, Contact contact);
  /// Begins epoch 1 with every other slot empty. Meets nobody and needs no store.
  void found_alone(Participant& participant, Contact contact);
  /// Waits for links to all members: what is sent without a link is lost, and a goodbye and a death
  /// are noticed at once only on one. Does not wait for a member whose link has ended, nor longer
  /// than the job's timeout, or than a silence while too few members answer to agree on anything.
  void await_links();
  bool is_linked_to_all() const override;
  /// Returns whether the job has a witness that its store does not keep: then `use_witness`.
  bool is_witness_elsewhere() const { return witness_elsewhere_; }
  /// Sets the store that keeps the witness's register. It must outlive the death of any member.
  void use_witness(std::shared_ptr<Store> witness);
  /// Asks for its slot and waits until it is admitted: until members have called `admit` for the
  /// slot and have agreed. Throws PeerTimeout, Fenced or OsError.
  void join(Participant& participant, Contact contact);

  // From any thread, after `found` or `join`. The control thread carries them out.

  void send(Slot to, Bytes message) override { call(&ControlLoop::send, to, std::move(message)); }
  void report_timeout(const TimeoutReport& timeout_report, Epoch seen_in) override {
    call(&ControlLoop::report_timeout, timeout_report, seen_in);
  }
  void admit(const std::vector<Slot>& slots, Epoch seen_in) override {
    call(&ControlLoop::admit, slots, seen_in);
  }
  void withdraw(const std::vector<Slot>& slots) override { call(&ControlLoop::withdraw, slots); }
  void evict(const Member& member) override { call(&ControlLoop::evict, member); }
  void recover(bool wanted = true) override { call(&ControlLoop::recover, wanted); }
  void abandon(const Member& member, Epoch seen_in) override {
    call(&ControlLoop::abandon, member, seen_in);
  }
  void drain() override { call(&ControlLoop::drain); }
  void leave() override { call(&ControlLoop::leave); }

  View view() const { return status_board_.read().view.value_or(View{}); }
  std::vector<Slot> recovers_late() const override { return status_board_.read().recovers_late; }
  /// Returns the newcomers that ask to be admitted.
  std::vector<Member> waiting() const { return status_board_.read().waiting; }
  ControlCounters counters() const { return status_board_.counters(); }

  /// Says goodbye, waits until no member counts on this process, and ends the thread. The
  /// participant is not called afterwards.
  ///
  /// Waits for members that answer however slow the machine, since hanging up on them would look
  /// like a death. Dead and silent members are evicted as ever. Gives up after `farewell`, or once
  /// the members that answer have been too few to agree for the time of a silence. Where this rank
  /// may have sent messages, then waits until the system has the last of them, for `farewell`
  /// again.
  void stop();

 private:
  using Clock = std::chrono::steady_clock;

  static std::shared_ptr<Store> open_store(const ControlOptions& options);
  void start(Participant& participant, Contact contact, net::Purpose purpose);
  void run();
  /// Has the control thread call `body(loop)`, or a method of the loop.
  template <class Body>
  void post(Body body) {
    asio::post(io_, [this, body = std::move(body)]() mutable { body(*loop_); });
  }
  template <class... Parameters>
  void call(void (ControlLoop::*method)(Parameters...), std::decay_t<Parameters>... arguments) {
    post([method, ... given = std::move(arguments)](ControlLoop& loop) mutable {
      (loop.*method)(std::move(given)...);
    });
  }
  void await_farewell();
  std::chrono::nanoseconds farewell() const;

  using Look = std::function<bool(std::optional<Rendezvous>&)>;
  using GiveUp = void (Control::*)(Clock::time_point start) const;
  /// Calls `look` on the store, at growing intervals, until it returns true or the time is up.
  /// After an error of the store, `look` starts again without a rendezvous. On timeout throws the
  /// store's last error, unless founders are known to be missing; else what `give_up` throws.
  void poll_until(const Look& look, GiveUp give_up);
  /// Serves the store if nobody does.
  void serve(const net::Address& place);
  /// Throws OsError if the only process that may serve the store has waited for kPortMax in vain.
  void require_port(const OsError& store_error, Clock::time_point start) const;
  /// One look at the store as a founder. Returns true once this process is a member.
  bool try_to_found(Rendezvous& rendezvous);
  /// Throws InvalidArgument if a process that was met has been given another size. A linked one is
  /// not looked up in the store any more, so its endpoint must say.
  void compare_sizes(const Standing& standing) const;
  /// Returns the first view if this process is linked with one process of every slot.
  std::optional<View> complete(const Rendezvous& rendezvous, const Standing& standing) const;
  void begin(Rendezvous& rendezvous, const View& first);
  void await_first_view();
  /// Passes on the endpoints in the store of processes that are not linked yet.
  void poll_others(const Rendezvous& rendezvous, uint32_t slots);
  bool joined(Rendezvous& rendezvous);
  [[noreturn]] void give_up_founding(Clock::time_point start) const;
  [[noreturn]] void name_missing(const std::vector<Slot>& missing, Clock::time_point start) const;
  [[noreturn]] void give_up_joining(Clock::time_point start) const;
  std::string meeting_place() const;

  const ControlOptions options_;
  ControlEndpoint own_;
  const bool has_inbox_;
  std::unique_ptr<StoreServer> served_;
  bool port_is_taken_ = false;  ///< at which this process would serve the store
  std::shared_ptr<Store> store_;
  const Log log_;
  StatusBoard status_board_;
  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::unique_ptr<ControlLoop> loop_;
  std::thread thread_;
  bool witness_elsewhere_ = false;
  std::map<Member, ControlEndpoint> acquaint_;  ///< seen in the store
  std::vector<Slot> missing_;                   ///< slots whose process has not come to the store
};

}  // namespace tokenyard::control
