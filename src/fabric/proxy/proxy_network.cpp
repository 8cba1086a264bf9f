#include "fabric/proxy/proxy_network.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "base/file_descriptor.hpp"
#include "base/os_failure.hpp"
#include "fabric/collective_step.hpp"
#include "fabric/gather.hpp"
#include "fabric/network_fault.hpp"
#include "fabric/proxy/proxy_card.hpp"
#include "fabric/proxy/tcp_maker.hpp"
#include "net/key.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {

namespace {

/// Returns whether this process can read memory: a system call says no where a load would fault.
bool is_readable(const std::byte* memory, size_t bytes) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) os_failed("pipe2");
  const FileDescriptor out(ends[0]), in(ends[1]);
  return write(in.native(), memory, 1) == 1 && write(in.native(), memory + bytes - 1, 1) == 1;
}

/// With several interfaces: how long a path may move nothing before the others take over.
constexpr std::chrono::seconds kStall{1};

}  // namespace

template <class T>
T* ProxyNetwork::array(size_t count) {
  Accelerator& owner = accelerator_;
  auto* const memory =
      static_cast<T*>(owner.allocate_shared(std::max<size_t>(count, 1) * sizeof(T)));
  kept_.emplace_back(memory, [&owner](void* gone) { owner.free_shared(gone); });
  return memory;
}

ProxyNetwork::ProxyNetwork(const NetworkPlace& place, const ProxyNetworkOptions& options,
                           TimePoint until)
    : place_(place),
      options_(options),
      accelerator_(place.bootstrap.accelerator()),
      stream_(accelerator_, place.timeout) {
  Bootstrap& bootstrap = place_.bootstrap;
  const uint32_t ranks = bootstrap.size();
  std::string secret = place_.secret;
  if (secret.empty()) {
    // Their messages have not left this process.
    for (const uint64_t number : gather(bootstrap, net::random_number(), "network: secret", until))
      secret += fmt::format("{:016x}", number);
  }
  std::unique_ptr<TransportMaker> maker;
  collective_step(bootstrap, "network", until, [&] {
    if (options_.queues_per_peer == 0 || options_.queues_per_peer > kQueuesPerPeerMax) {
      throw InvalidArgument("queues", fmt::format("1 to {}", kQueuesPerPeerMax),
                            fmt::format("{}", options_.queues_per_peer));
    }
    const TransportPlace at{.rank = bootstrap.rank(),
                            .ranks = ranks,
                            .epoch = bootstrap.generation(),
                            .secret = secret,
                            .address = place_.address,
                            .queues = options_.queues_per_peer,
                            .stall = std::min<std::chrono::nanoseconds>(kStall, grace() / 4),
                            .gpu = options_.gpu_memory.value_or(true) ? options_.gpu : nullptr};
    if (options_.plugin.library.empty()) {
      maker = std::make_unique<TcpMaker>(options_.tcp, at);
    } else {
      maker = make_by_plugin(options_.plugin, at);
    }
    gone_ = array<AbortWord>(ranks);
    if (reaches_arena()) keys_[0] = draw_key(0);
  });
  const std::vector<ProxyCard> cards = exchange({.transport = maker->name(),
                                                 .endpoint = maker->card(),
                                                 .arena_key = keys_[0],
                                                 .queues = options_.queues_per_peer},
                                                until);
  TransportCards endpoints;
  for (const ProxyCard& card : cards) endpoints.push_back(card.endpoint);
  maker->begin(endpoints, place_.far);
  collective_step(bootstrap, "network: limits", until, [&] { maker->check_limits(); });
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const bool known = reaches(rank) || rank == bootstrap.rank();
    arena_keys_.push_back(known ? cards[rank].arena_key : 0);
  }
  place_.abort_flag.watch({gone_, ranks});
  place_.abort_flag.on_refusal([this](const std::string& phase) { check(phase); });
  try {
    connect(*maker, until);
    collective_step(bootstrap, "network: memory", until, [&] { start(*maker); });
    agree_on_gpu_memory(until);
  } catch (...) {
    place_.abort_flag.on_refusal({});
    place_.abort_flag.unwatch({gone_, ranks});
    throw;
  }
}

std::vector<ProxyCard> ProxyNetwork::exchange(const ProxyCard& mine, TimePoint until) {
  Bootstrap& bootstrap = place_.bootstrap;
  const auto everybodys = bootstrap.all_gather(to_bytes(mine), "network: endpoints", until);
  std::vector<ProxyCard> cards(everybodys.size());
  std::optional<uint32_t> first;
  for (uint32_t rank = 0; rank < cards.size(); ++rank) {
    if (!bootstrap.present(rank)) continue;
    auto card = from_bytes<ProxyCard>(everybodys[rank]);
    if (!card) throw InvalidArgument("network", "an endpoint", "other bytes", rank);
    cards[rank] = *std::move(card);
    // Every rank compares with the first, so all find the same one.
    if (!first) first = rank;
    const auto require_alike = [&](const char* name, const auto& expected, const auto& seen) {
      if (expected == seen) return;
      throw InvalidArgument(name, fmt::format("{}, as on rank {}", expected, *first),
                            fmt::format("{}", seen), rank);
    };
    require_alike("transport", cards[*first].transport, cards[rank].transport);
    require_alike("queues", cards[*first].queues, cards[rank].queues);
  }
  return cards;
}

void ProxyNetwork::connect(TransportMaker& maker, TimePoint until) {
  Bootstrap& bootstrap = place_.bootstrap;
  // All ranks wait for equally long, and have as much time left to tell one another of a failure:
  // one that does not hear of the others' in time tells its own.
  const TimePoint now = accelerator_.now();
  const TimePoint connected_until = now + (until - now) / 2;
  collective_step(bootstrap, "network: connections", until, [&] {
    const bool all = accelerator_.wait_until(connected_until, [&] {
      place_.abort_flag.check("network: connect");
      return maker.step(accelerator_.now());
    });
    if (!all) {
      throw Unsupported("network",
                        fmt::format("rank {} {}", bootstrap.rank(), maker.missing().value_or("")));
    }
  });
}

void ProxyNetwork::start(TransportMaker& maker) {
  const uint32_t rank = place_.bootstrap.rank();
  std::unique_ptr<Transport> transport = maker.make();
  for (uint32_t peer = 0; peer < place_.bootstrap.size(); ++peer) {
    for (uint32_t number = 0; number < options_.queues_per_peer; ++number) {
      pairs_.push_back(nullptr);
      if (!reaches(peer)) continue;
      pairs_.back() = array<QueuePair>(1);
      pairs_.back()->rank = rank;
      pairs_.back()->peer = peer;
      pairs_.back()->number = number;
    }
  }
  ProxyOptions options = options_.proxy;
  options.kernels_ring = accelerator_.kind() == AcceleratorKind::host;
  options.grace = grace();
  proxy_ =
      std::make_unique<Proxy>(std::move(transport),
                              Proxy::Queues{.per_peer = options_.queues_per_peer,
                                            .pairs = pairs_,
                                            .gone = gone_,
                                            .refused = place_.abort_flag.word_to_refuse()},
                              options, [this](const std::string& why) {
                                end_network(place_.bootstrap, place_.abort_flag, place_.far, why);
                              });
  std::vector<QueueEnd> ends(pairs_.size());
  for (size_t index = 0; index < pairs_.size(); ++index) {
    if (pairs_[index] == nullptr) continue;
    ends[index] = {.pair = pairs_[index],
                   .mlx5 = nullptr,
                   .doorbell = options.kernels_ring ? proxy_->doorbell() : nullptr,
                   .rank = rank,
                   .peer = pairs_[index]->peer,
                   .number = pairs_[index]->number,
                   .posted = 0,
                   .completed = 0};
  }
  ends_ = stream_.device_copy(ends);
  key_table_ = stream_.device_copy(arena_keys_);
  if (reaches_arena())
    proxy_->register_memory(keys_[0], {place_.arena.base(), place_.arena.capacity()}, wait());
  ways_.resize(place_.bootstrap.size());
  for (uint32_t peer = 0; peer < ways_.size(); ++peer)
    if (reaches(peer)) ways_[peer] = maker.way(peer);
  try_gpu_memory(maker);
}

/// Registers a little of the GPU's memory, since the provider, its card and the driver must agree
/// to that, and none of them tells before.
void ProxyNetwork::try_gpu_memory(const TransportMaker& maker) {
  std::string& why = why_no_gpu_memory_;
  if (!options_.gpu) {
    why = "no GPU runs the kernels";
  } else if (!options_.gpu_memory.value_or(true)) {
    why = "as asked for";
  } else {
    why = maker.why_no_gpu_memory();
    if (why.empty()) why = options_.gpu->why_unordered();
  }
  if (why.empty()) {
    constexpr size_t kLittle = size_t{2} << 20;
    const DeviceMemory memory(accelerator_, kLittle, DeviceMemory::Kind::device);
    const MemoryKey key = draw_key(free_region());
    try {
      proxy_->register_gpu_memory(key, {memory.as<std::byte>(), kLittle}, wait());
      (void)proxy_->deregister(key, wait());
    } catch (const OsError& error) {
      why = error.what();
    }
  }
  if (!why.empty() && options_.gpu_memory.value_or(false)) {
    throw Unsupported("network.gpu_memory",
                      fmt::format("rank {}: receive rings cannot lie in memory of a GPU: {}",
                                  place_.bootstrap.rank(), why));
  }
}

/// Exchanges lay their memory out alike on all ranks. Says in the topology where rings lie.
void ProxyNetwork::agree_on_gpu_memory(TimePoint until) {
  Bootstrap& bootstrap = place_.bootstrap;
  const uint32_t mine = why_no_gpu_memory_.empty() ? 1 : 0;
  const auto everybodys = gather(bootstrap, mine, "network: memory of GPUs", until);
  std::string why = why_no_gpu_memory_;
  takes_gpu_memory_ = true;
  for (uint32_t rank = 0; rank < everybodys.size(); ++rank) {
    if (!bootstrap.present(rank) || everybodys[rank] == 1) continue;
    takes_gpu_memory_ = false;
    if (why.empty()) why = fmt::format("rank {} takes no other", rank);
  }
  const bool tells_why = options_.gpu && !options_.plugin.library.empty();
  for (std::string& way : ways_) {
    if (way.empty()) continue;
    if (takes_gpu_memory_) {
      way += ", receive rings in GPU memory";
    } else if (!reaches_arena()) {
      way += tells_why ? ", pinned rings (" + why + ")" : ", pinned rings";
    }
  }
}

ProxyNetwork::~ProxyNetwork() {
  // A rank's requests count after it has left.
  try {
    accelerator_.drain();
    if (!has_drained()) (void)drain(accelerator_.now() + place_.timeout);
  } catch (const std::exception&) {
    // An interrupt ends the wait.
  }
  place_.abort_flag.on_refusal({});
  proxy_.reset();
  place_.abort_flag.unwatch({gone_, place_.bootstrap.size()});
}

bool ProxyNetwork::reaches_arena() const {
  return accelerator_.kind() != AcceleratorKind::gpu;
}

void ProxyNetwork::on_claims(size_t claimed) {
  // Kernels of a GPU cannot wake the thread.
  if (accelerator_.kind() == AcceleratorKind::gpu) proxy_->stay_awake(claimed != 0);
}

bool ProxyNetwork::is_refused(uint32_t number) {
  // A thread that has failed ends all queues for good: no exchange is at fault.
  if (proxy_->failure()) return false;
  return std::ranges::any_of(pairs_, [&](const QueuePair* pair) {
    return pair != nullptr && pair->number == number && accelerator_.read_flag(&pair->refused) != 0;
  });
}

void ProxyNetwork::forget_refusals(const std::vector<bool>& retired) {
  const auto at_end = [this](bool others) {
    if (!others) place_.abort_flag.forget_refusal([] { return false; });
  };
  try {
    proxy_->retire(retired, at_end, wait());
  } catch (const std::exception&) {
    // An interrupt, or the thread has failed: then this rank's waits shall end.
  }
}

std::string ProxyNetwork::way(uint32_t rank) const {
  return ways_[rank];
}

std::vector<NetworkPath> ProxyNetwork::paths() const {
  return proxy_->transport().paths();
}

std::chrono::nanoseconds ProxyNetwork::grace() const {
  return std::min(options_.proxy.grace, place_.timeout / 2);
}

NetworkQueues ProxyNetwork::queues() const {
  return {.ends = ends_->as<QueueEnd>(),
          .arena_keys = key_table_->as<MemoryKey>(),
          .per_peer = options_.queues_per_peer};
}

MemoryKey ProxyNetwork::draw_key(uint32_t region) const {
  const auto tag = 1 + static_cast<uint32_t>(net::random_number() % 0xfffffe);
  return tag << 8 | region;
}

Proxy::Wait ProxyNetwork::wait() const {
  return [this](const std::function<bool()>& condition) {
    return accelerator_.wait_until(accelerator_.now() + place_.timeout, condition);
  };
}

MemoryKey ProxyNetwork::register_memory(std::byte* base, size_t bytes) {
  if (base == nullptr || bytes == 0)
    throw InvalidArgument("bytes", "memory of at least 1 byte", fmt::format("{}", bytes));
  if (!is_readable(base, bytes))
    throw InvalidArgument("base", "memory that the host can read, such as pinned memory",
                          fmt::format("{}", static_cast<const void*>(base)));
  const uint32_t region = free_region();
  const MemoryKey key = draw_key(region);
  proxy_->register_memory(key, {base, bytes}, wait());
  return keys_[region] = key;
}

MemoryKey ProxyNetwork::register_gpu_memory(std::byte* base, size_t bytes) {
  if (!takes_gpu_memory_) return Network::register_gpu_memory(base, bytes);
  const uint32_t region = free_region();
  const MemoryKey key = draw_key(region);
  proxy_->register_gpu_memory(key, {base, bytes}, wait());
  return keys_[region] = key;
}

uint32_t ProxyNetwork::free_region() const {
  // The first region is the arena's, also where that is not registered.
  const auto* const free = std::find(keys_.begin() + 1, keys_.end(), MemoryKey{0});
  if (free == keys_.end())
    throw InvalidArgument("register_memory",
                          fmt::format("at most {} regions; deregister one", kNetworkRegions),
                          fmt::format("{}", kNetworkRegions + 1));
  return static_cast<uint32_t>(free - keys_.begin());
}

void ProxyNetwork::deregister(MemoryKey key) {
  const uint32_t region = region_of_key(key);
  if (key == 0 || region == 0 || region >= keys_.size() || keys_[region] != key)
    throw InvalidArgument("key", "one that register_memory returned", fmt::format("{:#x}", key));
  const TimePoint begin = accelerator_.now();
  const auto user = proxy_->deregister(key, wait());
  keys_[region] = 0;
  if (!user) return;
  const std::chrono::duration<double> waited = accelerator_.now() - begin;
  throw PeerTimeout({.rank = *user,
                     .phase = "network: deregister",
                     .expected = 0,
                     .seen = 1,
                     .waited_s = waited.count()});
}

void ProxyNetwork::check_works(const std::string& phase) const {
  const auto failure = proxy_ == nullptr ? std::nullopt : proxy_->failure();
  if (!failure) return;
  const uint32_t rank = place_.bootstrap.rank();
  throw NetworkFault(
      {.rank = rank, .peer = rank, .check = "thread", .phase = phase, .cause = *failure});
}

void ProxyNetwork::check(const std::string& phase) {
  check_works(phase);
  if (proxy_ == nullptr) return;
  std::vector<QueuePair*> faulty = in_use(pairs_);
  for (QueuePair*& pair : faulty)
    if (pair != nullptr && is_told_gone(*pair)) pair = nullptr;
  try {
    check_refusals(accelerator_, faulty, phase);
  } catch (const NetworkFault& fault) {
    if (fault.facts.check != "connection") throw;
    NetworkFault::Facts facts = fault.facts;
    facts.cause = proxy_->cause(facts.peer);
    throw NetworkFault(facts);
  }
}

/// Returns whether a queue has failed because its peer cannot be reached, and the job tells that
/// the peer is gone. It may do so later than the network: so waits for it, until a timeout has
/// passed since the queue failed.
bool ProxyNetwork::is_told_gone(const QueuePair& pair) const {
  const auto check = static_cast<NetworkCheck>(accelerator_.read_flag(&pair.refused));
  if (check != NetworkCheck::connection) return false;
  // Unset if this rank's own thread has failed.
  const std::optional<TimePoint> since = proxy_->unreachable_since(pair.peer);
  return since && accelerator_.wait_until(*since + place_.timeout, [&] {
    return accelerator_.read_flag(&gone_[pair.peer]) != kNoAbort;
  });
}

bool ProxyNetwork::drain(TimePoint until) {
  const auto settling = proxy_->settle();
  return accelerator_.wait_until(until, [&] { return proxy_->is_settled(); });
}

MakeNetwork proxy_networks(const ProxyNetworkOptions& options) {
  return [options](const NetworkPlace& place, TimePoint until) {
    return std::make_shared<ProxyNetwork>(place, options, until);
  };
}

}  // namespace tokenyard
