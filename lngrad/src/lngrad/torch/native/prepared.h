// Calls that Python has prepared, and how one is run: addresses are written into a job, and compiled tasks do the rest; or
// into the arguments of kernels, which CUDA's driver launches.
//
// Nothing is decided here. What a call needs follows from its facts (dtypes, sizes, what is wanted, threads, device); Python
// plans it once and hands it over as numbers, in the order that cpu/run.py and gpu/run.py say.
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

// A run of a plan. One that is not `ours` is left to Python.
class Prepared {
 public:
  bool ours = false;
  c10::ScalarType small = c10::ScalarType::Undefined;  // dtype of mean and rstd, or of dgamma and dbeta

  Prepared() = default;

  Prepared(c10::ScalarType small, const int64_t* numbers) : ours(true), small(small) {
    std::vector<int64_t> begin;
    share_ = reinterpret_cast<Share>(read(numbers, begin));
    if (share_) begin_ = reinterpret_cast<Begin>(begin.at(0));
    workspace_ = read(numbers, image_);
    words_ = read(numbers, places_);
    streams_ = read(numbers, jobs_);
    streamed_ = read(numbers, regions_);
  }

  // Whether arguments with these addresses are what it was prepared for.
  template <class Addresses>
  bool takes(const Addresses& inputs) const {
    int64_t all = 0;
    for (int64_t address : inputs) all |= address;
    return ours && (share_ || all % POINTER_BYTES == 0);
  }

  // Bytes of memory of the device that it works in.
  int64_t workspace_bytes() const { return share_ ? 0 : workspace_; }

  // Run it with the address of each argument, in the order of the problem's inputs and then its outputs, 0 for one that is
  // absent or not wanted; the bits of eps last, for a forward. A thread's calls do not overlap: memory is taken when all else is there.
  void run(const int64_t* arguments, c10::Device device, int64_t workspace) {
    if (!share_) return launch(arguments, device, workspace);
    Memory fresh;
    if (!kept_) fresh = make();
    int64_t* chain = kept_ ? kept_.get() : fresh.get();
    for (size_t k = 0; k < places_.size(); k++)
      if (places_[k] >= 0) chain[places_[k]] = arguments[k];
    if (streams_) chain[streams_] = arguments[streamed_] % static_cast<int64_t>(LINE) == 0;
    for (size_t k = 0; k < jobs_.size(); k += 2) {
      const int64_t job = reinterpret_cast<int64_t>(chain + jobs_[k]);
      const int64_t threads = jobs_[k + 1];
      begin_(job, threads);
      if (threads > 1 && parallel_for) {
        Shared shared{share_, job};
        parallel_for(0, threads, 1, &Shared::part, &shared);
      } else {
        share_(0, 1, job);
      }
    }
    if (fresh && words_ * 8 <= KEPT_BYTES) kept_ = std::move(fresh);
  }

 private:
  // On the current stream of the device. Every parameter of a kernel lies in a word, whatever its size.
  void launch(const int64_t* arguments, c10::Device device, int64_t workspace) const {
    c10::SmallVector<int64_t, 64> words(image_.begin(), image_.end());
    for (size_t k = 0; k < places_.size(); k++)
      if (places_[k] >= 0) words[places_[k]] = arguments[k];
    for (size_t k = 0; k < regions_.size(); k += 2) words[regions_[k]] = workspace + regions_[k + 1];
    const c10::DeviceGuard guard(device);
    void* stream = nullptr;
    TORCH_CHECK(current_stream(device.index(), &stream) == 0, "lngrad: torch has no current stream on ", device);
    const int64_t* at = jobs_.data();
    while (at < jobs_.data() + jobs_.size()) {
      const int64_t *launch = at, number = at[4];
      c10::SmallVector<void*, 32> parameters;
      for (at += 5; at < launch + 5 + number; at++) parameters.push_back(&words[*at]);
      const int error = launch_kernel(reinterpret_cast<void*>(launch[0]), launch[1], 1, 1, launch[2], 1, 1, launch[3], stream,
                                      parameters.data(), nullptr);
      TORCH_CHECK(error == 0, "lngrad: cuLaunchKernel: expected 0, got CUDA's error ", error);
    }
  }

  struct Shared {
    Share share;
    int64_t job;
    static void part(int64_t first, int64_t stop, void* self) {
      static_cast<Shared*>(self)->share(first, stop, static_cast<Shared*>(self)->job);
    }
  };

  static int64_t read(const int64_t*& numbers, std::vector<int64_t>& list) {
    const int64_t extra = *numbers++, length = *numbers++;
    list.assign(numbers, numbers + length);
    numbers += length;
    return extra;
  }

  Memory make() const {
    const size_t nbytes = (words_ * 8 + LINE - 1) / LINE * LINE;
    int64_t* memory = static_cast<int64_t*>(std::aligned_alloc(LINE, nbytes));
    if (!memory) throw std::bad_alloc();
    std::memcpy(memory, image_.data(), image_.size() * 8);
    for (size_t k = 0; k < regions_.size(); k += 2)
      memory[regions_[k]] = reinterpret_cast<int64_t>(memory + workspace_) + regions_[k + 1];
    return Memory(memory);
  }

  Share share_ = nullptr;  // none: it is launched
  Begin begin_ = nullptr;
  int64_t workspace_ = 0;         // the word of the memory that the workspace begins at; for launches its bytes
  int64_t words_ = 0;             // of the jobs and the workspace behind them
  int64_t streams_ = 0;           // the word that says whether a result goes past the caches, 0 if none may
  int64_t streamed_ = 0;          // that result among the arguments, which has to begin on a line
  std::vector<int64_t> image_;    // their first words, with all that is the same for every call; for launches the words that
                                  // parameters lie in
  std::vector<int64_t> places_;   // for each argument the word that its address goes to, or -1
  std::vector<int64_t> jobs_;     // pairs: the word that a job begins at, and how many threads go through it; for launches the
                                  // function, programs, threads, shared bytes, how many parameters, and the word of each
  std::vector<int64_t> regions_;  // pairs: a word, and the offset in the workspace whose address it takes
  Memory kept_;
};

// What this thread's calls have been found to be. Threads share nothing, so nobody waits, and a fork finds no lock.
inline std::unordered_map<Key, Prepared, HashOfKey>& prepared() {
  thread_local std::unordered_map<Key, Prepared, HashOfKey> table;
  return table;
}

}  // namespace lngrad
