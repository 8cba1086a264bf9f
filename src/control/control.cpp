#include "control/control.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "net/address.hpp"
#include "net/key.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::control {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

/// Interval between looks at the store, at first and later. A new link ends the wait early.
constexpr milliseconds kPollMin{2}, kPollMax{100};

/// Name of the register in a witness that holds nothing else.
constexpr const char* kWitnessKey = "witness";

/// How long the only process that may serve the store waits for its port: an earlier job may be
/// about to end.
constexpr std::chrono::seconds kPortMax{3};

/// Time for the last messages of the control plane to peers that may no longer read.
constexpr milliseconds kLastWordsMax{300};

double seconds_since(steady_clock::time_point start) {
  return std::chrono::duration<double>(steady_clock::now() - start).count();
}

}  // namespace

Control::Control(ControlOptions options, Inbox* inbox)
    : options_(std::move(options)),
      own_{.member = {options_.slot, net::random_number()},
           .size = options_.slots,
           .address = options_.address.empty() ? net::own_address(tcp_address(options_.store))
                                               : options_.address,
           .port = 0,
           .contact = {}},
      has_inbox_(inbox != nullptr),
      log_(options_.slot),
      io_(1),
      work_(asio::make_work_guard(io_)) {
  try {
    loop_ = std::make_unique<ControlLoop>(io_, options_, own_, log_, status_board_, inbox);
    own_ = loop_->own_endpoint();
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    throw OsError("starting the control plane", error.code().value(), error.code().message());
  }
}

Control::~Control() {
  stop();
}

void Control::run() {
  for (;;) {
    try {
      io_.run();
      return;
    } catch (const std::exception& error) {
      // A rank that cannot follow the protocol must not take part in it.
      loop_->fail(fmt::format("its control thread failed: {}", error.what()));
    }
  }
}

void Control::start(Participant& participant, Contact contact, net::Purpose purpose) {
  own_.contact = contact;
  post([&participant, contact = std::move(contact), purpose](ControlLoop& loop) mutable {
    loop.open(participant, std::move(contact), purpose);
  });
}

std::shared_ptr<Store> Control::open_store(const ControlOptions& options) {
  if (options.own_store) return options.own_store;
  return Store::open(options.store, options.job, options.secret);
}

// Founding
// -----------------------------------------------------------------------------------------

void Control::poll_until(const Look& look, GiveUp give_up) {
  const auto start_time = Clock::now();
  const auto until = start_time + options_.timeout;
  std::optional<Rendezvous> rendezvous;
  std::exception_ptr refusal;  // A store answered, and refused this process.
  milliseconds rest = kPollMin;
  for (;;) {
    std::exception_ptr store_error;
    try {
      if (look(rendezvous)) return;
    } catch (const OsError& error) {
      // The store is not up yet, or belonged to an earlier, finished run of this job.
      store_error = std::current_exception();
      if (error.code == EPROTO) refusal = store_error;
      rendezvous.reset();
      require_port(error, start_time);
    }
    if (Clock::now() >= until) {
      // The store may have ended with a founder that has given up a moment before.
      if (store_error && !missing_.empty()) name_missing(missing_, start_time);
      // That a store there refused this process says more than that it is gone by now.
      if (store_error) std::rethrow_exception(refusal ? refusal : store_error);
      (this->*give_up)(start_time);
    }
    options_.interrupt();
    status_board_.wait_for_news(rest);
    rest = std::min(rest * 2, kPollMax);
  }
}

void Control::found(Participant& participant, Contact contact) {
  const auto place = options_.own_store ? std::nullopt : tcp_address(options_.store);
  start(participant, std::move(contact), net::Purpose::member);
  poll_until(
      [&](std::optional<Rendezvous>& rendezvous) {
        if (!rendezvous) {
          if (place && options_.host_store && !served_) serve(*place);
          store_ = open_store(options_);
          rendezvous.emplace(store_);
          rendezvous->come(own_);
        }
        return try_to_found(*rendezvous);
      },
      &Control::give_up_founding);
}

void Control::serve(const net::Address& place) {
  const auto interfaces = options_.sole_host ? Interfaces::every : Interfaces::one;
  port_is_taken_ = false;
  served_ = StoreServer::if_free(place.host, place.port, options_.secret, interfaces);
  port_is_taken_ = served_ == nullptr;
}

/// A process that serves a store for several jobs of this secret may hold the port; then there is
/// no error of the store.
void Control::require_port(const OsError& store_error, Clock::time_point start) const {
  if (!options_.sole_host || served_ || Clock::now() - start < kPortMax) return;
  if (!port_is_taken_) throw store_error;
  const auto place = tcp_address(options_.store);
  throw OsError(
      fmt::format("listening at port {} for the other ranks", place->port), EADDRINUSE,
      fmt::format("another process holds it ({}); `ss -ltnp 'sport = :{}'` names it: end it, or "
                  "give all ranks another port",
                  store_error.what(), place->port));
}

bool Control::try_to_found(Rendezvous& rendezvous) {
  poll_others(rendezvous, options_.slots);
  const Standing standing = status_board_.read();
  compare_sizes(standing);
  const auto own = rendezvous.look(options_.slot);
  if (own && own->member != own_.member) {
    throw InvalidArgument("rank", "a rank that no later process has taken",
                          fmt::format("{}", options_.slot), options_.slot);
  }
  witness_elsewhere_ = options_.membership.witness && !options_.witness_in_store;
  if (const auto first = complete(rendezvous, standing)) {
    if (witness_elsewhere_) rendezvous.keep_witness_elsewhere();
    rendezvous.propose(*first);
  }
  const auto roster = rendezvous.roster();
  if (!roster) return false;
  if (!roster->contains(own_.member)) {
    // The job was founded with another process of this rank.
    rendezvous.come(own_);
    return false;
  }
  begin(rendezvous, *roster);
  return true;
}

void Control::compare_sizes(const Standing& standing) const {
  std::map<Member, uint32_t> sizes = standing.linked;
  for (const auto& [member, endpoint] : acquaint_) sizes.emplace(member, endpoint.size);
  for (const auto& [member, size] : sizes) {
    if (size == own_.size) continue;
    throw InvalidArgument("size", fmt::format("{}, as on rank {}", size, member.slot),
                          fmt::format("{}", own_.size), member.slot);
  }
}

std::optional<View> Control::complete(const Rendezvous& rendezvous,
                                      const Standing& standing) const {
  if (standing.linked.size() + 1 < options_.slots) return std::nullopt;
  View first{.epoch = 1, .slots = options_.slots, .members = {}};
  for (Slot slot = 0; slot < options_.slots; ++slot) {
    // If a process was started again in place of another, both may be linked: the store says which
    // one counts.
    const auto endpoint = rendezvous.look(slot);
    if (!endpoint) return std::nullopt;
    const bool here = endpoint->member == own_.member || standing.linked.contains(endpoint->member);
    if (!here) return std::nullopt;
    first.members.push_back(endpoint->member);
  }
  return first;
}

void Control::begin(Rendezvous& rendezvous, const View& first) {
  std::map<Member, ControlEndpoint> endpoints;
  for (const Member& member : first.members) {
    const auto endpoint = rendezvous.look(member.slot);
    if (endpoint && endpoint->member == member) endpoints.emplace(member, *endpoint);
  }
  post([first, endpoints = std::move(endpoints),
        store = options_.membership.witness && options_.witness_in_store ? store_ : nullptr,
        key = rendezvous.witness_key()](ControlLoop& loop) {
    if (store) loop.set_witness(store, key);
    loop.begin(first, endpoints);
  });
  await_first_view();
}

void Control::found_alone(Participant& participant, Contact contact) {
  start(participant, std::move(contact), net::Purpose::member);
  post([first = View{.epoch = 1, .slots = options_.slots, .members = {own_.member}}](
           ControlLoop& loop) { loop.begin(first, {}); });
  await_first_view();
}

void Control::await_links() {
  const auto until = Clock::now() + options_.timeout;
  auto in_company = Clock::now();
  for (auto now = in_company; now < until; now = Clock::now()) {
    const Standing standing = status_board_.read();
    if (!standing.alone) in_company = now;
    const bool in_vain = now - in_company > options_.membership.silence;
    if (standing.over || in_vain || is_linked_to_all()) return;
    options_.interrupt();
    status_board_.wait_for_news(kPollMax);
  }
}

bool Control::is_linked_to_all() const {
  const Standing standing = status_board_.read();
  // A member that dies meanwhile is one no more, unless half of them die: then nobody can agree.
  return standing.view && std::ranges::all_of(standing.view->members, [&](const Member& member) {
           return member == own_.member || standing.linked.contains(member) ||
                  standing.ended.contains(member);
         });
}

void Control::use_witness(std::shared_ptr<Store> witness) {
  post([witness = std::move(witness)](ControlLoop& loop) {
    loop.set_witness(witness, kWitnessKey);
  });
}

/// The control thread answers within moments, or reports an error.
void Control::await_first_view() {
  for (;;) {
    const Standing standing = status_board_.read();
    if (standing.over) throw tokenyard::Fenced(1, *standing.over);
    if (standing.view) return;
    options_.interrupt();
    status_board_.wait_for_news(kPollMax);
  }
}

void Control::poll_others(const Rendezvous& rendezvous, uint32_t slots) {
  const Standing standing = status_board_.read();
  std::set<Slot> linked;
  for (const auto& [member, size] : standing.linked) linked.insert(member.slot);
  std::map<Member, ControlEndpoint> seen;
  std::vector<Slot> missing;
  for (Slot slot = 0; slot < slots; ++slot) {
    if (slot == options_.slot || linked.contains(slot)) continue;
    const auto endpoint = rendezvous.look(slot);
    if (endpoint) {
      seen.emplace(endpoint->member, *endpoint);
    } else {
      missing.push_back(slot);
    }
  }
  missing_ = std::move(missing);
  if (seen == acquaint_) return;
  acquaint_ = seen;
  post([seen = std::move(seen)](ControlLoop& loop) { loop.meet(seen); });
}

void Control::give_up_founding(Clock::time_point start) const {
  const Standing standing = status_board_.read();
  std::vector<Slot> missing;
  for (Slot slot = 0; slot < options_.slots; ++slot) {
    const bool here =
        slot == options_.slot || std::ranges::any_of(standing.linked, [&](const auto& linked) {
          return linked.first.slot == slot;
        });
    if (!here) missing.push_back(slot);
  }
  // A founder that came, and has given up a moment before, is not the one to name.
  name_missing(missing_.empty() ? missing : missing_, start);
}

void Control::name_missing(const std::vector<Slot>& missing, Clock::time_point start) const {
  const Standing standing = status_board_.read();
  std::string phase = "rendezvous: all ranks are here, but the job does not begin";
  if (!missing.empty()) {
    const bool one = missing.size() == 1;
    phase = fmt::format("rendezvous: {} {} {} not come to {}", one ? "rank" : "ranks",
                        fmt::join(missing, ", "), one ? "has" : "have", meeting_place());
  }
  for (const auto& [member, reason] : standing.troubles) {
    if (!missing.empty() && member.slot == missing.front()) phase += " (" + reason + ")";
  }
  throw PeerTimeout({.rank = missing.empty() ? options_.slot : missing.front(),
                     .phase = phase,
                     .expected = options_.slots,
                     .seen = options_.slots - missing.size(),
                     .waited_s = seconds_since(start)});
}

/// Names the store in errors: other ranks may have been given another one.
std::string Control::meeting_place() const {
  if (options_.own_store) return "the store";
  return fmt::format("the store {}{}", options_.store,
                     served_ ? ", which this rank serves, since nobody did" : "");
}

// Joining
// ------------------------------------------------------------------------------------------

void Control::join(Participant& participant, Contact contact) {
  start(participant, std::move(contact), net::Purpose::newcomer);
  poll_until(
      [&](std::optional<Rendezvous>& rendezvous) {
        if (!rendezvous) {
          store_ = open_store(options_);
          rendezvous.emplace(store_);
        }
        return joined(*rendezvous);
      },
      &Control::give_up_joining);
}

bool Control::joined(Rendezvous& rendezvous) {
  const Standing standing = status_board_.read();
  if (standing.over) throw tokenyard::Fenced(0, *standing.over);
  if (standing.view) {
    // The next newcomer looks here, perhaps after the older members have gone.
    rendezvous.announce(own_);
    return true;
  }
  if (!standing.linked.empty()) return false;
  const uint64_t before = rendezvous.generation();
  if (!rendezvous.find_founded()) return false;
  witness_elsewhere_ = options_.membership.witness && rendezvous.is_witness_elsewhere();
  if (rendezvous.generation() != before && options_.membership.witness && !witness_elsewhere_) {
    post([store = store_, key = rendezvous.witness_key()](ControlLoop& loop) {
      loop.set_witness(store, key);
    });
  }
  poll_others(rendezvous, std::max({options_.slots, options_.slots_max, options_.slot + 1}));
  return false;
}

void Control::give_up_joining(Clock::time_point start) const {
  const Standing standing = status_board_.read();
  const bool met = !standing.linked.empty();
  throw PeerTimeout(
      {.rank = met ? standing.linked.begin()->first.slot : 0,
       .phase = met ? "join: wait to be admitted" : "join: find a member in " + meeting_place(),
       .expected = 1,
       .seen = 0,
       .waited_s = seconds_since(start)});
}

// Afterwards
// ---------------------------------------------------------------------------------------

void Control::await_farewell() {
  const auto start = Clock::now();
  auto in_company = start;
  for (Standing standing = status_board_.read(); !standing.left; standing = status_board_.read()) {
    const auto now = Clock::now();
    if (!standing.alone) in_company = now;
    if (now - in_company > options_.membership.silence || now - start > farewell()) return;
    status_board_.wait_for_news(milliseconds(10));
  }
}

std::chrono::nanoseconds Control::farewell() const {
  return options_.farewell.count() != 0 ? options_.farewell : options_.timeout;
}

void Control::stop() {
  if (!thread_.joinable()) return;
  leave();
  await_farewell();
  post([](ControlLoop& loop) { loop.hang_up(); });
  // A large message of this rank takes its time; calls that wait for it must not fail for that.
  const auto until = Clock::now() + (has_inbox_ ? farewell() : kLastWordsMax);
  while (!status_board_.read().silent && Clock::now() < until) {
    status_board_.wait_for_news(milliseconds(10));
  }
  io_.stop();
  thread_.join();
  loop_->join_participant();
}

}  // namespace tokenyard::control
