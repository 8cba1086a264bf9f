#include "device/joint_launches.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace tokenyard {

namespace {

std::string phase_of(const KernelEntry& kernel) {
  return fmt::format("launch: {}", kernel.name);
}

}  // namespace

JointLaunches::JointLaunches(std::chrono::nanoseconds timeout,
                             std::function<void(const Gathering& gathering)> launch_all)
    : timeout_(timeout), launch_all_(std::move(launch_all)) {}

size_t JointLaunches::ranks() const {
  const std::lock_guard lock(mutex_);
  return ranks_.size();
}

void JointLaunches::enter(uint32_t rank) {
  const std::lock_guard lock(mutex_);
  ranks_.insert(rank);
}

void JointLaunches::leave(uint32_t rank) {
  const std::lock_guard lock(mutex_);
  ranks_.erase(rank);
  retired_.erase(rank);
  changed_.notify_all();
}

void JointLaunches::retire(uint32_t rank) {
  const std::lock_guard lock(mutex_);
  retired_.insert(rank);
  changed_.notify_all();
}

void JointLaunches::launch(uint32_t rank, const KernelEntry& kernel, const LaunchShape& shape,
                           Stream stream, const void* params,
                           const std::function<void()>& interrupt) {
  constexpr auto kInterruptEvery = std::chrono::milliseconds(50);
  const TimePoint start = Clock::now();
  std::unique_lock lock(mutex_);
  if (retired_.contains(rank)) throw Cancelled(phase_of(kernel));
  if (!gathering_)
    gathering_ = std::make_shared<Gathering>(
        Gathering{.kernel = kernel, .shape = shape, .first_rank = rank});
  const std::shared_ptr<Gathering> gathering = gathering_;
  try {
    check_same(*gathering, rank, kernel, shape);
    const auto* bytes = static_cast<const std::byte*>(params);
    gathering->parts.emplace(
        rank, Gathering::Part{stream, std::vector<std::byte>(bytes, bytes + kernel.params_bytes)});
    while (!gathering->over) {
      if (retired_.contains(rank)) {
        gathering->parts.erase(rank);
        if (gathering->parts.empty()) end(*gathering, nullptr);
        changed_.notify_all();
        break;
      }
      // The gathering also becomes complete when the missing ranks leave or retire.
      if (is_complete(*gathering)) {
        launch_all_(*gathering);
        end(*gathering, nullptr);
        return;
      }
      if (Clock::now() - start >= timeout_) throw missing(*gathering);
      changed_.wait_for(lock, kInterruptEvery);
      lock.unlock();
      interrupt();
      lock.lock();
    }
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    if (!gathering->over) end(*gathering, std::current_exception());
    throw;
  }
  if (gathering->failure) std::rethrow_exception(gathering->failure);
  if (!gathering->parts.contains(rank)) throw Cancelled(phase_of(kernel));
}

void JointLaunches::end(Gathering& gathering, std::exception_ptr failure) {
  gathering.failure = std::move(failure);
  gathering.over = true;
  gathering_.reset();
  changed_.notify_all();
}

bool JointLaunches::is_complete(const Gathering& gathering) const {
  return std::ranges::all_of(ranks_, [&](uint32_t rank) {
    return gathering.parts.contains(rank) || retired_.contains(rank);
  });
}

PeerTimeout JointLaunches::missing(const Gathering& gathering) const {
  const auto rank = std::ranges::find_if(ranks_, [&](uint32_t candidate) {
    return !gathering.parts.contains(candidate) && !retired_.contains(candidate);
  });
  return PeerTimeout({.rank = rank == ranks_.end() ? gathering.first_rank : *rank,
                      .phase = phase_of(gathering.kernel),
                      .expected = ranks_.size(),
                      .seen = gathering.parts.size(),
                      .waited_s = std::chrono::duration<double>(timeout_).count()});
}

void JointLaunches::check_same(const Gathering& gathering, uint32_t rank, const KernelEntry& kernel,
                               const LaunchShape& shape) const {
  if (std::strcmp(gathering.kernel.name, kernel.name) != 0) {
    throw InvalidArgument("kernel",
                          fmt::format("{}, which rank {} launches on the same GPU",
                                      gathering.kernel.name, gathering.first_rank),
                          fmt::format("{} by rank {}", kernel.name, rank), gathering.first_rank);
  }
  const auto text = [](const LaunchShape& of) {
    return fmt::format("{} blocks of {} warps with {} extra bytes{}", of.blocks, of.warps,
                       of.extra_shared_bytes, of.cooperative ? ", cooperative" : "");
  };
  if (text(gathering.shape) != text(shape)) {
    throw InvalidArgument("shape",
                          fmt::format("{}, as rank {} launches {}", text(gathering.shape),
                                      gathering.first_rank, kernel.name),
                          fmt::format("{} by rank {}", text(shape), rank), gathering.first_rank);
  }
}

}  // namespace tokenyard
