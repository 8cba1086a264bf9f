// Stores at their edges: stale errors, other interfaces.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <string>

#include "control/store.hpp"
#include "control/store_server.hpp"
#include "net/key.hpp"
#include "net/tcp_socket.hpp"

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

TEST(StoreServer, AtALoopbackAddressServesNoOtherOne) {
  const StoreServer server("127.0.0.1", 0, "secret");
  // Listening at every interface would take the port at 127.0.0.2, too.
  EXPECT_NO_THROW(net::listen_at("127.0.0.2", server.port()));
}

}  // namespace
}  // namespace tokenyard::control
