// Frames of collectives and messages, which have no seal: an engine whose only peer sends anything.
// Its operations may fail, with the library's errors, and write to no memory but their own. Polling
// itself never fails: the thread that does it has nobody to tell.
#include <memory>

#include "collectives/engine/engine.hpp"
#include "collectives/memory_transport.hpp"
#include "fuzz/fuzz.hpp"

namespace tokenyard::collectives {
namespace {

using fuzz::Input;
using namespace std::chrono_literals;

class DeafControl final : public control::MembershipControl {
 public:
  void report_timeout(const TimeoutReport&, Epoch) override {}
  void admit(const std::vector<Slot>&, Epoch) override {}
  void withdraw(const std::vector<Slot>&) override {}
  void evict(const Member&) override {}
  void recover(bool) override {}
  void leave() override {}
};

constexpr size_t kElements = 24;

class Rank {
 public:
  Rank() {
    engine_.use(control_);
    engine_.add_group({.id = 0, .name = "world", .slots = {0, 1}, .self = 0});
    engine_.install({.next = {.epoch = 1, .slots = 2, .members = {{0, 1}, {1, 1}}}}, {});
  }

  void begin(Input& input) {
    const Array array{.data = numbers_.data(), .elements = kElements, .type = DataType::int32};
    switch (input.up_to(4)) {
      case 0:
        outcomes_.push_back(engine_.receive(0, array, std::nullopt, input.up_to(2), kTimeout));
        break;
      case 1:
        outcomes_.push_back(engine_.receive(0, array, 1, input.up_to(2), kTimeout));
        break;
      case 2:
        outcomes_.push_back(engine_.send(0, ConstArray{array}, 1, input.up_to(2), kTimeout));
        break;
      default: {
        Call call;
        call.signature = {.kind = input.flag() ? OperationKind::barrier : OperationKind::broadcast,
                          .type = DataType::int32};
        if (call.signature.kind == OperationKind::broadcast) {
          call.signature.elements = kElements;
          call.signature.root = 1;
          call.out = {array};
        }
        outcomes_.push_back(engine_.start(0, std::move(call), kTimeout));
      }
    }
  }
  /// The peer sends a frame whose header is right but for what the input chooses.
  void send_frame(Input& input) {
    FrameHeader header;
    header.kind = static_cast<FrameKind>(input.number<uint8_t>());
    header.step = input.up_to(3);
    header.sequence = input.flag() ? input.number<uint64_t>() : input.up_to(4);
    header.signature.kind = static_cast<OperationKind>(input.number<uint8_t>());
    header.signature.type = static_cast<DataType>(input.number<uint8_t>());
    header.signature.elements = input.flag() ? input.number<uint64_t>() : kElements;
    header.signature.lengths = input.up_to(2);
    header.signature.root = input.up_to(2);
    const auto payload = input.bytes(input.number<uint8_t>());
    header.bytes = input.flag() ? input.number<uint64_t>() : payload.size();
    const Lane lane = input.flag() ? Lane::collective : Lane::point_to_point;
    send(lane, std::as_bytes(std::span(&header, 1)));
    send(lane, payload);
    const std::byte padding[16] = {};
    send(lane, std::span(padding).first(padding_of(payload.size())));
  }
  void send_bytes(Input& input) {
    const Lane lane = input.flag() ? Lane::collective : Lane::point_to_point;
    send(lane, input.bytes(input.number<uint8_t>()));
  }
  void poll() {
    now_ += 1ms;
    engine_.poll(true);
    // The other end takes what this one sends.
    for (const Lane lane : {Lane::collective, Lane::point_to_point}) {
      testing::MemoryPipe& out = *network_.pipe(1, 0, lane, 0, 1);
      while (const size_t bytes = out.readable(kRingBytes).size()) out.consume(bytes);
    }
  }
  void end() {
    now_ += 2 * kTimeout;
    for (int i = 0; i < 4; ++i) poll();
    engine_.cancel(std::make_exception_ptr(Cancelled("the end")));
    for (const auto& outcome : outcomes_) {
      if (!outcome->done() || !outcome->error()) continue;
      try {
        std::rethrow_exception(outcome->error());
      } catch (const Error&) {
        // A failure with a name.
      }
    }
  }

 private:
  static constexpr size_t kRingBytes = 64 << 10;
  static constexpr std::chrono::nanoseconds kTimeout = 50ms;

  void send(Lane lane, std::span<const std::byte> bytes) {
    network_.pipe(1, 0, lane, 1, 0)->write(bytes);
  }

  testing::MemoryNetwork network_{kRingBytes};
  DeafControl control_;
  Instant now_ = 0s;
  /// On the heap, so that a sanitizer sees what lies beyond its end.
  std::vector<int32_t> numbers_ = std::vector<int32_t>(kElements);
  Engine engine_{std::make_shared<testing::MemoryTransport>(network_, 0), EngineOptions{.self = 0},
                 [this] { return now_; }};
  std::vector<std::shared_ptr<Outcome>> outcomes_;
};

void run(Input input) {
  Rank rank;
  while (!input.empty()) {
    switch (input.up_to(5)) {
      case 0:
        rank.begin(input);
        break;
      case 1:
        rank.send_bytes(input);
        break;
      case 2:
      case 3:
        rank.send_frame(input);
        break;
      default:
        rank.poll();
    }
  }
  rank.end();
}

}  // namespace
}  // namespace tokenyard::collectives

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tokenyard::collectives::run({data, size});
  return 0;
}
