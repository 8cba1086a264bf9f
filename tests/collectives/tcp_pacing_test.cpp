// Connections over a short way are not paced, whatever the system would choose.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <string>
#include <thread>

#include "collectives/wire/tcp_channel.hpp"

namespace tokenyard::collectives {
namespace {

bool choose(const FileDescriptor& socket, const std::string& name) {
  return setsockopt(socket.native(), IPPROTO_TCP, TCP_CONGESTION, name.data(), name.size()) == 0;
}

std::string choice_of(int socket) {
  char name[16] = {};
  socklen_t bytes = sizeof name;
  EXPECT_EQ(getsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name, &bytes), 0);
  return name;
}

class TcpPacing : public testing::Test {
 protected:
  TcpPacing() {
    while (!accepted_) {
      std::this_thread::yield();
      accepted_ = accept_from(listening_.socket);
    }
  }
  /// What remains of a choice when each end has become a channel's.
  void expect_of(const std::string& chosen, const std::string& kept) {
    for (FileDescriptor* const end : {&dialled_, &accepted_}) {
      if (!choose(*end, chosen)) GTEST_SKIP() << "this system has no " << chosen;
      const int socket = end->native();
      TcpChannel channel(1, 1 << 20);
      channel.add(0, std::move(*end));
      EXPECT_EQ(choice_of(socket), kept);
    }
  }

  Listening listening_ = listen_at("127.0.0.1");
  FileDescriptor dialled_ = connect_to(listening_.address, listening_.port);
  FileDescriptor accepted_;
};

TEST_F(TcpPacing, EndsOverAShortWay) {
  expect_of("bbr", "reno");
}

TEST_F(TcpPacing, LeavesOtherChoicesAlone) {
  expect_of("cubic", "cubic");
}

}  // namespace
}  // namespace tokenyard::collectives
