// CUDA tensors without CUDA, for a torch that was built without it: two devices whose memory is the host's. torch's dispatcher,
// autocast and guards take them for what they say they are; its autograd engine asks for more.
#include <ATen/EmptyTensor.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstdlib>
#include <cstring>
#include <utility>

namespace {

thread_local c10::DeviceIndex current = 0;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static c10::Stream stream(c10::Device device) { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device device) const override { return {c10::kCUDA, std::exchange(current, device.index())}; }
  c10::Device getDevice() const override { return {c10::kCUDA, current}; }
  void setDevice(c10::Device device) const override { current = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current = device.index(); }
  c10::Stream getStream(c10::Device device) const override { return stream(device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream(device); }
  c10::Stream exchangeStream(c10::Stream other) const override { return stream(other.device()); }
  c10::DeviceIndex deviceCount() const noexcept override { return 2; }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard);

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t nbytes) override {
    void* data = std::aligned_alloc(64, (nbytes + 64) / 64 * 64);
    return {data, data, std::free, c10::Device(c10::kCUDA, current)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return std::free; }
  void copy_data(void* to, const void* from, size_t nbytes) const override { std::memcpy(to, from, nbytes); }
} memory;

at::Tensor make(c10::IntArrayRef sizes, at::ScalarType dtype, c10::Device device) {
  const auto before = std::exchange(current, device.index());
  auto made = at::detail::empty_generic(sizes, &memory, c10::DispatchKeySet(c10::DispatchKey::CUDA), dtype, std::nullopt);
  current = before;
  return made;
}

at::Tensor empty(c10::SymIntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat>) {
  return make(C10_AS_INTARRAYREF_SLOW(sizes), dtype.value_or(at::kFloat), device.value());
}

at::Tensor moved(const at::Tensor& given, int64_t device) {
  auto made = device < 0 ? at::detail::empty_cpu(given.sizes(), given.scalar_type())
                         : make(given.sizes(), given.scalar_type(), {c10::kCUDA, static_cast<c10::DeviceIndex>(device)});
  std::memcpy(made.mutable_data_ptr(), given.const_data_ptr(), given.nbytes());
  return made;
}

// What autocast does with 16 bits.
at::Tensor to_copy(const at::Tensor& given, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                   std::optional<at::Device>, std::optional<bool>, bool, std::optional<at::MemoryFormat>) {
  return moved(moved(given, -1).to(dtype.value()), given.device().index());
}

}  // namespace

TORCH_LIBRARY(fake_cuda, library) {
  library.def("moved(Tensor given, int device) -> Tensor", moved);  // device: -1 for the CPU
}
TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", empty);
  library.impl("_to_copy", to_copy);
}
