/// The cable between two hosts that gin_contract.cpp cuts.
#include "fabric/cable.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "fabric/promise.hpp"
#include "fabric/worlds.hpp"

namespace tokenyard::testing {
namespace {

/// Returns whether a byte arrives within half a second.
bool hears(const FileDescriptor& socket) {
  std::byte byte{};
  return recv(socket.native(), &byte, 1, 0) == 1;
}

void wait_at_most_half_a_second(const FileDescriptor& socket) {
  const timeval time{0, 500'000};
  promise(setsockopt(socket.native(), SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0,
          "a socket without a time limit");
}

FileDescriptor connected(uint32_t end) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(4077);  // The host has no other program.
  inet_pton(AF_INET, Cable::address(0).c_str(), &at.sin_addr);
  const auto* const address = reinterpret_cast<const sockaddr*>(&at);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  if (end == 0) {
    const FileDescriptor listening(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    promise(bind(listening.native(), address, sizeof at) == 0 && listen(listening.native(), 1) == 0,
            "no port to listen on");
    return FileDescriptor(accept4(listening.native(), nullptr, nullptr, SOCK_CLOEXEC));
  }
  for (;;) {
    FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (connect(socket.native(), address, sizeof at) == 0) return socket;
    promise(std::chrono::steady_clock::now() < until, "the other end does not listen");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

TEST(Cable, CarriesUntilItIsCut) {
  if (!Cable::is_allowed()) GTEST_SKIP() << "no network namespaces here";
  const std::string path =
      std::filesystem::temp_directory_path() / ("tokenyard-cable-" + std::to_string(getpid()));
  RankProcesses ends(2, [&](uint32_t end) {
    const Cable cable(end, path);
    const FileDescriptor socket = connected(end);
    const auto say = [&] { return send(socket.native(), "x", 1, MSG_NOSIGNAL) == 1; };
    for (uint32_t turn = 0; turn < 100; ++turn) {
      if (end == 1) promise(say(), "it cannot send");
      promise(hears(socket), "a byte is lost");
      if (end == 0) promise(say(), "it cannot answer");
    }
    wait_at_most_half_a_second(socket);
    if (end == 0) {
      cable.cut();
      (void)say();
    }
    promise(!hears(socket), "a byte has come through a cable that was cut");
  });
  for (uint32_t end = 0; end < 2; ++end) EXPECT_EQ(ends.wait(end), 0) << "end " << end;
}

}  // namespace
}  // namespace tokenyard::testing
