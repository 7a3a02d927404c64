// Which calls are plain: to torch they are nothing but their kernels.
#pragma once

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/TracerMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include "python.h"

namespace lngrad {

// Whether a tensor is nothing but a dense CPU tensor to the dispatcher, without a tangent.
inline bool is_plain(const Tensor& tensor) {
  constexpr c10::DispatchKeySet plain(
      {c10::DispatchKey::CPU, c10::DispatchKey::AutogradCPU, c10::DispatchKey::ADInplaceOrView,
       c10::DispatchKey::AutocastCPU});
  return (tensor.key_set() | plain) == plain && !tensor._fw_grad(0).defined();
}
inline bool is_plain(const optional<Tensor>& tensor) { return !tensor || !tensor->defined() || is_plain(*tensor); }

// Whether nothing listens to the operators of this thread: no mode, no transform, no tracer.
inline bool nobody_listens() {
  return !c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode) &&
      !c10::impl::TorchDispatchModeTLS::any_modes_set() && !at::impl::torch_function_mode_enabled() &&
      !at::tracer::impl::is_dispatch_enabled() && !c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Python);
}

}  // namespace lngrad
