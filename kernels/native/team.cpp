#include "team.h"

#include <linux/futex.h>
#include <omp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <mutex>
#include <thread>

namespace {

using Clock = std::chrono::steady_clock;
using Microseconds = std::chrono::microseconds;

// A member looks so long for more work before it sleeps: what lies between the operations of a step,
// and mostly what lies between two steps, is shorter.
constexpr Microseconds kLooks{4000};
// The caller looks so long for the end of others' pieces before it sleeps. They take less unless a core
// has other work, which is over by then or holds on to the core.
constexpr Microseconds kWaits{2000};

// True as soon as done() holds, false when it does not for some time.
template <typename Done>
bool look(Microseconds time, Done done) {
  constexpr int kBetween = 64;  // looks between two at the clock
  auto looks = [&] {
    for (int i = 0; i < kBetween; ++i) {
      if (done()) return true;
#ifdef __x86_64__
      __builtin_ia32_pause();
#endif
    }
    return false;
  };
  if (looks()) return true;
  for (Clock::time_point end = Clock::now() + time; Clock::now() < end;)
    if (looks()) return true;
  return false;
}

void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
void wake(std::atomic<uint32_t>& word, int count) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

// Its threads never end. A process that is forked has none of them, and its caller works alone.
class Team {
 public:
  void run(void (*work)(void*, int64_t), void* what, int64_t members) {
    if (members <= 1 || !at_work_.try_lock()) return work(what, 0);
    for (; started_ + 1 < members; ++started_)
      std::thread([this, member = started_ + 1] { help(member); }).detach();
    work_ = work, what_ = what;
    members_.store(members, std::memory_order_relaxed);
    uint32_t number = number_.load(std::memory_order_relaxed) + 1;
    number_.store(number, std::memory_order_relaxed);
    door_.store(uint64_t(number) << 32 | kOpen);
    if (asleep_.load()) wake(number_, INT32_MAX);
    work(what, 0);
    door_.fetch_and(~kOpen);
    if (!look(kWaits, [this] { return nobody_inside(); })) sleep_until_left();
    at_work_.unlock();
  }

 private:
  // Of the door: its upper half is the number of the work behind it.
  static constexpr uint64_t kOpen = uint64_t(1) << 31, kInside = kOpen - 1;

  bool nobody_inside() const { return !(door_.load() & kInside); }

  void sleep_until_left() {
    caller_sleeps_.store(1);
    while (!nobody_inside()) sleep_while(caller_sleeps_, 1);
    caller_sleeps_.store(0);
  }

  void help(int64_t member) {
    for (uint32_t last = 0;;) {
      auto other = [&] { return uint32_t(door_.load() >> 32) != last; };
      if (!look(kLooks, other)) {
        asleep_.fetch_add(1);
        while (!other()) sleep_while(number_, last);
        asleep_.fetch_sub(1);
      }
      uint64_t door = door_.load();
      last = uint32_t(door >> 32);
      while (door & kOpen && uint32_t(door >> 32) == last && member < members_.load()) {
        if (!door_.compare_exchange_weak(door, door + 1)) continue;
        work_(what_, member);
        leave();
        break;
      }
    }
  }

  void leave() {
    uint64_t before = door_.fetch_sub(1);
    if ((before & kInside) != 1 || !caller_sleeps_.load()) return;
    caller_sleeps_.store(0);
    wake(caller_sleeps_, 1);
  }

  std::mutex at_work_;
  int64_t started_ = 0;  // threads
  void (*work_)(void*, int64_t) = nullptr;
  void* what_ = nullptr;
  alignas(64) std::atomic<uint64_t> door_{0};
  std::atomic<int64_t> members_{0};
  std::atomic<uint32_t> number_{0};  // of the work; the same as the door's, for members to sleep on
  alignas(64) std::atomic<uint32_t> asleep_{0}, caller_sleeps_{0};
};

std::atomic<int64_t> own_threads{0};

}  // namespace

extern "C" void keepwarm_own_threads(int64_t threads) { own_threads.store(threads); }

namespace team {

int64_t size() {
  int64_t own = own_threads.load(std::memory_order_relaxed);
  return own ? own : omp_get_max_threads();
}

void run(void (*work)(void*, int64_t), void* what) {
  int64_t own = own_threads.load(std::memory_order_relaxed);
  if (!own) {
#pragma omp parallel
    work(what, omp_get_thread_num());
    return;
  }
  static Team* team = new Team;
  team->run(work, what, own);
}

}  // namespace team
