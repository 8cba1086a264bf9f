#include "collectives/interfaces/signature.hpp"

#include <gtest/gtest.h>

#include <array>

namespace tokenyard::collectives {
namespace {

TEST(Signature, FingerprintsAreFnv1aOfLengthsAndNever0) {
  EXPECT_EQ(fingerprint(std::array<uint64_t, 3>{1, uint64_t{1} << 32, 0x0123456789abcdef}),
            0x7e030f0fb19c10e5);
  EXPECT_EQ(fingerprint(std::array<uint64_t, 2>{1, 2}), uint64_t{0x7717980363c8e066} | 1);
  EXPECT_EQ(fingerprint({}), 0xcbf29ce484222325);
}

}  // namespace
}  // namespace tokenyard::collectives
