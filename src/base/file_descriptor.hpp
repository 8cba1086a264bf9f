/// Owns a file descriptor.
#pragma once

namespace tokenyard {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int native) : native_(native) {}
  FileDescriptor(FileDescriptor&& other) noexcept : native_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor() { close(); }

  int native() const { return native_; }
  explicit operator bool() const { return native_ >= 0; }
  int release() {
    const int native = native_;
    native_ = -1;
    return native;
  }
  void close();

 private:
  int native_ = -1;
};

}  // namespace tokenyard
