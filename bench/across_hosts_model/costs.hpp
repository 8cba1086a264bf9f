/// Costs of hardware, as far as the model of an exchange between hosts charges them: an H200 and a
/// ConnectX-7, as measured.
#pragma once

#include <cstdint>

namespace tokenyard::bench {

/// Picoseconds of virtual time.
using Time = uint64_t;
constexpr Time nanoseconds(double ns) {
  return static_cast<Time>(ns * 1000);
}

struct Costs {
  // A multiprocessor.
  double store_gb_s = 48;  ///< bulk and ordinary stores, local and remote together
  double load_gb_s = 60;   ///< bulk loads
  Time instruction = nanoseconds(5);
  Time meeting = nanoseconds(15);  ///< of a warp
  Time barrier = nanoseconds(40);  ///< of a block
  Time issue = nanoseconds(140);   ///< of a bulk copy
  Time load = nanoseconds(650);    ///< of a word in its GPU's memory, and atomics there
  /// A relaxed load behind another one, which is still under way.
  Time next_load = nanoseconds(20);
  Time cached_load = nanoseconds(200);
  Time far_load = nanoseconds(1500);  ///< over NVLink
  Time bulk_load = nanoseconds(900), far_bulk_load = nanoseconds(1800);
  Time bulk_stored = nanoseconds(700);  ///< from the last byte read to the copy's completion
  Time far_bulk_stored = nanoseconds(1300);
  Time release_gpu = nanoseconds(400), release_sys = nanoseconds(800);
  Time far_store = nanoseconds(700);  ///< until a store over NVLink is seen
  /// From the end of a kernel to the start of the next one, which was launched to overlap it.
  Time next_kernel = nanoseconds(1000);
  // A GPU.
  double nvlink_gb_s = 360;  ///< each way
  // A rank's network card.
  double link_gb_s = 50;
  uint32_t packet_bytes = 4096, header_bytes = 70;
  Time latency = nanoseconds(3000);     ///< from a post until the first byte arrives
  Time completion = nanoseconds(1000);  ///< from the last byte read until a kernel may see it
  Time message = nanoseconds(100);      ///< 10 million per second

  /// Returns how long bytes take at a rate.
  static Time at(double gb_s, double bytes) { return static_cast<Time>(bytes / gb_s * 1000); }
  /// Returns how long a message occupies a link.
  Time on_link(double bytes, double share_of_rate = 1) const {
    const double packets =
        static_cast<double>(static_cast<uint64_t>(bytes + packet_bytes - 1) / packet_bytes);
    return at(link_gb_s * share_of_rate, bytes + packets * header_bytes);
  }
};

/// Rows that are short in memory and charged in full.
struct Lengths {
  uint32_t row = 0, full_row = 0;    ///< bytes
  uint32_t slot = 0, full_slot = 0;  ///< bytes, of a ring
  uint32_t part = 0, full_part = 0;  ///< bytes, of a row that a warp adds up
  uint32_t head = 0;                 ///< bytes of a message before its rows; 0: none has rows
  // Low latency's rows travel in pieces of sixteen bytes.
  double pieces = 1;  ///< pieces of a full row that one in memory stands for
  double turns = 1;   ///< turns of a warp over a full row that one over a row in memory stands for

  /// Returns the bytes to charge for a copy, or a put of several slots.
  double full(uint64_t bytes) const {
    if (head != 0)
      return bytes <= head ? static_cast<double>(bytes)
                           : head + static_cast<double>(bytes - head) / row * full_row;
    if (bytes == row) return full_row;
    if (bytes == part) return full_part;
    if (slot != 0 && bytes >= slot && bytes % slot == 0)
      return static_cast<double>(bytes / slot) * full_slot;
    return static_cast<double>(bytes);
  }
};

}  // namespace tokenyard::bench
