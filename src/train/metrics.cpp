// SPDX-License-Identifier: MIT
#include "train/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "io/atomic_file.h"
#include "io/json.h"

namespace dflash {
namespace {

Json by_slot(const std::vector<double>& accuracy) {
    Json list = Json::array();
    for (const double value : accuracy) list.push_back(value < 0 ? Json(nullptr) : Json(value));
    return list;
}

// The lines of steps up to `step`, whole lines only.
std::string lines_up_to(const std::string& content, std::int64_t step) {
    std::string kept;
    std::size_t begin = 0;
    for (std::size_t end = content.find('\n'); end != std::string::npos; begin = end + 1, end = content.find('\n', begin)) {
        const std::string line = content.substr(begin, end - begin);
        const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
        if (!object.is_object() || !object.contains("step") || !object.at("step").is_number_integer()) continue;
        if (object.at("step").get<std::int64_t>() <= step) kept += line + "\n";
    }
    return kept;
}

}  // namespace

std::string to_json_line(const StepMetrics& m) {
    return Json{{"kind", "step"},
                {"step", m.step},
                {"epoch", m.epoch},
                {"micro_batch", m.first_micro_batch},
                {"loss", m.loss},
                {"lr", m.lr},
                {"grad_norm", m.gradient_norm},
                {"accuracy_by_position", by_slot(m.accuracy)},
                {"estimated_acceptance_length", m.estimated_acceptance_length},
                {"anchors_wanted", m.anchors_wanted},
                {"anchors_eligible", m.anchors_eligible},
                {"anchors_used", m.anchors_used},
                {"weight_sum", m.weight_sum},
                {"tokens", m.tokens},
                {"step_ms", m.step_ms},
                {"tokens_per_second", m.tokens_per_second},
                {"seconds_left", m.seconds_left}}
        .dump();
}

std::string to_json_line(const EvalMetrics& m) {
    Json line{{"kind", "eval"}, {"step", m.step}, {"eval_ms", m.eval_ms}};
    if (m.has_validation) {
        line["validation_loss"] = m.validation_loss;
        line["validation_accuracy_by_position"] = by_slot(m.validation_accuracy);
        line["validation_estimated_acceptance_length"] = m.validation_estimated_acceptance_length;
    }
    if (m.has_decoding) {
        line["acceptance_length"] = m.acceptance_length;
        line["verify_steps"] = m.verify_steps;
        line["prompts"] = m.prompts;
    }
    return line.dump();
}

MetricsFile::MetricsFile(const std::string& path, std::int64_t resumed_step) : path_(path) {
    if (std::filesystem::exists(path)) write_file_atomically(path, lines_up_to(read_file(path), resumed_step));
    file_ = open(path.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0644);
    if (file_ < 0) throw_failed("cannot write {}: {}", path, std::strerror(errno));
}

MetricsFile::~MetricsFile() { close(file_); }

void MetricsFile::append(const std::string& line) {
    const std::string text = line + "\n";
    if (write(file_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
        throw_failed("cannot write {}: {}", path_, std::strerror(errno));
    }
}

}  // namespace dflash
