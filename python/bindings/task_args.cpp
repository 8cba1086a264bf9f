#include "task_args.hpp"

#include <fmt/format.h>

#include <cstring>

#include "integers.hpp"

namespace tokenyard::python {

namespace {

/// Returns the value of any number but a bool.
std::optional<float> real_of(const nb::object& value) {
  if (nb::isinstance<nb::bool_>(value) || nb::isinstance<nb::str>(value)) return std::nullopt;
  const double number = PyFloat_AsDouble(value.ptr());
  if (number == -1 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    return std::nullopt;
  }
  return static_cast<float>(number);
}

std::string text_of(const nb::object& value) {
  return nb::isinstance<nb::tuple>(value) ? "an Event" : nb::repr(value).c_str();
}

}  // namespace

TaskArgs::TaskArgs(TaskGraph& graph, const mk::TaskType& type, const std::string& task,
                   const nb::dict& values)
    : graph_(graph), type_(type), task_(task), bytes_(type.args_bytes) {
  for (const mk::ArgField& field : type.fields) {
    const nb::str name(field.name.data(), field.name.size());
    if (!values.contains(name))
      throw InvalidArgument(fmt::format("arguments of a {} task", type.name),
                            fmt::format("one called {}", field.name), "none");
    put(field, values[name]);
  }
  if (type.fields.size() != values.size())
    throw InvalidArgument(fmt::format("arguments of a {} task", type.name),
                          fmt::format("{} of them", type.fields.size()),
                          fmt::format("{}", values.size()));
  // Last, so that a rejected task leaves the graph unchanged.
  for (const Piece& piece : named_) graph.keep(piece);
}

void TaskArgs::put(const mk::ArgField& field, const nb::object& value) {
  const auto store = [&](const auto& native) {
    std::memcpy(bytes_.data() + field.offset, &native, sizeof(native));
  };
  switch (field.kind) {
    case mk::ArgField::Kind::pointer:
    case mk::ArgField::Kind::peer:
      return put_piece(field, value);
    case mk::ArgField::Kind::event: {
      uint32_t event = 0;
      if (!nb::isinstance<nb::tuple>(value)) refuse(field, "an Event", value);
      event = nb::cast<uint32_t>(nb::cast<nb::tuple>(value)[0]);
      return store(event);
    }
    case mk::ArgField::Kind::u32: {
      const std::optional<uint64_t> number = integer_of(value, UINT32_MAX);
      if (!number) refuse(field, "an integer of 32 bits without a sign", value);
      return store(static_cast<uint32_t>(*number));
    }
    case mk::ArgField::Kind::f32: {
      const std::optional<float> number = real_of(value);
      if (!number) refuse(field, "a number", value);
      return store(*number);
    }
  }
}

void TaskArgs::put_piece(const mk::ArgField& field, const nb::object& value) {
  if (value.is_none()) return;
  Piece piece{};
  if (!nb::try_cast(value, piece)) refuse(field, "a Piece or None", value);
  std::memcpy(bytes_.data() + field.offset, &piece.address, sizeof(piece.address));
  pieces_.push_back({.argument = field.name,
                     .address = reinterpret_cast<uint64_t>(piece.address),
                     .bytes = piece.bytes,
                     .dtype = piece.allocation->dtype});
  named_.push_back(std::move(piece));
}

void TaskArgs::refuse(const mk::ArgField& field, const char* expected,
                      const nb::object& seen) const {
  throw InvalidArgument(mk::argument_name(field.name, type_.name, task_), expected, text_of(seen));
}

}  // namespace tokenyard::python
