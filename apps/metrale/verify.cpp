// SPDX-License-Identifier: Apache-2.0
// metrale verify: whether a model's weights are what the format says, and what a manifest says.
#include <cerrno>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <metrale/base/clock.h>
#include <metrale/base/error.h>
#include <metrale/weights/safetensors.h>
#include <metrale/weights/verify.h>

#include "commands.h"
#include "exit_codes.h"
#include "interrupt.h"
#include "output.h"
#include "progress.h"

namespace metrale::app {
namespace {

using nlohmann::ordered_json;
using weights::VerifyReport;
using weights::WeightManifest;
using weights::WeightProblem;

struct VerifyFlags {
  std::string path;
  std::string manifest;
  std::optional<std::string> write_manifest;  // empty: under its usual name
  bool force = false;
  bool headers_only = false;
  unsigned threads = 0;
  bool json = false;
};

struct Verified {
  VerifyReport report;
  std::string manifest;  // read or written; empty where there was none
  bool was_written = false;
  double seconds = 0;
};

const char* kind_name(WeightProblem::Kind kind) {
  switch (kind) {
    case WeightProblem::Kind::kFormat:
      return "format";
    case WeightProblem::Kind::kIo:
      return "io";
    case WeightProblem::Kind::kDifference:
      return "difference";
  }
  return "unknown";
}

// A difference is a file that is not what it should be; that it cannot be read comes second.
int exit_code(const VerifyReport& report) {
  int code = kOk;
  for (const WeightProblem& problem : report.problems) {
    if (problem.kind != WeightProblem::Kind::kIo) return kBadFormat;
    code = kIoFailed;
  }
  return code;
}

std::string as_json(const VerifyFlags& flags, const Verified& verified) {
  const VerifyReport& report = verified.report;
  ordered_json problems = ordered_json::array();
  for (const WeightProblem& problem : report.problems) {
    ordered_json json{{"kind", kind_name(problem.kind)}, {"file", problem.file}};
    json["tensor"] = problem.tensor ? ordered_json(*problem.tensor) : ordered_json(nullptr);
    json["offset"] = problem.offset_bytes ? ordered_json(*problem.offset_bytes) : ordered_json(nullptr);
    json["problem"] = problem.text;
    problems.push_back(std::move(json));
  }
  const ordered_json json{
      {"path", flags.path},
      {"ok", report.problems.empty()},
      {"manifest", verified.manifest.empty() ? ordered_json(nullptr) : ordered_json(verified.manifest)},
      {"manifest_written", verified.was_written},
      {"files", report.found.files.size()},
      {"tensors", report.tensors},
      {"bytes", report.data_bytes},
      {"bytes_read", report.read_bytes},
      {"seconds", verified.seconds},
      {"problems", std::move(problems)},
      {"warnings", report.warnings}};
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

std::string problem_line(const WeightProblem& problem) {
  std::string line = weights::printable_name(problem.file);
  if (problem.tensor) line += fmt::format(": tensor '{}'", weights::printable_name(*problem.tensor));
  if (problem.offset_bytes)
    line += fmt::format("{} byte {}", problem.tensor ? " at" : ":", *problem.offset_bytes);
  return line + fmt::format(": {}\n", problem.text);
}

std::string as_text(const VerifyFlags& flags, const Verified& verified) {
  const VerifyReport& report = verified.report;
  std::string text;
  for (const WeightProblem& problem : report.problems) text += problem_line(problem);
  for (const std::string& warning : report.warnings) text += fmt::format("warning: {}\n", warning);
  text += report.problems.empty() ? std::string("ok")
                                  : fmt::format("{} {}", report.problems.size(),
                                                report.problems.size() == 1 ? "problem" : "problems");
  text += fmt::format(": {} files, {} tensors, {} bytes", report.found.files.size(), report.tensors,
                      report.data_bytes);
  text += flags.headers_only ? std::string(", headers only")
                             : fmt::format(", read in {:.2f} s", verified.seconds);
  if (verified.manifest.empty()) {
    text += "; no manifest";
  } else {
    text += fmt::format("; {} {}", verified.was_written ? "wrote" : "compared with", verified.manifest);
  }
  return text + "\n";
}

// The manifest to compare with, nullopt where none was asked for and none lies there.
std::optional<std::string> manifest_to_read(const VerifyFlags& flags) {
  if (flags.write_manifest) return std::nullopt;
  if (!flags.manifest.empty()) return flags.manifest;
  std::string usual = weights::default_manifest_path(flags.path);
  std::error_code unknown;
  // A link that leads nowhere is a manifest that cannot be read, not the lack of one.
  const auto status = std::filesystem::symlink_status(usual, unknown);
  return std::filesystem::exists(status) ? std::optional(std::move(usual)) : std::nullopt;
}

std::string manifest_to_write(const VerifyFlags& flags) {
  std::string path =
      flags.write_manifest->empty() ? weights::default_manifest_path(flags.path) : *flags.write_manifest;
  std::error_code unknown;
  const auto status = std::filesystem::status(path, unknown);
  if (std::filesystem::is_directory(status)) throw IoError("cannot write", path, EISDIR);
  if (std::filesystem::exists(status) && !flags.force) {
    throw InvalidArgument(fmt::format(
        "--write-manifest: '{}' is there, and what it says would be lost; --force replaces it", path));
  }
  return path;
}

Verified run(const VerifyFlags& flags) {
  Verified verified;
  std::optional<WeightManifest> expected;
  if (const auto path = manifest_to_read(flags)) {
    verified.manifest = *path;
    expected = WeightManifest::read(*path);
  }
  // Before everything is read.
  const std::string target = flags.write_manifest ? manifest_to_write(flags) : "";

  weights::VerifyOptions options;
  options.manifest = expected ? &*expected : nullptr;
  options.read_data = !flags.headers_only;
  options.threads = flags.threads;
  ProgressLine progress("verifying");
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    progress.update(done, total);
    return !interrupted();
  };
  const SteadyClock clock;
  const auto start = clock.now();
  verified.report = weights::verify_weights(flags.path, options);
  verified.seconds = std::chrono::duration<double>(clock.now() - start).count();
  progress.clear();
  if (interrupted()) throw Cancelled("verifying was interrupted");
  if (flags.write_manifest && verified.report.problems.empty()) {
    verified.report.found.write(target);
    verified.manifest = target;
    verified.was_written = true;
  }
  return verified;
}

int verify(const VerifyFlags& flags) {
  if (flags.write_manifest) {
    expects(flags.manifest.empty(), "--manifest and --write-manifest exclude each other");
    expects(!flags.headers_only, "--headers-only reads nothing that a manifest could be written from");
  }
  const Verified verified = run(flags);
  Output output("");
  output.write(flags.json ? as_json(flags, verified) : as_text(flags, verified));
  return exit_code(verified.report);
}

}  // namespace

Action add_verify(CLI::App& command) {
  const auto flags = std::make_shared<VerifyFlags>();
  command.add_option("path", flags->path, "Model directory or .safetensors file")->required();
  command.add_option(
      "--manifest", flags->manifest,
      "Compare with this manifest (default: metrale.manifest.json, where the directory has it)");
  command
      .add_option("--write-manifest", flags->write_manifest,
                  "Write a manifest, to this file or as metrale.manifest.json into the directory")
      ->expected(0, 1)
      ->default_str("");
  command.add_flag("--force", flags->force, "Replace a manifest that is there");
  command.add_flag("--headers-only", flags->headers_only, "Read headers and sizes only, not the data");
  command
      .add_option("--threads", flags->threads,
                  "Threads that read and hash (0: one for each usable processor)")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command.add_flag("--json", flags->json, "One JSON object");
  return [flags] { return verify(*flags); };
}

}  // namespace metrale::app
