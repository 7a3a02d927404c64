// One call: its facts, its results' memory, and its run.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty_ops.h>

#include "prepared.h"
#include "python.h"

namespace lngrad {

// Whether memory from a tensor's first element on is there, on a call's device.
inline bool is_there(const Tensor& tensor, c10::Device device, int64_t elements) {
  if (tensor.device() != device || tensor.layout() != at::kStrided || tensor.numel() == 0) return false;
  const auto behind = (tensor.storage_offset() + elements) * static_cast<int64_t>(tensor.itemsize());
  return tensor.unsafeGetTensorImpl()->unsafe_storage().nbytes() >= static_cast<size_t>(behind) &&
      tensor.const_data_ptr() != nullptr;
}

// Whether a tensor can be read where it lies: contiguous, with all of its memory there.
inline bool lies_plain(const Tensor& tensor, c10::Device device) {
  return is_there(tensor, device, tensor.numel()) && tensor.is_contiguous();
}

// Whether gamma or beta can be read where it lies, and its place in the key: 0 where there is one for all rows; else for how many
// of x's first dimensions there is one each, plus 1, and behind 8 bits the elements from one to the next.
inline bool parameter_fits(const Tensor& parameter, const Call& call, int64_t& place) {
  place = 0;
  if (!parameter.defined()) return true;
  const Tensor& x = call.x;
  if (parameter.sizes() == call.shape) return lies_plain(parameter, x.device());
  int64_t own = x.dim() - static_cast<int64_t>(call.shape.size()), step = 1, elements = 1;
  if (!call.switches.takes_samples || parameter.dim() != x.dim() || parameter.sizes().slice(own) != call.shape) return false;
  while (own > 0 && parameter.size(own - 1) == 1) own--;
  if (parameter.sizes().slice(0, own) != x.sizes().slice(0, own)) return false;
  for (int64_t k = x.dim() - 1; k >= 0; k--) {  // samples lie any step apart, elements beside each other
    if (parameter.size(k) == 1) continue;
    if (k == own - 1) step = parameter.stride(k);
    if (parameter.stride(k) != step) return false;
    elements += (parameter.size(k) - 1) * step;
    step *= parameter.size(k);
  }
  place = (own + 1) | (own ? parameter.stride(own - 1) << 8 : 0);
  return is_there(parameter, x.device(), elements);
}

inline bool x_fits(const Call& call) {
  const Tensor& x = call.x;
  const auto dims = static_cast<int64_t>(call.shape.size());
  if (!(x.is_cpu() || (x.is_cuda() && launch_kernel)) || dims < 1 || dims > x.dim() || x.dim() > 8) return false;
  return x.sizes().slice(x.dim() - dims) == call.shape && lies_plain(x, x.device());
}

// Whether another tensor lies as x does, element beside element; which dtypes go together Python knows.
inline bool has_layout_of(const Tensor& other, const Tensor& x) {
  return other.sizes() == x.sizes() && lies_plain(other, x.device());
}

inline constexpr int64_t ABSENT = 255;  // no dtype of torch has this number

inline int64_t dtype_of(const Tensor& tensor) {
  return tensor.defined() ? static_cast<int64_t>(tensor.scalar_type()) : ABSENT;
}

inline int64_t address_of(const Tensor& tensor) {
  return tensor.defined() ? reinterpret_cast<int64_t>(tensor.const_data_ptr()) : 0;
}

inline int64_t threads() {
  const int64_t ours = *python.chosen ? *python.chosen : python.granted;
  return std::min<int64_t>(ours, at::get_num_threads());
}

inline int64_t bits_of(double number) {
  int64_t bits;
  std::memcpy(&bits, &number, sizeof bits);
  return bits;
}

// The prepared call with these facts; places are those of gamma and beta.
inline Prepared& find(Kind kind, const Call& call, const std::array<int64_t, 2>& places) {
  const Tensor& x = call.x;
  const Switches& switches = call.switches;
  const auto& [dx, dgamma, dbeta, dgate] = call.wanted;
  const int64_t dims = static_cast<int64_t>(call.shape.size()), wanted = dx | dgamma << 1 | dbeta << 2 | dgate << 3;
  Key key{kind | x.dim() << 2 | dims << 6 | wanted << 10 | switches.centred << 14 | switches.norm_before_gate << 15,
          dtype_of(x) | dtype_of(call.gamma) << 8 | dtype_of(call.beta) << 16 | dtype_of(call.rstd) << 24 |
              dtype_of(call.dy) << 32 | dtype_of(call.residual) << 40 | dtype_of(call.dtotal) << 48 | dtype_of(call.gate) << 56,
          x.is_cpu() ? threads() : -1 - x.device().index(), bits_of(switches.offset), places[0], places[1]};
  std::copy(x.sizes().begin(), x.sizes().end(), key.end() - 8);
  auto& table = prepared();
  const auto found = table.find(key);
  if (found != table.end()) return found->second;

  py::gil_scoped_acquire gil;
  const auto prepare = [&](const auto&... arrays) {
    return ask(python.prepare[kind], arrays..., wrap(call.gate), wrap(switches.centred), wrap(switches.offset),
               wrap(switches.norm_before_gate));
  };
  const py::object packed = kind % 2 == 0
      ? prepare(wrap(x), wrap(call.shape), wrap(call.gamma), wrap(call.beta), wrap(call.residual))
      : prepare(wrap(call.dy), wrap(x), wrap(call.shape), wrap(call.mean), wrap(call.rstd), wrap(call.gamma), wrap(call.beta),
                wrap(call.mask()), wrap(call.dtotal));
  if (table.size() >= MOST) table.clear();  // as support/bounded_cache.py does: many shapes mean shapes that do not come back
  if (packed.is_none()) return table[key] = Prepared();
  const py::tuple parts(packed);
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

// The results of a forward; nothing where it is Python's.
inline optional<Forward> forward(Kind kind, const Call& call) {
  const Tensor &x = call.x, &residual = call.residual, &gate = call.gate;
  std::array<int64_t, 2> places;
  if (!x_fits(call) || !parameter_fits(call.gamma, call, places[0]) || !parameter_fits(call.beta, call, places[1])) return {};
  if ((residual.defined() && !has_layout_of(residual, x)) || (gate.defined() && !has_layout_of(gate, x))) return {};
  const bool centred = call.switches.centred;
  Addresses addresses{address_of(x), address_of(call.gamma)};
  if (centred) addresses.push_back(address_of(call.beta));
  for (const Tensor* tensor : {&residual, &gate})
    if (tensor->defined()) addresses.push_back(address_of(*tensor));
  Prepared* found = &find(kind, call, places);
  if (!found->takes(addresses)) return {};
  c10::SmallVector<int64_t, 8> rows(x.sizes().begin(), x.sizes().end());
  std::fill(rows.end() - call.shape.size(), rows.end(), 1);
  const at::ScalarType small = found->small;
  Forward results{make_like(x), centred ? make(x, rows, small) : Tensor(), make(x, rows, small),
                  residual.defined() ? make_like(residual) : Tensor()};
  if (is_pooled(residual.defined() ? residual : x)) {  // Python ran, which may have come here
    found = &find(kind, call, places);
    if (!found->takes(addresses)) return {};
  }
  const auto& [y, mean, rstd, total] = results;
  addresses.push_back(address_of(y));
  if (centred) addresses.push_back(address_of(mean));
  addresses.push_back(address_of(rstd));
  if (residual.defined() || !centred) addresses.push_back(address_of(total));  // an output of RmsForward in any case
  addresses.push_back(bits_of(call.eps));
  run(*found, addresses, x);
  return results;
}

// The results of a backward; nothing where it is Python's.
inline optional<Gradients> backward(Kind kind, const Call& call) {
  const auto& [dy, x, mean, rstd, gamma, beta, residual, dtotal, gate, shape, eps, wanted, switches] = call;
  std::array<int64_t, 2> places{};  // beta is not read
  if (!x_fits(call) || !parameter_fits(gamma, call, places[0])) return {};
  if (beta.defined() && beta.sizes() != shape) return {};  // an error of aten's
  if (!has_layout_of(dy, x) || (dtotal.defined() && !has_layout_of(dtotal, x)) || (gate.defined() && !has_layout_of(gate, x)))
    return {};
  const bool centred = switches.centred;
  const int64_t M = x.numel() / c10::multiply_integers(shape);
  if (rstd.numel() != M || !lies_plain(rstd, x.device()) || !(wanted.dx || wanted.dgamma || wanted.dbeta || wanted.dgate))
    return {};
  if (centred && (mean.numel() != M || mean.scalar_type() != rstd.scalar_type() || !lies_plain(mean, x.device()))) return {};
  Addresses addresses{address_of(dy), address_of(x)};
  if (centred) addresses.push_back(address_of(mean));
  addresses.push_back(address_of(rstd));
  addresses.push_back(address_of(gamma));
  for (const Tensor* tensor : {&dtotal, &gate})
    if (tensor->defined()) addresses.push_back(address_of(*tensor));
  Prepared* found = &find(kind, call, places);
  if (!found->takes(addresses)) return {};
  const at::ScalarType small = found->small;
  const at::IntArrayRef sums = gamma.defined() ? gamma.sizes() : at::IntArrayRef(shape);
  Gradients results{wanted.dx ? make_like(x) : Tensor(), wanted.dgamma ? make(x, sums, small) : Tensor(),
                    wanted.dbeta ? make(x, sums, small) : Tensor(), wanted.dgate ? make_like(x) : Tensor()};
  if ((wanted.dx || wanted.dgate) && is_pooled(x)) {
    found = &find(kind, call, places);
    if (!found->takes(addresses)) return {};
  }
  addresses.push_back(address_of(results.dx));
  addresses.push_back(address_of(results.dgamma));
  if (centred) addresses.push_back(address_of(results.dbeta));
  if (gate.defined()) addresses.push_back(address_of(results.dgate));
  run(*found, addresses, x);
  return results;
}

}  // namespace lngrad
