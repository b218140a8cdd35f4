// SPDX-License-Identifier: Apache-2.0
#include "chart.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include <fmt/format.h>

#include "../html.h"

namespace metrale::quant_report {
namespace {

constexpr double kLeft = 62;  // of the drawing's inside, in its units
constexpr double kTop = 10;
constexpr double kWidth = 900;
constexpr double kRight = 150;  // room for labels
constexpr double kHeight = 340;
constexpr double kBottom = 34;
constexpr double kLetter = 6.4;       // width of one, about
constexpr double kLabelHeight = 12;   // from one label to the next
constexpr double kRadius = 4;         // of a mark
constexpr double kLeastShown = 1e-8;  // of the largest error

// From one power of ten to another.
class ErrorAxis {
 public:
  explicit ErrorAxis(const std::vector<double>& errors) {
    double most = 0;
    for (const double error : errors) {
      if (std::isfinite(error)) most = std::max(most, error);
    }
    if (most == 0) return;
    least_ = most * kLeastShown;
    double least = most;
    for (const double error : errors) {
      if (shows(error)) least = std::min(least, error);
    }
    low_ = static_cast<int>(std::floor(std::log10(least)));
    high_ = std::max(low_ + 1, static_cast<int>(std::ceil(std::log10(most))));
  }

  [[nodiscard]] bool shows(double error) const {
    return std::isfinite(error) && error > 0 && error >= least_;
  }
  [[nodiscard]] double y(double error) const {
    return kTop + kHeight * (high_ - std::log10(error)) / (high_ - low_);
  }

  [[nodiscard]] std::string grid() const {
    std::string text;
    for (int power = low_; power <= high_; ++power) {
      const double at = y(std::pow(10.0, power));
      text += fmt::format(
          R"(<line class="grid" x1="{0}" x2="{1}" y1="{2:.1f}" y2="{2:.1f}"/><text x="{3}" y="{4:.1f}" text-anchor="end">1e{5}</text>)",
          kLeft, kLeft + kWidth, at, kLeft - 6, at + 4, power);
      text += "\n";
    }
    return text;
  }

 private:
  double least_ = 0;
  int low_ = -1;
  int high_ = 0;
};

// Keeps labels apart: each goes down until nothing is in its way.
class Labels {
 public:
  // Nothing shall stand where something is drawn.
  void avoid(double x, double y) { taken_.push_back({x - kRadius, x + kRadius, y}); }

  // Where the label of something at (x, y) stands; its left end is x.
  double place(double x, double y, const std::string& text) {
    const double end = x + kLetter * static_cast<double>(text.size());
    for (bool moved = true; moved;) {
      moved = false;
      for (const Taken& taken : taken_) {
        const bool beside = end < taken.x || x > taken.end;
        if (beside || std::abs(y - taken.y) >= kLabelHeight - 0.01) continue;
        y = taken.y + kLabelHeight;
        moved = true;
      }
    }
    taken_.push_back({x, end, y});
    return y;
  }

 private:
  struct Taken {
    double x;
    double end;
    double y;
  };
  std::vector<Taken> taken_;
};

std::string label_at(double x, double from_y, double y, const std::string& colour, const std::string& text) {
  return fmt::format(
      R"svg(<line class="leader" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/><text class="name" style="fill:var(--{})" x="{:.1f}" y="{:.1f}">{}</text>)svg",
      x + kRadius, from_y, x + 12, y, colour, x + 14, y + 4, app::html_escaped(text));
}

std::string svg(const std::string& description, const std::string& content) {
  return fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n{}</svg>\n",
                     kLeft + kWidth + kRight, kTop + kHeight + kBottom, app::html_escaped(description),
                     content);
}

// `row` 1 is below row 0.
std::string vertical(double x, const std::string& label, const char* anchor, std::size_t row = 0) {
  return fmt::format(
      R"(<line class="grid" x1="{0:.1f}" x2="{0:.1f}" y1="{1}" y2="{2}"/><text x="{0:.1f}" y="{3}" text-anchor="{4}">{5}</text>)",
      x, kTop, kTop + kHeight, kTop + kHeight + 14 + kLabelHeight * static_cast<double>(row), anchor,
      app::html_escaped(label));
}

}  // namespace

std::string scatter_chart(const std::string& description, const std::vector<Mark>& marks) {
  constexpr double kFewestBits = 2;
  constexpr double kMostBits = 17;
  const auto x = [](double bits) {
    return kLeft + kWidth * std::log(bits / kFewestBits) / std::log(kMostBits / kFewestBits);
  };
  std::vector<double> errors;
  for (const Mark& mark : marks) errors.push_back(mark.error);
  const ErrorAxis axis(errors);
  std::string text = axis.grid();
  for (const int bits : {2, 3, 4, 5, 6, 8, 10, 12, 16})
    text += vertical(x(bits), fmt::format("{} bits", bits), "middle") + "\n";
  std::vector<Mark> drawn;
  std::ranges::copy_if(marks, std::back_inserter(drawn), [&](const Mark& mark) {
    return axis.shows(mark.error) && mark.bits >= kFewestBits && mark.bits <= kMostBits;
  });
  std::ranges::stable_sort(drawn, std::ranges::greater(), &Mark::error);
  Labels labels;
  for (const Mark& mark : drawn) labels.avoid(x(mark.bits), axis.y(mark.error));
  for (const Mark& mark : drawn) {
    const double at = x(mark.bits);
    const double y = axis.y(mark.error);
    text += fmt::format(
        R"(<circle cx="{:.1f}" cy="{:.1f}" r="{}" style="stroke:var(--{});fill:{}"><title>{}: {:.4g} bits, {:.4g}</title></circle>)",
        at, y, kRadius, mark.colour, mark.hollow ? "var(--page)" : fmt::format("var(--{})", mark.colour),
        app::html_escaped(mark.label), mark.bits, mark.error);
    text += label_at(at, y, labels.place(at + 14, y, mark.label), mark.colour, mark.label) + "\n";
  }
  return svg(description, text);
}

std::string line_chart(const std::string& description, const std::vector<std::string>& places,
                       const std::vector<Line>& lines) {
  const std::size_t steps = std::max<std::size_t>(1, places.size() - 1);
  const auto x = [&](std::size_t place) {
    return kLeft + kWidth * static_cast<double>(place) / static_cast<double>(steps);
  };
  std::vector<double> errors;
  for (const Line& line : lines) errors.insert(errors.end(), line.errors.begin(), line.errors.end());
  const ErrorAxis axis(errors);
  std::string text = axis.grid();
  const std::size_t stride = (places.size() + 15) / 16;
  // Long names that stand beside each other take turns between two rows.
  constexpr std::size_t kLongName = 6;
  const bool is_long =
      std::ranges::any_of(places, [](const std::string& place) { return place.size() > kLongName; });
  for (std::size_t i = 0; i < places.size(); i += stride) {
    const std::size_t row = is_long ? i / stride % 2 : 0;
    text += vertical(x(i), places[i], i == 0 ? "start" : "middle", row) + "\n";
  }

  struct Name {
    const Line* line;
    double x;
    double y;
  };
  std::vector<Name> names;
  for (const Line& line : lines) {
    std::string points;
    Name name{&line, 0, 0};
    for (std::size_t i = 0; i < line.errors.size(); ++i) {
      if (!axis.shows(line.errors[i])) continue;
      name.x = x(i);
      name.y = axis.y(line.errors[i]);
      points += fmt::format("{:.1f},{:.1f} ", name.x, name.y);
    }
    if (points.empty()) continue;
    text += fmt::format(
        "<polyline class=\"curve\" style=\"stroke:var(--{}){}\" points=\"{}\"><title>{}</title></polyline>\n",
        line.colour, line.dashed ? ";stroke-dasharray:5 3" : "", points, app::html_escaped(line.label));
    names.push_back(name);
  }
  std::ranges::stable_sort(names, {}, &Name::y);
  Labels labels;
  for (const Name& name : names) {
    const double y = labels.place(name.x + 14, name.y, name.line->label);
    text += label_at(name.x, name.y, y, name.line->colour, name.line->label) + "\n";
  }
  return svg(description, text);
}

}  // namespace metrale::quant_report
