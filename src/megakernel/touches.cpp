#include "tokenyard/megakernel/touches.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "tokenyard/error.hpp"

namespace tokenyard::megakernel {

namespace {

/// Returns whether an array of NumPy's type `dtype` can hold `element`, also as integers of its
/// size: NumPy without extensions stores BF16 as uint16.
bool holds(std::string_view dtype, std::string_view element) {
  if (dtype.empty() || element.empty() || dtype == element) return true;
  return (element == "bfloat16" && dtype == "uint16") ||
         (element == "uint32" && dtype == "int32") || (element == "uint64" && dtype == "int64");
}

std::string bytes_text(const TouchedRange& touch) {
  if (touch.among) return fmt::format("at least {} bytes", touch.row_bytes);
  if (touch.rows == 1) return fmt::format("{} bytes", touch.row_bytes);
  return fmt::format("{} bytes ({} rows of {}, {} apart)", touch.bytes(), touch.rows,
                     touch.row_bytes, touch.stride);
}

}  // namespace

const char* verb(AccessKind access) {
  switch (access) {
    case AccessKind::read:
      return "reads";
    case AccessKind::write:
      return "writes";
    case AccessKind::add:
      return "adds to";
    case AccessKind::stream:
      return "streams";
  }
  return "touches";
}

std::string argument_name(std::string_view argument, std::string_view type, std::string_view task) {
  return task.empty() ? fmt::format("{} of a {} task", argument, type)
                      : fmt::format("{} of a {} task '{}'", argument, type, task);
}

uint64_t TouchedRange::bytes() const {
  if (rows == 0 || row_bytes == 0) return 0;
  uint64_t before = 0, all = 0;
  if (__builtin_mul_overflow(rows - 1, stride, &before) ||
      __builtin_add_overflow(before, row_bytes, &all))
    return UINT64_MAX;
  return all;
}

std::string Touches::name_of(std::string_view argument) const {
  return argument_name(argument, type_, task_);
}

void Touches::unit_bytes(const char* argument, uint32_t bytes) {
  require(bytes > 0 && bytes % kBulkAlignment == 0, argument,
          fmt::format("a positive multiple of {}: the megakernel's unit_bytes", kBulkAlignment),
          bytes);
  unit_bytes_ = std::max(unit_bytes_, bytes);
}

void Touches::require(bool holds, const char* argument, const std::string& expected,
                      double seen) const {
  if (!holds) throw InvalidArgument(name_of(argument), expected, fmt::format("{}", seen));
}

void Touches::check(const std::vector<ArgPiece>& pieces) const {
  for (const TouchedRange& touch : list_) {
    if (touch.bytes() == 0) continue;
    const auto piece = std::ranges::find(pieces, touch.argument, &ArgPiece::argument);
    if (piece == pieces.end())
      throw InvalidArgument(name_of(touch.argument),
                            fmt::format("a piece of {}", bytes_text(touch)), "None");
    const uint64_t before = touch.address - piece->address;
    if (before > piece->bytes || touch.bytes() > piece->bytes - before)
      throw InvalidArgument(name_of(touch.argument),
                            fmt::format("a piece of {}{}, which the task {}", bytes_text(touch),
                                        before == 0 ? "" : fmt::format(" from byte {} on", before),
                                        verb(touch.access)),
                            fmt::format("one of {}", piece->bytes));
    if (!holds(piece->dtype, touch.element))
      throw InvalidArgument(name_of(touch.argument), fmt::format("elements of {}", touch.element),
                            std::string(piece->dtype));
  }
  check_addresses();
}

void Touches::check_addresses() const {
  for (const TouchedRange& touch : list_) {
    if (touch.bytes() == 0) continue;
    if (touch.address == 0)
      throw InvalidArgument(name_of(touch.argument), fmt::format("memory of {}", bytes_text(touch)),
                            "null");
    if (touch.address % touch.alignment != 0 ||
        (touch.rows > 1 && touch.stride % touch.alignment != 0))
      throw InvalidArgument(
          name_of(touch.argument),
          fmt::format("an address that is a multiple of {} bytes", touch.alignment),
          fmt::format("one {} bytes beyond such a multiple", touch.address % touch.alignment));
  }
}

}  // namespace tokenyard::megakernel
