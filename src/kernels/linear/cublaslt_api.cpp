// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/cublaslt_api.h"

#include <algorithm>
#include <dlfcn.h>
#include <map>
#include <mutex>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/base/log.h>

namespace metrale::kernels::cublaslt {
namespace {

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

bool find_all(void* library, Functions& f) {
  return find(library, "cublasLtCreate", f.create) && find(library, "cublasLtDestroy", f.destroy) &&
         find(library, "cublasLtMatmulDescCreate", f.desc_create) &&
         find(library, "cublasLtMatmulDescDestroy", f.desc_destroy) &&
         find(library, "cublasLtMatmulDescSetAttribute", f.desc_set) &&
         find(library, "cublasLtMatrixLayoutCreate", f.layout_create) &&
         find(library, "cublasLtMatrixLayoutDestroy", f.layout_destroy) &&
         find(library, "cublasLtMatmulPreferenceCreate", f.preference_create) &&
         find(library, "cublasLtMatmulPreferenceDestroy", f.preference_destroy) &&
         find(library, "cublasLtMatmulPreferenceSetAttribute", f.preference_set) &&
         find(library, "cublasLtMatmulAlgoGetHeuristic", f.heuristic) &&
         find(library, "cublasLtMatmulAlgoCheck", f.check) &&
         find(library, "cublasLtMatmulAlgoConfigGetAttribute", f.algorithm_get) &&
         find(library, "cublasLtMatmul", f.matmul) && find(library, "cublasLtGetVersion", f.version);
}

std::vector<std::string> names_to_try(const std::string& name) {
  std::vector<std::string> names{name};
  if (name.find('/') != std::string::npos) return names;
  for (const char* other : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"}) {
    if (std::find(names.begin(), names.end(), other) == names.end()) names.emplace_back(other);
  }
  return names;
}

// Puts the functions into `functions`.
Library search(const std::string& name, Functions& functions) {
  std::string reason;
  for (const std::string& candidate : names_to_try(name)) {
    void* const library = ::dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      reason += fmt::format("{}{}", reason.empty() ? "" : "; ", ::dlerror());
      continue;
    }
    if (find_all(library, functions)) {
      log().debug("cuBLASLt {} is {}", functions.version(), candidate);
      // It is never closed: plans of any backend may use it until the process ends.
      return {&functions, {}, true};
    }
    reason += fmt::format("{}{} lacks a function of cuBLASLt", reason.empty() ? "" : "; ", candidate);
    ::dlclose(library);
  }
  return {nullptr, reason, true};
}

}  // namespace

Library open_library(const std::string& name) {
  if (name.empty()) return {nullptr, "it is not wanted", false};
  static std::mutex mutex;
  static std::map<std::string, Functions> opened;
  const std::lock_guard lock(mutex);
  const auto [place, is_new] = opened.try_emplace(name);
  if (!is_new) return {&place->second, {}, true};
  Library library = search(name, place->second);
  if (library.functions == nullptr) opened.erase(place);
  return library;
}

void check_status(int status, const char* call) {
  if (status != kSuccess) throw DeviceError(call, status, "cuBLASLt failed");
}

}  // namespace metrale::kernels::cublaslt
