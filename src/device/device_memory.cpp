#include "device/device_memory.hpp"

#include <algorithm>

namespace tokenyard {

DeviceMemory::DeviceMemory(Accelerator& accelerator, size_t bytes, Kind kind)
    : accelerator_(accelerator),
      kind_(kind),
      memory_(kind == Kind::device ? accelerator.allocate(std::max<size_t>(bytes, 1))
                                   : accelerator.allocate_shared(std::max<size_t>(bytes, 1))) {}

DeviceMemory::~DeviceMemory() {
  if (kind_ == Kind::device)
    accelerator_.free(memory_);
  else
    accelerator_.free_shared(memory_);
}

}  // namespace tokenyard
