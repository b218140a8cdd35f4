// SPDX-License-Identifier: Apache-2.0
// TempDir: a fresh directory for one test, removed with everything in it at the end.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace metrale {

class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "metrale-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = pattern;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string file(std::string_view name) const { return path_ + "/" + std::string(name); }
  // Writes a file (parent folders are made) and returns its path.
  std::string write(std::string_view name, std::string_view content) const {
    const std::string where = file(name);
    std::filesystem::create_directories(std::filesystem::path(where).parent_path());
    std::ofstream out(where, std::ios::binary);
    out.write(content.data(), static_cast<std::streamsize>(content.size()));
    if (!out.good()) throw std::runtime_error("cannot write " + where);
    return where;
  }

 private:
  std::string path_;
};

}  // namespace metrale
