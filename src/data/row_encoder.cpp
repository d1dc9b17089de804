// SPDX-License-Identifier: MIT
#include "data/row_encoder.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/log.h"
#include "data/row_error.h"
#include "io/json.h"
#include "io/line_file.h"

namespace dflash {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kLinesAtOnce = 512;
constexpr std::size_t kBytesAtOnce = std::size_t{16} << 20;
constexpr double kReportSeconds = 5;

bool is_blank(const std::string& line) { return line.find_first_not_of(" \t\r") == std::string::npos; }

// Rows of the embedding by the target's config.json, flat or nested.
std::int64_t vocabulary_of(const std::string& target) {
    const std::string path = target + "/config.json";
    if (!std::filesystem::exists(path)) return 0;
    const Json config = read_json_file(path);
    if (!config.is_object()) return 0;
    const Json& text = config.contains("text_config") ? config.at("text_config") : config;
    return text.is_object() ? json_get_or<std::int64_t>(text, "vocab_size", 0, path) : 0;
}

// A block needs its anchor and at least one token behind it to be supervised.
bool can_be_learnt(const std::vector<std::uint8_t>& mask) {
    return std::adjacent_find(mask.begin(), mask.end(), [](auto a, auto b) { return a != 0 && b != 0; }) != mask.end();
}

class Progress {
public:
    Progress(std::string path, std::uintmax_t bytes) : path_(std::move(path)), bytes_(static_cast<double>(bytes)) {}
    void at(double done, std::int64_t rows) {
        const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
        if (seconds < next_ || done <= 0 || bytes_ <= 0) return;
        next_ = seconds + kReportSeconds;
        log_info("[data] {}: {:.0f} %, {} rows, {:.0f} s left", path_, 100 * done / bytes_, rows, seconds * (bytes_ - done) / done);
    }

private:
    std::string path_;
    double bytes_;
    Clock::time_point start_ = Clock::now();
    double next_ = kReportSeconds;
};

std::string count_by_reason(const std::map<std::string, std::int64_t>& refused) {
    std::string text;
    for (const auto& [reason, rows] : refused) text += fmt::format("{}{} x {}", text.empty() ? "" : ", ", rows, reason);
    return text;
}

}  // namespace

struct RowEncoder::Outcome {
    RenderedChat chat;
    std::string id;
    bool is_truncated = false;
    std::string refusal;  // reason; empty when used
    std::exception_ptr error;
};

RowEncoder::RowEncoder(const PrepareSettings& settings) : settings_(settings), vocabulary_(vocabulary_of(settings.target)) {
    if (std::filesystem::exists(settings.target + "/tokenizer.json")) tokenizer_.emplace(settings.target);
    if (settings.max_length < 0) throw_bad_input("--max-length {}: must be 0 (no limit) or more", settings.max_length);
}

PrepareReport RowEncoder::run(const Sink& sink) {
    report_ = {};
    if (settings_.inputs.empty()) throw_bad_input("no data: give at least one JSONL file");
    for (const std::string& path : settings_.inputs) run_file(path, sink);
    if (report_.rows_used == 0) {
        throw_bad_input("0 of {} rows usable{}{}", report_.rows_in, report_.rows_in > 0 ? ": " : "", count_by_reason(report_.refused));
    }
    return report_;
}

void RowEncoder::run_file(const std::string& path, const Sink& sink) {
    std::ifstream file = open_line_file(path, "chats");
    std::error_code unknown;  // of a pipe
    const std::uintmax_t bytes = std::filesystem::file_size(path, unknown);
    Progress progress(path, unknown ? 0 : bytes);
    std::vector<Line> lines;
    std::size_t bytes_waiting = 0;
    double bytes_done = 0;
    std::string text;
    for (std::int64_t number = 1; std::getline(file, text); ++number) {
        bytes_done += static_cast<double>(text.size() + 1);
        if (is_blank(text)) continue;
        bytes_waiting += text.size();
        lines.push_back({std::move(text), fmt::format("{} line {}", path, number)});
        if (lines.size() < kLinesAtOnce && bytes_waiting < kBytesAtOnce) continue;
        run_lines(lines, sink);
        lines.clear();
        bytes_waiting = 0;
        progress.at(bytes_done, report_.rows_in);
    }
    if (file.bad()) throw_failed("{}: reading failed", path);
    run_lines(lines, sink);
}

void RowEncoder::run_lines(const std::vector<Line>& lines, const Sink& sink) {
    std::vector<Outcome> outcomes(lines.size());
#pragma omp parallel for schedule(dynamic, 8)
    for (std::size_t i = 0; i < lines.size(); ++i) outcomes[i] = encode(lines[i]);
    for (const Outcome& outcome : outcomes) count(outcome, sink);
}

// Never throws: runs inside a parallel loop.
RowEncoder::Outcome RowEncoder::encode(const Line& line) const {
    Outcome outcome;
    try {
        const ChatRow row = parse_chat_row(line.text, line.where);
        outcome.id = row.id;
        if (row.input_ids.empty() && !tokenizer_) throw RowError(line.where, "the target has no tokenizer.json");
        outcome.chat = row.input_ids.empty() ? render_chat(row, settings_.chat_template, *tokenizer_)
                                             : RenderedChat{row.input_ids, row.loss_mask, false};
        auto& [ids, mask, has_control_text] = outcome.chat;
        if (vocabulary_ > 0 && std::any_of(ids.begin(), ids.end(), [&](std::int32_t id) { return id >= vocabulary_; })) {
            throw RowError(line.where, "a token id is outside the target's vocabulary");
        }
        outcome.is_truncated = settings_.max_length > 0 && static_cast<std::int64_t>(ids.size()) > settings_.max_length;
        if (outcome.is_truncated) {
            ids.resize(static_cast<std::size_t>(settings_.max_length));
            mask.resize(ids.size());
        }
        if (!settings_.keep_unsupervised && !can_be_learnt(mask)) {
            throw RowError(line.where,
                           outcome.is_truncated ? "the answer lies beyond the length limit" : "no two supervised tokens in a row");
        }
    } catch (const RowError& error) {
        outcome.refusal = error.reason();
        outcome.error = std::current_exception();
    } catch (...) {
        outcome.error = std::current_exception();
    }
    return outcome;
}

void RowEncoder::count(const Outcome& outcome, const Sink& sink) {
    if (outcome.error && (outcome.refusal.empty() || settings_.strict)) std::rethrow_exception(outcome.error);
    ++report_.rows_in;
    if (outcome.error) {
        ++report_.refused[outcome.refusal];
        return;
    }
    ++report_.rows_used;
    if (outcome.is_truncated) ++report_.rows_truncated;
    if (outcome.chat.has_control_text) ++report_.control_text_rows;
    report_.tokens += static_cast<std::int64_t>(outcome.chat.ids.size());
    report_.supervised_tokens += std::count(outcome.chat.loss_mask.begin(), outcome.chat.loss_mask.end(), std::uint8_t{1});
    sink(outcome.chat.ids, outcome.chat.loss_mask, outcome.id);
}

}  // namespace dflash
