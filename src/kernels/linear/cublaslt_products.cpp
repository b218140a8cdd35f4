// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/cublaslt_products.h"

#include <algorithm>
#include <array>
#include <bit>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <metrale/base/error.h>
#include <metrale/base/log.h>

namespace metrale::kernels::cublaslt {
namespace {

constexpr int kAskedFor = 64;  // candidates of one shape

std::uint64_t element_bytes(DataType type) {
  switch (type) {
    case DataType::kF32:
      return 4;
    case DataType::kF16:
    case DataType::kBf16:
      return 2;
    case DataType::kE4m3:
      return 1;
  }
  throw InvalidArgument("no such type of cuBLASLt");
}

template <class T>
T* pointer(std::uint64_t address) {
  return reinterpret_cast<T*>(static_cast<std::uintptr_t>(address));
}

// An object of the library, destroyed at the end of its scope.
class Owned {
 public:
  template <class Make>
  Owned(const char* call, int (*destroy)(void*), const Make& make) : destroy_(destroy) {
    check_status(make(&object_), call);
  }
  ~Owned() { destroy_(object_); }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  [[nodiscard]] void* get() const { return object_; }

 private:
  int (*destroy_)(void*);
  void* object_ = nullptr;
};

// The library's description of one product: column-major, out^T = weight^T^T in^T.
class Problem {
 public:
  Problem(const Functions& lt, const Shape& shape, const Operands& operands, std::uint32_t rows)
      : lt_(&lt),
        desc_("cublasLtMatmulDescCreate", lt.desc_destroy,
              [&](void** made) { return lt.desc_create(made, kCompute32F, DataType::kF32); }),
        weight_("cublasLtMatrixLayoutCreate", lt.layout_destroy,
                [&](void** made) {
                  return lt.layout_create(made, shape.in_type, shape.ins, shape.outs, shape.ins);
                }),
        in_("cublasLtMatrixLayoutCreate", lt.layout_destroy,
            [&](void** made) {
              return lt.layout_create(made, shape.in_type, shape.ins, rows, shape.in_stride);
            }),
        out_("cublasLtMatrixLayoutCreate", lt.layout_destroy, [&](void** made) {
          return lt.layout_create(made, shape.out_type, shape.outs, rows, shape.out_stride);
        }) {
    set(DescAttribute::kTransposeA, kTransposed);
    if (shape.bias_type) {
      set(DescAttribute::kEpilogue, kEpilogueBias);
      set(DescAttribute::kBiasPointer, operands.bias);
      set(DescAttribute::kBiasType, static_cast<std::int32_t>(*shape.bias_type));
    }
    if (operands.weight_scale != 0) set(DescAttribute::kScaleA, operands.weight_scale);
    if (operands.in_scale != 0) set(DescAttribute::kScaleB, operands.in_scale);
  }

  [[nodiscard]] void* desc() const { return desc_.get(); }
  [[nodiscard]] void* weight() const { return weight_.get(); }
  [[nodiscard]] void* in() const { return in_.get(); }
  [[nodiscard]] void* out() const { return out_.get(); }

 private:
  template <class T>
  void set(DescAttribute attribute, const T& value) {
    check_status(lt_->desc_set(desc_.get(), attribute, &value, sizeof(value)),
                 "cublasLtMatmulDescSetAttribute");
  }

  const Functions* lt_;
  Owned desc_;
  Owned weight_;
  Owned in_;
  Owned out_;
};

// Addresses of the shape's alignments, for questions before there is a call.
Operands stand_ins(const Shape& shape) {
  Operands operands;
  operands.bias = shape.bias_alignment;
  if (shape.in_type == DataType::kE4m3) operands.in_scale = operands.weight_scale = kMostAlignment;
  return operands;
}

template <class T>
T attribute(const Functions& lt, const Algorithm& algorithm, AlgorithmAttribute which) {
  T value{};
  std::size_t written = 0;
  check_status(lt.algorithm_get(&algorithm, which, &value, sizeof(value), &written),
               "cublasLtMatmulAlgoConfigGetAttribute");
  return value;
}

// Statuses that say: not this product.
bool is_refusal(int status) {
  return status == kNotSupported || status == kInvalidValue || status == kArchMismatch;
}

// `rows` 0: of the reference.
void log_choice(const Shape& shape, std::uint32_t rows, std::span<const Candidate> candidates,
                std::optional<std::size_t> chosen) {
  if (!log().should_log(spdlog::level::debug)) return;
  const std::string what = fmt::format("linear {} x {}, types {} -> {}, rows {}", shape.outs, shape.ins,
                                       static_cast<int>(shape.in_type), static_cast<int>(shape.out_type),
                                       rows == 0 ? "any" : std::to_string(rows));
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const Candidate& c = candidates[i];
    log().debug(
        "{}: {} algorithm {} tile {} stages {} cluster {} inner {} swizzle {} custom {} split {} reduction "
        "{} "
        "workspace {} waves {:.2f}",
        what,
        i == chosen                          ? "takes"
        : is_exact(c, shape.workspace_bytes) ? "could take"
                                             : "refuses",
        c.id, c.tile, c.stages, c.cluster, c.inner_shape, c.swizzle, c.custom, c.split_k, c.reduction,
        c.workspace_bytes, c.waves);
  }
  if (!chosen) log().debug("{}: cuBLASLt has no exact algorithm", what);
}

}  // namespace

std::uint32_t alignment_of(std::uint64_t address, std::uint64_t stride_bytes) {
  const std::uint64_t bits = address | stride_bytes | kMostAlignment;
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

Products::Products(const Functions& functions, const ProductsOptions& options)
    : lt_(&functions), options_(options) {
  check_status(lt_->create(&handle_), "cublasLtCreate");
}

Products::~Products() {
  if (handle_ != nullptr) lt_->destroy(handle_);
}

std::vector<HeuristicResult> Products::ask(const Shape& shape, std::uint32_t rows, bool split) const {
  const Problem problem(*lt_, shape, stand_ins(shape), rows);
  const Owned preference("cublasLtMatmulPreferenceCreate", lt_->preference_destroy,
                         [&](void** made) { return lt_->preference_create(made); });
  const auto prefer = [&](PreferenceAttribute which, const auto& value) {
    check_status(lt_->preference_set(preference.get(), which, &value, sizeof(value)),
                 "cublasLtMatmulPreferenceSetAttribute");
  };
  prefer(PreferenceAttribute::kWorkspaceBytes, std::uint64_t{shape.workspace_bytes});
  if (!split) prefer(PreferenceAttribute::kReductionMask, kReductionNone);
  prefer(PreferenceAttribute::kAlignmentA, shape.weight_alignment);
  prefer(PreferenceAttribute::kAlignmentB, shape.in_alignment);
  prefer(PreferenceAttribute::kAlignmentC, shape.out_alignment);
  prefer(PreferenceAttribute::kAlignmentD, shape.out_alignment);
  std::vector<HeuristicResult> results(kAskedFor);
  int found = 0;
  const int status = lt_->heuristic(handle_, problem.desc(), problem.weight(), problem.in(), problem.out(),
                                    problem.out(), preference.get(), kAskedFor, results.data(), &found);
  if (is_refusal(status)) return {};
  check_status(status, "cublasLtMatmulAlgoGetHeuristic");
  results.resize(static_cast<std::size_t>(found));
  std::erase_if(results, [](const HeuristicResult& result) { return result.state != kSuccess; });
  return results;
}

std::optional<HeuristicResult> Products::check(const Shape& shape, const Algorithm& algorithm,
                                               std::uint32_t rows) const {
  const Problem problem(*lt_, shape, stand_ins(shape), rows);
  HeuristicResult result{};
  const int status = lt_->check(handle_, problem.desc(), problem.weight(), problem.in(), problem.out(),
                                problem.out(), &algorithm, &result);
  if (is_refusal(status)) return std::nullopt;
  check_status(status, "cublasLtMatmulAlgoCheck");
  if (result.workspace_bytes > shape.workspace_bytes) return std::nullopt;
  return result;
}

Candidate Products::examine(const Shape& shape, const HeuristicResult& result,
                            std::span<const std::uint32_t> rows) const {
  const Algorithm& a = result.algorithm;
  Candidate c{.id = attribute<std::int32_t>(*lt_, a, AlgorithmAttribute::kId),
              .tile = attribute<std::uint32_t>(*lt_, a, AlgorithmAttribute::kTile),
              .stages = attribute<std::uint32_t>(*lt_, a, AlgorithmAttribute::kStages),
              .split_k = attribute<std::int32_t>(*lt_, a, AlgorithmAttribute::kSplitK),
              .reduction = attribute<std::uint32_t>(*lt_, a, AlgorithmAttribute::kReduction),
              .swizzle = attribute<std::uint32_t>(*lt_, a, AlgorithmAttribute::kSwizzle),
              .custom = attribute<std::uint32_t>(*lt_, a, AlgorithmAttribute::kCustom),
              .inner_shape = attribute<std::uint16_t>(*lt_, a, AlgorithmAttribute::kInnerShape),
              .cluster = attribute<std::uint16_t>(*lt_, a, AlgorithmAttribute::kCluster),
              .workspace_bytes = 0,
              .waves = result.waves,
              .fits = true};
  for (const std::uint32_t count : rows) {
    const std::optional<HeuristicResult> checked = check(shape, a, count);
    c.fits = c.fits && checked.has_value();
    if (!checked) continue;
    c.workspace_bytes = std::max<std::uint64_t>(c.workspace_bytes, checked->workspace_bytes);
    if (rows.size() == 1) c.waves = checked->waves;
  }
  return c;
}

Products::Plan Products::make_reference(const Shape& shape) const {
  const std::vector<HeuristicResult> results = ask(shape, options_.reference_rows, false);
  std::vector<Candidate> candidates;
  candidates.reserve(results.size());
  for (const HeuristicResult& result : results) candidates.push_back(examine(shape, result, kCheckedRows));
  const std::optional<std::size_t> chosen = choose(candidates, shape.workspace_bytes, options_.candidate);
  log_choice(shape, 0, candidates, chosen);
  if (!chosen) return {};
  Plan plan{results[*chosen].algorithm, {}, candidates[*chosen]};
  for (const std::uint32_t rows : kCheckedRows) plan.fits[rows] = true;
  return plan;
}

Products::Plan Products::make_alike(const Shape& shape, std::uint32_t rows,
                                    const Candidate& reference) const {
  std::vector<HeuristicResult> results = ask(shape, rows, false);
  if (rows <= kFewRows) {
    for (const std::uint32_t also : kFewRowsAlsoAsk) {
      const std::vector<HeuristicResult> more = ask(shape, also, false);
      results.insert(results.end(), more.begin(), more.end());
    }
  }
  std::vector<Candidate> candidates;
  candidates.reserve(results.size());
  const std::array own{rows};
  for (const HeuristicResult& result : results) candidates.push_back(examine(shape, result, own));
  const std::optional<std::size_t> chosen =
      choose_alike(candidates, reference, shape.workspace_bytes, rows <= kFewRows);
  log_choice(shape, rows, candidates, chosen);
  if (!chosen) return {};
  return {results[*chosen].algorithm, {}, candidates[*chosen]};
}

Products::Plan Products::make_fast(const Shape& shape, std::uint32_t rows) const {
  const std::vector<HeuristicResult> results = ask(shape, rows, true);
  if (results.empty()) return {};
  return {results.front().algorithm, {}, {}};
}

Products::Plan Products::make(const Key& key) {
  switch (key.kind) {
    case Kind::kReference:
      return make_reference(key.shape);
    case Kind::kAlike: {
      if (!options_.adds_alike || !is_known_to_add_alike(key.shape.in_type)) return {};
      const Plan& reference = find({key.shape, Kind::kReference, 0});
      if (!reference.algorithm || reference.facts.id != kOneOrderId) return {};
      return make_alike(key.shape, key.rows, reference.facts);
    }
    case Kind::kFast:
      return make_fast(key.shape, key.rows);
  }
  return {};
}

Products::Plan& Products::find(const Key& key) {
  const auto known = plans_.find(key);
  if (known != plans_.end()) return known->second;
  Plan made = make(key);
  return plans_.emplace(key, std::move(made)).first->second;
}

std::pair<std::optional<Algorithm>, bool> Products::plan(const Key& key, std::uint32_t rows) {
  const std::lock_guard lock(mutex_);
  Plan& plan = find(key);
  if (!plan.algorithm) return {std::nullopt, false};
  auto fit = plan.fits.find(rows);
  if (fit == plan.fits.end()) {
    fit = plan.fits.emplace(rows, check(key.shape, *plan.algorithm, rows).has_value()).first;
  }
  return {plan.algorithm, fit->second};
}

void Products::enqueue(const Shape& shape, const Operands& operands, std::uint32_t rows,
                       const Algorithm& algorithm, void* stream) const {
  const Problem problem(*lt_, shape, operands, rows);
  const float alpha = 1;
  const float beta = 0;
  auto* const out = pointer<void>(operands.out);
  check_status(lt_->matmul(handle_, problem.desc(), &alpha, pointer<const void>(operands.weight),
                           problem.weight(), pointer<const void>(operands.in), problem.in(), &beta, out,
                           problem.out(), out, problem.out(), &algorithm, pointer<void>(operands.workspace),
                           shape.workspace_bytes, stream),
               "cublasLtMatmul");
}

bool Products::multiply_exact(const Shape& shape, const Operands& operands, std::uint32_t rows,
                              std::uint32_t room, void* stream) {
  const auto [reference, fits] = plan({shape, Kind::kReference, 0}, rows);
  if (!reference) return false;
  const std::uint32_t padded = padded_rows(shape.outs, rows, room);
  const auto [alike, alike_fits] = plan({shape, Kind::kAlike, std::bit_ceil(padded)}, padded);
  if (alike && alike_fits) {
    enqueue(shape, operands, padded, *alike, stream);
    return true;
  }
  Operands part = operands;
  for (std::uint32_t done = 0; done < rows;) {
    const std::uint32_t count = fits ? rows : checked_piece(rows - done);
    part.in = operands.in + std::uint64_t{done} * shape.in_stride * element_bytes(shape.in_type);
    part.out = operands.out + std::uint64_t{done} * shape.out_stride * element_bytes(shape.out_type);
    enqueue(shape, part, count, *reference, stream);
    done += count;
  }
  return true;
}

bool Products::multiply_fast(const Shape& shape, const Operands& operands, std::uint32_t rows, void* stream) {
  const auto [algorithm, fits] = plan({shape, Kind::kFast, std::bit_ceil(rows)}, rows);
  if (!algorithm || !fits) return multiply_exact(shape, operands, rows, rows, stream);
  enqueue(shape, operands, rows, *algorithm, stream);
  return true;
}

}  // namespace metrale::kernels::cublaslt
