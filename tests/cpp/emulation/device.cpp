// The emulated GPU: fibers, synchronization, copies.
#include "device.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

// Saves the registers that a function must keep, and continues on another stack.
extern "C" void emulation_switch(void** save_stack_pointer, void* stack_pointer);
asm(R"(
    .text
    .globl emulation_switch
    .type emulation_switch, @function
emulation_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size emulation_switch, .-emulation_switch
)");

namespace emulation {

Properties properties;
std::uint64_t order_seed = 0;

namespace {

constexpr std::size_t stack_bytes = std::size_t{256} << 10;
constexpr std::size_t most_shared = std::size_t{256} << 10;
alignas(1024) unsigned char shared_memory[most_shared];

struct Copy {
    void* to;
    const void* from;
    std::size_t bytes;
};

void perform(std::vector<Copy>& copies) {
    for (const Copy& copy : copies) std::memcpy(copy.to, copy.from, copy.bytes);
    copies.clear();
}

/// A stack, and where its thread stopped. Kept for the threads of later blocks.
struct Fiber {
    Fiber() {
        void* memory = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) fail("no memory for a stack");
        stack = static_cast<unsigned char*>(memory);
    }
    ~Fiber() { munmap(stack, stack_bytes); }
    Fiber(const Fiber&) = delete;
    Fiber& operator=(const Fiber&) = delete;

    unsigned char* stack = nullptr;
    void* stack_pointer = nullptr;
    void* fake_stack = nullptr;  // of the address sanitizer
    const char* waits_for = nullptr;
    bool done = true;
    std::vector<Copy> copies;
    std::vector<Copy> writes;
};

/// Lanes that meet: one for each mask that is in use in a warp. Values alternate between two places, so that a lane may
/// read those of one meeting while others are at the next.
struct Meeting {
    std::uint32_t mask = 0;
    std::uint32_t arrived = 0;
    std::uint64_t number = 0;
    const char* operation = nullptr;
    std::size_t size = 0;
    LaneValues values[2];
};

struct Warp {
    std::uint32_t ended = 0;  // lanes
    std::vector<std::unique_ptr<Meeting>> meetings;

    Meeting& meeting(std::uint32_t mask) {
        for (const auto& m : meetings) {
            if (m->mask == mask) return *m;
        }
        meetings.push_back(std::make_unique<Meeting>());
        meetings.back()->mask = mask;
        return *meetings.back();
    }
};

struct Barrier {
    std::uint32_t arrivals = 0;
    std::uint32_t pending = 0;
    std::int64_t missing_bytes = 0;
    std::uint64_t phase = 0;
    std::vector<Copy> copies;
};

struct Block {
    std::vector<Warp> warps;
    std::map<std::uint32_t, Barrier> barriers;
    unsigned num_threads = 0;
    unsigned num_ended = 0;
    unsigned at_barrier = 0;
    unsigned votes = 0;
    unsigned last_votes = 0;
    std::uint64_t barrier_number = 0;
};

std::vector<std::unique_ptr<Fiber>> fibers;
Block block;
unsigned current = 0;  // thread
std::uint64_t progress = 0;
const std::function<void()>* body = nullptr;
void* scheduler_pointer = nullptr;
std::mt19937_64 random_order;

#if defined(__SANITIZE_ADDRESS__)
void* scheduler_fake_stack = nullptr;
const void* scheduler_stack = nullptr;
std::size_t scheduler_stack_bytes = 0;
#endif

void leave(Fiber& fiber, [[maybe_unused]] bool for_good) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(for_good ? nullptr : &fiber.fake_stack, scheduler_stack, scheduler_stack_bytes);
#endif
    emulation_switch(&fiber.stack_pointer, scheduler_pointer);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fiber.fake_stack, nullptr, nullptr);
#endif
}

void enter(Fiber& fiber) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&scheduler_fake_stack, fiber.stack, stack_bytes);
#endif
    emulation_switch(&scheduler_pointer, fiber.stack_pointer);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(scheduler_fake_stack, nullptr, nullptr);
#endif
}

/// The first function on a fiber's stack.
[[noreturn]] void run_thread() {
    Fiber& fiber = *fibers[current];
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_bytes);
#endif
    (*body)();
    finish_copies();
    fiber.done = true;
    ++block.num_ended;
    block.warps[current / warp_size].ended |= 1U << (current % warp_size);
    note_progress();
    leave(fiber, true);
    std::abort();
}

void prepare(Fiber& fiber) {
    // As if emulation_switch had been called: six registers, then where it returns to. At a function's entry the stack
    // is 8 bytes off a multiple of 16.
    auto* top = reinterpret_cast<void**>(fiber.stack + stack_bytes) - 1;
    *--top = reinterpret_cast<void*>(&run_thread);
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    fiber.stack_pointer = top;
    fiber.done = false;
    fiber.waits_for = nullptr;
#if defined(__SANITIZE_ADDRESS__)
    ASAN_UNPOISON_MEMORY_REGION(fiber.stack, stack_bytes);
#endif
}

void go_on(unsigned thread) {
    current = thread;
    threadIdx = {thread % blockDim.x, thread / blockDim.x % blockDim.y, thread / (blockDim.x * blockDim.y)};
    enter(*fibers[thread]);
}

void shuffle(std::vector<unsigned>& numbers) {
    if (order_seed == 1) std::reverse(numbers.begin(), numbers.end());
    if (order_seed > 1) std::shuffle(numbers.begin(), numbers.end(), random_order);
}

std::vector<unsigned> ordered(unsigned count) {
    std::vector<unsigned> numbers(count);
    std::iota(numbers.begin(), numbers.end(), 0U);
    shuffle(numbers);
    return numbers;
}

void run_block(unsigned num_threads) {
    const unsigned num_warps = (num_threads + warp_size - 1) / warp_size;
    block = {};
    block.warps.resize(num_warps);
    block.num_threads = num_threads;
    if (num_threads % warp_size != 0) block.warps.back().ended = ~0U << (num_threads % warp_size);
    while (fibers.size() < num_threads) fibers.push_back(std::make_unique<Fiber>());
    for (unsigned t = 0; t < num_threads; ++t) prepare(*fibers[t]);
    std::vector<unsigned> warps = ordered(num_warps);
    while (block.num_ended < num_threads) {
        const std::uint64_t before = progress;
        for (const unsigned warp : warps) {
            const unsigned lanes = std::min(warp_size, num_threads - warp * warp_size);
            std::vector<unsigned> order = ordered(lanes);
            std::uint64_t last;
            do {
                last = progress;
                for (const unsigned l : order) {
                    if (!fibers[warp * warp_size + l]->done) go_on(warp * warp_size + l);
                }
            } while (progress != last);
        }
        shuffle(warps);
        if (progress == before) {
            for (unsigned t = 0; t < num_threads; ++t) {
                if (fibers[t]->done) continue;
                current = t;
                std::fprintf(stderr, "emulated GPU: every thread waits, and none can go on\n");
                fail(fibers[t]->waits_for != nullptr ? fibers[t]->waits_for : "an unknown wait");
            }
        }
    }
    for (auto& [address, barrier] : block.barriers) {
        if (!barrier.copies.empty()) fail("a bulk copy into shared memory that nobody waited for");
    }
    for (unsigned t = 0; t < num_threads; ++t) {
        current = t;
        if (!fibers[t]->writes.empty()) fail("a bulk write out of shared memory that its thread did not wait for");
    }
}

Barrier& barrier_at(std::uint32_t address) {
    const auto found = block.barriers.find(address);
    if (found == block.barriers.end()) fail("a barrier that was not initialized");
    return found->second;
}

void end_phase_if_done(Barrier& barrier) {
    if (barrier.pending != 0 || barrier.missing_bytes != 0) return;
    ++barrier.phase;
    barrier.pending = barrier.arrivals;
    note_progress();
}

}  // namespace

void fail(const char* what) {
    std::fprintf(stderr, "emulated GPU: %s, in thread %u of %u, block (%u, %u, %u) of (%u, %u, %u)\n", what, current,
                 block.num_threads, blockIdx.x, blockIdx.y, blockIdx.z, gridDim.x, gridDim.y, gridDim.z);
    std::abort();
}

void launch(dim3 grid, dim3 threads, std::size_t shared_bytes, const std::function<void()>& thread) {
    static std::mutex one_at_a_time;
    const std::scoped_lock lock(one_at_a_time);
    const unsigned num_threads = threads.x * threads.y * threads.z;
    if (num_threads == 0 || num_threads > 1024) fail("a block must have 1 to 1024 threads");
    if (shared_bytes > static_cast<std::size_t>(properties.shared_of_block))
        fail("more shared memory than a block has");
    gridDim = grid;
    blockDim = threads;
    body = &thread;
    random_order.seed(order_seed);
    const std::uint64_t num_blocks = std::uint64_t{grid.x} * grid.y * grid.z;
    for (std::uint64_t i = 0; i < num_blocks; ++i) {
        // Blocks in the order of the threads: ascending, descending, or from a random one on.
        std::uint64_t b = i;
        if (order_seed == 1) b = num_blocks - 1 - i;
        if (order_seed > 1) b = (i + order_seed) % num_blocks;
        blockIdx = {static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
                    static_cast<unsigned>(b / grid.x / grid.y)};
        std::memset(shared_memory, 0xa5, std::min(most_shared, shared_bytes + 64));
#if defined(__SANITIZE_ADDRESS__)
        ASAN_POISON_MEMORY_REGION(shared_memory + shared_bytes, most_shared - shared_bytes);
#endif
        run_block(num_threads);
#if defined(__SANITIZE_ADDRESS__)
        ASAN_UNPOISON_MEMORY_REGION(shared_memory, most_shared);
#endif
    }
}

// ---- from inside of a thread ----------------------------------------------------------------------------------------

void* dynamic_shared() {
    return shared_memory;
}

// All shared memory is static, so it lies within 2 GiB of this array.
std::uint32_t shared_address(const void* p) {
    return static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(p) -
                                      reinterpret_cast<std::uintptr_t>(shared_memory));
}

void* at_shared_address(std::uint32_t address) {
    return reinterpret_cast<void*>(reinterpret_cast<std::intptr_t>(shared_memory) + static_cast<std::int32_t>(address));
}

void yield(const char* what) {
    Fiber& fiber = *fibers[current];
    fiber.waits_for = what;
    leave(fiber, false);
    fiber.waits_for = nullptr;
}

void note_progress() {
    ++progress;
}

unsigned threads_of_block() {
    return block.num_threads;
}

unsigned lane() {
    return current % warp_size;
}

unsigned synchronize_block(bool vote) {
    const std::uint64_t mine = block.barrier_number;
    ++block.at_barrier;
    block.votes += vote ? 1 : 0;
    note_progress();
    while (block.barrier_number == mine) {
        if (block.at_barrier + block.num_ended == block.num_threads) {
            block.last_votes = block.votes;
            block.at_barrier = block.votes = 0;
            ++block.barrier_number;
            note_progress();
            break;
        }
        yield("__syncthreads");
    }
    return block.last_votes;
}

const LaneValues& exchange(std::uint32_t mask, const void* value, std::size_t size, const char* operation) {
    const std::uint32_t bit = 1U << lane();
    if ((mask & bit) == 0) fail("a lane takes part in a meeting of lanes whose mask does not name it");
    Warp& warp = block.warps[current / warp_size];
    Meeting& meeting = warp.meeting(mask);
    if (meeting.arrived == 0) {
        meeting.operation = operation;
        meeting.size = size;
    } else if (meeting.operation != operation || meeting.size != size) {
        std::fprintf(stderr, "emulated GPU: lanes of one mask meet at %s and at another operation\n",
                     meeting.operation);
        fail(operation);
    }
    const std::uint64_t mine = meeting.number;
    LaneValues& values = meeting.values[mine % 2];
    if (size > 0) std::memcpy(values.bytes[lane()], value, size);
    meeting.arrived |= bit;
    note_progress();
    while (meeting.number == mine) {
        if (((meeting.arrived | warp.ended) & mask) == mask) {
            meeting.arrived = 0;
            ++meeting.number;
            note_progress();
            break;
        }
        yield(operation);
    }
    return values;
}

// ---- copies ---------------------------------------------------------------------------------------------------------

void start_copy(void* to, const void* from, std::size_t bytes) {
    if (reinterpret_cast<std::uintptr_t>(to) % bytes != 0 || reinterpret_cast<std::uintptr_t>(from) % bytes != 0) {
        fail("an asynchronous copy that is not aligned");
    }
    fibers[current]->copies.push_back({to, from, bytes});
}

void finish_copies() {
    perform(fibers[current]->copies);
    perform(fibers[current]->writes);
}

void init_barrier(std::uint32_t barrier, std::uint32_t arrivals) {
    Barrier fresh;
    fresh.arrivals = fresh.pending = arrivals;
    block.barriers[barrier] = fresh;
}

void arrive(std::uint32_t address, std::uint32_t expected_bytes) {
    Barrier& barrier = barrier_at(address);
    if (barrier.pending == 0) fail("an arrival that its barrier does not count");
    --barrier.pending;
    barrier.missing_bytes += expected_bytes;
    note_progress();
    end_phase_if_done(barrier);
}

void await_barrier(std::uint32_t address, std::uint32_t parity) {
    Barrier& barrier = barrier_at(address);
    while (barrier.phase % 2 == parity) {
        if (!barrier.copies.empty()) {
            for (const Copy& copy : barrier.copies) barrier.missing_bytes -= static_cast<std::int64_t>(copy.bytes);
            perform(barrier.copies);
            note_progress();
            end_phase_if_done(barrier);
            continue;
        }
        yield("mbarrier");
    }
}

void start_bulk_copy(void* to, const void* from, std::uint32_t bytes, std::uint32_t barrier) {
    const auto is_aligned = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; };
    if (!is_aligned(to) || !is_aligned(from) || bytes % 16 != 0) fail("a bulk copy that is not aligned");
    barrier_at(barrier).copies.push_back({to, from, bytes});
}

void start_bulk_write(void* to, const void* from, std::uint32_t bytes) {
    const auto is_aligned = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; };
    if (!is_aligned(to) || !is_aligned(from) || bytes % 16 != 0) fail("a bulk write that is not aligned");
    fibers[current]->writes.push_back({to, from, bytes});
}

}  // namespace emulation
