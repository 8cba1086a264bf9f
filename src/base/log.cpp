#include "base/log.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

#include <climits>
#include <mutex>
#include <string>

#include "base/environment.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {

namespace {

constexpr const char* kVariable = "TOKENYARD_LOG";

spdlog::level::level_enum level_of(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return spdlog::level::debug;
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::warning:
      break;
  }
  return spdlog::level::warn;
}

LogLevel chosen_level() {
  const auto text = log_level();
  if (!text || *text == "warning") return LogLevel::warning;
  if (*text == "info") return LogLevel::info;
  if (*text == "debug") return LogLevel::debug;
  throw InvalidArgument(kVariable, "warning, info or debug", "'" + *text + "'");
}

/// Returns whether a line can be written to stderr at once. If its reader is gone, a line would
/// raise SIGPIPE.
bool takes_a_line() {
  pollfd stderr_now{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  return poll(&stderr_now, 1, 0) == 1 && stderr_now.revents == POLLOUT;
}

class StderrSink final : public spdlog::sinks::base_sink<std::mutex> {
 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (!takes_a_line()) {
      ++left_out_;
      return;
    }
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    std::string text(line.data(), line.size());
    if (left_out_ > 0)
      text.insert(0, fmt::format("tokenyard: {} lines were left out\n", left_out_));
    left_out_ = 0;
    // So many bytes go into a pipe as a whole, and not between those of another process.
    if (text.size() > PIPE_BUF) text.replace(PIPE_BUF - 4, text.npos, "...\n");
    if (::write(STDERR_FILENO, text.data(), text.size()) < 0) ++left_out_;
  }
  void flush_() override {}

  uint64_t left_out_ = 0;
};

}  // namespace

Log::Log(uint32_t rank)
    : rank_(rank),
      logger_(std::make_shared<spdlog::logger>("tokenyard", std::make_shared<StderrSink>())) {
  logger_->set_pattern("%Y-%m-%d %H:%M:%S.%e %n %l %v");
  logger_->set_level(level_of(chosen_level()));
}

bool Log::takes(LogLevel level) const {
  return logger_->should_log(level_of(level));
}

void Log::write(LogLevel level, uint64_t epoch, std::string_view text) const {
  if (!takes(level)) return;
  const std::string line = fmt::format("rank {} epoch {}: {}", rank_, epoch, text);
  logger_->log(level_of(level), spdlog::string_view_t(line));
}

}  // namespace tokenyard
