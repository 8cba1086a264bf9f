// Stores at their edges: stale errors, other interfaces.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <string>

#include "control/store.hpp"
#include "control/store_protocol.hpp"
#include "control/store_server.hpp"
#include "control/tcp_store.hpp"
#include "fabric/free_port.hpp"
#include "net/key.hpp"
#include "net/tcp_socket.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::control {
namespace {

TEST(FileStore, ReadsToTheEndWhateverWentWrongBefore) {
  std::string pattern = ::testing::TempDir() + "tokenyard-store-XXXXXX";
  const std::filesystem::path directory = mkdtemp(pattern.data());
  const auto store = Store::open("file:" + directory.string(), "job", "secret");
  const auto text = net::as_bytes("one");
  store->set("k", {text.begin(), text.end()});
  errno = EINTR;  // Of another call: the end of the file is no interruption.
  EXPECT_EQ(store->get("k"), (Store::Value{text.begin(), text.end()}));
  std::filesystem::remove_all(directory);
}

class FileStoreFails : public ::testing::Test {
 protected:
  FileStoreFails() {
    std::string pattern = ::testing::TempDir() + "tokenyard-store-XXXXXX";
    directory_ = mkdtemp(pattern.data());
    store_ = Store::open("file:" + directory_.string(), "job", "secret");
  }
  ~FileStoreFails() override { std::filesystem::remove_all(directory_); }

  std::filesystem::path directory_;
  std::shared_ptr<Store> store_;
};

TEST_F(FileStoreFails, WhereADraftCannotBeMade) {
  std::filesystem::remove_all(directory_ / "job" / ".new");
  try {
    store_->set("k", {std::byte{1}});
    FAIL();
  } catch (const OsError& error) {
    EXPECT_EQ(error.code, ENOENT);
  }
}

// As where the disk is full: the system takes the first bytes only.
TEST_F(FileStoreFails, WhereAValueIsWrittenInPart) {
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit most{.rlim_cur = 100, .rlim_max = 100};
    setrlimit(RLIMIT_FSIZE, &most);
    try {
      store_->set("k", Store::Value(200));
    } catch (const OsError& error) {
      _exit(error.code == EFBIG ? 0 : 2);
    }
    _exit(1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(store_->get("k"), std::nullopt);
}

TEST(StoreProtocol, TakesRequestsAlone) {
  using namespace store_protocol;
  const auto frame = [](uint16_t kind, std::vector<std::byte> payload) {
    return net::SealedFrame{.kind = kind, .payload = std::move(payload)};
  };
  const auto good = encode(Request{.verb = Verb::get, .key = "k", .expected = {}, .value = {}});
  for (const Verb verb : {Verb::get, Verb::set, Verb::compare_and_set}) {
    const auto kind = static_cast<uint16_t>(verb);
    EXPECT_EQ(decode_request(frame(kind, good)).verb, verb);
    EXPECT_THROW(decode_request(frame(kind, {})), net::ProtocolError);
    EXPECT_THROW(decode_request(frame(kind, {good.begin(), good.end() - 1})), net::ProtocolError);
  }
  for (const uint16_t kind :
       {static_cast<uint16_t>(Verb::greeting), static_cast<uint16_t>(Verb::reply), uint16_t{77}})
    EXPECT_THROW(decode_request(frame(kind, good)), net::ProtocolError) << kind;
}

TEST(TcpStore, SaysThatNobodyListens) {
  TcpStore store("127.0.0.1", free_port(), "job", "secret");
  try {
    store.get("k");
    FAIL();
  } catch (const OsError& error) {
    EXPECT_EQ(error.code, ECONNREFUSED);
  }
}

// Before it looks for the server.
TEST(TcpStore, RefusesKeysAndValuesThatAreTooLong) {
  TcpStore store("127.0.0.1", free_port(), "job", "secret");
  const std::string key(store_protocol::kKeyMax - 4, 'k');  // Behind "job/".
  EXPECT_THROW(store.get(key), OsError);
  EXPECT_THROW(store.get(key + "k"), InternalError);
  EXPECT_THROW(store.set("k", Store::Value(store_protocol::kValueMax)), OsError);
  EXPECT_THROW(store.set("k", Store::Value(store_protocol::kValueMax + 1)), InternalError);
}

TEST(StoreServer, AtALoopbackAddressServesNoOtherOne) {
  const StoreServer server("127.0.0.1", 0, "secret");
  // Listening at every interface would take the port at 127.0.0.2, too.
  EXPECT_NO_THROW(net::listen_at("127.0.0.2", server.port()));
}

}  // namespace
}  // namespace tokenyard::control
