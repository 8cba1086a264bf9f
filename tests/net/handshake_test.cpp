/// Two ends that know the secret authenticate each other; everybody else is rejected, whatever they
/// send.
#include "net/handshake.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "net/sealed_frame.hpp"

namespace tokenyard::net {
namespace {

using Bytes = std::vector<std::byte>;

const Key kKey("a secret", "test");
const Introduction kDialler{
    .purpose = Purpose::member, .job = 5, .self = {2, 77}, .epoch = 3, .sought = 78};
const Introduction kAcceptor{
    .purpose = Purpose::member, .job = 5, .self = {0, 78}, .epoch = 4, .sought = 0};

/// Bytes that one end has sent and the other has not read.
struct Wire {
  Bytes bytes;
  /// Lets `reader` read while there are enough bytes.
  void feed(Handshake& reader) {
    while (reader.wanted() > 0 && reader.wanted() <= bytes.size()) {
      const Bytes piece(bytes.begin(), bytes.begin() + static_cast<long>(reader.wanted()));
      bytes.erase(bytes.begin(), bytes.begin() + static_cast<long>(piece.size()));
      reader.receive(piece);
    }
  }
  void take(Handshake& writer) {
    const Bytes more = writer.take_output();
    bytes.insert(bytes.end(), more.begin(), more.end());
  }
};

struct Pair {
  Handshake dialler, acceptor;
  Wire to_acceptor, to_dialler;

  Pair(const Introduction& first, const Key& first_key, const Introduction& second,
       const Key& second_key)
      : dialler(Handshake::Side::dialler, first_key, first),
        acceptor(Handshake::Side::acceptor, second_key, second) {}

  void run() {
    for (int step = 0; step < 4; ++step) {
      to_acceptor.take(dialler);
      to_acceptor.feed(acceptor);
      to_dialler.take(acceptor);
      to_dialler.feed(dialler);
    }
  }
};

/// Returns why the two reject each other.
std::string refusal(const Introduction& first, const Key& first_key, const Introduction& second,
                    const Key& second_key) {
  Pair pair(first, first_key, second, second_key);
  try {
    pair.run();
  } catch (const ProtocolError& stranger) {
    return stranger.what();
  }
  return "";
}

TEST(Handshake, BothEndsKnowWhoTheOtherOneIs) {
  Pair pair(kDialler, kKey, kAcceptor, kKey);
  pair.run();
  ASSERT_TRUE(pair.dialler.done());
  ASSERT_TRUE(pair.acceptor.done());
  EXPECT_EQ(pair.acceptor.peer().self, kDialler.self);
  EXPECT_EQ(pair.acceptor.peer().epoch, kDialler.epoch);
  EXPECT_EQ(pair.dialler.peer().self, kAcceptor.self);
}

TEST(Handshake, APieceOfAnotherLengthIsRefused) {
  for (const size_t more : {0, 2}) {
    Handshake acceptor(Handshake::Side::acceptor, kKey, Introduction{});
    try {
      acceptor.receive(Bytes(acceptor.wanted() - 1 + more));
      ADD_FAILURE() << more;
    } catch (const ProtocolError& error) {
      EXPECT_NE(std::string(error.what()).find("wrong length"), std::string::npos);
    }
  }
}

TEST(Handshake, WhoDoesNotBelongIsToldApart) {
  EXPECT_EQ(refusal(kDialler, Key("another", "test"), kAcceptor, kKey),
            "does not know the job's secret");
  Introduction foreign = kDialler;
  foreign.job = 6;
  EXPECT_EQ(refusal(foreign, kKey, kAcceptor, kKey), "belongs to another job");
  Introduction unborn = kDialler;
  unborn.self.incarnation = 0;
  EXPECT_EQ(refusal(unborn, kKey, kAcceptor, kKey), "sent no incarnation");
  Introduction lost = kDialler;
  lost.sought = 79;
  EXPECT_EQ(refusal(lost, kKey, kAcceptor, kKey), "looks for another process");
  Introduction customer = kDialler;
  customer.purpose = Purpose::store;
  EXPECT_EQ(refusal(customer, kKey, kAcceptor, kKey), "connected for another purpose (3)");
}

/// The bytes that a stranger gets are the same whatever the acceptor's job, process and epoch are.
TEST(Handshake, AnotherJobIsToldNothingOfOurs) {
  const auto answer_of = [](const Introduction& self, const Key& key) {
    Introduction stranger = kDialler;
    stranger.job = 6;
    stranger.sought = 0;
    Handshake acceptor(Handshake::Side::acceptor, key, self);
    Handshake dialler(Handshake::Side::dialler, kKey, stranger);
    const Bytes hello = dialler.take_output();
    acceptor.receive(std::span(hello).first(acceptor.wanted()));
    EXPECT_TRUE(acceptor.take_output().empty());
    EXPECT_THAT([&] { acceptor.receive(std::span(hello).subspan(Handshake::kPrefixBytes)); },
                testing::ThrowsMessage<ProtocolError>(testing::StrEq("belongs to another job")));
    const Bytes answer = acceptor.take_output();
    EXPECT_EQ(answer.size(), Handshake::kPrefixBytes);
    EXPECT_THAT([&] { dialler.receive(answer); },
                testing::ThrowsMessage<ProtocolError>(testing::StrEq("belongs to another job")));
    return answer;
  };
  const Bytes answer = answer_of(kAcceptor, kKey);
  EXPECT_EQ(answer_of({.purpose = Purpose::member, .job = 9, .self = {3, 123}, .epoch = 8},
                      Key("another", "test")),
            answer);
  EXPECT_EQ(answer_of({.purpose = Purpose::store, .job = 9, .self = {}}, kKey), answer);
}

TEST(Handshake, AnotherVersionIsToldSo) {
  for (const int version : {kControlVersion - 1, kControlVersion + 1}) {
    const std::string published =
        fmt::format("speaks version {} of the protocol, not {}", version, kControlVersion);
    Handshake acceptor(Handshake::Side::acceptor, kKey, kAcceptor);
    Handshake dialler(Handshake::Side::dialler, kKey, kDialler);
    Bytes prefix = dialler.take_output();
    prefix.resize(Handshake::kPrefixBytes);
    prefix[4] = static_cast<std::byte>(version);
    EXPECT_THAT([&] { acceptor.receive(prefix); },
                testing::ThrowsMessage<ProtocolError>(testing::StrEq(published)));
    // The acceptor's answer, as a dialler of that version would read it.
    Bytes answer = acceptor.take_output();
    ASSERT_EQ(answer.size(), Handshake::kPrefixBytes);
    EXPECT_EQ(answer[4], std::byte{kControlVersion});
    ASSERT_EQ(dialler.wanted(), answer.size());
    answer[4] = static_cast<std::byte>(version);
    EXPECT_THAT([&] { dialler.receive(answer); },
                testing::ThrowsMessage<ProtocolError>(testing::StrEq(published)));
  }
}

TEST(Handshake, ProofsAreGoodForOneConversationAndOneSide) {
  Pair first(kDialler, kKey, kAcceptor, kKey);
  first.to_acceptor.take(first.dialler);
  const Bytes hello = first.to_acceptor.bytes;
  first.to_acceptor.feed(first.acceptor);
  const Bytes answer = first.acceptor.take_output();
  const Bytes proof(answer.end() - sizeof(Digest), answer.end());

  // The acceptor's proof is not a dialler's.
  EXPECT_THROW(first.acceptor.receive(proof), ProtocolError);

  // Another acceptor does not accept this dialler's proof.
  Handshake second(Handshake::Side::acceptor, kKey, kAcceptor);
  second.receive(std::span(hello).first(second.wanted()));
  second.receive(std::span(hello).subspan(Handshake::kPrefixBytes));
  first.to_dialler.bytes = answer;
  first.to_dialler.feed(first.dialler);
  ASSERT_TRUE(first.dialler.done());
  EXPECT_THROW(second.receive(first.dialler.take_output()), ProtocolError);
}

TEST(Handshake, NoChangeOfAByteGoesUnnoticed) {
  for (size_t at = 0; at < Handshake::kHelloBytes + sizeof(Digest); ++at) {
    Pair pair(kDialler, kKey, kAcceptor, kKey);
    Bytes said = pair.dialler.take_output();
    if (at < said.size()) said[at] ^= std::byte{0x20};
    pair.to_acceptor.bytes = said;
    EXPECT_THROW(
        {
          pair.to_acceptor.feed(pair.acceptor);
          pair.to_dialler.take(pair.acceptor);
          pair.to_dialler.feed(pair.dialler);
          Bytes proof = pair.dialler.take_output();
          if (at >= said.size()) proof[at - said.size()] ^= std::byte{0x20};
          pair.acceptor.receive(proof);
        },
        ProtocolError)
        << "byte " << at;
    EXPECT_FALSE(pair.acceptor.done());
  }
}

TEST(Handshake, RandomBytesNeverGetIn) {
  std::mt19937_64 random(4);
  for (int round = 0; round < 20000; ++round) {
    Handshake acceptor(Handshake::Side::acceptor, kKey, kAcceptor);
    Handshake honest(Handshake::Side::dialler, kKey, kDialler);
    Bytes bytes = honest.take_output();
    bytes.resize(bytes.size() + sizeof(Digest));
    // Begins like a real peer, for longer and longer.
    for (size_t at = random() % bytes.size(); at < bytes.size(); ++at) {
      bytes[at] = static_cast<std::byte>(random());
    }
    Wire wire{bytes};
    try {
      wire.feed(acceptor);
    } catch (const ProtocolError&) {
      // Rejection is right; so is waiting for more.
    }
    ASSERT_FALSE(acceptor.done());
  }
}

struct Sealed {
  Sealer sealer{kKey};
  Opener opener{kKey};
  SealedFrame open(const Bytes& frame) {
    const size_t rest = opener.judge(std::span(frame).first<kFrameHeaderBytes>());
    if (rest != frame.size() - kFrameHeaderBytes) throw ProtocolError("another length");
    return opener.open(Bytes(frame.begin() + kFrameHeaderBytes, frame.end()));
  }
};

TEST(SealedFrame, ArrivesAsItWasSent) {
  Sealed sealed;
  for (const size_t bytes : {0, 1, 4096}) {
    const Bytes payload(bytes, std::byte{7});
    const SealedFrame frame = sealed.open(sealed.sealer.seal(9, payload));
    EXPECT_EQ(frame.kind, 9);
    EXPECT_EQ(frame.payload, payload);
  }
}

TEST(SealedFrame, NothingIsChangedRepeatedOrLeftOut) {
  const Bytes payload(3, std::byte{7});
  for (size_t at = 0; at < kFrameHeaderBytes + payload.size() + kSealBytes; ++at) {
    Sealed sealed;
    Bytes frame = sealed.sealer.seal(9, payload);
    frame[at] ^= std::byte{1};
    EXPECT_THROW(sealed.open(frame), ProtocolError) << "byte " << at;
  }
  Sealed sealed;
  const Bytes first = sealed.sealer.seal(1, payload);
  const Bytes second = sealed.sealer.seal(2, payload);
  sealed.open(first);
  EXPECT_THROW(sealed.open(first), ProtocolError);
  Sealed skipping;
  EXPECT_THROW(skipping.open(second), ProtocolError);
}

TEST(SealedFrame, NoRoomIsMadeForWhatIsTooLong) {
  Opener opener(kKey);
  std::array<std::byte, kFrameHeaderBytes> header;
  header.fill(std::byte{0xff});
  EXPECT_THROW(opener.judge(header), ProtocolError);
}

}  // namespace
}  // namespace tokenyard::net
