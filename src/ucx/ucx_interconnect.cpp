#include "ucx/ucx_interconnect.hpp"

#include <chrono>
#include <cstring>

#include "ucx/ucx_channel.hpp"
#include "ucx/ucx_status.hpp"

namespace tokenyard::ucx {

namespace {

/// Number of arrivals handled before other work has its turn.
constexpr int progress_max = 64;
/// Time in which UCX may finish operations under way.
constexpr auto closing_max = std::chrono::seconds(1);

}  // namespace

UcxInterconnect::UcxInterconnect() {
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.name = "tokenyard";
  check(ucp_init(&params, nullptr, &context_), "ucp_init");
  try {
    ucp_worker_params_t worker{};
    worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
    check(ucp_worker_create(context_, &worker, &worker_), "ucp_worker_create");
    handle_messages<Kind::bytes>();
    handle_messages<Kind::room>();
    check(ucp_worker_get_efd(worker_, &descriptor_), "ucp_worker_get_efd");
    ucp_address_t* address = nullptr;
    size_t bytes = 0;
    check(ucp_worker_get_address(worker_, &address, &bytes), "ucp_worker_get_address");
    const auto* const begin = reinterpret_cast<const std::byte*>(address);
    address_.assign(begin, begin + bytes);
    ucp_worker_release_address(worker_, address);
  } catch (...) {
    release();
    throw;
  }
}

UcxInterconnect::~UcxInterconnect() {
  release();
}

void UcxInterconnect::release() {
  std::vector<ucs_status_ptr_t> closing;
  for (auto& [address, endpoint] : endpoints_) {
    ucp_request_param_t now{};
    now.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    now.flags = UCP_EP_CLOSE_FLAG_FORCE;
    const ucs_status_ptr_t request = ucp_ep_close_nbx(endpoint->handle, &now);
    if (UCS_PTR_IS_PTR(request)) closing.push_back(request);
  }
  const auto until = std::chrono::steady_clock::now() + closing_max;
  for (const ucs_status_ptr_t request : closing) {
    while (ucp_request_check_status(request) == UCS_INPROGRESS &&
           std::chrono::steady_clock::now() < until) {
      ucp_worker_progress(worker_);
    }
    ucp_request_free(request);
  }
  // These end whatever is still under way; only then may its memory be freed.
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_cleanup(context_);
}

template <UcxInterconnect::Kind kind>
void UcxInterconnect::handle_messages() {
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = static_cast<unsigned>(kind);
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.arg = this;
  handler.cb = [](void* self, const void* header, size_t header_bytes, void* bytes, size_t count,
                  const ucp_am_recv_param_t* how) {
    // We send neither fragments nor rendezvous messages, so their sender is no peer of ours.
    const bool here = (how->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0;
    return here ? static_cast<UcxInterconnect*>(self)->deliver(kind, header, header_bytes, bytes,
                                                               count)
                : UCS_OK;
  };
  check(ucp_worker_set_am_recv_handler(worker_, &handler), "ucp_worker_set_am_recv_handler");
}

ucs_status_t UcxInterconnect::deliver(Kind kind, const void* header, size_t header_bytes,
                                      const void* bytes, size_t count) {
  uint64_t words[2];
  if (header_bytes != sizeof words) return UCS_OK;
  std::memcpy(words, header, sizeof words);
  const auto channel = channels_.find(words[0]);
  if (channel == channels_.end()) return UCS_OK;
  if (kind == Kind::bytes) {
    channel->second->take_bytes(words[1], {static_cast<const std::byte*>(bytes), count});
  } else {
    channel->second->take_room(words[1]);
  }
  return UCS_OK;
}

std::unique_ptr<collectives::NumberedChannel> UcxInterconnect::channel() {
  return std::make_unique<UcxChannel>(*this);
}

void UcxInterconnect::listen(UcxChannel& channel) {
  channels_[channel.number()] = &channel;
}

void UcxInterconnect::stop_listening(const UcxChannel& channel) {
  channels_.erase(channel.number());
}

UcxInterconnect::Endpoint& UcxInterconnect::endpoint(std::span<const std::byte> address) {
  const auto [at, is_new] = endpoints_.try_emplace({address.begin(), address.end()});
  if (!is_new) return *at->second;
  at->second = std::make_unique<Endpoint>();
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(at->first.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.arg = at->second.get();
  params.err_handler.cb = [](void* endpoint, ucp_ep_h, ucs_status_t) {
    static_cast<Endpoint*>(endpoint)->failed = true;
  };
  const ucs_status_t status = ucp_ep_create(worker_, &params, &at->second->handle);
  if (status != UCS_OK) {
    endpoints_.erase(at);
    check(status, "ucp_ep_create");
  }
  return *at->second;
}

UcxInterconnect::Outgoing* UcxInterconnect::take_outgoing() {
  if (idle_.empty()) {
    if (outgoing_.size() == outgoing_max) return nullptr;
    outgoing_.push_back(std::make_unique<Outgoing>());
    outgoing_.back()->owner = this;
    idle_.push_back(outgoing_.back().get());
  }
  Outgoing* const message = idle_.back();
  idle_.pop_back();
  return message;
}

void UcxInterconnect::send(Endpoint& endpoint, Kind kind, Outgoing& message, size_t bytes) {
  ucp_request_param_t how{};
  how.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  how.flags = UCP_AM_SEND_FLAG_EAGER;
  how.user_data = &message;
  how.cb.send = [](void* request, ucs_status_t, void* sent) {
    auto* const done = static_cast<Outgoing*>(sent);
    done->owner->idle_.push_back(done);
    ucp_request_free(request);
  };
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(endpoint.handle, static_cast<unsigned>(kind), message.header,
                      sizeof message.header, message.bytes, bytes, &how);
  if (UCS_PTR_IS_PTR(request)) return;
  if (UCS_PTR_IS_ERR(request)) endpoint.failed = true;
  idle_.push_back(&message);
}

void UcxInterconnect::poll() {
  for (int count = 0; count < progress_max && ucp_worker_progress(worker_) != 0;) ++count;
}

bool UcxInterconnect::prepare_to_sleep() {
  const ucs_status_t status = ucp_worker_arm(worker_);
  if (status == UCS_OK) return true;
  poll();
  return false;
}

}  // namespace tokenyard::ucx

extern "C" {

[[gnu::visibility("default")]] extern const uint32_t tokenyard_interconnect_version =
    tokenyard::collectives::kInterconnectVersion;

[[gnu::visibility("default")]] tokenyard::collectives::Interconnect* tokenyard_make_interconnect() {
  return new tokenyard::ucx::UcxInterconnect();
}
}
