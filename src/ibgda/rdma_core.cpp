/// The plug-in: calls of rdma-core's libibverbs and libmlx5, and nothing else. It has never met a
/// card.
#include <fmt/format.h>
#include <infiniband/verbs.h>
#include <net/if.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "base/os_failure.hpp"
#include "ibgda/device_choice.hpp"
#include "ibgda/driver_plugin.hpp"
#include "ibgda/rdma_driver.hpp"
#include "tokenyard/error.hpp"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#include <infiniband/mlx5dv.h>
#pragma GCC diagnostic pop

namespace tokenyard::ibgda {

namespace {

constexpr int kHopLimit = 64;

template <class Thing>
Thing* require(Thing* thing, const char* call) {
  if (thing == nullptr) os_failed(call);
  return thing;
}
void require_zero(int error, const char* call) {
  if (error != 0) os_failed(call, error);
}

template <class Thing>
Handle handle_of(Thing* thing) {
  return reinterpret_cast<Handle>(thing);
}
template <class Thing>
Thing* thing_of(Handle handle) {
  return reinterpret_cast<Thing*>(handle);
}

struct CloseContext {
  void operator()(ibv_context* context) const { ibv_close_device(context); }
};
using Context = std::unique_ptr<ibv_context, CloseContext>;

/// Opens a device so that it takes commands; null with errno if it does not.
Context open_context(ibv_device* device) {
  mlx5dv_context_attr attributes{};
  attributes.flags = MLX5DV_CONTEXT_FLAGS_DEVX;
  return Context(mlx5dv_open_device(device, &attributes));
}

using DeviceList = std::unique_ptr<ibv_device*, decltype(&ibv_free_device_list)>;

/// Returns the devices of this host, and their number.
DeviceList list_devices(int& count) {
  DeviceList list(ibv_get_device_list(&count), ibv_free_device_list);
  if (list) return list;
  // A kernel without RDMA.
  count = 0;
  if (errno != ENOSYS) os_failed("ibv_get_device_list");
  return list;
}

std::string pci_of(const ibv_device& device) {
  const std::string link = std::string(device.ibdev_path) + "/device";
  const std::unique_ptr<char, decltype(&std::free)> path(realpath(link.c_str(), nullptr),
                                                         std::free);
  return path ? path.get() : "";
}

const char* state_of(ibv_port_state state) {
  switch (state) {
    case IBV_PORT_DOWN:
      return "down";
    case IBV_PORT_INIT:
      return "initializing: no subnet manager has set it up";
    case IBV_PORT_ARMED:
      return "armed";
    case IBV_PORT_ACTIVE:
      return "active";
    case IBV_PORT_ACTIVE_DEFER:
      return "active, link lost";
    default:
      return "unknown";
  }
}

double rate_of(const ibv_port_attr& port) {
  const double lanes = port.active_width == 1   ? 1
                       : port.active_width == 2 ? 4
                       : port.active_width == 4 ? 8
                       : port.active_width == 8 ? 12
                                                : 2;
  // Gbit/s per lane, by the bits of the specification.
  constexpr std::pair<uint32_t, double> kSpeeds[] = {{1, 2.5}, {2, 5},   {4, 10},  {8, 10},
                                                     {16, 14}, {32, 25}, {64, 50}, {128, 100}};
  for (const auto& [bit, rate] : kSpeeds)
    if (port.active_speed == bit) return lanes * rate;
  return 0;
}

GidFacts::Kind kind_of(uint32_t type) {
  switch (type) {
    case IBV_GID_TYPE_ROCE_V1:
      return GidFacts::Kind::roce_v1;
    case IBV_GID_TYPE_ROCE_V2:
      return GidFacts::Kind::roce_v2;
    default:
      return GidFacts::Kind::infiniband;
  }
}

void add_gids(ibv_context* context, uint8_t number, int entries, PortFacts& port) {
  for (int index = 0; index < entries; ++index) {
    ibv_gid_entry entry{};
    // An entry that is not in use is an error.
    if (ibv_query_gid_ex(context, number, static_cast<uint32_t>(index), &entry, 0) != 0) continue;
    GidFacts facts{.index = entry.gid_index, .kind = kind_of(entry.gid_type), .gid = {}};
    std::copy_n(entry.gid.raw, facts.gid.size(), facts.gid.begin());
    port.gids.push_back(facts);
    char name[IF_NAMESIZE] = {};
    if (entry.ndev_ifindex == 0 || if_indextoname(entry.ndev_ifindex, name) == nullptr) continue;
    if (std::ranges::count(port.nets, name) == 0) port.nets.emplace_back(name);
  }
}

PortFacts port_of(ibv_context* context, uint8_t number) {
  ibv_port_attr attributes{};
  require_zero(ibv_query_port(context, number, &attributes), "ibv_query_port");
  PortFacts port{.number = number,
                 .state = state_of(attributes.state),
                 .ethernet = attributes.link_layer == IBV_LINK_LAYER_ETHERNET,
                 .lid = attributes.lid,
                 .mtu = static_cast<uint8_t>(attributes.active_mtu),
                 .gigabits_per_s = rate_of(attributes)};
  add_gids(context, number, attributes.gid_tbl_len, port);
  for (uint16_t index = 0; index < attributes.pkey_tbl_len; ++index) {
    __be16 key = 0;
    if (ibv_query_pkey(context, number, index, &key) != 0) break;
    port.pkeys.push_back(be16toh(key));
  }
  while (!port.pkeys.empty() && port.pkeys.back() == 0) port.pkeys.pop_back();
  return port;
}

void ask(ibv_device* device, DeviceFacts& facts) {
  facts.name = ibv_get_device_name(device);
  facts.pci = pci_of(*device);
  facts.is_mlx5 = mlx5dv_is_supported(device);
  const Context context = facts.is_mlx5 ? open_context(device) : Context(ibv_open_device(device));
  if (!context) {
    facts.why_not = fmt::format("it cannot be opened{}: {}",
                                facts.is_mlx5 ? " for commands (DEVX)" : "", std::strerror(errno));
    return;
  }
  ibv_device_attr attributes{};
  require_zero(ibv_query_device(context.get(), &attributes), "ibv_query_device");
  for (uint8_t number = 1; number <= attributes.phys_port_cnt; ++number)
    facts.ports.push_back(port_of(context.get(), number));
}

class Device final : public RdmaDevice {
 public:
  explicit Device(Context context)
      : context_(std::move(context)),
        domain_(require(ibv_alloc_pd(context_.get()), "ibv_alloc_pd"), ibv_dealloc_pd) {}

  uint32_t protection_domain() override {
    mlx5dv_pd facts{};
    mlx5dv_obj object{};
    object.pd.in = domain_.get();
    object.pd.out = &facts;
    require_zero(mlx5dv_init_obj(&object, MLX5DV_OBJ_PD), "mlx5dv_init_obj");
    return facts.pdn;
  }
  uint32_t event_queue() override {
    uint32_t number = 0;
    require_zero(mlx5dv_devx_query_eqn(context_.get(), 0, &number), "mlx5dv_devx_query_eqn");
    return number;
  }

  int query(std::span<const std::byte> in, std::span<std::byte> out) override {
    return error_of(
        mlx5dv_devx_general_cmd(context_.get(), in.data(), in.size(), out.data(), out.size()));
  }
  int create(std::span<const std::byte> in, std::span<std::byte> out, Handle& made) override {
    mlx5dv_devx_obj* const object =
        mlx5dv_devx_obj_create(context_.get(), in.data(), in.size(), out.data(), out.size());
    made = handle_of(object);
    return object == nullptr ? errno : 0;
  }
  int modify(Handle object, std::span<const std::byte> in, std::span<std::byte> out) override {
    return error_of(mlx5dv_devx_obj_modify(thing_of<mlx5dv_devx_obj>(object), in.data(), in.size(),
                                           out.data(), out.size()));
  }
  int destroy(Handle object) override {
    return error_of(mlx5dv_devx_obj_destroy(thing_of<mlx5dv_devx_obj>(object)));
  }

  QueueMemory lend(void* memory, size_t bytes) override {
    mlx5dv_devx_umem* const pages =
        require(mlx5dv_devx_umem_reg(context_.get(), memory, bytes, IBV_ACCESS_LOCAL_WRITE),
                "mlx5dv_devx_umem_reg");
    return {.handle = handle_of(pages), .number = pages->umem_id};
  }
  void take_back(const QueueMemory& memory) override {
    require_zero(error_of(mlx5dv_devx_umem_dereg(thing_of<mlx5dv_devx_umem>(memory.handle))),
                 "mlx5dv_devx_umem_dereg");
  }
  RegisteredMemory register_memory(void* memory, size_t bytes) override {
    ibv_mr* const region = require(ibv_reg_mr(domain_.get(), memory, bytes, kAccess), "ibv_reg_mr");
    return {.handle = handle_of(region), .key = region->lkey};
  }
  RegisteredMemory register_dma_buf(int descriptor, uint64_t offset, size_t bytes,
                                    uint64_t address) override {
    ibv_mr* const region =
        require(ibv_reg_dmabuf_mr(domain_.get(), offset, bytes, address, descriptor, kAccess),
                "ibv_reg_dmabuf_mr");
    return {.handle = handle_of(region), .key = region->lkey};
  }
  void deregister(const RegisteredMemory& memory) override {
    require_zero(ibv_dereg_mr(thing_of<ibv_mr>(memory.handle)), "ibv_dereg_mr");
  }
  RegisterPage map_registers() override {
    // Not cached and not combined: queues share the page, and each doorbell must reach the card.
    mlx5dv_devx_uar* const page = require(
        mlx5dv_devx_alloc_uar(context_.get(), MLX5DV_UAR_ALLOC_TYPE_NC), "mlx5dv_devx_alloc_uar");
    return {.handle = handle_of(page),
            .number = page->page_id,
            .blue_flame = static_cast<std::byte*>(page->reg_addr)};
  }
  void unmap(const RegisterPage& page) override {
    mlx5dv_devx_free_uar(thing_of<mlx5dv_devx_uar>(page.handle));
  }
  EthernetRoute route(const EthernetPath& path) override {
    ibv_ah_attr attributes{};
    std::copy(path.target.begin(), path.target.end(), attributes.grh.dgid.raw);
    attributes.grh.sgid_index = path.gid_index;
    attributes.grh.hop_limit = kHopLimit;
    attributes.grh.traffic_class = path.traffic_class;
    attributes.is_global = 1;
    attributes.port_num = path.port;
    const std::unique_ptr<ibv_ah, decltype(&ibv_destroy_ah)> handle(
        require(ibv_create_ah(domain_.get(), &attributes), "ibv_create_ah"), ibv_destroy_ah);
    mlx5dv_ah facts{};
    mlx5dv_obj object{};
    object.ah.in = handle.get();
    object.ah.out = &facts;
    require_zero(mlx5dv_init_obj(&object, MLX5DV_OBJ_AH), "mlx5dv_init_obj");
    EthernetRoute route{.mac = {}, .udp_source_port = be16toh(facts.av->rlid)};
    std::copy_n(facts.av->rmac, route.mac.size(), route.mac.begin());
    return route;
  }

 private:
  /// Without IBV_ACCESS_RELAXED_ORDERING: a signal must not overtake puts on the way to memory.
  static constexpr int kAccess =
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

  /// Some calls return the errno, others -1.
  static int error_of(int result) { return result < 0 ? errno : result; }

  Context context_;
  std::unique_ptr<ibv_pd, decltype(&ibv_dealloc_pd)> domain_;
};

class RdmaCore final : public RdmaDriver {
 public:
  std::vector<DeviceFacts> devices() override {
    int count = 0;
    const DeviceList list = list_devices(count);
    return ask_each(static_cast<size_t>(count),
                    [&](size_t index, DeviceFacts& facts) { ask(list.get()[index], facts); });
  }
  std::unique_ptr<RdmaDevice> open(const std::string& name) override {
    std::unique_ptr<RdmaDevice> opened;
    int count = 0;
    const DeviceList list = list_devices(count);
    for (int index = 0; index < count; ++index) {
      ibv_device* const device = list.get()[index];
      if (name != ibv_get_device_name(device)) continue;
      Context context = open_context(device);
      if (!context) os_failed("mlx5dv_open_device of " + name);
      opened = std::make_unique<Device>(std::move(context));
    }
    if (!opened) throw Unsupported("network \"ibgda\"", name + " is there no more");
    return opened;
  }
};

}  // namespace

}  // namespace tokenyard::ibgda

extern "C" {

[[gnu::visibility("default")]] extern const uint32_t tokenyard_rdma_version =
    tokenyard::ibgda::kRdmaVersion;

[[gnu::visibility("default")]] tokenyard::ibgda::RdmaDriver* tokenyard_rdma_driver() {
  return new tokenyard::ibgda::RdmaCore();
}
}
