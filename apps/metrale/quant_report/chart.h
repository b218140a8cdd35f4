// SPDX-License-Identifier: Apache-2.0
// Drawings of errors on a logarithmic scale, as SVG elements of a page. Errors that are 0, not finite or
// below 1e-8 of the largest are left out.
#pragma once

#include <string>
#include <vector>

namespace metrale::quant_report {

struct Mark {
  double bits = 0;  // an element
  double error = 0;
  std::string label;
  std::string colour;  // a variable of the page's style sheet
  bool hollow = false;
};

// Errors against bits, both logarithmic.
[[nodiscard]] std::string scatter_chart(const std::string& description, const std::vector<Mark>& marks);

struct Line {
  std::string label;
  std::string colour;
  bool dashed = false;
  std::vector<double> errors;  // one a place
};

// A line a format over places that follow each other: layers, or kinds of data.
[[nodiscard]] std::string line_chart(const std::string& description, const std::vector<std::string>& places,
                                     const std::vector<Line>& lines);

}  // namespace metrale::quant_report
