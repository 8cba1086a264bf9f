#include "libfabric/provider.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "fabric/network/locked_memory.hpp"
#include "net/key.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::libfabric {

namespace {

constexpr uint32_t kVersion = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION);
constexpr size_t kCompletionsMin = 4096;
/// A provider that has nothing to sleep on is looked at this often.
constexpr std::chrono::microseconds kNap{500};

void check(int result, const char* call) {
  if (result < 0) throw OsError(call, -result, fi_strerror(-result));
}

struct CloseObject {
  void operator()(auto* object) const { (void)fi_close(&object->fid); }
};
template <class T>
using Owned = std::unique_ptr<T, CloseObject>;

struct FreeInfo {
  void operator()(fi_info* info) const { fi_freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, FreeInfo>;

Info hints_of(const ProviderOptions& options) {
  Info hints(fi_allocinfo());
  if (!hints) throw OsError("fi_allocinfo", FI_ENOMEM, fi_strerror(FI_ENOMEM));
  hints->caps = FI_MSG | FI_RMA;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
  if (!options.offsets) hints->domain_attr->mr_mode |= FI_MR_VIRT_ADDR;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
  hints->domain_attr->av_type = FI_AV_TABLE;
  // The library frees the name.
  if (!options.provider.empty()) hints->fabric_attr->prov_name = strdup(options.provider.c_str());
  return hints;
}

/// Without a wish, memory of one host is no network, and neither are providers for tests.
bool is_wanted(const fi_info& info, const ProviderOptions& options) {
  const std::string_view name = info.fabric_attr->prov_name;
  if (options.provider.empty() && (name == "shm" || name == "sockets" || name.starts_with("udp")))
    return false;
  return options.interface.empty() || options.interface == info.domain_attr->name;
}

/// Returns what there is at an address of this rank; at any, if it is empty.
Info found_at(const ProviderOptions& options, const std::string& address) {
  const Info hints = hints_of(options);
  fi_info* found = nullptr;
  const int result =
      address.empty()
          ? fi_getinfo(kVersion, nullptr, nullptr, 0, hints.get(), &found)
          : fi_getinfo(kVersion, address.c_str(), nullptr, FI_SOURCE, hints.get(), &found);
  if (result != 0 && result != -FI_ENODATA) check(result, "fi_getinfo");
  return Info(found);
}

Info duplicate(const fi_info& info) {
  return Info(fi_dupinfo(&info));
}

Info choose(const ProviderOptions& options) {
  const bool asks_address = options.interface.find_first_of(".:") != std::string::npos;
  ProviderOptions any = options;
  if (asks_address) any.interface.clear();
  const std::string address = asks_address ? options.interface : options.address;
  // A provider may know no such address: those of one host, or of cards without IP.
  for (const bool by_address : {true, false}) {
    if (by_address ? address.empty() || !any.interface.empty() : asks_address) continue;
    Info found;
    try {
      found = found_at(any, by_address ? address : "");
    } catch (const OsError&) {
      if (!by_address) throw;
    }
    for (const fi_info* each = found.get(); each != nullptr; each = each->next)
      if (is_wanted(*each, any)) return duplicate(*each);
  }
  ProviderOptions all;
  const Info found = found_at(all, "");
  std::string names;
  for (const fi_info* each = found.get(); each != nullptr; each = each->next) {
    const std::string name =
        fmt::format("{} on {}", each->fabric_attr->prov_name, each->domain_attr->name);
    if (names.find(name) == std::string::npos) names += (names.empty() ? "" : ", ") + name;
  }
  throw Unsupported(
      fmt::format("libfabric's provider {}{}",
                  options.provider.empty() ? "for this rank" : options.provider,
                  options.interface.empty() ? "" : " on " + options.interface),
      names.empty() ? "libfabric finds no provider here" : "libfabric finds here " + names);
}

/// A rank's provider, and why that takes no memory of a GPU; empty: it may.
struct Choice {
  Info info;
  std::string why_no_gpu_memory;
};

/// Returns the same provider and domain as one that also takes memory of GPUs, if it offers that.
/// It is no reason to choose another one.
Choice with_gpu_memory(Info chosen, const ProviderOptions& options) {
  if (!options.gpu) return {std::move(chosen), "there is no GPU"};
  Info hints = duplicate(*chosen);
  hints->caps |= FI_HMEM;
  hints->domain_attr->mr_mode = Info(hints_of(options))->domain_attr->mr_mode | FI_MR_HMEM;
  fi_info* found = nullptr;
  const int result = fi_getinfo(kVersion, nullptr, nullptr, 0, hints.get(), &found);
  const Info all(found);
  for (const fi_info* each = all.get(); result == 0 && each != nullptr; each = each->next) {
    if ((each->caps & FI_HMEM) != 0 &&
        std::strcmp(each->domain_attr->name, chosen->domain_attr->name) == 0)
      return {duplicate(*each), {}};
  }
  std::string why = fmt::format("{} on {} offers no FI_HMEM", chosen->fabric_attr->prov_name,
                                chosen->domain_attr->name);
  return {std::move(chosen), std::move(why)};
}

class LibfabricRegion final : public Region {
 public:
  LibfabricRegion(Owned<fid_mr> handle, uint64_t begin, std::optional<DmaBuf> of = {})
      : dma_buf_(std::move(of)), handle_(std::move(handle)) {
    key = fi_mr_key(handle_.get());
    base = begin;
    descriptor = fi_mr_desc(handle_.get());
  }

 private:
  const std::optional<DmaBuf> dma_buf_;  ///< of its memory, if it was registered by that
  Owned<fid_mr> handle_;
};

class LibfabricProvider final : public Provider {
 public:
  explicit LibfabricProvider(const ProviderOptions& options)
      : LibfabricProvider(options, with_gpu_memory(choose(options), options)) {}

  LibfabricProvider(const ProviderOptions& options, Choice choice)
      : info_(std::move(choice.info)), gpu_(options.gpu) {
    fid_fabric* fabric = nullptr;
    check(fi_fabric(info_->fabric_attr, &fabric, nullptr), "fi_fabric");
    fabric_.reset(fabric);
    fid_domain* domain = nullptr;
    check(fi_domain(fabric, info_.get(), &domain, nullptr), "fi_domain");
    domain_.reset(domain);
    fi_av_attr addresses{};
    addresses.type = FI_AV_TABLE;
    fid_av* table = nullptr;
    check(fi_av_open(domain, &addresses, &table, nullptr), "fi_av_open");
    addresses_.reset(table);
    open_completions();
    fid_ep* endpoint = nullptr;
    check(fi_endpoint(domain, info_.get(), &endpoint, nullptr), "fi_endpoint");
    endpoint_.reset(endpoint);
    check(fi_ep_bind(endpoint, &completions_->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
    check(fi_ep_bind(endpoint, &table->fid, 0), "fi_ep_bind");
    check(fi_enable(endpoint), "fi_enable");
    const fi_domain_attr& of = *info_->domain_attr;
    const fi_tx_attr& sends = *info_->tx_attr;
    const uint64_t order = sends.msg_order & info_->rx_attr->msg_order;
    constexpr uint64_t kOrder = FI_ORDER_SAW | FI_ORDER_WAW;
    facts_ = {.name = info_->fabric_attr->prov_name,
              .interface = of.name,
              .ordered = (order & kOrder) == kOrder &&
                         info_->ep_attr->max_order_waw_size >= info_->ep_attr->max_msg_size,
              .tells_data = of.cq_data_size >= sizeof(uint32_t),
              .message_max = info_->ep_attr->max_msg_size,
              .pieces_max = std::min<size_t>(sends.iov_limit, 2),
              .receives_max = info_->rx_attr->size,
              .why_no_gpu_memory = std::move(choice.why_no_gpu_memory)};
  }

  const Facts& facts() const override { return facts_; }

  std::vector<std::byte> address() const override {
    std::vector<std::byte> name(256);
    size_t bytes = name.size();
    check(fi_getname(&endpoint_->fid, name.data(), &bytes), "fi_getname");
    name.resize(bytes);
    return name;
  }

  uint64_t insert(std::span<const std::byte> address) override {
    fi_addr_t peer = FI_ADDR_UNSPEC;
    const int inserted = fi_av_insert(addresses_.get(), address.data(), 1, &peer, 0, nullptr);
    check(inserted, "fi_av_insert");
    if (inserted != 1) throw OsError("fi_av_insert", FI_EINVAL, "it takes no such address");
    return peer;
  }

  std::unique_ptr<Region> register_memory(std::span<std::byte> memory, bool from_peers) override {
    const uint64_t access =
        from_peers ? FI_WRITE | FI_REMOTE_WRITE : uint64_t{FI_SEND} | uint64_t{FI_RECV};
    auto region = region_of([&](uint64_t key, fid_mr** made) {
      const int result =
          fi_mr_reg(domain_.get(), memory.data(), memory.size(), access, 0, key, 0, made, nullptr);
      if (result == -FI_ENOMEM) refuse_to_lock("fi_mr_reg", memory.size());
      return result;
    });
    if (region.result < 0) check(region.result, region.call);
    return std::make_unique<LibfabricRegion>(std::move(region.handle), base_of(memory));
  }

  std::unique_ptr<Region> register_gpu_memory(std::span<std::byte> memory) override {
    // Most providers find what they need by the GPU's number; some take dma-bufs alone.
    const iovec whole{memory.data(), memory.size()};
    fi_mr_attr attributes{};
    attributes.mr_iov = &whole;
    attributes.iov_count = 1;
    attributes.access = FI_REMOTE_WRITE;
    attributes.iface = FI_HMEM_CUDA;
    attributes.device.cuda = gpu_->device();
    auto region = region_of(attributes, 0);
    if (region.result == 0)
      return std::make_unique<LibfabricRegion>(std::move(region.handle), base_of(memory));
    const std::string why = fmt::format("{} failed: {}", region.call, fi_strerror(-region.result));
#ifdef FI_MR_DMABUF
    std::string why_no_dma_buf = gpu_->why_no_dma_buf();
    auto dma_buf = why_no_dma_buf.empty() ? gpu_->dma_buf(memory.data(), memory.size())
                                          : std::optional<DmaBuf>();
    if (dma_buf) {
      const fi_mr_dmabuf buffer{.fd = dma_buf->descriptor.native(),
                                .offset = dma_buf->offset,
                                .len = memory.size(),
                                .base_addr = memory.data() - dma_buf->offset};
      attributes.dmabuf = &buffer;
      auto by_buffer = region_of(attributes, FI_MR_DMABUF);
      if (by_buffer.result == 0)
        return std::make_unique<LibfabricRegion>(std::move(by_buffer.handle), base_of(memory),
                                                 std::move(dma_buf));
      why_no_dma_buf = fmt::format("{} failed: {}", by_buffer.call, fi_strerror(-by_buffer.result));
    }
#else
    const std::string why_no_dma_buf = "libfabric 1.20 has it, and the plug-in was built for older";
#endif
    throw OsError("fi_mr_regattr", -region.result,
                  fmt::format("memory of a GPU: {}; by a dma-buf: {}", why, why_no_dma_buf));
  }

  Posted send(uint64_t peer, std::span<const std::byte> message, const Region& region,
              Operation& operation) override {
    return posted(fi_send(endpoint_.get(), message.data(), message.size(), region.descriptor, peer,
                          &operation),
                  "fi_send");
  }

  Posted receive(std::span<std::byte> into, const Region& region, Operation& operation) override {
    return posted(fi_recv(endpoint_.get(), into.data(), into.size(), region.descriptor,
                          FI_ADDR_UNSPEC, &operation),
                  "fi_recv");
  }

  Posted write(uint64_t peer, const Write& write, Operation& operation) override {
    std::array<iovec, 2> sources{};
    std::array<void*, 2> descriptors{};
    size_t count = 0, bytes = 0;
    for (size_t piece = 0; piece < write.pieces.size(); ++piece) {
      const auto& source = write.pieces[piece];
      if (source.empty()) continue;
      sources[count] = {const_cast<std::byte*>(source.data()), source.size()};
      descriptors[count++] =
          write.regions[piece] == nullptr ? nullptr : write.regions[piece]->descriptor;
      bytes += source.size();
    }
    const fi_rma_iov target{.addr = write.target, .len = bytes, .key = write.key};
    fi_msg_rma message{};
    message.msg_iov = sources.data();
    message.desc = descriptors.data();
    message.iov_count = count;
    message.addr = peer;
    message.rma_iov = &target;
    message.rma_iov_count = 1;
    message.context = &operation;
    message.data = write.data.value_or(0);
    uint64_t flags = FI_COMPLETION;
    if (write.data) flags |= FI_REMOTE_CQ_DATA;
    if (write.delivered) flags |= FI_DELIVERY_COMPLETE;
    return posted(fi_writemsg(endpoint_.get(), &message, flags), "fi_writemsg");
  }

  size_t poll(std::span<Completion> completions) override {
    entries_.resize(completions.size());
    const ssize_t count = fi_cq_read(completions_.get(), entries_.data(), completions.size());
    if (count == -FI_EAGAIN) return 0;
    if (count == -FI_EAVAIL) return poll_failed(completions[0]);
    check(static_cast<int>(count), "fi_cq_read");
    for (size_t index = 0; index < static_cast<size_t>(count); ++index) {
      const fi_cq_data_entry& entry = entries_[index];
      const bool landed = (entry.flags & FI_REMOTE_WRITE) != 0;
      completions[index] = {
          .operation = landed ? nullptr : static_cast<Operation*>(entry.op_context),
          .data = static_cast<uint32_t>(entry.data),
          .bytes = entry.len,
          .error = 0};
    }
    return static_cast<size_t>(count);
  }

  std::string why() const override { return why_; }

  void stop() override {
    // Regions that are bound to an endpoint end before it.
    if ((info_->domain_attr->mr_mode & FI_MR_ENDPOINT) == 0) endpoint_.reset();
  }

  void sleep(std::chrono::nanoseconds at_most, int waker) override {
    std::array<pollfd, 2> descriptors{pollfd{waker, POLLIN, 0}, pollfd{descriptor_, POLLIN, 0}};
    nfds_t count = 1;
    if (descriptor_ >= 0) {
      fid* what = &completions_->fid;
      if (fi_trywait(fabric_.get(), &what, 1) != FI_SUCCESS) return;
      count = 2;
    } else {
      at_most = std::min<std::chrono::nanoseconds>(at_most, kNap);
    }
    const auto seconds = std::chrono::floor<std::chrono::seconds>(at_most);
    const timespec time{seconds.count(), (at_most - seconds).count()};
    (void)ppoll(descriptors.data(), count, &time, nullptr);
  }

 private:
  /// A region that was made, or the call that failed.
  struct Registration {
    Owned<fid_mr> handle;
    int result = 0;
    const char* call = "fi_mr_reg";
  };
  /// `make` is asked for a region with a key that it may take or not.
  Registration region_of(const auto& make) {
    const fi_domain_attr& of = *info_->domain_attr;
    const uint64_t mask =
        of.mr_key_size >= sizeof(uint64_t) ? ~uint64_t{0} : (uint64_t{1} << 8 * of.mr_key_size) - 1;
    Registration made;
    fid_mr* region = nullptr;
    // A key may be taken: then another one will do.
    for (int tries = 0; region == nullptr; ++tries) {
      made.result = make(net::random_number() & mask, &region);
      if (made.result < 0 && (made.result != -FI_ENOKEY || tries == 8)) return made;
    }
    made.handle.reset(region);
    if ((of.mr_mode & FI_MR_ENDPOINT) == 0) return made;
    made.call = "fi_mr_bind";
    made.result = fi_mr_bind(region, &endpoint_->fid, 0);
    if (made.result < 0) return made;
    made.call = "fi_mr_enable";
    made.result = fi_mr_enable(region);
    return made;
  }
  Registration region_of(fi_mr_attr& attributes, uint64_t flags) {
    Registration made = region_of([&](uint64_t key, fid_mr** region) {
      attributes.requested_key = key;
      return fi_mr_regattr(domain_.get(), &attributes, flags, region);
    });
    if (made.handle == nullptr) made.call = "fi_mr_regattr";
    return made;
  }
  /// Returns where memory begins for peers.
  uint64_t base_of(std::span<const std::byte> memory) const {
    const bool virtual_addresses = (info_->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
    return virtual_addresses ? reinterpret_cast<uintptr_t>(memory.data()) : 0;
  }

  void open_completions() {
    fi_cq_attr attributes{};
    attributes.format = FI_CQ_FORMAT_DATA;
    attributes.size = std::max(kCompletionsMin, info_->tx_attr->size + info_->rx_attr->size);
    fid_cq* queue = nullptr;
    for (const auto wait : {FI_WAIT_FD, FI_WAIT_NONE}) {
      attributes.wait_obj = wait;
      const int result = fi_cq_open(domain_.get(), &attributes, &queue, nullptr);
      if (result == 0) break;
      if (wait == FI_WAIT_NONE) check(result, "fi_cq_open");
    }
    completions_.reset(queue);
    if (attributes.wait_obj == FI_WAIT_FD && fi_control(&queue->fid, FI_GETWAIT, &descriptor_) != 0)
      descriptor_ = -1;
  }

  Posted posted(ssize_t result, const char* call) {
    if (result == 0) return Posted::yes;
    if (result == -FI_EAGAIN) return Posted::full;
    why_ = fmt::format("{} failed: {}", call, fi_strerror(static_cast<int>(-result)));
    return Posted::failed;
  }

  size_t poll_failed(Completion& completion) {
    fi_cq_err_entry entry{};
    const ssize_t count = fi_cq_readerr(completions_.get(), &entry, 0);
    if (count == -FI_EAGAIN) return 0;
    check(static_cast<int>(count), "fi_cq_readerr");
    std::array<char, 256> text{};
    const char* const detail = fi_cq_strerror(completions_.get(), entry.prov_errno, entry.err_data,
                                              text.data(), text.size());
    why_ = fi_strerror(entry.err);
    if (detail != nullptr && *detail != '\0' && why_ != detail)
      why_ += fmt::format(" ({})", detail);
    completion = {.operation = static_cast<Operation*>(entry.op_context),
                  .data = 0,
                  .bytes = 0,
                  .error = entry.err};
    return 1;
  }

  const Info info_;
  const std::shared_ptr<const GpuExport> gpu_;
  Facts facts_;
  Owned<fid_fabric> fabric_;
  Owned<fid_domain> domain_;
  Owned<fid_av> addresses_;
  Owned<fid_cq> completions_;
  Owned<fid_ep> endpoint_;
  int descriptor_ = -1;
  std::vector<fi_cq_data_entry> entries_;
  std::string why_;
};

}  // namespace

std::unique_ptr<Provider> open_provider(const ProviderOptions& options) {
  return std::make_unique<LibfabricProvider>(options);
}

}  // namespace tokenyard::libfabric
