/// Compares our layout of mlx5 queues with rdma-core's own headers, where they are installed, and
/// with bytes written by hand.
#include "device/mlx5_layout.hpp"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstring>

#if __has_include(<infiniband/mlx5dv.h>)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#include <infiniband/mlx5dv.h>
#pragma GCC diagnostic pop
#define TOKENYARD_HAS_MLX5DV 1
#endif

namespace tokenyard::mlx5 {
namespace {

static_assert(std::endian::native == std::endian::little);

template <class T>
std::array<uint8_t, sizeof(T)> bytes_of(const T& value) {
  std::array<uint8_t, sizeof(T)> bytes;
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

TEST(Mlx5Layout, BytesAreThoseOfTheTable) {
  const auto control =
      bytes_of(control_of(Opcode::masked_fetch_add, kEightBytes, 0x12345, 0xabcdef, 4));
  EXPECT_EQ(control, (std::array<uint8_t, 16>{0x09, 0x23, 0x45, 0x15, 0xab, 0xcd, 0xef, 4,  //
                                              0, 0, 0, 0x08, 0, 0, 0, 0}));
  EXPECT_EQ(bytes_of(big_endian(uint64_t{0x0102030405060708})),
            (std::array<uint8_t, 8>{1, 2, 3, 4, 5, 6, 7, 8}));
  const auto completion = bytes_of(index_opcode_of(0x1234, Completed::request_error, 1));
  EXPECT_EQ(completion, (std::array<uint8_t, 4>{0x12, 0x34, 0, 0xd1}));
  uint32_t word = 0;
  std::memcpy(&word, completion.data(), sizeof word);
  EXPECT_EQ(index_of(word), 0x1234);
  EXPECT_EQ(completed_of(word), Completed::request_error);
}

#if TOKENYARD_HAS_MLX5DV

template <class T, class U>
constexpr bool same_value(T ours, U theirs) {
  return static_cast<uint64_t>(ours) == static_cast<uint64_t>(theirs);
}
static_assert(same_value(Opcode::no_op, MLX5_OPCODE_NOP));
static_assert(same_value(Opcode::rdma_write, MLX5_OPCODE_RDMA_WRITE));
static_assert(same_value(Opcode::rdma_write_immediate, MLX5_OPCODE_RDMA_WRITE_IMM));
static_assert(same_value(Opcode::masked_fetch_add, MLX5_OPCODE_ATOMIC_MASKED_FA));
static_assert(same_value(kNotify, MLX5_WQE_CTRL_CQ_UPDATE));
static_assert(same_value(kInline, uint32_t{MLX5_INLINE_SEG}));
static_assert(same_value(Completed::request, MLX5_CQE_REQ));
static_assert(same_value(Completed::request_error, MLX5_CQE_REQ_ERR));
static_assert(same_value(Completed::invalid, MLX5_CQE_INVALID));
static_assert(same_value(Syndrome::local_length, MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR));
static_assert(same_value(Syndrome::local_operation, MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR));
static_assert(same_value(Syndrome::local_protection, MLX5_CQE_SYNDROME_LOCAL_PROT_ERR));
static_assert(same_value(Syndrome::flushed, MLX5_CQE_SYNDROME_WR_FLUSH_ERR));
static_assert(same_value(Syndrome::remote_invalid, MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR));
static_assert(same_value(Syndrome::remote_access, MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR));
static_assert(same_value(Syndrome::retry_exceeded, MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR));

static_assert(sizeof(Control) == sizeof(mlx5_wqe_ctrl_seg));
static_assert(offsetof(Control, queue_segments) == offsetof(mlx5_wqe_ctrl_seg, qpn_ds));
static_assert(offsetof(Control, flags) == offsetof(mlx5_wqe_ctrl_seg, fm_ce_se));
static_assert(offsetof(Control, immediate) == offsetof(mlx5_wqe_ctrl_seg, imm));
static_assert(sizeof(Remote) == sizeof(mlx5_wqe_raddr_seg));
static_assert(offsetof(Remote, key) == offsetof(mlx5_wqe_raddr_seg, rkey));
static_assert(sizeof(Data) == sizeof(mlx5_wqe_data_seg));
static_assert(offsetof(Data, key) == offsetof(mlx5_wqe_data_seg, lkey));
static_assert(offsetof(Data, address) == offsetof(mlx5_wqe_data_seg, addr));
static_assert(offsetof(Block, inline_bytes) - offsetof(Block, inline_header) ==
              sizeof(mlx5_wqe_inl_data_seg));
static_assert(sizeof(Completion) == sizeof(mlx5_cqe64) &&
              sizeof(Completion) == sizeof(mlx5_err_cqe));
static_assert(offsetof(Completion, index_opcode) == offsetof(mlx5_cqe64, wqe_counter));
static_assert(offsetof(Completion, index_opcode) + 3 == offsetof(mlx5_cqe64, op_own));
static_assert(offsetof(Completion, syndromes) + 3 == offsetof(mlx5_err_cqe, syndrome));
static_assert(offsetof(Completion, opcode_queue) == offsetof(mlx5_err_cqe, s_wqe_opcode_qpn));
static_assert(offsetof(DoorbellRecord, send) == MLX5_SND_DBR * sizeof(uint32_t));

TEST(Mlx5Layout, EntriesAreThoseOfRdmaCore) {
  mlx5_wqe_ctrl_seg control;
  std::memset(&control, 0, sizeof control);
  mlx5dv_set_ctrl_seg(&control, 0x2345, MLX5_OPCODE_RDMA_WRITE, 0, 0xabcdef,
                      MLX5_WQE_CTRL_CQ_UPDATE, 3, 0, 0);
  EXPECT_EQ(bytes_of(control_of(Opcode::rdma_write, 0, 0x12345, 0xabcdef, 3)), bytes_of(control));
  mlx5_wqe_data_seg data;
  mlx5dv_set_data_seg(&data, 0x01020304, 0x05060708, 0x1112131415161718);
  const Data ours{.bytes = big_endian(uint32_t{0x01020304}),
                  .key = big_endian(uint32_t{0x05060708}),
                  .address = big_endian(uint64_t{0x1112131415161718})};
  EXPECT_EQ(bytes_of(ours), bytes_of(data));
  mlx5_cqe64 completion;
  std::memset(&completion, 0, sizeof completion);
  const uint32_t word = index_opcode_of(7, Completed::request_error, 1);
  std::memcpy(reinterpret_cast<char*>(&completion) + 60, &word, sizeof word);
  EXPECT_EQ(mlx5dv_get_cqe_owner(&completion), 1);
  EXPECT_EQ(mlx5dv_get_cqe_opcode(&completion), MLX5_CQE_REQ_ERR);
  EXPECT_EQ(completion.wqe_counter, htobe16(7));
}

#endif

}  // namespace
}  // namespace tokenyard::mlx5
