#include "base/file_descriptor.hpp"

#include <unistd.h>

namespace tokenyard {

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    close();
    native_ = other.release();
  }
  return *this;
}

void FileDescriptor::close() {
  if (native_ >= 0) ::close(native_);
  native_ = -1;
}

}  // namespace tokenyard
