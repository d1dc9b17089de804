// SPDX-License-Identifier: MIT
#include "cli/plan_picture.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/byte_size.h"

namespace dflash::cli {
namespace {

constexpr double kLeft = 90, kTop = 50, kHeight = 360, kBar = 34, kGap = 8, kBottom = 110, kLegend = 190;
constexpr int kGridLines = 5;

// Told apart in print and by colour-blind eyes.
constexpr const char* kColours[kNumCategories] = {"#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677",
                                                  "#aa3377", "#bbbbbb", "#222255", "#997700"};

std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text) out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
    return out;
}

class Picture {
public:
    Picture(const Plan& plan, const std::string& title) : plan_(plan), categories_(used_categories(plan)) {
        const double width = kLeft + static_cast<double>(plan.phases.size()) * (kBar + kGap) + kLegend;
        svg_ = fmt::format(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
            "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
            width, kTop + kHeight + kBottom);
        text(kLeft, 24, escaped(title), "font-size=\"15\"");
        grid();
        for (int phase = 0; phase < static_cast<int>(plan.phases.size()); ++phase) bar(phase);
        legend();
        svg_ += "</svg>\n";
    }
    const std::string& svg() const { return svg_; }

private:
    double scaled(std::size_t bytes) const {
        return kHeight * static_cast<double>(bytes) / static_cast<double>(std::max<std::size_t>(plan_.arena_bytes, 1));
    }
    double left_of(int phase) const { return kLeft + phase * (kBar + kGap); }
    void text(double x, double y, const std::string& words, const std::string& attributes = "") {
        svg_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, attributes, words);
    }

    void grid() {
        const double right = left_of(static_cast<int>(plan_.phases.size()));
        for (int line = 0; line <= kGridLines; ++line) {
            const std::size_t bytes = plan_.arena_bytes * static_cast<std::size_t>(line) / kGridLines;
            const double y = kTop + kHeight - scaled(bytes);
            svg_ += fmt::format("<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#dddddd\"/>\n", kLeft, right, y, y);
            text(kLeft - 8, y + 4, format_bytes(bytes), "text-anchor=\"end\"");
        }
    }

    void bar(int phase) {
        double top = kTop + kHeight;
        for (const Category category : categories_) {
            const std::size_t bytes = plan_.category_bytes(phase, category);
            if (bytes == 0) continue;
            top -= scaled(bytes);
            svg_ += fmt::format(
                "<rect x=\"{:.1f}\" y=\"{:.2f}\" width=\"{:.1f}\" height=\"{:.2f}\" fill=\"{}\"><title>{}, {}: {}</title></rect>\n",
                left_of(phase), top, kBar, scaled(bytes), kColours[static_cast<std::size_t>(category)],
                escaped(plan_.phases[static_cast<std::size_t>(phase)]), category_name(category), format_bytes(bytes));
        }
        const double x = left_of(phase) + kBar / 2 + 4;
        const double y = kTop + kHeight + 12;
        text(x, y, escaped(plan_.phases[static_cast<std::size_t>(phase)]),
             fmt::format("text-anchor=\"end\" transform=\"rotate(-60 {:.1f} {:.1f})\"", x, y));
    }

    void legend() {
        const double x = left_of(static_cast<int>(plan_.phases.size())) + 16;
        double y = kTop + 12;
        for (auto category = categories_.rbegin(); category != categories_.rend(); ++category, y += 20) {
            svg_ += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"12\" height=\"12\" fill=\"{}\"/>\n", x, y - 10,
                                kColours[static_cast<std::size_t>(*category)]);
            text(x + 18, y, category_name(*category));
        }
    }

    const Plan& plan_;
    std::vector<Category> categories_;
    std::string svg_;
};

}  // namespace

std::vector<Category> used_categories(const Plan& plan) {
    std::vector<Category> used;
    for (int c = 0; c < kNumCategories; ++c) {
        for (int phase = 0; phase < static_cast<int>(plan.phases.size()); ++phase) {
            if (plan.category_bytes(phase, static_cast<Category>(c)) == 0) continue;
            used.push_back(static_cast<Category>(c));
            break;
        }
    }
    return used;
}

std::string plan_svg(const Plan& plan, const std::string& title) { return Picture(plan, title).svg(); }

}  // namespace dflash::cli
