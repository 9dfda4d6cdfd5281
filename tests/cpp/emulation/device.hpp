// A GPU emulated on the CPU: blocks run one after the other, the threads of a block as fibers that switch where CUDA
// code synchronizes. Only what the kernels of RoboCache use. The order of the threads between two synchronizations is
// chosen by a seed, copies into shared memory arrive as late as they may, and a wait that can never end aborts the
// program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace emulation {

/// What differs between two emulated GPUs.
struct Properties {
    int compute_capability = 90;
    int num_sms = 132;
    int shared_of_block = 227 * 1024;
};
extern Properties properties;

/// How threads and blocks are ordered: 0 ascending, 1 descending, others random.
extern std::uint64_t order_seed;

/// Runs `thread` once for every thread of every block.
void launch(dim3 grid, dim3 block, std::size_t shared_bytes, const std::function<void()>& thread);

// ---- from inside of a thread ----------------------------------------------------------------------------------------

constexpr unsigned warp_size = 32;

/// The block's dynamic shared memory, aligned to 1024 bytes.
void* dynamic_shared();

/// Shared memory by 32-bit address, as PTX has it.
std::uint32_t shared_address(const void* p);
void* at_shared_address(std::uint32_t address);

/// Waits for all threads of the block. Returns how many passed `true`.
unsigned synchronize_block(bool vote = false);
unsigned threads_of_block();

/// The values of all lanes in `mask`, which all call this with the same `operation` (a name for errors). Values have up
/// to 16 bytes; the result is valid until the lane's next call.
struct LaneValues {
    alignas(16) unsigned char bytes[warp_size][16];
};
const LaneValues& exchange(std::uint32_t mask, const void* value, std::size_t size, const char* operation);
unsigned lane();

/// Lets other threads run; `what` is waited for.
void yield(const char* what);
/// Something happened that another thread may wait for.
void note_progress();

/// Ends the program, naming kernel, block and thread.
[[noreturn]] void fail(const char* what);

// ---- copies ---------------------------------------------------------------------------------------------------------

/// An asynchronous copy of this thread: done by finish_copies, or when the thread ends.
void start_copy(void* to, const void* from, std::size_t bytes);
void finish_copies();

/// Barriers in shared memory (mbarrier), by their address.
void init_barrier(std::uint32_t barrier, std::uint32_t arrivals);
void arrive(std::uint32_t barrier, std::uint32_t expected_bytes);
void await_barrier(std::uint32_t barrier, std::uint32_t parity);
/// A bulk copy that reports to a barrier: done when a thread waits for that barrier.
void start_bulk_copy(void* to, const void* from, std::uint32_t bytes, std::uint32_t barrier);
/// A bulk copy out of shared memory: done when this thread waits for its copies.
void start_bulk_write(void* to, const void* from, std::uint32_t bytes);

}  // namespace emulation
