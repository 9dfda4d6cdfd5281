// The index that a BatchReader keeps on the GPU: where each episode's rows are, which episode an anchor is in.
#include "batch/cuda/table.hpp"
#include "core/cuda/check.hpp"
#include "core/cuda/for_each.cuh"

namespace robocache::loader_detail {
namespace {

/// Whether every row of an episode has the time that a period says. For a whole block.
__device__ inline bool has_period(const std::int64_t* times, std::int64_t count, double period) {
    bool all = period >= 2;  // rows of a shorter one may round to the same time
    for (std::int64_t k = threadIdx.x; k < count && all; k += blockDim.x) {
        all = times[k] - times[0] == __double2ll_rn(static_cast<double>(k) * period);
    }
    return __syncthreads_and(all) != 0;
}

/// Rows per nanosecond between dropouts: of all gaps up to so many mean gaps. For a whole block.
__device__ inline float usual_rate(const std::int64_t* times, std::int64_t count, double mean_gap) {
    constexpr double longest = 64;
    __shared__ unsigned long long rows;
    __shared__ unsigned long long ns;
    if (threadIdx.x == 0) rows = ns = 0;
    __syncthreads();
    for (std::int64_t k = threadIdx.x; k + 1 < count; k += blockDim.x) {
        const std::uint64_t gap = align_detail::distance(times[k], times[k + 1]);
        if (static_cast<double>(gap) > longest * mean_gap) continue;
        atomicAdd(&rows, 1ULL);
        atomicAdd(&ns, static_cast<unsigned long long>(gap));
    }
    __syncthreads();
    return static_cast<float>(ns > 0 ? static_cast<double>(rows) / static_cast<double>(ns) : 1.0 / mean_gap);
}

/// One block for each episode.
__global__ void robocache_index_episodes(const IndexJob job) {
    const std::int64_t e = blockIdx.x;
    const std::int64_t part = job.part[e];
    const std::int64_t local = job.local[e];
    const PartOffsets rows = job.parts[part * job.parts_step];
    align_detail::RowRange range{0, 0};  // an episode that is not there has no rows
    if (local < rows.num_episodes) {
        range = align_detail::clamped_rows(rows.offsets[local], rows.offsets[local + 1], rows.num_rows);
    }
    const std::int64_t* times = rows.times + range.begin;
    const std::int64_t count = range.count();
    EpisodeIndex index{range.begin, 0, count, 0.0, 0.0, 0.0F, static_cast<std::int32_t>(part)};
    if (count > 0) index.first_time = times[0];
    const std::int64_t last = count > 0 ? times[count - 1] : 0;
    if (count > 1 && last > index.first_time) {
        const double period =
            static_cast<double>(align_detail::distance(index.first_time, last)) / static_cast<double>(count - 1);
        index.rows_per_ns = static_cast<float>(1.0 / period);
        // The rates that recordings are made at: whole nanoseconds, whole hertz, or thousandths of one.
        const double candidates[3] = {rint(period), 1e9 / rint(1e9 / period), 1e9 / (rint(1e12 / period) / 1e3)};
        for (int i = 0; i < 3 && !(index.period > 0); ++i) {
            if (has_period(times, count, candidates[i])) index.period = candidates[i];
        }
        if (index.period > 0) {
            index.rate = 1.0 / index.period;
        } else {
            index.rows_per_ns = usual_rate(times, count, period);
        }
    }
    if (threadIdx.x == 0) job.episodes[e] = index;
}

struct MakeBuckets {
    TablePlan table;
    Bucket* buckets;

    __device__ void operator()(std::int64_t i) const { buckets[i] = make_bucket(table, i); }
};

}  // namespace

void index_episodes(const IndexJob& job, std::int64_t num_episodes, cudaStream_t stream) {
    constexpr unsigned threads = 256;
    robocache_index_episodes<<<static_cast<unsigned>(num_episodes), threads, 0, stream>>>(job);
    check_cuda(cudaGetLastError(), "BatchReader: launching robocache_index_episodes");
}

void index_anchors(const TablePlan& table, Bucket* buckets, cudaStream_t stream) {
    for_each(num_buckets(table), MakeBuckets{table, buckets}, stream, "BatchReader: launching the index of anchors");
}

}  // namespace robocache::loader_detail
