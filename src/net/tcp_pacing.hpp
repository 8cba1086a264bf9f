/// Congestion control that paces, as bbr does, is made for long ways: by timers it spreads out what
/// a rank hands over at once. Between neighbours that costs more than it spares: 4 MB that take
/// 1.9 ms paced take 0.5 ms as fast as they are acknowledged (Linux 6.18, two cores).
///
/// A connection that bbr has begun keeps the timers when it gets another choice. They send in their
/// own time and on their own core, and what two cores hand on is overtaken on the way: TCP takes
/// that for loss, its window falls to a few dozen packets, and most is sent by timers then. So a
/// connection begins without, and gets back what the system chose when its way proves long.
#pragma once

#include <chrono>

#include "base/file_descriptor.hpp"

namespace tokenyard::net {

/// There and back: within a building, or two that are close.
inline constexpr std::chrono::microseconds kShortWay{1000};

/// Of a socket that is to connect or to listen. Does nothing where the system's choice is another
/// one than bbr.
void begin_unpaced(const FileDescriptor& socket);
/// Of a connection that has been made from one: from now on as the system has chosen, but over a
/// way that is shorter than that.
void pace_a_long_way(const FileDescriptor& socket, std::chrono::microseconds shorter = kShortWay);

}  // namespace tokenyard::net
