/// Makes transports over libfabric. Peers are connected once each has said hello.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fabric/proxy/transport_plugin.hpp"
#include "libfabric/libfabric_transport.hpp"

namespace tokenyard::libfabric {

class LibfabricMaker final : public TransportMaker {
 public:
  /// Throws Unsupported if the provider has room for too few messages.
  LibfabricMaker(std::unique_ptr<Provider> provider, const TransportPlace& place);

  std::string name() const override { return name_; }
  std::vector<std::byte> card() const override;
  void begin(const TransportCards& cards, const std::vector<bool>& reached) override;
  bool step(TimePoint now) override;
  std::optional<std::string> missing() const override;
  std::string way(uint32_t rank) const override;
  std::string why_no_gpu_memory() const override { return why_no_gpu_memory_; }
  std::unique_ptr<Transport> make() override { return std::move(transport_); }

 private:
  const TransportPlace place_;
  const std::string name_;
  std::unique_ptr<Provider> provider_;  ///< until the transport has it
  LibfabricTransport::Options options_;
  std::string way_, why_no_gpu_memory_;
  std::unique_ptr<LibfabricTransport> transport_;
};

/// Opens the provider of a plug-in: libfabric's, or one of a test.
std::unique_ptr<Provider> provider_for(const PluginOptions& options, const TransportPlace& place);

}  // namespace tokenyard::libfabric
