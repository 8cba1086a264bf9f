/// Congestion control with pacing, such as bbr, is made for long paths: timers spread out the
/// packets of each burst. Between neighbours that costs more than it saves: 4 MB take 1.9 ms paced
/// and 0.5 ms as fast as they are acknowledged (Linux 6.18, two cores).
///
/// A connection that started with bbr keeps its timers after it is given another algorithm. The
/// timers send in their own time on their own core, so packets from two cores overtake one another;
/// TCP takes that for loss, its window shrinks to a few dozen packets, and the timers then send
/// most of them. So a connection starts without pacing, and gets the system's choice back once its
/// path proves long.
#pragma once

#include <chrono>

#include "base/file_descriptor.hpp"

namespace tokenyard::net {

/// Round-trip time of a short path: within a building, or between two close ones.
inline constexpr std::chrono::microseconds kShortWay{1000};

/// Switches pacing off for a socket that is about to connect or listen. Does nothing unless the
/// system's choice is bbr.
void begin_unpaced(const FileDescriptor& socket);
/// Restores the system's choice for an established connection whose round trip is at least
/// `shorter`, and leaves a shorter path unpaced.
void pace_a_long_way(const FileDescriptor& socket, std::chrono::microseconds shorter = kShortWay);

}  // namespace tokenyard::net
