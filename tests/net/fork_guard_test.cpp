// A forked child holds none of its parent's connections.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <functional>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "control/control_planes.hpp"
#include "fabric/worlds.hpp"
#include "net/fork_guard.hpp"
#include "net/tcp_socket.hpp"

namespace tokenyard::control::testing {
namespace {

constexpr unsigned kLifeOfAForkS = 60;

/// Forks a child that lives for a while, whatever happens to its parent.
pid_t fork_that_lives() {
  const pid_t child = fork();
  if (child != 0) return child;
  alarm(kLifeOfAForkS);
  for (;;) ::pause();
}

/// Returns the exit status of a child that runs `does`.
int status_of_child(const std::function<bool()>& does) {
  const pid_t child = fork();
  if (child == 0) _exit(does() ? 0 : 1);
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

struct Pair {
  net::Listening listening = net::listen_at("127.0.0.1");
  FileDescriptor dialled = net::connect_to(listening.address, listening.port);
  FileDescriptor accepted;
  Pair() {
    while (!(accepted = net::accept_socket(listening.socket.native()))) std::this_thread::yield();
  }
};

TEST(ForkGuard, WhatIsClosedEndsThoughAForkLives) {
  Pair pair;
  const pid_t child = fork_that_lives();
  pair.accepted.close();
  std::byte byte;
  const auto until = std::chrono::steady_clock::now() + 10s;
  bool over = false;
  while (!over && std::chrono::steady_clock::now() < until) {
    over = net::receive_now(pair.dialled, {&byte, 1}).over;
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(over);
}

TEST(ForkGuard, AForkMakesSocketsAndForksOfItsOwn) {
  const Pair pair;  // So that the guard has been asked for.
  const auto makes_both = [] {
    alarm(kLifeOfAForkS);  // Ends a child that waits for itself.
    const FileDescriptor made = net::open_socket(AF_INET, SOCK_STREAM);
    return made && status_of_child([] { return true; }) == 0;
  };
  EXPECT_EQ(status_of_child(makes_both), 0);
}

TEST(ForkGuard, DescriptorsStayAndLeadNowhere) {
  const Pair pair;
  const int descriptor = pair.dialled.native();
  EXPECT_EQ(status_of_child([&] {
              const FileDescriptor next(open("/dev/null", O_RDONLY));
              const bool elsewhere = send(descriptor, "x", 1, 0) < 0 && errno == ENOTSOCK;
              return elsewhere && next.native() != descriptor;
            }),
            0);
  EXPECT_EQ(send(descriptor, "x", 1, 0), 1);  // nothing has changed in the parent
}

// Descriptor numbers are reused, and a file that the program opens is for its children too.
TEST(ForkGuard, WhatHasASocketsOldDescriptorIsNotTouched) {
  auto pair = std::make_unique<Pair>();
  const int before = pair->dialled.native();
  pair.reset();
  FileDescriptor ends[2];
  int pipe_ends[2] = {-1, -1};
  ASSERT_EQ(pipe(pipe_ends), 0);
  for (int end = 0; end < 2; ++end) ends[end] = FileDescriptor(pipe_ends[end]);
  ASSERT_EQ(dup2(ends[1].native(), before), before);
  const FileDescriptor again(before);
  EXPECT_EQ(status_of_child([&] { return write(before, "x", 1) == 1; }), 0);
  char byte = 0;
  EXPECT_EQ(read(ends[0].native(), &byte, 1), 1);
}

// As in a daemon that has closed its standard input.
TEST(ForkGuard, ASocketInPlaceOfStandardInputIsOneToo) {
  const auto in_a_child = [] {
    alarm(kLifeOfAForkS);
    ::close(STDIN_FILENO);
    const FileDescriptor first = net::open_socket(AF_UNIX, SOCK_DGRAM);
    return first.native() == STDIN_FILENO &&
           status_of_child([] {
             const bool is_open = fcntl(STDIN_FILENO, F_GETFD) >= 0;
             struct stat about {};
             return is_open && fstat(STDIN_FILENO, &about) == 0 && !S_ISSOCK(about.st_mode);
           }) == 0;
  };
  EXPECT_EQ(status_of_child(in_a_child), 0);
}

// Descriptors beyond the guard's table are left alone: a process with so many forks without it.
TEST(ForkGuard, SocketsBeyondItsTableDoNoHarm) {
  constexpr int kTable = 1 << 16, kNoRight = 77;
  const pid_t child = fork();
  if (child == 0) {
    alarm(kLifeOfAForkS);
    rlimit most{};
    getrlimit(RLIMIT_NOFILE, &most);
    most.rlim_cur = kTable + 64;
    if (most.rlim_max < most.rlim_cur || setrlimit(RLIMIT_NOFILE, &most) != 0) _exit(kNoRight);
    const int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
    while (dup(nowhere) < kTable - 4) {
    }
    std::vector<FileDescriptor> sockets;
    while (sockets.empty() || sockets.back().native() < kTable + 8)
      sockets.push_back(net::open_socket(AF_UNIX, SOCK_DGRAM));
    const bool lives = status_of_child([] {
                         return static_cast<bool>(net::open_socket(AF_UNIX, SOCK_DGRAM));
                       }) == 0;
    _exit(lives && net::open_socket(AF_UNIX, SOCK_DGRAM) ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNoRight) GTEST_SKIP() << "too few descriptors";
  EXPECT_EQ(status, 0);
}

// A fork between the creation of a socket and its registration would keep it.
TEST(ForkGuard, NoForkComesWhileASocketIsMade) {
  const auto sockets_of_this_process = [] {
    size_t sockets = 0;
    struct stat about {};
    for (int descriptor = 0; descriptor < 64; ++descriptor)
      sockets += fstat(descriptor, &about) == 0 && S_ISSOCK(about.st_mode);
    return sockets;
  };
  const size_t others = sockets_of_this_process();
  std::jthread making([](const std::stop_token& enough) {
    while (!enough.stop_requested()) net::open_socket(AF_UNIX, SOCK_DGRAM);
  });
  for (int fork = 0; fork < 500; ++fork)
    ASSERT_EQ(status_of_child([&] { return sockets_of_this_process() <= others; }), 0);
}

// The survivor misses its quorum as soon as it notices.
TEST_F(ControlPlane, WhoDiesIsMissedAtOnceThoughItsForkLives) {
  void* const page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  auto& child = *new (page) std::atomic<pid_t>(0);
  std::unique_ptr<Rank> stays;
  {
    // Killed at the end of this block.
    const RankProcesses one(1, [&](uint32_t) {
      const auto dies = one_of_two(1, 8s);
      dies->found();
      child = fork_that_lives();
      ::pause();
    });
    stays = one_of_two(0, 8s);
    stays->found();
    while (child == 0) std::this_thread::yield();
  }
  const auto killed = steady_clock::now();
  EXPECT_TRUE(stays->recorder.wait_for_missing_quorum());
  EXPECT_LT(steady_clock::now() - killed, 5s);
  kill(child, SIGKILL);
  munmap(page, 4096);
}

}  // namespace
}  // namespace tokenyard::control::testing
