#pragma once

#include "device/cuda/ptx.hpp"
#include "device/matrix.hpp"

namespace tokenyard::warp {

// mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 d, a, b, c;
TOKENYARD_DEVICE void multiply_add(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {r0, r1, r2, r3}, [p];
TOKENYARD_DEVICE void load_transposed(uint32_t (&columns)[4], const Bytes16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(columns[0]), "=r"(columns[1]), "=r"(columns[2]), "=r"(columns[3])
               : "r"(ptx::shared_address(row))
               : "memory");
}

}  // namespace tokenyard::warp
