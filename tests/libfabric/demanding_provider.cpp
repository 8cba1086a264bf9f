/// Stands between the plug-in and libfabric's calls, and demands what cards do: it plays every mode
/// of registered memory over a provider that needs none, and refuses an operation that does not
/// keep to the mode.
///
/// Its provider's name is "MODES:" and the name of the provider beneath. MODES are letters:
///
///     l  FI_MR_LOCAL      each buffer of an operation is named by its region's descriptor
///     v  FI_MR_VIRT_ADDR  peers address a region by its memory's address
///     a  FI_MR_ALLOCATED  a region's pages exist
///     p  FI_MR_PROV_KEY   the provider chooses the keys; without it, it takes none at first
///     e  FI_MR_ENDPOINT   a region counts once it is bound to an endpoint and enabled
///     h  FI_HMEM          it offers to register memory of GPUs, of which it knows nothing
///     f                   and fails when it is asked to
///     d                   and takes dma-bufs alone, where libfabric has them
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "libfabric/libfabric_maker.hpp"
#include "libfabric/registrations.hpp"
#include "net/key.hpp"

extern "C" {
int __real_fi_getinfo(uint32_t version, const char* node, const char* service, uint64_t flags,
                      const fi_info* hints, fi_info** found);
int __real_fi_fabric(fi_fabric_attr* attributes, fid_fabric** fabric, void* context);
int __wrap_fi_getinfo(uint32_t version, const char* node, const char* service, uint64_t flags,
                      const fi_info* hints, fi_info** found);
int __wrap_fi_fabric(fi_fabric_attr* attributes, fid_fabric** fabric, void* context);
}

namespace tokenyard::libfabric {
namespace {

using testing::Registration;

struct Modes {
  int demanded = 0;
  bool offers_gpu = false, fails = false, dma_bufs_alone = false;
};

/// A region as the plug-in has it, and the real one behind it.
struct Memory {
  fid_mr handle{};
  fid_mr* real = nullptr;
  uint64_t key = 0;
  size_t number = 0;  ///< among the registrations
  bool bound = false, enabled = true;
};

/// All ranks are threads of this process.
struct State {
  std::mutex mutex;
  Modes modes;
  std::vector<Registration> registrations;
  std::map<uint64_t, Memory*> by_key;
  std::map<uint64_t, bool> refused_keys;
  std::map<fid*, fi_ops_domain*> domain_calls;
  std::map<fid*, fi_ops_mr*> memory_calls;
  std::map<fid*, fi_ops_fabric*> fabric_calls;
  std::map<fid*, fi_ops_msg*> message_calls;
  std::map<fid*, fi_ops_rma*> write_calls;
  std::vector<std::shared_ptr<void>> copies;  ///< of tables, for objects whose end is not told
};
State state;

bool demands(int mode) {
  return (state.modes.demanded & mode) != 0;
}

Memory* memory_of(fid* of) {
  return reinterpret_cast<Memory*>(reinterpret_cast<std::byte*>(of) - offsetof(Memory, handle) -
                                   offsetof(fid_mr, fid));
}

/// Returns the real descriptor of a buffer, or that the operation is refused.
bool real_descriptor(const void* buffer, size_t bytes, void*& descriptor) {
  if (descriptor == nullptr) return !demands(FI_MR_LOCAL);
  const auto* const memory = static_cast<const Memory*>(descriptor);
  const Registration& registered = state.registrations[memory->number];
  const auto* const begin = static_cast<const std::byte*>(registered.memory);
  const auto* const at = static_cast<const std::byte*>(buffer);
  if (!registered.open || !memory->enabled || at < begin || at + bytes > begin + registered.bytes)
    return false;
  descriptor = fi_mr_desc(memory->real);
  return true;
}

int close_memory(fid* of) {
  const std::unique_ptr<Memory> memory(memory_of(of));
  const std::lock_guard lock(state.mutex);
  state.by_key.erase(memory->key);
  state.registrations[memory->number].open = false;
  return fi_close(&memory->real->fid);
}
int bind_memory(fid* of, fid*, uint64_t) {
  Memory& memory = *memory_of(of);
  if (!demands(FI_MR_ENDPOINT)) return -FI_EINVAL;
  memory.bound = true;
  return 0;
}
int control_memory(fid* of, int command, void*) {
  Memory& memory = *memory_of(of);
  if (command != FI_ENABLE || !memory.bound) return -FI_EINVAL;
  memory.enabled = true;
  memory.handle.key = memory.key;
  return 0;
}
fi_ops memory_ops = {.size = sizeof(fi_ops),
                     .close = close_memory,
                     .bind = bind_memory,
                     .control = control_memory,
                     .ops_open = nullptr,
                     .tostr = nullptr,
                     .ops_set = nullptr};

bool has_pages(const void* memory, size_t bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(memory) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(memory) + bytes;
  std::vector<unsigned char> there((end - begin + page - 1) / page);
  return mincore(reinterpret_cast<void*>(begin), end - begin, there.data()) == 0;
}

int make_memory(fid* domain, const fi_mr_attr& attributes, const Registration& asked,
                fid_mr** made) {
  const std::lock_guard lock(state.mutex);
  if (demands(FI_MR_ALLOCATED) && !has_pages(asked.memory, asked.bytes)) return -FI_EFAULT;
  uint64_t key = attributes.requested_key;
  if (demands(FI_MR_PROV_KEY)) {
    key = net::random_number();
  } else if (state.by_key.contains(key) || state.refused_keys.empty()) {
    state.refused_keys[key] = true;
    return -FI_ENOKEY;
  }
  auto memory = std::make_unique<Memory>();
  const int result =
      state.memory_calls.at(domain)->reg(domain, asked.memory, asked.bytes, attributes.access, 0,
                                         net::random_number(), 0, &memory->real, nullptr);
  if (result != 0) return result;
  memory->handle.fid.fclass = FI_CLASS_MR;
  memory->handle.fid.ops = &memory_ops;
  memory->handle.mem_desc = memory.get();
  memory->key = key;
  memory->enabled = !demands(FI_MR_ENDPOINT);
  memory->handle.key = memory->enabled ? key : FI_KEY_NOTAVAIL;
  memory->number = state.registrations.size();
  state.registrations.push_back(asked);
  state.by_key[key] = memory.get();
  *made = &memory.release()->handle;
  return 0;
}

int reg(fid* domain, const void* memory, size_t bytes, uint64_t access, uint64_t, uint64_t key,
        uint64_t, fid_mr** made, void*) {
  fi_mr_attr attributes{};
  attributes.access = access;
  attributes.requested_key = key;
  return make_memory(domain, attributes, {.access = access, .memory = memory, .bytes = bytes},
                     made);
}
int regattr(fid* domain, const fi_mr_attr* attributes, uint64_t flags, fid_mr** made) {
  if (!state.modes.offers_gpu || attributes->iface != FI_HMEM_CUDA) return -FI_EINVAL;
  if (state.modes.fails) return -FI_ENOSYS;
  Registration asked{
      .of_gpu = true, .device = attributes->device.cuda, .access = attributes->access};
#ifdef FI_MR_DMABUF
  if ((flags & FI_MR_DMABUF) != 0) {
    const fi_mr_dmabuf& buffer = *attributes->dmabuf;
    asked.by_dma_buf = true;
    asked.memory = static_cast<std::byte*>(buffer.base_addr) + buffer.offset;
    asked.bytes = buffer.len;
    return buffer.fd < 0 ? -FI_EBADF : make_memory(domain, *attributes, asked, made);
  }
#endif
  if (flags != 0 || state.modes.dma_bufs_alone) return -FI_EOPNOTSUPP;
  asked.memory = attributes->mr_iov[0].iov_base;
  asked.bytes = attributes->mr_iov[0].iov_len;
  return make_memory(domain, *attributes, asked, made);
}
fi_ops_mr mr_calls = {.size = sizeof(fi_ops_mr), .reg = reg, .regv = nullptr, .regattr = regattr};

/// Returns the provider's own calls, and its descriptor in place of ours; null if there is none.
fi_ops_msg* calls_for(fid_ep* endpoint, const void* buffer, size_t bytes, void*& descriptor) {
  const std::lock_guard lock(state.mutex);
  if (!real_descriptor(buffer, bytes, descriptor)) return nullptr;
  return state.message_calls.at(&endpoint->fid);
}

ssize_t send(fid_ep* endpoint, const void* buffer, size_t bytes, void* descriptor, fi_addr_t to,
             void* context) {
  fi_ops_msg* const calls = calls_for(endpoint, buffer, bytes, descriptor);
  if (calls == nullptr) return -FI_EINVAL;
  return calls->send(endpoint, buffer, bytes, descriptor, to, context);
}
ssize_t receive(fid_ep* endpoint, void* buffer, size_t bytes, void* descriptor, fi_addr_t from,
                void* context) {
  fi_ops_msg* const calls = calls_for(endpoint, buffer, bytes, descriptor);
  if (calls == nullptr) return -FI_EINVAL;
  return calls->recv(endpoint, buffer, bytes, descriptor, from, context);
}
ssize_t write(fid_ep* endpoint, const fi_msg_rma* asked, uint64_t flags) {
  std::array<void*, 2> descriptors{};
  fi_msg_rma message = *asked;
  fi_rma_iov target = asked->rma_iov[0];
  fi_ops_rma* calls = nullptr;
  {
    const std::lock_guard lock(state.mutex);
    for (size_t piece = 0; piece < asked->iov_count; ++piece) {
      descriptors[piece] = asked->desc[piece];
      if (!real_descriptor(asked->msg_iov[piece].iov_base, asked->msg_iov[piece].iov_len,
                           descriptors[piece]))
        return -FI_EINVAL;
    }
    const auto found = state.by_key.find(target.key);
    if (found == state.by_key.end() || !found->second->enabled) return -FI_EACCES;
    const Memory& memory = *found->second;
    Registration& registered = state.registrations[memory.number];
    const uint64_t base =
        demands(FI_MR_VIRT_ADDR) ? reinterpret_cast<uintptr_t>(registered.memory) : 0;
    if (target.addr - base > registered.bytes || (registered.access & FI_REMOTE_WRITE) == 0)
      return -FI_EACCES;
    target.addr -= base;
    target.key = fi_mr_key(memory.real);
    registered.written += target.len;
    calls = state.write_calls.at(&endpoint->fid);
  }
  message.desc = descriptors.data();
  message.rma_iov = &target;
  return calls->writemsg(endpoint, &message, flags);
}

template <class Calls>
Calls* copied(const Calls* of) {
  state.copies.push_back(std::make_shared<Calls>(*of));
  return static_cast<Calls*>(state.copies.back().get());
}

int open_endpoint(fid_domain* domain, fi_info* info, fid_ep** endpoint, void* context) {
  const std::lock_guard lock(state.mutex);
  const auto calls = state.domain_calls.at(&domain->fid);
  std::unique_ptr<fi_info, decltype(&fi_freeinfo)> plain(fi_dupinfo(info), fi_freeinfo);
  plain->caps &= ~FI_HMEM;
  plain->domain_attr->mr_mode = 0;
  const int result = calls->endpoint(domain, plain.get(), endpoint, context);
  if (result != 0) return result;
  fid_ep& made = **endpoint;
  state.message_calls[&made.fid] = made.msg;
  state.write_calls[&made.fid] = made.rma;
  made.msg = copied(made.msg);
  made.msg->send = send;
  made.msg->recv = receive;
  made.rma = copied(made.rma);
  made.rma->writemsg = write;
  return 0;
}

int open_domain(fid_fabric* fabric, fi_info* info, fid_domain** domain, void* context) {
  const std::lock_guard lock(state.mutex);
  std::unique_ptr<fi_info, decltype(&fi_freeinfo)> plain(fi_dupinfo(info), fi_freeinfo);
  plain->caps &= ~FI_HMEM;
  plain->domain_attr->mr_mode = 0;
  const int result =
      state.fabric_calls.at(&fabric->fid)->domain(fabric, plain.get(), domain, context);
  if (result != 0) return result;
  fid_domain& made = **domain;
  state.domain_calls[&made.fid] = made.ops;
  state.memory_calls[&made.fid] = made.mr;
  made.ops = copied(made.ops);
  made.ops->endpoint = open_endpoint;
  made.mr = &mr_calls;
  return 0;
}

}  // namespace

std::unique_ptr<Provider> provider_for(const PluginOptions& options, const TransportPlace& place) {
  const size_t colon = options.provider.find(':');
  const std::string letters = options.provider.substr(0, colon);
  const auto has = [&](char letter) { return letters.find(letter) != std::string::npos; };
  {
    const std::lock_guard lock(state.mutex);
    state.modes = {.demanded = (has('l') ? FI_MR_LOCAL : 0) | (has('v') ? FI_MR_VIRT_ADDR : 0) |
                               (has('a') ? FI_MR_ALLOCATED : 0) | (has('p') ? FI_MR_PROV_KEY : 0) |
                               (has('e') ? FI_MR_ENDPOINT : 0),
                   .offers_gpu = has('h'),
                   .fails = has('f'),
                   .dma_bufs_alone = has('d')};
  }
  return open_provider({.provider = options.provider.substr(colon + 1),
                        .interface = options.interface,
                        .address = place.address,
                        .gpu = place.gpu});
}

}  // namespace tokenyard::libfabric

extern "C" {

int __wrap_fi_getinfo(uint32_t version, const char* node, const char* service, uint64_t flags,
                      const fi_info* hints, fi_info** found) {
  using namespace tokenyard::libfabric;
  const bool asks_gpu = (hints->caps & FI_HMEM) != 0;
  if ((asks_gpu && !state.modes.offers_gpu) ||
      (state.modes.demanded & ~hints->domain_attr->mr_mode) != 0)
    return -FI_ENODATA;
  std::unique_ptr<fi_info, decltype(&fi_freeinfo)> plain(fi_dupinfo(hints), fi_freeinfo);
  plain->caps &= ~FI_HMEM;
  plain->domain_attr->mr_mode = 0;
  const int result = __real_fi_getinfo(version, node, service, flags, plain.get(), found);
  if (result != 0) return result;
  for (fi_info* each = *found; each != nullptr; each = each->next) {
    each->domain_attr->mr_mode = state.modes.demanded;
    if (!asks_gpu) continue;
    each->caps |= FI_HMEM;
    each->domain_attr->mr_mode |= FI_MR_HMEM;
  }
  return 0;
}

int __wrap_fi_fabric(fi_fabric_attr* attributes, fid_fabric** fabric, void* context) {
  using namespace tokenyard::libfabric;
  const int result = __real_fi_fabric(attributes, fabric, context);
  if (result != 0) return result;
  const std::lock_guard lock(state.mutex);
  fid_fabric& made = **fabric;
  // The same fabric may be opened again.
  if (made.ops->domain == open_domain) return 0;
  state.fabric_calls[&made.fid] = made.ops;
  made.ops = copied(made.ops);
  made.ops->domain = open_domain;
  return 0;
}

[[gnu::visibility("default")]] size_t tokenyard_test_registrations(
    tokenyard::libfabric::testing::Registration* into, size_t most) {
  using namespace tokenyard::libfabric;
  const std::lock_guard lock(state.mutex);
  std::copy_n(state.registrations.begin(), std::min(most, state.registrations.size()), into);
  return state.registrations.size();
}
}
