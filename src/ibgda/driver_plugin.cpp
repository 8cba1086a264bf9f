#include "ibgda/driver_plugin.hpp"

#include "fabric/plugin.hpp"
#include "ibgda/device_choice.hpp"
#include "ibgda/ibgda_options.hpp"

namespace tokenyard::ibgda {

std::shared_ptr<RdmaDriver> load_rdma_driver(const std::string& library) {
  const KeptSignals kept;
  auto* const make = reinterpret_cast<MakeRdmaDriver*>(
      load_plugin(library, {.version = "tokenyard_rdma_version",
                            .expected = kRdmaVersion,
                            .function = "tokenyard_rdma_driver"}));
  return std::shared_ptr<RdmaDriver>(make());
}

std::string rdma_text() {
  const auto devices = load_rdma_driver()->devices();
  const DeviceRequest request = asks_for_ibgda({}) ? ibgda_options_of({}).request : DeviceRequest{};
  const DeviceChoice choice = choose_device(devices, request);
  return "cards, over TOKENYARD_NETWORK=ibgda: " + text_of(devices) + "; chosen would be " +
         text_of(choice);
}

}  // namespace tokenyard::ibgda
