#include "simt/host/pool.h"

#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <thread>

namespace simt::host {
namespace {

class Pool {
 public:
  void run(int helpers, const std::function<void()>& work) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (; threads_ < helpers; ++threads_) std::thread([this] { serve(); }).detach();
      work_ = &work;
      places_ = helpers;
    }
    wake_.notify_all();
    work();
    // Helpers that have not come by now are not waited for: on a busy machine they may take long.
    std::unique_lock<std::mutex> lock(mutex_);
    work_ = nullptr;
    places_ = 0;
    done_.wait(lock, [&] { return busy_ == 0; });
  }

 private:
  void serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return places_ > 0; });
      --places_;
      ++busy_;
      const std::function<void()>& work = *work_;
      lock.unlock();
      work();
      lock.lock();
      if (--busy_ == 0) done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  const std::function<void()>* work_ = nullptr;
  int threads_ = 0, places_ = 0, busy_ = 0;
};

}  // namespace

void run_in_pool(int helpers, const std::function<void()>& work) {
  if (helpers <= 0) return work();
  static Pool* pool = nullptr;  // never destroyed: its threads are detached
  static pid_t owner = 0;
  if (owner != getpid()) {  // after fork() the threads are gone
    pool = new Pool;
    owner = getpid();
  }
  pool->run(helpers, work);
}

}  // namespace simt::host
