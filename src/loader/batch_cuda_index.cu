// What a BatchReader keeps on the GPU: where each episode's rows are, which episode an anchor is in.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>

#include "core/cuda_check.hpp"
#include "loader/batch_cuda.cuh"

namespace robocache::loader_detail {
namespace {

struct IndexJob {
    const PartOffsets* parts;  // of this column, parts_step apart
    std::int64_t parts_step;
    const std::int64_t* part;
    const std::int64_t* local;
    EpisodeIndex* episodes;
};

/// Whether every row of an episode has the time that a period says. For a whole block.
__device__ inline bool has_period(const std::int64_t* times, std::int64_t count, double period) {
    bool all = period >= 2;  // rows of a shorter one may round to the same time
    for (std::int64_t k = threadIdx.x; k < count && all; k += blockDim.x) {
        all = times[k] - times[0] == __double2ll_rn(static_cast<double>(k) * period);
    }
    return __syncthreads_and(all) != 0;
}

/// One block for each episode.
__global__ void robocache_index_episodes(const IndexJob job) {
    const std::int64_t e = blockIdx.x;
    const std::int64_t part = job.part[e];
    const std::int64_t local = job.local[e];
    const PartOffsets rows = job.parts[part * job.parts_step];
    std::int64_t begin = 0;
    std::int64_t end = 0;
    if (local < rows.num_episodes) {  // an episode that is not there has no rows
        begin = rows.offsets[local];
        end = rows.offsets[local + 1];
        begin = begin < 0 ? 0 : (begin > rows.num_rows ? rows.num_rows : begin);
        end = end < begin ? begin : (end > rows.num_rows ? rows.num_rows : end);
    }
    const std::int64_t count = end - begin;
    EpisodeIndex index{begin, 0, count, 0.0, 0.0, 0.0F, static_cast<std::int32_t>(part)};
    if (count > 0) index.first_time = rows.times[begin];
    const std::int64_t last = count > 0 ? rows.times[end - 1] : 0;
    if (count > 1 && last > index.first_time) {
        const double period =
            static_cast<double>(align_detail::distance(index.first_time, last)) / static_cast<double>(count - 1);
        index.rows_per_ns = static_cast<float>(1.0 / period);
        // The rates that recordings are made at: whole nanoseconds, whole hertz, or thousandths of one.
        const double candidates[3] = {rint(period), 1e9 / rint(1e9 / period), 1e9 / (rint(1e12 / period) / 1e3)};
        for (int i = 0; i < 3 && !(index.period > 0); ++i) {
            if (has_period(rows.times + begin, count, candidates[i])) index.period = candidates[i];
        }
        if (index.period > 0) index.rate = 1.0 / index.period;
    }
    if (threadIdx.x == 0) job.episodes[e] = index;
}

__global__ void robocache_index_anchors(const TablePlan table, Bucket* buckets, std::int64_t count) {
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < count) buckets[i] = make_bucket(table, i);
}

using align_detail::Divisor;
using align_detail::StreamPlan;

/// Host memory that becomes device memory in one copy.
class Image {
public:
    /// Room for `count` of T; returns where it begins.
    template <class T>
    std::size_t reserve(std::size_t count) {
        constexpr std::size_t alignment = 256;
        bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment);
        const std::size_t at = bytes_.size();
        bytes_.resize(at + std::max<std::size_t>(count, 1) * sizeof(T));
        return at;
    }
    template <class T>
    std::size_t add(const std::vector<T>& items) {
        const std::size_t at = reserve<T>(items.size());
        if (!items.empty()) std::memcpy(bytes_.data() + at, items.data(), items.size() * sizeof(T));
        return at;
    }
    template <class T>
    void write(std::size_t at, const T& item) {
        std::memcpy(bytes_.data() + at, &item, sizeof(T));
    }
    [[nodiscard]] const std::vector<char>& bytes() const { return bytes_; }

private:
    std::vector<char> bytes_;
};

bool is_computed(DType dtype) {
    return is_floating(dtype) || dtype == DType::u8 || dtype == DType::u16;
}

[[noreturn]] void refuse(std::size_t column, const std::string& why) {
    throw Unsupported("BatchReader: columns[" + std::to_string(column) + "] on CUDA: " + why);
}

void require_support(const BatchPlan& plan) {
    for (std::size_t i = 0; i < plan.rows.size(); ++i) {
        const std::size_t c = i % plan.columns.size();
        const ColumnPlan& column = plan.columns[c];
        const StreamPlan& s = plan.rows[i].stream;
        const Method method = s.ranges.size() == 1 ? s.ranges[0].method : Method::cubic;
        if (method != Method::linear && method != Method::previous && method != Method::next &&
            method != Method::nearest) {
            refuse(c, "a method other than linear, previous, next and nearest");
        }
        // Strides of what there is only one of may be anything.
        if (s.num_rows > 0 && (!s.outer.empty() || (s.inner.size != 1 && s.inner.value_stride != 1))) {
            refuse(c, "rows with gaps");
        }
        if ((s.num_rows > 1 && s.time_row_stride != 1) || (s.num_episodes > 0 && s.offsets_stride != 1)) {
            refuse(c, "times or offsets with gaps");
        }
        if (column.num_channels < 1 || column.num_channels >= (1 << 28)) refuse(c, "rows of no or of 2^28 elements");
        const bool computed = column.scaled || column.dtype != s.values_dtype || is_floating(s.values_dtype);
        if (computed && !is_computed(s.values_dtype)) refuse(c, std::string("values of ") + name(s.values_dtype));
        if (column.num_targets() > max_blocks) refuse(c, "too many moments");
        if (plan.part.size() > static_cast<std::size_t>(max_blocks)) refuse(c, "more than 2^31 - 1 episodes");
    }
}

/// From row to row, in every part.
std::int64_t row_bytes(const BatchPlan& plan, std::size_t c) {
    std::int64_t bytes = 0;
    for (std::int64_t p = 0; p < plan.num_parts; ++p) {
        const StreamPlan& s = plan.rows_of(p, c).stream;
        if (s.num_rows < 2) continue;
        if (bytes != 0 && bytes != s.value_row_stride) refuse(c, "parts whose rows are not equally far apart");
        bytes = s.value_row_stride;
    }
    if (bytes != 0) return bytes;
    return plan.columns[c].num_channels * size_bytes(plan.rows_of(0, c).stream.values_dtype);
}

/// How many pairs of offset and scale are kept of every part: all channels as often as it takes to fill items of up to
/// 8 elements, and as other parts that tell more of them.
std::size_t num_pairs(const BatchPlan& plan, std::size_t c) {
    std::size_t count = 8;
    for (std::int64_t p = 0; p < plan.num_parts; ++p) {
        count = std::lcm(count, std::max<std::size_t>(plan.rows_of(p, c).offset.size(), 1));
    }
    return count;
}

/// Them in the type that the kernel computes in.
template <class Compute>
std::vector<Compute> pairs_of(const RowsPlan& rows, std::size_t count) {
    std::vector<Compute> pairs;
    if (rows.offset.empty()) return pairs;
    for (std::size_t i = 0; i < count; ++i) {
        pairs.push_back(static_cast<Compute>(rows.offset[i % rows.offset.size()]));
        pairs.push_back(static_cast<Compute>(rows.scale[i % rows.scale.size()]));
    }
    return pairs;
}

bool same_times(const BatchPlan& plan, std::size_t a, std::size_t b) {
    for (std::int64_t p = 0; p < plan.num_parts; ++p) {
        const StreamPlan& x = plan.rows_of(p, a).stream;
        const StreamPlan& y = plan.rows_of(p, b).stream;
        if (x.times != y.times || x.offsets != y.offsets || x.num_rows != y.num_rows ||
            x.num_episodes != y.num_episodes) {
            return false;
        }
    }
    return true;
}

unsigned blocks_of(std::size_t count, unsigned threads) {
    return static_cast<unsigned>((count + threads - 1) / threads);
}

bool anchors_are_rows(const BatchPlan& plan, std::size_t c) {
    const TablePlan& table = plan.tables[0];
    const StreamPlan& s = plan.rows[c].stream;
    return plan.tables.size() == 1 && plan.num_parts == 1 && !(table.period_ns > 0) &&
           table.num_anchors == s.num_rows && reinterpret_cast<const std::int64_t*>(s.times) == table.times &&
           s.offsets == table.prefix;
}

/// Rows from the anchor's to each moment.
std::vector<std::int32_t> row_steps(const ColumnPlan& plan, std::int64_t latency, double rows_per_ns) {
    std::vector<std::int32_t> steps;
    for (const std::int64_t delta : plan.deltas) {
        const double rows = std::rint((static_cast<double>(delta) + static_cast<double>(latency)) * rows_per_ns);
        steps.push_back(static_cast<std::int32_t>(std::clamp(rows, -1e9, 1e9)));
    }
    return steps;
}

/// DeviceColumn::near_deltas.
std::vector<double> near_deltas(const BatchPlan& plan, std::size_t c) {
    constexpr std::int64_t most = std::int64_t{1} << 50;
    const auto is_near = [](std::int64_t t) { return t <= most && t >= -most; };
    const bool counted = is_near(plan.rows[c].stream.latency.ns) && row_bytes(plan, c) <= INT32_MAX;
    std::vector<double> deltas;
    for (const std::int64_t delta : plan.columns[c].deltas) {
        deltas.push_back(counted && is_near(delta) ? static_cast<double>(delta) : std::nan(""));
    }
    return deltas;
}

/// How far apart the moments of a column are, where they are equally far apart; else 0.
double run_step(const ColumnPlan& plan, std::int64_t latency) {
    constexpr std::int64_t far = std::int64_t{1} << 60;  // nothing saturates nearer than that
    const std::vector<std::int64_t>& deltas = plan.deltas;
    const auto is_far = [](std::int64_t t) { return t > far || t < -far; };
    if (deltas.size() < 2 || is_far(latency) || std::any_of(deltas.begin(), deltas.end(), is_far)) return 0;
    const std::int64_t step = deltas[1] - deltas[0];
    for (std::size_t j = 2; j < deltas.size(); ++j) {
        if (deltas[j] - deltas[j - 1] != step) return 0;
    }
    return static_cast<double>(std::max<std::int64_t>(step, 0));
}

std::vector<EpisodeIndex> first_episodes(const DeviceColumn& column, std::size_t num_episodes) {
    std::vector<EpisodeIndex> some(std::min<std::size_t>(num_episodes, 64));
    check_cuda(cudaMemcpy(some.data(), column.episodes, some.size() * sizeof(EpisodeIndex), cudaMemcpyDeviceToHost),
               "BatchReader: cudaMemcpy");
    return some;
}

/// Rows per nanosecond, as most of these episodes have them; 0 where none has two rows.
double usual_rate(const std::vector<EpisodeIndex>& episodes) {
    std::vector<float> rates;
    for (const EpisodeIndex& episode : episodes) {
        if (episode.rows_per_ns > 0) rates.push_back(episode.rows_per_ns);
    }
    if (rates.empty()) return 0;
    const auto middle = rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2);
    std::nth_element(rates.begin(), middle, rates.end());
    return static_cast<double>(*middle);
}

/// Whether windows lie on the rows of most of these episodes.
bool are_mostly_runs(const DeviceColumn& column, const std::vector<EpisodeIndex>& episodes) {
    const auto fits = [&](const EpisodeIndex& episode) { return episode.period == column.run_step; };
    return column.run_step > 0 &&
           std::count_if(episodes.begin(), episodes.end(), fits) * 2 > static_cast<std::ptrdiff_t>(episodes.size());
}

bool are_in_gpu_memory(const BatchPlan& plan, std::size_t c) {
    for (std::int64_t p = 0; p < plan.num_parts; ++p) {
        const StreamPlan& s = plan.rows_of(p, c).stream;
        if (s.num_rows == 0) continue;
        cudaPointerAttributes attributes{};
        check_cuda(cudaPointerGetAttributes(&attributes, s.values), "BatchReader: cudaPointerGetAttributes");
        if (attributes.type != cudaMemoryTypeDevice) return false;
    }
    return true;
}

}  // namespace

CudaBatch::CudaBatch(const BatchPlan& plan, Stream stream) {
    require_support(plan);
    const DeviceGuard guard(plan.device.index);
    const auto queue = static_cast<cudaStream_t>(stream.handle);
    const std::size_t num_columns = plan.columns.size();
    const std::size_t num_episodes = plan.part.size();
    Image image;
    const std::size_t part_at = image.add(plan.part);
    const std::size_t local_at = image.add(plan.local);
    const std::size_t tables_at = image.reserve<TablePlan>(plan.tables.size());
    const std::size_t rows_at = image.reserve<PartRows>(plan.rows.size());
    const std::size_t offsets_at = image.reserve<PartOffsets>(plan.rows.size());
    std::vector<std::size_t> deltas_at;
    for (const ColumnPlan& column : plan.columns) deltas_at.push_back(image.add(column.deltas));
    std::vector<std::size_t> near_deltas_at;
    for (std::size_t c = 0; c < num_columns; ++c) near_deltas_at.push_back(image.add(near_deltas(plan, c)));
    std::vector<std::size_t> scales_at;
    for (std::size_t i = 0; i < plan.rows.size(); ++i) {
        const bool in_double = plan.columns[i % num_columns].written == DType::f64;
        const std::size_t count = num_pairs(plan, i % num_columns);
        scales_at.push_back(in_double ? image.add(pairs_of<double>(plan.rows[i], count))
                                      : image.add(pairs_of<float>(plan.rows[i], count)));
    }
    // What the device makes itself lies behind.
    std::vector<std::size_t> buckets_at;
    std::size_t size = image.bytes().size();
    const auto behind = [&size](std::size_t bytes) {
        size = (size + 255) / 256 * 256;
        const std::size_t at = size;
        size += bytes;
        return at;
    };
    for (const TablePlan& table : plan.tables) {
        buckets_at.push_back(behind(static_cast<std::size_t>(num_buckets(table)) * sizeof(Bucket)));
    }
    std::vector<std::size_t> steps_at;
    for (const ColumnPlan& column : plan.columns) {
        steps_at.push_back(behind(column.deltas.size() * sizeof(std::int32_t)));
    }
    std::vector<std::size_t> episodes_at;
    for (std::size_t c = 0; c < num_columns; ++c) {
        std::size_t like = 0;
        while (like < c && !same_times(plan, like, c)) ++like;
        episodes_at.push_back(like < c ? episodes_at[like] : behind(num_episodes * sizeof(EpisodeIndex)));
    }
    memory_ = std::make_unique<Buffer>(size, plan.device.index);

    std::vector<TablePlan> tables = plan.tables;
    for (std::size_t i = 0; i < tables.size(); ++i) {
        tables[i].buckets = memory_->at<Bucket>(buckets_at[i]);
        image.write(tables_at + i * sizeof(TablePlan), tables[i]);
    }
    for (std::size_t i = 0; i < plan.rows.size(); ++i) {
        const StreamPlan& s = plan.rows[i].stream;
        const auto* times = reinterpret_cast<const std::int64_t*>(s.times);
        const PartRows rows{s.values, times, memory_->at<char>(scales_at[i]), s.max_gap.ns};
        image.write(rows_at + i * sizeof(PartRows), rows);
        image.write(offsets_at + i * sizeof(PartOffsets), PartOffsets{times, s.offsets, s.num_episodes, s.num_rows});
        if (i < num_columns) {
            DeviceColumn column{};
            column.rows = rows;
            column.format.in = s.values_dtype;
            columns_.push_back(column);
            in_alignments_.push_back(16);
            in_host_memory_.push_back(true);
        }
        if (!plan.rows[i].in_host_memory) in_host_memory_[i % num_columns] = false;
        if (s.num_rows == 0) continue;
        std::uint64_t& alignment = in_alignments_[i % num_columns];
        alignment =
            std::min(alignment, common_alignment({reinterpret_cast<std::uintptr_t>(s.values),
                                                  static_cast<std::uint64_t>(row_bytes(plan, i % num_columns))}));
    }
    table_ = tables[0];
    tables_ = memory_->at<TablePlan>(tables_at);
    check_cuda(cudaMemcpyAsync(memory_->at<char>(0), image.bytes().data(), image.bytes().size(), cudaMemcpyHostToDevice,
                               queue),
               "BatchReader: cudaMemcpyAsync");

    constexpr unsigned threads = 256;
    for (std::size_t i = 0; i < tables.size(); ++i) {
        TablePlan bare = tables[i];
        bare.buckets = nullptr;
        const std::int64_t count = num_buckets(bare);
        robocache_index_anchors<<<blocks_of(static_cast<std::size_t>(count), threads), threads, 0, queue>>>(
            bare, memory_->at<Bucket>(buckets_at[i]), count);
        check_cuda(cudaGetLastError(), "BatchReader: launching robocache_index_anchors");
    }
    for (std::size_t c = 0; c < num_columns; ++c) {
        const StreamPlan& s = plan.rows[c].stream;
        DeviceColumn& column = columns_[c];
        column.parts = plan.num_parts == 1 ? nullptr : memory_->at<PartRows>(rows_at) + c;
        column.parts_step = static_cast<std::int64_t>(num_columns);
        column.episodes = memory_->at<EpisodeIndex>(episodes_at[c]);
        column.deltas = memory_->at<std::int64_t>(deltas_at[c]);
        column.near_deltas = memory_->at<double>(near_deltas_at[c]);
        column.latency = s.latency.ns;
        column.value_row_bytes = row_bytes(plan, c);
        column.run_step = run_step(plan.columns[c], s.latency.ns);
        if (column.run_step > 0) column.run_first = plan.columns[c].deltas[0] + s.latency.ns;
        column.rules = {s.max_gap, s.has_max_gap, s.outside_valid, s.before, s.after};
        column.method = s.ranges[0].method;
        column.by_channels = Divisor(static_cast<std::uint32_t>(num_pairs(plan, c)));
        column.num_targets = static_cast<std::uint32_t>(plan.columns[c].num_targets());
        if (std::find(episodes_at.begin(), episodes_at.begin() + static_cast<std::ptrdiff_t>(c), episodes_at[c]) !=
            episodes_at.begin() + static_cast<std::ptrdiff_t>(c)) {
            continue;
        }
        const IndexJob job{memory_->at<PartOffsets>(offsets_at) + c, static_cast<std::int64_t>(num_columns),
                           memory_->at<std::int64_t>(part_at), memory_->at<std::int64_t>(local_at),
                           memory_->at<EpisodeIndex>(episodes_at[c])};
        robocache_index_episodes<<<static_cast<unsigned>(num_episodes), threads, 0, queue>>>(job);
        check_cuda(cudaGetLastError(), "BatchReader: launching robocache_index_episodes");
    }
    // From here on the index and the rows are only read, on whatever stream, before earlier work is waited for.
    check_cuda(cudaStreamSynchronize(queue), "BatchReader: cudaStreamSynchronize");
    std::vector<std::int32_t> steps;
    for (std::size_t c = 0; c < num_columns; ++c) {
        const std::int64_t latency = plan.rows[c].stream.latency.ns;
        const std::vector<EpisodeIndex> episodes = first_episodes(columns_[c], num_episodes);
        mostly_runs_.push_back(are_mostly_runs(columns_[c], episodes) && are_in_gpu_memory(plan, c));
        const double rate = usual_rate(episodes);
        if (!(rate > 0)) continue;
        if (!anchors_are_rows(plan, c)) continue;
        steps = row_steps(plan.columns[c], latency, rate);
        auto* target = memory_->at<std::int32_t>(steps_at[c]);
        check_cuda(cudaMemcpy(target, steps.data(), steps.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice),
                   "BatchReader: cudaMemcpy");
        columns_[c].row_steps = target;
    }
}

std::unique_ptr<BatchBackend> make_device_batch(const BatchPlan& plan, Stream stream) {
    return std::make_unique<CudaBatch>(plan, stream);
}

TensorView on_device(const TensorView& values, Device device, const ArgumentName& argument) {
    const DeviceGuard guard(device.index);
    TensorView view = values;
    if (values.num_elements() > 0) {
        cudaPointerAttributes attributes{};
        check_cuda(cudaPointerGetAttributes(&attributes, values.data), "BatchReader: cudaPointerGetAttributes");
        if (attributes.type != cudaMemoryTypeHost || attributes.devicePointer == nullptr) {
            fail("BatchReader", argument, "be on " + name(device) + " or in pinned host memory", name(values.device));
        }
        view.data = attributes.devicePointer;
    }
    view.device = device;
    return view;
}

}  // namespace robocache::loader_detail
