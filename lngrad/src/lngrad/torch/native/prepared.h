// Calls that Python has prepared, and how one is run: addresses are written into a job, and compiled tasks do the rest; or
// into the arguments of kernels, which CUDA's driver launches.
//
// Nothing is decided here. What a call needs follows from its facts (dtypes, sizes, what is wanted, threads, device); Python
// plans it once and hands it over as a Packed of core/plan.py.
#pragma once

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <unordered_map>
#include <vector>

#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>

namespace lngrad {

constexpr size_t LINE = 64;             // bytes of a cache line
constexpr int64_t KEPT_BYTES = 1 << 16;  // of a job and its workspace that are kept for the next call
constexpr size_t MOST = 512;            // calls that a thread remembers

using Share = void (*)(int64_t first, int64_t stop, int64_t job);
using Begin = void (*)(int64_t job, int64_t threads);
using Part = void (*)(int64_t first, int64_t stop, void* argument);
using ParallelFor = int32_t (*)(int64_t first, int64_t stop, int64_t grain, Part part, void* argument);
inline ParallelFor parallel_for = nullptr;

// What launches: cuLaunchKernel of CUDA's driver, with its arguments, and torch's aoti_torch_get_current_cuda_stream.
using Launch = int (*)(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned shared_bytes,
                       void* stream, void** parameters, void** extra);
using CurrentStream = int32_t (*)(int32_t device, void** stream);
inline Launch launch_kernel = nullptr;
inline CurrentStream current_stream = nullptr;
constexpr int64_t POINTER_BYTES = 16;  // that addresses are multiples of in a launch

// The facts of a call: kinds, dtypes, threads or the device, gamma's offset, how gamma and beta lie, and the sizes of x.
using Key = std::array<int64_t, 14>;

struct HashOfKey {
  size_t operator()(const Key& key) const {
    uint64_t hash = 0;
    for (int64_t word : key) {
      hash = (hash ^ static_cast<uint64_t>(word)) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 29;
    }
    return hash;
  }
};

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<int64_t, Free>;

enum class PackedKind : int64_t { NONE, JOBS, LAUNCHES };

// A plan as numbers: the fields of core/plan.py's Packed, which says what they mean, in its order. NONE is left to Python.
struct Packed {
  PackedKind kind = PackedKind::NONE;
  Share share = nullptr;
  Begin begin = nullptr;
  int64_t words = 0, workspace_word = 0, workspace_bytes = 0, streaming_word = 0, streamed = 0;
  std::vector<int64_t> image, places, regions, jobs, launches;

  Packed() = default;
  explicit Packed(const int64_t* numbers)
      : kind(static_cast<PackedKind>(*numbers++)), share(reinterpret_cast<Share>(*numbers++)),
        begin(reinterpret_cast<Begin>(*numbers++)) {
    for (int64_t* number : {&words, &workspace_word, &workspace_bytes, &streaming_word, &streamed}) *number = *numbers++;
    for (auto* list : {&image, &places, &regions, &jobs, &launches}) {
      const int64_t length = *numbers++;
      list->assign(numbers, numbers + length);
      numbers += length;
    }
  }
};

// A run of a plan.
class Prepared {
 public:
  c10::ScalarType small = c10::ScalarType::Undefined;  // dtype of mean and rstd, or of dgamma and dbeta

  Prepared() = default;
  Prepared(c10::ScalarType small, const int64_t* numbers) : small(small), packed_(numbers) {}

  // Whether arguments with these addresses are what it was prepared for.
  template <class Addresses>
  bool takes(const Addresses& inputs) const {
    int64_t all = 0;
    for (int64_t address : inputs) all |= address;
    return packed_.kind == PackedKind::JOBS || (packed_.kind == PackedKind::LAUNCHES && all % POINTER_BYTES == 0);
  }

  // Bytes of memory of the device that it works in.
  int64_t workspace_bytes() const { return packed_.workspace_bytes; }

  // Run it with the address of each argument, in the order of the problem's inputs and then its outputs, 0 for one that is
  // absent or not wanted; the bits of eps last, for a forward. A thread's calls do not overlap: memory is taken when all else is there.
  void run(const int64_t* arguments, c10::Device device, int64_t workspace) {
    if (packed_.kind == PackedKind::LAUNCHES) return launch(arguments, device, workspace);
    Memory fresh;
    if (!kept_) fresh = make();
    int64_t* chain = kept_ ? kept_.get() : fresh.get();
    place(arguments, chain);
    if (packed_.streaming_word)
      chain[packed_.streaming_word] = arguments[packed_.streamed] % static_cast<int64_t>(LINE) == 0;
    for (size_t k = 0; k < packed_.jobs.size(); k += 2) {
      const int64_t job = reinterpret_cast<int64_t>(chain + packed_.jobs[k]);
      const int64_t threads = packed_.jobs[k + 1];
      packed_.begin(job, threads);
      if (threads > 1 && parallel_for) {
        Shared shared{packed_.share, job};
        parallel_for(0, threads, 1, &Shared::part, &shared);
      } else {
        packed_.share(0, 1, job);
      }
    }
    if (fresh && packed_.words * 8 <= KEPT_BYTES) kept_ = std::move(fresh);
  }

 private:
  // On the current stream of the device. Every parameter of a kernel lies in a word, whatever its size.
  void launch(const int64_t* arguments, c10::Device device, int64_t workspace) const {
    c10::SmallVector<int64_t, 64> words(packed_.image.begin(), packed_.image.end());
    place(arguments, words.data());
    const auto& regions = packed_.regions;
    for (size_t k = 0; k < regions.size(); k += 2) words[regions[k]] = workspace + regions[k + 1];
    const c10::DeviceGuard guard(device);
    void* stream = nullptr;
    TORCH_CHECK(current_stream(device.index(), &stream) == 0, "lngrad: torch has no current stream on ", device);
    const int64_t* at = packed_.launches.data();
    while (at < packed_.launches.data() + packed_.launches.size()) {
      const int64_t *launch = at, number = at[4];
      c10::SmallVector<void*, 32> parameters;
      for (at += 5; at < launch + 5 + number; at++) parameters.push_back(&words[*at]);
      const int error = launch_kernel(reinterpret_cast<void*>(launch[0]), launch[1], 1, 1, launch[2], 1, 1, launch[3], stream,
                                      parameters.data(), nullptr);
      TORCH_CHECK(error == 0, "lngrad: cuLaunchKernel: expected 0, got CUDA's error ", error);
    }
  }

  // The arguments into the words that tasks or kernels read them from.
  void place(const int64_t* arguments, int64_t* words) const {
    const auto& places = packed_.places;
    for (size_t k = 0; k < places.size(); k++)
      if (places[k] >= 0) words[places[k]] = arguments[k];
  }

  struct Shared {
    Share share;
    int64_t job;
    static void part(int64_t first, int64_t stop, void* self) {
      static_cast<Shared*>(self)->share(first, stop, static_cast<Shared*>(self)->job);
    }
  };

  Memory make() const {
    const auto& regions = packed_.regions;
    const size_t nbytes = (packed_.words * 8 + LINE - 1) / LINE * LINE;
    int64_t* memory = static_cast<int64_t*>(std::aligned_alloc(LINE, nbytes));
    if (!memory) throw std::bad_alloc();
    std::memcpy(memory, packed_.image.data(), packed_.image.size() * 8);
    const int64_t workspace = reinterpret_cast<int64_t>(memory + packed_.workspace_word);
    for (size_t k = 0; k < regions.size(); k += 2) memory[regions[k]] = workspace + regions[k + 1];
    return Memory(memory);
  }

  Packed packed_;
  Memory kept_;
};

// What this thread's calls have been found to be. Threads share nothing, so nobody waits, and a fork finds no lock.
inline std::unordered_map<Key, Prepared, HashOfKey>& prepared() {
  thread_local std::unordered_map<Key, Prepared, HashOfKey> table;
  return table;
}

}  // namespace lngrad
