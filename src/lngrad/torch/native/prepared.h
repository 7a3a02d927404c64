// Calls that Python has prepared, and how one is run: addresses are written into a job, and compiled tasks do the rest.
//
// Nothing is decided here. What a call needs follows from its facts (dtypes, sizes, what is wanted, threads); Python plans it
// once and hands it over as numbers, in the order that cpu/run.py says.
#pragma once

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <unordered_map>
#include <vector>

#include <c10/core/ScalarType.h>

namespace lngrad {

constexpr size_t LINE = 64;             // bytes of a cache line
constexpr int64_t KEPT_BYTES = 1 << 16;  // of a job and its workspace that are kept for the next call
constexpr size_t MOST = 512;            // calls that a thread remembers

using Share = void (*)(int64_t first, int64_t stop, int64_t job);
using Begin = void (*)(int64_t job, int64_t threads);
using Part = void (*)(int64_t first, int64_t stop, void* argument);
using ParallelFor = int32_t (*)(int64_t first, int64_t stop, int64_t grain, Part part, void* argument);
inline ParallelFor parallel_for = nullptr;

// The facts of a call: kinds and dtypes in the first word, then threads, gamma's offset, and sizes.
using Key = std::array<int64_t, 11>;

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
    begin_ = reinterpret_cast<Begin>(begin.at(0));
    workspace_ = read(numbers, image_);
    read(numbers, places_);
    read(numbers, jobs_);
    read(numbers, regions_);
  }

  // Run it with the address of each argument, in the order of the problem's inputs and then its outputs, 0 for one that is
  // absent or not wanted; the bits of eps last, for a forward. A thread's calls do not overlap: memory is taken when all else is there.
  void run(const int64_t* arguments) {
    Memory fresh;
    if (!kept_) fresh = make();
    int64_t* chain = kept_ ? kept_.get() : fresh.get();
    for (size_t k = 0; k < places_.size(); k++)
      if (places_[k] >= 0) chain[places_[k]] = arguments[k];
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
    if (fresh && static_cast<int64_t>(image_.size()) * 8 <= KEPT_BYTES) kept_ = std::move(fresh);
  }

 private:
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
    const size_t nbytes = (image_.size() * 8 + LINE - 1) / LINE * LINE;
    int64_t* memory = static_cast<int64_t*>(std::aligned_alloc(LINE, nbytes));
    if (!memory) throw std::bad_alloc();
    std::memcpy(memory, image_.data(), image_.size() * 8);
    for (size_t k = 0; k < regions_.size(); k += 2)
      memory[regions_[k]] = reinterpret_cast<int64_t>(memory + workspace_) + regions_[k + 1];
    return Memory(memory);
  }

  Share share_ = nullptr;
  Begin begin_ = nullptr;
  int64_t workspace_ = 0;         // the word of the memory that the workspace begins at
  std::vector<int64_t> image_;    // the jobs, and behind them the workspace, with all that is the same for every call
  std::vector<int64_t> places_;   // for each argument the word that its address goes to, or -1
  std::vector<int64_t> jobs_;     // pairs: the word that a job begins at, and how many threads go through it
  std::vector<int64_t> regions_;  // pairs: a word, and the offset in the workspace whose address it takes
  Memory kept_;
};

// What this thread's calls have been found to be. Threads share nothing, so nobody waits, and a fork finds no lock.
inline std::unordered_map<Key, Prepared, HashOfKey>& prepared() {
  thread_local std::unordered_map<Key, Prepared, HashOfKey> table;
  return table;
}

}  // namespace lngrad
