// Connections over a short path are never paced, whatever the system's choice.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <string>
#include <thread>

#include "collectives/transports/tcp_channel.hpp"
#include "net/fork_guard.hpp"
#include "net/tcp_pacing.hpp"

namespace tokenyard::net {
namespace {

using namespace std::chrono_literals;

bool choose(const FileDescriptor& socket, const std::string& name) {
  return setsockopt(socket.native(), IPPROTO_TCP, TCP_CONGESTION, name.data(), name.size()) == 0;
}

std::string choice_of(int socket) {
  char name[16] = {};
  socklen_t bytes = sizeof name;
  EXPECT_EQ(getsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name, &bytes), 0);
  return name;
}

std::string choice_of_the_system() {
  const FileDescriptor fresh(socket(AF_INET, SOCK_STREAM, 0));
  return choice_of(fresh.native());
}

class TcpPacing : public testing::Test {
 protected:
  TcpPacing() {
    // Read before the connection is up: its start decides which timers it keeps.
    at_first_ = choice_of(dialled_.native());
    while (!accepted_) {
      std::this_thread::yield();
      accepted_ = accept_socket(listening_.socket.native());
    }
  }

  Listening listening_ = listen_at("127.0.0.1");
  FileDescriptor dialled_ = connect_to(listening_.address, listening_.port);
  std::string at_first_;
  FileDescriptor accepted_;
};

TEST_F(TcpPacing, NeverBeginsOverAShortWay) {
  if (!choice_of_the_system().starts_with("bbr")) GTEST_SKIP() << "this system does not pace";
  EXPECT_EQ(at_first_, "reno");
  EXPECT_EQ(choice_of(listening_.socket.native()), "reno");
  for (FileDescriptor* const end : {&dialled_, &accepted_}) {
    const int socket = end->native();
    EXPECT_EQ(choice_of(socket), "reno");
    collectives::TcpChannel channel(1, 1 << 20);
    channel.add(0, std::move(*end));
    EXPECT_EQ(choice_of(socket), "reno");
  }
}

TEST_F(TcpPacing, IsTheSystemsWhereTheWayIsLong) {
  for (const FileDescriptor* const end : {&dialled_, &accepted_}) {
    pace_a_long_way(*end, 0us);
    EXPECT_EQ(choice_of(end->native()), choice_of_the_system());
  }
}

TEST_F(TcpPacing, LeavesOtherChoicesAlone) {
  if (!choose(dialled_, "cubic")) GTEST_SKIP() << "this system has no cubic";
  pace_a_long_way(dialled_, 0us);
  EXPECT_EQ(choice_of(dialled_.native()), "cubic");
  begin_unpaced(dialled_);
  EXPECT_EQ(choice_of(dialled_.native()), "cubic");
}

}  // namespace
}  // namespace tokenyard::net
