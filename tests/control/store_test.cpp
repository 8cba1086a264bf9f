/// Every kind of store keeps its values, and lets one of many writers win.
#include "control/store.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "control/store_protocol.hpp"
#include "control/store_server.hpp"
#include "control/tcp_store.hpp"
#include "fabric/free_port.hpp"
#include "fabric/ranks.hpp"
#include "fabric/worlds.hpp"
#include "net/connection.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::control {
namespace {

Store::Value value(const std::string& text) {
  const auto bytes = net::as_bytes(text);
  return {bytes.begin(), bytes.end()};
}

/// An address of a store, and the server behind it.
struct Place {
  explicit Place(const std::string& kind) {
    if (kind == "file") {
      std::string pattern = ::testing::TempDir() + "tokenyard-store-XXXXXX";
      directory = mkdtemp(pattern.data());
      where = "file:" + directory.string();
    } else {
      server = std::make_unique<StoreServer>("127.0.0.1", 0, "secret");
      where = fmt::format("tcp://127.0.0.1:{}", server->port());
    }
  }
  ~Place() {
    if (!directory.empty()) std::filesystem::remove_all(directory);
  }
  std::shared_ptr<Store> open(const std::string& job = "job") const {
    return Store::open(where, job, "secret");
  }

  std::filesystem::path directory;
  std::unique_ptr<StoreServer> server;
  std::string where;
};

class Stores : public ::testing::TestWithParam<std::string> {
 protected:
  Place place{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Kinds, Stores, ::testing::Values("file", "tcp"),
                         [](const auto& kind) { return kind.param; });

TEST_P(Stores, KeepWhatTheyAreTold) {
  const auto store = place.open();
  const auto another = place.open();
  EXPECT_EQ(store->get("a/key with: signs"), std::nullopt);
  store->set("a/key with: signs", value("one"));
  EXPECT_EQ(another->get("a/key with: signs"), value("one"));
  another->set("a/key with: signs", value(""));
  EXPECT_EQ(store->get("a/key with: signs"), value(""));
  const Store::Value large(200000, std::byte{3});
  store->set("large", large);
  EXPECT_EQ(another->get("large"), large);
}

TEST_P(Stores, CompareBeforeTheySet) {
  const auto store = place.open();
  EXPECT_EQ(store->compare_and_set("k", value("no"), value("x")), Store::Value{});
  EXPECT_EQ(store->get("k"), std::nullopt);
  EXPECT_EQ(store->compare_and_set("k", std::nullopt, value("x")), value("x"));
  EXPECT_EQ(store->compare_and_set("k", std::nullopt, value("y")), value("x"));
  EXPECT_EQ(store->compare_and_set("k", value("x"), value("y")), value("y"));
  EXPECT_EQ(store->get("k"), value("y"));
}

TEST_P(Stores, KeepJobsApart) {
  place.open("one")->set("k", value("1"));
  EXPECT_EQ(place.open("two")->get("k"), std::nullopt);
}

TEST_P(Stores, LetOneOfManyWin) {
  constexpr uint32_t kThreads = 4, kTurns = 25;
  on_every_rank(kThreads, [&](uint32_t) {
    const auto store = place.open();
    for (uint32_t turn = 0; turn < kTurns;) {
      const auto now = store->get("count");
      const auto next =
          now ? std::stoul(std::string(reinterpret_cast<const char*>(now->data()), now->size())) + 1
              : 1;
      // Each writer's text is unique. With equal texts, a writer that lost to another would also
      // find its own text, and count as the winner.
      const auto mine = value(fmt::format("{} {}", next, net::random_number()));
      if (store->compare_and_set("count", now, mine) == mine) ++turn;
    }
  });
  const auto end = place.open()->get("count").value();
  const std::string text(reinterpret_cast<const char*>(end.data()), end.size());
  EXPECT_EQ(std::stoul(text), kThreads * kTurns);
}

TEST(FileStore, ProcessKilledWhileItWritesDoesNoHarm) {
  const Place place("file");
  {
    RankProcesses writer(1, [&](uint32_t) {
      const auto store = place.open();
      for (uint64_t turn = 0;; ++turn) store->set("k", value(fmt::format("{:0200000}", turn)));
    });
    const auto store = place.open();
    while (!store->get("k")) std::this_thread::yield();
    writer.signal(0, SIGKILL);
    EXPECT_EQ(writer.wait(0), 128 + SIGKILL);
  }
  const auto store = place.open();
  const auto last = store->get("k").value();
  EXPECT_EQ(last.size(), 200000u);
  EXPECT_EQ(store->compare_and_set("k", last, value("after")), value("after"));
}

TEST(FileStore, SaysWhatIsWrongWithTheDirectory) {
  const Place place("file");
  const auto file = place.directory / "file";
  std::ofstream(file) << "in the way";
  EXPECT_THROW(Store::open("file:" + file.string(), "job", "secret"), OsError);
  const auto missing = place.directory / "mistyped" / "store";
  EXPECT_THROW(Store::open("file:" + missing.string(), "job", "secret"), InvalidArgument);
  EXPECT_FALSE(std::filesystem::exists(missing.parent_path()));
  EXPECT_NO_THROW(Store::open("file:" + (place.directory / "new").string(), "job", "secret"));
  EXPECT_THROW(Store::open("elsewhere", "job", "secret"), InvalidArgument);
}

TEST(TcpStore, ServerThatDiesIsNoticed) {
  Place place("tcp");
  const auto store = place.open();
  store->set("k", value("1"));
  place.server = nullptr;
  EXPECT_THROW(store->get("k"), OsError);
}

TEST(TcpStore, ServerThatIsSilentIsNotWaitedForLong) {
  // It listens, and never answers.
  asio::io_context io;
  const asio::ip::tcp::acceptor silent(io, {asio::ip::address_v4::loopback(), 0});
  const auto store =
      Store::open(fmt::format("tcp://127.0.0.1:{}", silent.local_endpoint().port()), "job", "s");
  try {
    store->get("k");
    FAIL() << "nobody answered";
  } catch (const OsError& error) {
    EXPECT_EQ(error.code, ETIMEDOUT);
  }
}

TEST(TcpStore, ServerThatForgotIsNotBelieved) {
  Place place("tcp");
  const auto store = place.open();
  store->set("k", value("1"));
  const uint16_t port = place.server->port();
  place.server = nullptr;
  place.server = std::make_unique<StoreServer>("127.0.0.1", port, "secret");
  EXPECT_THROW(store->get("k"), OsError);
  EXPECT_EQ(place.open()->get("k"), std::nullopt);
}

TEST(TcpStore, WhoDoesNotKnowTheSecretGetsNothing) {
  Place place("tcp");
  EXPECT_THROW(Store::open(place.where, "job", "guess")->get("k"), OsError);
  asio::io_context io;
  net::TcpSocket garbage(io);
  garbage.connect({asio::ip::address_v4::loopback(), place.server->port()});
  asio::write(garbage, asio::buffer(std::string("GET / HTTP/1.1\r\n\r\n")));
  asio::error_code closed;
  char byte = 0;
  garbage.read_some(asio::buffer(&byte, 1), closed);
  EXPECT_TRUE(closed);
  EXPECT_EQ(place.server->refused(), 2u);
  place.open()->set("k", value("still there"));
}

/// A server that knows the secret and answers each request with the same value, but its frames
/// name other verbs.
class WrongServer {
 public:
  WrongServer(uint16_t greeting, uint16_t reply)
      : greeting_(greeting),
        reply_(reply),
        acceptor_(io_, {asio::ip::address_v4::loopback(), 0}),
        thread_([this] {
          asio::co_spawn(io_, serve(), asio::detached);
          io_.run();
        }) {}
  ~WrongServer() {
    io_.stop();
    thread_.join();
  }
  std::string where() const {
    return fmt::format("tcp://127.0.0.1:{}", acceptor_.local_endpoint().port());
  }

 private:
  net::awaitable<void> serve() {
    auto client = std::make_shared<net::Connection>(
        net::TcpSocket(co_await acceptor_.async_accept(net::use_awaitable)),
        std::chrono::seconds(5));
    try {
      co_await client->shake_hands(net::Handshake::Side::acceptor, store_protocol::key_of("secret"),
                                   store_protocol::introduction());
      const auto bytes = store_protocol::encode(store_protocol::Reply{.value = value("12345678")});
      co_await client->write(greeting_, bytes);
      for (;;) {
        co_await client->read();
        co_await client->write(reply_, bytes);
      }
    } catch (const std::system_error&) {
      // The client has hung up.
    }
  }

  const uint16_t greeting_, reply_;
  asio::io_context io_{1};
  asio::ip::tcp::acceptor acceptor_;
  std::thread thread_;
};

TEST(TcpStore, ReplyWithAnotherVerbIsNotBelieved) {
  using store_protocol::Verb;
  constexpr auto kGreeting = static_cast<uint16_t>(Verb::greeting);
  constexpr auto kReply = static_cast<uint16_t>(Verb::reply);
  const struct {
    uint16_t greeting, reply;
    const char* told;
  } cases[] = {
      {kGreeting, kGreeting, "sent a greeting where a reply was expected"},
      {kGreeting, static_cast<uint16_t>(Verb::set),
       "sent a request to set where a reply was expected"},
      {kGreeting, 77, "sent a message of unknown kind 77 where a reply was expected"},
      {kReply, kReply, "sent a reply where a greeting was expected"},
  };
  for (const auto& [greeting, reply, told] : cases) {
    const WrongServer server(greeting, reply);
    const auto store = Store::open(server.where(), "job", "secret");
    try {
      store->compare_and_set("k", std::nullopt, value("12345678"));
      ADD_FAILURE() << "it was believed: " << told;
    } catch (const OsError& error) {
      EXPECT_EQ(error.code, EPROTO);
      EXPECT_NE(std::string(error.what()).find(told), std::string::npos) << error.what();
    }
  }
  const WrongServer right(kGreeting, kReply);
  EXPECT_EQ(Store::open(right.where(), "job", "secret")->get("k"), value("12345678"));
}

TEST(TcpStore, FirstToComeServes) {
  const uint16_t port = free_port();
  const auto first = StoreServer::if_free("127.0.0.1", port, "secret");
  EXPECT_NE(first, nullptr);
  EXPECT_EQ(StoreServer::if_free("127.0.0.1", port, "secret"), nullptr);
  // An address of a documentation network belongs to no machine.
  EXPECT_EQ(StoreServer::if_free("192.0.2.1", port, "secret"), nullptr);
  // The others may know this host by an address that it does not have itself.
  const auto everywhere = StoreServer::if_free("192.0.2.1", 0, "secret", Interfaces::every);
  ASSERT_NE(everywhere, nullptr);
  TcpStore client("127.0.0.1", everywhere->port(), "job", "secret");
  EXPECT_EQ(client.get("key"), std::nullopt);
}

}  // namespace
}  // namespace tokenyard::control
