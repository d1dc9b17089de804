// SPDX-License-Identifier: MIT
#include "base/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

#include "base/error.h"

namespace dflash {
namespace {

// spdlog's logger is process-wide by nature (one stderr); nothing else in the project is.
spdlog::logger& logger() {
    static const std::shared_ptr<spdlog::logger> kLogger = [] {
        auto made = std::make_shared<spdlog::logger>("dflash", std::make_shared<spdlog::sinks::stderr_sink_mt>());
        made->set_pattern("%v");
        made->flush_on(spdlog::level::info);
        return made;
    }();
    return *kLogger;
}

spdlog::level::level_enum to_spdlog(LogLevel level) {
    switch (level) {
        case LogLevel::kDebug: return spdlog::level::debug;
        case LogLevel::kInfo: return spdlog::level::info;
        case LogLevel::kWarning: return spdlog::level::warn;
        case LogLevel::kError: return spdlog::level::err;
    }
    return spdlog::level::info;
}

}  // namespace

void set_log_level(LogLevel level) { logger().set_level(to_spdlog(level)); }

void set_log_file(const std::string& path) {
    auto& sinks = logger().sinks();
    sinks.resize(1);
    if (path.empty()) return;
    try {
        auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path, /*truncate=*/false);
        sink->set_pattern("%Y-%m-%d %H:%M:%S %v");
        sinks.push_back(std::move(sink));
    } catch (const spdlog::spdlog_ex& failure) {
        throw_failed("cannot write the log file {}: {}", path, failure.what());
    }
}

void log_line(LogLevel level, const std::string& line) {
    logger().log(to_spdlog(level), level == LogLevel::kWarning ? "warning: " + line : line);
}

}  // namespace dflash
