// Batches on CUDA: what a reader keeps on the device, and one launch for all columns of a batch.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "core/cuda_check.hpp"
#include "core/cuda_memory.hpp"
#include "loader/batch.hpp"
#include "loader/batch_kernel.cuh"

namespace robocache::loader_detail {
namespace {

using align_detail::Divisor;
using align_detail::StreamPlan;

constexpr std::int64_t max_blocks = (std::int64_t{1} << 31) - 1;
// The launch shape, for an H200 (docs/decisions/0008).
constexpr std::int64_t multiprocessors = 132;
constexpr std::int64_t enough_blocks = 4 * multiprocessors;  // so that a small batch is found by all of them
constexpr std::int64_t resident_blocks = 7 * multiprocessors;
constexpr std::int64_t usual_samples = 32;  // of a block of a large batch: a warp finds as many in the time of one

/// How many samples a block takes, of so many in all columns. A small batch: as many targets as threads. A large one:
/// so many that its blocks are whole rounds of those that run at the same time.
std::int64_t block_samples(std::int64_t all, std::int64_t num_targets) {
    const std::int64_t few = std::max<std::int64_t>(batch_threads / num_targets, 1);
    const std::int64_t small = std::clamp<std::int64_t>(all / enough_blocks, 1, few);
    if ((all + small - 1) / small <= resident_blocks) return small;
    const std::int64_t round = resident_blocks * usual_samples;
    const std::int64_t rounds = std::max<std::int64_t>((all + round / 2) / round, 1);
    const std::int64_t blocks = rounds * resident_blocks;
    return std::min<std::int64_t>((all + blocks - 1) / blocks, max_block_samples);
}

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

class Buffer {
public:
    Buffer(std::size_t bytes, int device) : data_(static_cast<char*>(allocate_cuda(bytes, device))) {}
    ~Buffer() { free_cuda(data_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    template <class T>
    [[nodiscard]] T* at(std::size_t offset) const {
        return reinterpret_cast<T*>(data_ + offset);
    }

private:
    char* data_;
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

/// The widest power of two up to 16 that divides all of them.
std::uint64_t common_alignment(std::initializer_list<std::uint64_t> numbers) {
    std::uint64_t bits = 16;
    for (const std::uint64_t number : numbers) bits |= number;
    return bits & (~bits + 1);
}

class CudaBatch final : public DeviceBatch {
public:
    CudaBatch(const BatchPlan& plan, Stream stream);

    void read(const BatchPlan& plan, const BatchCall& call, Stream stream) const override {
        const DeviceGuard guard(plan.device.index);
        for (std::size_t c = 0; c < columns_.size(); c += max_batch_columns) {
            read_columns(plan, call, c, std::min(c + max_batch_columns, columns_.size()), stream);
        }
    }

private:
    void read_columns(const BatchPlan& plan, const BatchCall& call, std::size_t begin, std::size_t end,
                      Stream stream) const;
    static double usual_rate(const DeviceColumn& column, std::size_t num_episodes);
    DeviceColumn bound(const ColumnPlan& plan, std::size_t c, const BatchCall& call, std::size_t num_columns) const;

    std::unique_ptr<Buffer> memory_;
    const TablePlan* tables_ = nullptr;
    TablePlan table_{};                         // the first
    std::vector<DeviceColumn> columns_;         // without outputs
    std::vector<std::uint64_t> in_alignments_;  // of the rows of all parts
};

/// Pairs of offset and scale in the type that the kernel computes in.
template <class Compute>
std::vector<Compute> pairs_of(const RowsPlan& rows) {
    std::vector<Compute> pairs;
    for (std::size_t i = 0; i < rows.offset.size(); ++i) {
        pairs.push_back(static_cast<Compute>(rows.offset[i]));
        pairs.push_back(static_cast<Compute>(rows.scale[i]));
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

/// How much is fetched for a sample before its rows are found: the span of its moments, where that is not more than
/// what they need.
void plan_fetching(const ColumnPlan& plan, std::int64_t latency, double rows_per_ns, DeviceColumn& column) {
    constexpr std::int64_t line = 128;
    constexpr double most_bytes = 16 << 10;
    const auto [low, high] = std::minmax_element(plan.deltas.begin(), plan.deltas.end());
    const double rows = std::ceil(static_cast<double>(*high - *low) * rows_per_ns - 0.01) + 2;
    const double needed = (column.method == Method::linear ? 1.5 : 1.0) * static_cast<double>(plan.num_targets()) + 2;
    if (column.on_host || rows > needed || rows * static_cast<double>(column.value_row_bytes) > most_bytes) return;
    column.first_delta = align_detail::add_time(*low, latency);
    column.fetched_rows = static_cast<std::int32_t>(rows);
    const auto lines = [&](std::int64_t row_bytes) { return column.fetched_rows * row_bytes / line + 2; };
    column.value_lines = static_cast<std::uint32_t>(lines(column.value_row_bytes));
    column.by_fetched_lines = Divisor(column.value_lines + static_cast<std::uint32_t>(lines(8)));
}

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
    std::vector<std::size_t> scales_at;
    for (std::size_t i = 0; i < plan.rows.size(); ++i) {
        const bool in_double = plan.columns[i % num_columns].written == DType::f64;
        scales_at.push_back(in_double ? image.add(pairs_of<double>(plan.rows[i]))
                                      : image.add(pairs_of<float>(plan.rows[i])));
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
        }
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
        column.latency = s.latency.ns;
        column.value_row_bytes = row_bytes(plan, c);
        column.on_host = plan.columns[c].on_host;
        column.rules = {s.max_gap, s.has_max_gap, s.outside_valid, s.before, s.after};
        column.method = s.ranges[0].method;
        column.num_channels = static_cast<std::uint32_t>(std::max<std::size_t>(plan.rows[c].offset.size(), 1));
        column.num_targets = static_cast<std::uint32_t>(plan.columns[c].num_targets());
        if (std::find(episodes_at.begin(), episodes_at.begin() + static_cast<std::ptrdiff_t>(c), episodes_at[c]) !=
            episodes_at.begin() + static_cast<std::ptrdiff_t>(c)) {
            continue;
        }
        const IndexJob job{memory_->at<PartOffsets>(offsets_at) + c, static_cast<std::int64_t>(num_columns),
                           memory_->at<std::int64_t>(part_at),       memory_->at<std::int64_t>(local_at),
                           static_cast<std::int64_t>(num_episodes),  memory_->at<EpisodeIndex>(episodes_at[c])};
        robocache_index_episodes<<<static_cast<unsigned>(num_episodes), threads, 0, queue>>>(job);
        check_cuda(cudaGetLastError(), "BatchReader: launching robocache_index_episodes");
    }
    // From here on the index and the rows are only read, on whatever stream, before earlier work is waited for.
    check_cuda(cudaStreamSynchronize(queue), "BatchReader: cudaStreamSynchronize");
    std::vector<std::int32_t> steps;
    for (std::size_t c = 0; c < num_columns; ++c) {
        const std::int64_t latency = plan.rows[c].stream.latency.ns;
        const double rate = usual_rate(columns_[c], num_episodes);
        if (!(rate > 0)) continue;
        plan_fetching(plan.columns[c], latency, rate, columns_[c]);
        if (!anchors_are_rows(plan, c)) continue;
        steps = row_steps(plan.columns[c], latency, rate);
        auto* target = memory_->at<std::int32_t>(steps_at[c]);
        check_cuda(cudaMemcpy(target, steps.data(), steps.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice),
                   "BatchReader: cudaMemcpy");
        columns_[c].row_steps = target;
    }
}

/// Rows per nanosecond of a column, as most of its first episodes have them; 0 where none has two rows.
double CudaBatch::usual_rate(const DeviceColumn& column, std::size_t num_episodes) {
    std::vector<EpisodeIndex> some(std::min<std::size_t>(num_episodes, 64));
    check_cuda(cudaMemcpy(some.data(), column.episodes, some.size() * sizeof(EpisodeIndex), cudaMemcpyDeviceToHost),
               "BatchReader: cudaMemcpy");
    std::vector<float> rates;
    for (const EpisodeIndex& episode : some) {
        if (episode.rows_per_ns > 0) rates.push_back(episode.rows_per_ns);
    }
    if (rates.empty()) return 0;
    const auto middle = rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2);
    std::nth_element(rates.begin(), middle, rates.end());
    return static_cast<double>(*middle);
}

/// The column with its outputs, cut into blocks.
DeviceColumn CudaBatch::bound(const ColumnPlan& plan, std::size_t c, const BatchCall& call,
                              std::size_t num_columns) const {
    DeviceColumn column = columns_[c];
    const BatchOutput& output = call.outputs[c];
    column.out = static_cast<char*>(output.values.data);
    column.padding = output.padding ? static_cast<bool*>(output.padding->data) : nullptr;
    ItemFormat& format = column.format;
    format.out = plan.dtype;
    format.scaled = plan.scaled;
    const std::int64_t in_size = size_bytes(format.in);
    const std::int64_t out_size = size_bytes(format.out);
    column.out_row_bytes = plan.num_channels * out_size;
    const std::uint64_t in_alignment =
        std::min(in_alignments_[c], common_alignment({static_cast<std::uint64_t>(plan.num_channels * in_size)}));
    const std::uint64_t out_alignment = common_alignment(
        {reinterpret_cast<std::uintptr_t>(column.out), static_cast<std::uint64_t>(column.out_row_bytes)});
    if (!format.scaled && format.in == format.out && !is_floating(format.in)) {
        format.raw_bytes = static_cast<std::uint8_t>(std::min(in_alignment, out_alignment));
        column.num_items = static_cast<std::uint32_t>(column.out_row_bytes / format.raw_bytes);
    } else {
        const std::int64_t wide = 16 / std::max(in_size, out_size);
        format.wide = in_alignment >= static_cast<std::uint64_t>(wide * in_size) &&
                      out_alignment >= static_cast<std::uint64_t>(wide * out_size);
        column.num_items = static_cast<std::uint32_t>(plan.num_channels / (format.wide ? wide : 1));
    }
    column.chunk_items = std::min<std::uint32_t>(column.num_items, batch_threads);
    column.tile_targets = std::min<std::uint32_t>(column.num_targets, max_tile_targets);
    const std::int64_t cuts = (column.num_targets + column.tile_targets - 1) / column.tile_targets;
    const std::int64_t samples =
        cuts > 1 ? 1 : block_samples(call.count * static_cast<std::int64_t>(num_columns), column.tile_targets);
    const std::int64_t at_once = std::min<std::int64_t>(max_tile_targets / column.tile_targets, samples);
    const std::int64_t tiles = (samples + at_once - 1) / at_once;
    column.samples = static_cast<std::uint32_t>(samples);
    column.tile_samples = static_cast<std::uint32_t>((samples + tiles - 1) / tiles);  // equal tiles
    column.by_target_cuts = Divisor(static_cast<std::uint32_t>(cuts));
    column.by_chunks = Divisor((column.num_items + column.chunk_items - 1) / column.chunk_items);
    column.by_tile_targets = Divisor(column.tile_targets);
    column.by_chunk_items = Divisor(column.chunk_items);
    return column;
}

void CudaBatch::read_columns(const BatchPlan& plan, const BatchCall& call, std::size_t begin, std::size_t end,
                             Stream stream) const {
    BatchTable table{};
    table.table = table_;
    table.tables = tables_;
    table.order = call.order;
    table.first_position = call.first_position;
    table.count = call.count;
    table.step = call.step;
    table.num_steps = call.num_steps;
    table.stride = call.stride;
    table.epoch_size = call.epoch_size;
    table.num_columns = static_cast<std::int32_t>(end - begin);
    std::int64_t blocks = 0;
    const auto all = [&](DType dtype) {
        return std::all_of(table.columns, table.columns + table.num_columns, [&](const DeviceColumn& column) {
            return column.format.raw_bytes == 0 && column.format.in == dtype && column.format.out == dtype;
        });
    };
    for (std::size_t c = begin; c < end; ++c) {
        DeviceColumn& column = table.columns[c - begin] = bound(plan.columns[c], c, call, end - begin);
        column.first_block = static_cast<std::uint32_t>(blocks);
        const std::int64_t tiles = (call.count + column.samples - 1) / column.samples;
        blocks += tiles * column.by_target_cuts.divisor * column.by_chunks.divisor;
        if (blocks > max_blocks) throw Unsupported("BatchReader: the batch has more blocks than a CUDA grid");
    }
    const auto kernel = all(DType::f32)    ? robocache_read_batch<ItemsOf<float>>
                        : all(DType::bf16) ? robocache_read_batch<ItemsOf<BFloat16>>
                                           : robocache_read_batch<AnyItems>;
    launch_overlapped(kernel, static_cast<unsigned>(blocks), batch_threads, 0, static_cast<cudaStream_t>(stream.handle),
                      table, "BatchReader: launching robocache_read_batch");
}

}  // namespace

std::unique_ptr<DeviceBatch> make_device_batch(const BatchPlan& plan, Stream stream) {
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
