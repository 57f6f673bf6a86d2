// How the CPU kernels share their work among threads.
//
// Whoever has work does it; other threads of the team help if they come in time. What is waited for are
// pieces that another thread has in hand, never a thread that has not begun. At the end of a parallel
// region of OpenMP all threads meet: a core that the server, a client or another program takes for a
// millisecond keeps the others waiting for as long, at any of the hundred operations of a step.
//
// So that it does not matter who comes, work is handed out piece by piece, and a piece's result is the
// same whoever makes it.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

extern "C" {

// From now on work is shared among so many threads of the team's own, the caller included; 0: among
// OpenMP's, as many as it has for the caller. OpenMP's threads look for more work for milliseconds
// after each operation, so where torch shares its work among them, a team beside it has no core.
void keepwarm_own_threads(int64_t threads);
}

namespace team {

// The threads that may take part, the caller included.
int64_t size();

// Calls work(what, member) in this thread and in those of the team that come before it is done here;
// returns when all of them are. Members are numbered from 0, the caller, to size() - 1. There is one
// team in a process: where it is at work already, the caller works alone.
void run(void (*work)(void* what, int64_t member), void* what);

template <typename Work>
void run(Work work) {
  run([](void* what, int64_t member) { (*static_cast<Work*>(what))(member); }, &work);
}

// Pieces in as many ranges as there are members. Each takes those of its own range in order, and then
// what is left of others.
class Ranges {
 public:
  explicit Ranges(int64_t pieces) : pieces_(pieces), ranges_(size()), next_(ranges_) {
    for (int64_t i = 0; i < ranges_; ++i) next_[i].at.store(begin(i), std::memory_order_relaxed);
  }
  template <typename Take>
  void work(int64_t member, Take take) {
    for (int64_t i = 0; i < ranges_; ++i) {
      int64_t range = (member + i) % ranges_, end = begin(range + 1);
      for (int64_t piece; (piece = next_[range].at.fetch_add(1, std::memory_order_relaxed)) < end;)
        take(piece);
    }
  }

 private:
  struct alignas(64) Next {
    std::atomic<int64_t> at{0};
  };
  int64_t begin(int64_t range) const { return pieces_ * range / ranges_; }

  int64_t pieces_, ranges_;
  std::vector<Next> next_;
};

// Calls take(piece) for each of some pieces, by ranges.
template <typename Take>
void each(int64_t pieces, Take take) {
  Ranges ranges(pieces);
  run([&](int64_t member) { ranges.work(member, take); });
}

// Pieces in one order for all, for those that differ in size.
class Queue {
 public:
  explicit Queue(int64_t pieces) : pieces_(pieces) {}
  template <typename Take>
  void work(Take take) {
    for (int64_t piece; (piece = next_.fetch_add(1, std::memory_order_relaxed)) < pieces_;)
      take(piece);
  }

 private:
  int64_t pieces_;
  std::atomic<int64_t> next_{0};
};

// Calls take(i) for i from 0 to count, neighbours together; in this thread alone unless that is worth
// the others' time.
template <typename Take>
void each_of(int64_t count, bool worth, Take take) {
  constexpr int64_t kPieces = 8;  // for each member
  int64_t pieces = worth ? std::min(count, kPieces * size()) : 1;
  auto some = [&](int64_t piece) {
    for (int64_t i = count * piece / pieces; i < count * (piece + 1) / pieces; ++i) take(i);
  };
  pieces == 1 ? some(0) : each(pieces, some);
}

}  // namespace team
