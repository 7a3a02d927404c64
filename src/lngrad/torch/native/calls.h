// One call: its facts, its results' memory, and its run.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty_ops.h>

#include "prepared.h"
#include "python.h"

namespace lngrad {

// Whether a tensor can be read where it lies: on a call's device, contiguous, with all of its memory there.
inline bool lies_plain(const Tensor& tensor, c10::Device device) {
  const auto* self = tensor.unsafeGetTensorImpl();
  if (tensor.device() != device || tensor.layout() != at::kStrided || !tensor.is_contiguous()) return false;
  if (tensor.numel() == 0) return false;
  const auto behind = (tensor.storage_offset() + tensor.numel()) * static_cast<int64_t>(tensor.itemsize());
  return self->unsafe_storage().nbytes() >= static_cast<size_t>(behind) && tensor.const_data_ptr() != nullptr;
}

inline bool parameter_fits(const optional<Tensor>& parameter, at::IntArrayRef shape, const Tensor& x) {
  return !parameter || !parameter->defined() || (parameter->sizes() == shape && lies_plain(*parameter, x.device()));
}

inline bool x_fits(const Tensor& x, at::IntArrayRef shape) {
  const auto dims = static_cast<int64_t>(shape.size());
  if (!x.is_cpu() && !(x.is_cuda() && launch_kernel)) return false;
  return dims > 0 && dims <= x.dim() && x.dim() <= 8 && x.sizes().slice(x.dim() - dims) == shape && lies_plain(x, x.device());
}

// Whether another tensor lies as x does, element beside element.
inline bool has_layout_of(const Tensor& other, const Tensor& x) {
  return other.sizes() == x.sizes() && other.scalar_type() == x.scalar_type() && lies_plain(other, x.device());
}

inline constexpr int64_t ABSENT = 255;  // no dtype of torch has this number

inline int64_t dtype_of(const Tensor& tensor) {
  return tensor.defined() ? static_cast<int64_t>(tensor.scalar_type()) : ABSENT;
}
inline int64_t dtype_of(const optional<Tensor>& tensor) { return tensor ? dtype_of(*tensor) : ABSENT; }

inline int64_t address_of(const Tensor& tensor) {
  return tensor.defined() ? reinterpret_cast<int64_t>(tensor.const_data_ptr()) : 0;
}
inline int64_t address_of(const optional<Tensor>& tensor) { return tensor ? address_of(*tensor) : 0; }

inline int64_t threads() {
  const int64_t ours = *python.chosen ? *python.chosen : python.granted;
  return std::min<int64_t>(ours, at::get_num_threads());
}

inline int64_t bits_of(double number) {
  int64_t bits;
  std::memcpy(&bits, &number, sizeof bits);
  return bits;
}

// The call with these facts; `arguments` are what Python's preparation is asked with if it is the first.
template <class... Arguments>
Prepared& find(Kind kind, Switches switches, const Tensor& x, int64_t dims, const optional<Tensor>& gamma,
               const optional<Tensor>& beta, const Tensor& rstd, bool added, Mask mask, const Arguments&... arguments) {
  Key key{};
  key[0] = kind | x.dim() << 2 | dims << 6 | dtype_of(x) << 10 | dtype_of(gamma) << 18 | dtype_of(beta) << 26 |
      dtype_of(rstd) << 34 | int64_t(mask[0]) << 42 | int64_t(mask[1]) << 43 | int64_t(mask[2]) << 44 |
      int64_t(switches.centred) << 45 | int64_t(added) << 46;
  key[1] = x.is_cpu() ? threads() : -1 - x.device().index();
  key[2] = bits_of(switches.offset);
  std::copy(x.sizes().begin(), x.sizes().end(), key.begin() + 3);
  auto& table = prepared();
  const auto found = table.find(key);
  if (found != table.end()) return found->second;

  py::gil_scoped_acquire gil;
  const py::object made = ask(python.prepare[kind], wrap(arguments)...);
  if (table.size() >= MOST) table.clear();  // as support/bounded_cache.py does: many shapes mean shapes that do not come back
  if (made.is_none()) return table[key] = Prepared();
  const py::tuple parts(made);
  return table[key] = Prepared(unwrap(parts[0].ptr()).scalar_type(), unwrap(parts[1].ptr()).const_data_ptr<int64_t>());
}

// --- Results ----------------------------------------------------------------------------------------------------------

inline Tensor make(const Tensor& x, at::IntArrayRef sizes, at::ScalarType dtype) {
  if (x.is_cpu()) return at::detail::empty_cpu(sizes, dtype);
  const c10::DispatchKeySet kernel(c10::DispatchKey::CUDA);  // torch's, without a way through its dispatcher
  return at::_ops::empty_memory_format::redispatch(kernel, c10::fromIntArrayRefSlow(sizes), dtype, at::kStrided, x.device(),
                                                   false, std::nullopt);
}

inline bool is_pooled(const Tensor& x) { return x.is_cpu() && static_cast<int64_t>(x.nbytes()) >= python.pooled_from; }

inline Tensor make_like(const Tensor& x) {
  if (!is_pooled(x)) return make(x, x.sizes(), x.scalar_type());
  py::gil_scoped_acquire gil;
  return unwrap(ask(python.empty, wrap(x.sizes()), wrap(x)).ptr());
}

using Addresses = c10::SmallVector<int64_t, 10>;

inline void run(Prepared& prepared, const Addresses& addresses, const Tensor& x) {
  Tensor workspace;
  if (const int64_t nbytes = prepared.workspace_bytes()) workspace = make(x, {nbytes}, at::kByte);
  prepared.run(addresses.data(), x.device(), address_of(workspace));
}

// y, mean, rstd and the total; mean is undefined where the normalization is not centred, the total without a residual.
inline optional<Four> forward(Kind kind, const Tensor& x, at::IntArrayRef shape, const optional<Tensor>& gamma,
                              const optional<Tensor>& beta, double eps, const optional<Tensor>& residual, Switches switches) {
  if (!x_fits(x, shape) || !parameter_fits(gamma, shape, x) || !parameter_fits(beta, shape, x)) return {};
  if (residual && !has_layout_of(*residual, x)) return {};
  const bool centred = switches.centred;
  const auto call = [&]() -> Prepared& {
    if (kind == ATEN_FORWARD)
      return find(kind, switches, x, shape.size(), gamma, beta, {}, false, {true, true, true}, x, shape, gamma, beta);
    return find(kind, switches, x, shape.size(), gamma, beta, {}, residual.has_value(), {true, true, true}, x, shape, gamma,
                beta, residual, centred, switches.offset);
  };
  Addresses addresses{address_of(x), address_of(gamma)};
  if (centred) addresses.push_back(address_of(beta));
  if (residual) addresses.push_back(address_of(*residual));
  Prepared* found = &call();
  if (!found->takes(addresses)) return {};
  c10::SmallVector<int64_t, 8> rows(x.sizes().begin(), x.sizes().end());
  std::fill(rows.end() - shape.size(), rows.end(), 1);
  const at::ScalarType small = found->small;
  Four results{make_like(x), centred ? make(x, rows, small) : Tensor(), make(x, rows, small),
               residual ? make_like(x) : Tensor()};
  if (is_pooled(x)) found = &call();  // Python ran, which may have come here
  const auto& [y, mean, rstd, total] = results;
  addresses.push_back(address_of(y));
  if (centred) addresses.push_back(address_of(mean));
  addresses.push_back(address_of(rstd));
  if (residual || !centred) addresses.push_back(address_of(total));  // RmsForward has its place
  addresses.push_back(bits_of(eps));
  run(*found, addresses, x);
  return results;
}

inline optional<Three> backward(Kind kind, const Tensor& dy, const Tensor& x, at::IntArrayRef shape, const Tensor& mean,
                                const Tensor& rstd, const optional<Tensor>& gamma, const optional<Tensor>& beta, Mask mask,
                                const optional<Tensor>& dtotal, Switches switches) {
  if (!x_fits(x, shape) || !parameter_fits(gamma, shape, x)) return {};
  if (beta && beta->defined() && beta->sizes() != shape) return {};  // never read, but an error of aten's
  if (!has_layout_of(dy, x) || (dtotal && !has_layout_of(*dtotal, x))) return {};
  const bool centred = switches.centred;
  const int64_t M = x.numel() / c10::multiply_integers(shape);
  if (rstd.numel() != M || !lies_plain(rstd, x.device()) || !(mask[0] || mask[1] || mask[2])) return {};
  if (centred && (mean.numel() != M || mean.scalar_type() != rstd.scalar_type() || !lies_plain(mean, x.device()))) return {};
  const auto call = [&]() -> Prepared& {
    if (kind == ATEN_BACKWARD)
      return find(kind, switches, x, shape.size(), gamma, beta, rstd, false, mask, dy, x, shape, mean, rstd, gamma, beta, mask);
    return find(kind, switches, x, shape.size(), gamma, beta, rstd, dtotal.has_value(), mask, dy, x, shape, mean, rstd, gamma,
                mask, dtotal, centred, switches.offset);
  };
  Addresses addresses{address_of(dy), address_of(x)};
  if (centred) addresses.push_back(address_of(mean));
  addresses.push_back(address_of(rstd));
  addresses.push_back(address_of(gamma));
  if (dtotal) addresses.push_back(address_of(*dtotal));
  Prepared* found = &call();
  if (!found->takes(addresses)) return {};
  const at::ScalarType small = found->small;
  Three results{mask[0] ? make_like(x) : Tensor(), mask[1] ? make(x, shape, small) : Tensor(),
                mask[2] ? make(x, shape, small) : Tensor()};
  if (mask[0] && is_pooled(x)) found = &call();
  const auto& [dx, dgamma, dbeta] = results;
  addresses.push_back(address_of(dx));
  addresses.push_back(address_of(dgamma));
  if (centred) addresses.push_back(address_of(dbeta));
  run(*found, addresses, x);
  return results;
}

}  // namespace lngrad
