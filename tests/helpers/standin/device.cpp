// An accelerator for tests. It takes the place of an accelerator that this machine does not have.
// Its memory is memory of the CPU, and the CPU computes for it. Its tensors, streams, events and
// generators have the device type PrivateUse1, which torch keeps for devices that it does not know.
//
// tests/helpers/standin/__init__.py compiles this file. spikevrt_standin.py registers the device,
// and gives torch a Python module for it. The program of a test then computes on it as on a GPU of
// another vendor (tests/parts/utils/test_device.py). An operation that is not defined below runs on
// copies of its tensors on the CPU (`by_cpu`).
//
//   Memory               allocates, and counts how many bytes are allocated
//   Devices, ...         what torch asks of a device: which one is current, its streams, its events
//   Tensors              the operations that a device must have itself, and convolution
//   extern "C"           what spikevrt_standin.py calls
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>

namespace {

using at::Tensor;
constexpr auto KIND = c10::DeviceType::PrivateUse1;
// The number of the device that this thread computes on.
thread_local c10::DeviceIndex current = 0;
// Bytes that are allocated now, and the most that were allocated at once.
std::atomic<long long> allocated{0}, peak{0};
// How often the CPU waited for the device. A training step should wait rarely.
std::atomic<long long> waits{0};

// Number of devices of this machine: the variable STANDIN_COUNT, or 1.
c10::DeviceIndex count() {
  const char* text = std::getenv("STANDIN_COUNT");
  return text == nullptr ? 1 : static_cast<c10::DeviceIndex>(std::atoi(text));
}

// ---- Memory ---------------------------------------------------------------------------------

// Memory of one storage. torch gets `data` to use, and hands the whole Block back to `release`.
struct Block {
  void* data;
  size_t size;  // bytes
};

void release(void* context) {
  auto* block = static_cast<Block*>(context);
  allocated -= static_cast<long long>(block->size);
  std::free(block->data);
  delete block;
}

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    // malloc(0) may return no address, and a tensor of 0 bytes needs one.
    auto* block = new Block{std::malloc(size == 0 ? 1 : size), size};
    const long long now = allocated += static_cast<long long>(size);
    if (now > peak) peak = now;
    return {block->data, block, &release, c10::Device(KIND, current)};
  }
  // There is no raw deleter, because it would get only the address and not know the size.
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t size) const override {
    std::memcpy(to, from, size);
  }
};

Memory memory;
REGISTER_ALLOCATOR(KIND, &memory);

// ---- Devices, streams, events ---------------------------------------------------------------

using Clock = std::chrono::steady_clock;

// An operation has ended when its call returns. So one stream is enough, every event has happened
// already, and nobody needs to wait. An event only stores the time at which it was recorded.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return KIND; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before(KIND, current);
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {KIND, current}; }
  void setDevice(c10::Device device) const override {
    if (device.has_index()) current = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { setDevice(device); }
  c10::Stream getStream(c10::Device device) const override {
    const auto index = device.has_index() ? device.index() : current;
    return c10::Stream(c10::Stream::DEFAULT, c10::Device(KIND, index));
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return count(); }
  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag)
      const override {
    if (*event == nullptr) *event = new Clock::time_point;
    *static_cast<Clock::time_point*>(*event) = Clock::now();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override { waits++; }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Clock::time_point*>(event);
  }
  double elapsedTime(void* begin, void* end, const c10::DeviceIndex) const override {
    const auto time = *static_cast<Clock::time_point*>(end) - *static_cast<Clock::time_point*>(begin);
    return std::chrono::duration<double, std::milli>(time).count();
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override { waits++; }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// The generator of random numbers. It is the CPU's generator, but says that it is on this device.
struct Numbers final : at::CPUGeneratorImpl {
  explicit Numbers(c10::DeviceIndex index) {
    device_ = c10::Device(KIND, index);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
};

// The answers to the questions of torch.accelerator and of torch's loader.
struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return count(); }
  void setCurrentDevice(c10::DeviceIndex index) const override { current = index; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const auto before = current;
    current = index;
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? current : exchangeDevice(index);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static const auto generator = at::make_generator<Numbers>(0);
    return generator;
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<Numbers>(index < 0 ? 0 : index);
  }
  // Pinned memory is memory from which a GPU copies by itself. Here all memory is the CPU's.
  at::Allocator* getPinnedMemoryAllocator() const override {
    return c10::GetAllocator(c10::DeviceType::CPU);
  }
  bool isPinnedPtr(const void*) const override { return false; }
};

// ---- Tensors --------------------------------------------------------------------------------

Tensor empty(
    c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device.value_or(c10::Device(KIND, current)));
  return at::detail::empty_generic(
      size, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(
    c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(device.value_or(c10::Device(KIND, current)));
  return at::detail::empty_strided_generic(
      size, stride, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::dtype_or_default(dtype));
}

// Return a tensor on the CPU that uses the memory of `x`. Nothing is copied.
Tensor on_cpu(const Tensor& x) {
  if (x.device().type() != KIND) return x;
  const auto bytes = static_cast<int64_t>(x.storage().nbytes());
  auto all = at::from_blob(
      x.storage().mutable_data(), {bytes}, at::TensorOptions().dtype(at::kByte));
  return at::empty({0}, x.options().device(at::kCPU))
      .set_(all.storage(), x.storage_offset(), x.sizes(), x.strides());
}

// Copy the values of a tensor. torch calls this function for every copy: from the CPU to the
// device, from the device to the CPU, and on the device.
Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  on_cpu(to).copy_(on_cpu(from));
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

// Give a tensor another size. Its memory grows if it is too small, and never shrinks.
const Tensor& resize(
    const Tensor& x, c10::IntArrayRef size, std::optional<at::MemoryFormat>) {
  auto* tensor = x.unsafeGetTensorImpl();
  tensor->set_sizes_contiguous(size);
  const size_t bytes = tensor->numel() * tensor->itemsize();
  if (bytes > x.storage().nbytes()) {
    x.storage().set_data_ptr_noswap(memory.allocate(bytes));
    x.storage().set_nbytes(bytes);
  }
  return x;
}

// Make `x` a view of a storage. If a size is given without strides, the view is contiguous.
Tensor& set_storage(
    Tensor& x, at::Storage storage, int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
  auto* tensor = x.unsafeGetTensorImpl();
  tensor->set_storage_keep_dtype(storage);
  tensor->set_storage_offset(offset);
  tensor->set_sizes_and_strides(
      size, stride.empty() && !size.empty() ? at::detail::defaultStrides(size) : stride.vec());
  return x;
}

// Make `x` a view of all numbers of a storage, with one dimension. torch.load calls this function.
Tensor& set_whole_storage(Tensor& x, at::Storage storage) {
  const auto numbers = static_cast<int64_t>(storage.nbytes() / x.itemsize());
  return set_storage(x, storage, 0, {numbers}, {});
}

// Return the value of a tensor of one number, e.g. for `loss.item()`. With a GPU, the CPU would
// have to wait for the value. So this call counts as a wait.
at::Scalar local_scalar(const Tensor& x) {
  waits++;
  return at::_local_scalar_dense(on_cpu(x));
}

// `by_cpu` below runs other operations on the CPU, but torch offers no such way for convolution. So
// the next two functions give the tensors to the CPU, and copy the results back.
Tensor convolution(
    const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
    c10::IntArrayRef stride, c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed,
    c10::IntArrayRef output_padding, int64_t groups) {
  const auto b = bias.has_value() && bias->defined() ? std::optional<Tensor>(on_cpu(*bias))
                                                     : std::nullopt;
  return at::convolution(
             on_cpu(x), on_cpu(weight), b, stride, padding, dilation, transposed, output_padding,
             groups)
      .to(x.device());
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& grad, const Tensor& x, const Tensor& weight, c10::IntArrayRef stride,
    c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed,
    c10::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> mask) {
  // mask: which of the three gradients torch asks for. The other gradients are undefined tensors.
  const std::vector<int64_t> bias_size{transposed ? weight.size(1) * groups : weight.size(0)};
  auto [x_grad, weight_grad, bias_grad] = at::convolution_backward(
      on_cpu(grad), on_cpu(x), on_cpu(weight), bias_size, stride, padding, dilation, transposed,
      output_padding, groups, mask);
  const auto moved = [&](const Tensor& t) { return t.defined() ? t.to(x.device()) : t; };
  return {moved(x_grad), moved(weight_grad), moved(bias_grad)};
}

// Choose the kernel of scaled_dot_product_attention: "math", which is made of products of matrices
// and so runs on any device.
int64_t attention_by_products(
    const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double, bool,
    std::optional<double>, bool) {
  return 0;  // SDPBackend.MATH
}

// Run any other operation on the CPU: copy its tensors there, and its results back.
void by_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  // torchvision has no kernel for this device, and no copy through the CPU may hide that.
  TORCH_CHECK_NOT_IMPLEMENTED(
      op.schema().name().rfind("torchvision::", 0) != 0, op.schema().name(),
      " has no kernel on the stand-in");
  at::native::cpu_fallback(op, stack);
}

}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&by_cpu>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("resize_", &resize);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Storage", &set_whole_storage);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
  m.impl("_fused_sdp_choice", &attention_by_products);
}

// Autocast. The operations below compute in the lower precision. All other operations compute in
// the precision of their arguments.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  using namespace at::autocast;
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(conv2d, lower_precision_fp)
}

// Functions that spikevrt_standin.py calls by their names.
extern "C" {
void standin_register() { at::RegisterPrivateUse1HooksInterface(new Hooks); }
int standin_count() { return count(); }
int standin_current() { return current; }
void standin_set(int index) { current = static_cast<c10::DeviceIndex>(index); }
long long standin_allocated() { return allocated; }
long long standin_peak() { return peak; }
long long standin_waits() { return waits; }
}
