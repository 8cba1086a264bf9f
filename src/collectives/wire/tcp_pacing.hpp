/// Congestion control that paces, as bbr does, is made for long ways: by timers it spreads out what
/// a rank hands over at once. Between neighbours that costs more than it spares: 4 MB that take
/// 1.9 ms paced take 0.5 ms as fast as they are acknowledged (Linux 6.18, two cores).
#pragma once

#include "fabric/file_descriptor.hpp"

namespace tokenyard::collectives {

/// Of a connection that has been made. Does nothing where the way is long, or where the system's
/// choice is another one than bbr.
void do_not_pace_a_short_way(const FileDescriptor& socket);

}  // namespace tokenyard::collectives
