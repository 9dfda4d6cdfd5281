// From a plan to kernel parameters and launch shapes.
#include "ops/align/cuda/tables.hpp"

#include <algorithm>
#include <cmath>
#include <string>

namespace robocache::align_detail {
namespace {

constexpr std::int64_t max_grid = (std::int64_t{1} << 31) - 1;
constexpr const char* too_many_tiles = "align: the output has more tiles than CUDA can number";

RowsTuning tuning() {
    return rows_tuning(num_sms());
}

bool is_simple_method(Method method) {
    return method == Method::linear || takes_one_row(method);
}

/// The widest power of two up to 16 that divides every address and stride of the rows.
int access_bytes(const StreamPlan& s) {
    std::uint64_t bits = reinterpret_cast<std::uintptr_t>(s.values) | reinterpret_cast<std::uintptr_t>(s.out) | 16;
    for (const std::int64_t stride : {s.value_episode_stride, s.value_row_stride, s.out_row_stride, s.out_target_stride,
                                      s.inner.size * size_bytes(s.values_dtype)}) {
        bits |= static_cast<std::uint64_t>(stride);
    }
    return static_cast<int>(bits & (~bits + 1));
}

Format format_of(const StreamPlan& s, int bytes) {
    const auto offset = [](Format widest, int steps) { return static_cast<Format>(static_cast<int>(widest) + steps); };
    const int steps = bytes == 16 ? 0 : bytes == 8 ? 1 : bytes == 4 ? 2 : bytes == 2 ? 3 : 4;
    const bool has_nan = s.before == Outside::nan || s.after == Outside::nan;
    if (s.ranges[0].method == Method::linear || has_nan) {
        switch (s.values_dtype) {
            case DType::f32: return offset(Format::f32x4, steps);
            case DType::f64: return offset(Format::f64x2, steps);
            case DType::f16: return offset(Format::f16x8, steps);
            case DType::bf16: return offset(Format::bf16x8, steps);
            default: break;
        }
    }
    return offset(Format::raw16, steps);
}

/// Cuts the targets of the general kernel into tiles. `width` is that of a row.
Tiling cut_into_tiles(const CallPlan& plan, std::int64_t width) {
    const std::int64_t tile =
        std::clamp<std::int64_t>(RowsTuning::general_tile / std::max<std::int64_t>(width, 1), 1, block_threads);
    Tiling tiling{};
    tiling.tiles_per_row = (plan.num_targets + tile - 1) / tile;
    tiling.targets =
        static_cast<std::int32_t>((plan.num_targets + tiling.tiles_per_row - 1) / tiling.tiles_per_row);  // equal tiles
    tiling.rows = tiling.tiles_per_row > 1 ? 1 : static_cast<std::int32_t>(tile / tiling.targets);
    return tiling;
}

/// The ranges and dimensions of a stream's channels. `op` is named in errors.
DeviceChannels channels_of(const StreamPlan& s, const char* op) {
    if (s.ranges.size() > max_ranges) {
        throw Unsupported(std::string(op) + ": at most " + std::to_string(max_ranges) +
                          " channel ranges on CUDA, got " + std::to_string(s.ranges.size()));
    }
    DeviceChannels c{};
    c.num_ranges = static_cast<std::int32_t>(s.ranges.size());
    std::copy(s.ranges.begin(), s.ranges.end(), c.ranges);
    c.num_outer = static_cast<std::int32_t>(s.outer.size());
    std::copy(s.outer.begin(), s.outer.end(), c.outer);
    c.inner = s.inner;
    c.outer_count = 1;
    for (const ChannelDim& dim : s.outer) c.outer_count *= dim.size;
    return c;
}

/// Rows of an episode; of ragged ones, on average.
double rows_per_episode(const StreamPlan& s) {
    const auto rows = static_cast<double>(std::max<std::int64_t>(s.num_rows, 0));
    return s.offsets == nullptr ? rows : rows / static_cast<double>(std::max<std::int64_t>(s.num_episodes, 1));
}

RowsStream rows_stream(const CallPlan& plan, const StreamPlan& s, int bytes) {
    RowsStream r{};
    r.stream = device_stream(s);
    r.out = s.out;
    r.out_row_stride = s.out_row_stride;
    r.out_target_stride = s.out_target_stride;
    r.parts = 1;
    r.row_bytes = static_cast<std::int32_t>(s.inner.size * size_bytes(s.values_dtype));
    r.num_words = static_cast<std::uint32_t>(r.row_bytes / bytes);
    r.by_num_words = Divisor(std::max(r.num_words, 1U));
    r.method = s.ranges[0].method;
    r.format = format_of(s, bytes);
    // Random times, and random targets, deviate from even ones by half a root of their number (one sigma).
    const double rows = rows_per_episode(s);
    const auto targets = static_cast<double>(plan.num_targets);
    const double sigma = 0.5 * std::sqrt(rows + rows * rows / targets);
    r.window_margin = static_cast<std::int32_t>(std::min(3 * sigma, 1e6)) + 2;
    return r;
}

/// Cuts the targets of a stream into tiles; returns how many there are of one query row.
std::int64_t cut_into_warps(RowsStream& r, const CallPlan& plan) {
    const RowsTuning shape = tuning();
    const std::int64_t words = std::max<std::int64_t>(r.num_words, 1);
    std::int64_t tile = std::clamp<std::int64_t>(shape.words_per_warp / words, 1, warp_size);
    const auto tiles_per_row = [&] { return (plan.num_targets + tile - 1) / tile; };
    while (tile > 1 && tile * words > shape.least_words_per_warp &&
           plan.num_rows * tiles_per_row() < shape.enough_warps) {
        tile = (tile + 1) / 2;
    }
    if (plan.num_rows * tiles_per_row() > shape.enough_warps) {
        tile = std::clamp<std::int64_t>(shape.words_per_warp_of_many / words, 1, tile);
    }
    const std::int64_t tiles = tiles_per_row();
    r.tile = static_cast<std::int32_t>((plan.num_targets + tiles - 1) / tiles);  // equal tiles
    if (r.tile == 1) r.parts = static_cast<std::int32_t>((words + shape.words_per_warp - 1) / shape.words_per_warp);
    return tiles * r.parts;
}

/// Completes a table for so many tiles of one query row.
template <int capacity>
void count_tiles(RowsTable<capacity>& table, const CallPlan& plan, std::int64_t tiles_per_row) {
    if (tiles_per_row > max_grid) throw Unsupported(too_many_tiles);
    const std::int64_t num_rows = std::min(plan.num_rows - table.first_row, max_grid / tiles_per_row);
    table.query = device_query(plan);
    table.by_tiles_per_row = Divisor(static_cast<std::uint32_t>(tiles_per_row));
    table.num_tiles = static_cast<std::uint32_t>(num_rows * tiles_per_row);
}

/// Rows of an episode that a warp of align_short makes room for; of ragged ones twice the mean.
std::int64_t short_rows(const StreamPlan& s) {
    return static_cast<std::int64_t>(rows_per_episode(s) * (s.offsets == nullptr ? 1 : 2)) + 2;
}

}  // namespace

bool is_simple(const StreamPlan& s) {
    return s.ranges.size() == 1 && is_simple_method(s.ranges[0].method) && s.outer.empty() &&
           s.values_dtype == s.out_dtype && s.time_row_stride == 1 && (s.offsets == nullptr || s.offsets_stride == 1) &&
           (s.inner.value_stride == 1 || s.inner.size == 1) && (s.inner.out_stride == 1 || s.inner.size == 1) &&
           s.inner.size < (1 << 28);
}

bool is_short(const CallPlan& plan, const StreamPlan& s, std::int64_t time_bytes) {
    const bool is_computed =
        s.values_dtype == DType::f32 || s.values_dtype == DType::f16 || s.values_dtype == DType::bf16;
    const bool is_plain = s.ranges[0].method == Method::linear && plan.deltas == nullptr && s.index.data == nullptr &&
                          !(s.tolerance.ns > 0) && !(s.tolerance.seconds > 0) &&
                          (plan.time_target_stride == 1 || plan.num_targets == 1);
    const std::int64_t row_bytes = s.inner.size * size_bytes(s.values_dtype);
    const int bytes = access_bytes(s);
    const std::int64_t tiles = (plan.num_targets + ShortTuning::targets - 1) / ShortTuning::targets;
    const double rows_read = rows_per_episode(s) * static_cast<double>(tiles);
    return is_computed && is_plain && bytes <= 4 && row_bytes > bytes && row_bytes <= ShortTuning::row_bytes &&
           s.out_target_stride == row_bytes && s.value_row_stride == row_bytes && s.value_episode_stride >= 0 &&
           s.time_episode_stride >= 0 && plan.num_rows >= tuning().enough_warps / tiles &&
           rows_read <= ShortTuning::rows_per_target * static_cast<double>(plan.num_targets) &&
           short_rows(s) * (row_bytes + time_bytes) + ShortTuning::targets * row_bytes <= ShortTuning::room_bytes - 128;
}

template <int capacity>
Launch make_table(const CallPlan& plan, std::span<const StreamPlan* const> streams, RowsTable<capacity>& table) {
    table.num_streams = static_cast<std::int32_t>(streams.size());
    std::int64_t tiles_per_row = 0;
    for (std::size_t i = 0; i < streams.size(); ++i) {
        RowsStream& r = table.streams[i];
        r = rows_stream(plan, *streams[i], access_bytes(*streams[i]));
        r.first_tile = static_cast<std::uint32_t>(tiles_per_row);
        tiles_per_row += cut_into_warps(r, plan);
        if (tiles_per_row > max_grid) throw Unsupported(too_many_tiles);
    }
    count_tiles(table, plan, tiles_per_row);
    // Few warps are spread over all SMs.
    const std::int64_t warps = std::clamp<std::int64_t>(table.num_tiles / tuning().enough_blocks, 1, RowsTuning::warps);
    return {(table.num_tiles + warps - 1) / warps, warps * warp_size};
}

template Launch make_table(const CallPlan&, std::span<const StreamPlan* const>, RowsTable<few_streams>&);
template Launch make_table(const CallPlan&, std::span<const StreamPlan* const>, RowsTable<max_streams>&);

Launch make_table(const CallPlan& plan, const StreamPlan& s, std::int64_t time_bytes, ShortTable& table) {
    table.rows.num_streams = 1;
    RowsStream& r = table.rows.streams[0];
    r = rows_stream(plan, s, access_bytes(s));
    r.tile = ShortTuning::targets;
    count_tiles(table.rows, plan, (plan.num_targets + ShortTuning::targets - 1) / ShortTuning::targets);
    const std::int64_t last_episode = s.offsets == nullptr ? s.num_episodes - 1 : 0;
    table.times_end = s.times + (last_episode * s.time_episode_stride + s.num_rows) * time_bytes;
    table.values_end = s.values + last_episode * s.value_episode_stride + s.num_rows * r.row_bytes;
    const std::int64_t rows = short_rows(s);
    const auto padded = [](std::int64_t bytes) { return (bytes + 30) / 16 * 16; };  // begins anywhere in 16 bytes
    table.most_rows = static_cast<std::int32_t>(rows);
    table.results_bytes =
        static_cast<std::int32_t>(std::max(padded(rows * time_bytes), padded(ShortTuning::targets * r.row_bytes)));
    // A row and a word more: two rows are read side by side, in words that may begin before them, though one is held.
    table.warp_bytes = static_cast<std::int32_t>(16 + table.results_bytes + padded((rows + 1) * r.row_bytes + 4));
    return {(table.rows.num_tiles + ShortTuning::warps - 1) / ShortTuning::warps, ShortTuning::warps * warp_size,
            std::int64_t{table.warp_bytes} * ShortTuning::warps};
}

Launch make_table(const CallPlan& plan, const StreamPlan& s, GeneralTable& table) {
    table.query = device_query(plan);
    table.stream = device_stream(s);
    table.channels = channels_of(s, "align");
    table.out = s.out;
    table.out_row_stride = s.out_row_stride;
    table.out_target_stride = s.out_target_stride;
    table.period = s.period;
    table.values_dtype = s.values_dtype;
    table.out_dtype = s.out_dtype;
    table.out_bytes = static_cast<std::int32_t>(size_bytes(s.out_dtype));
    table.tiling = cut_into_tiles(plan, s.inner.size * table.channels.outer_count);
    const std::int64_t groups = (plan.num_rows + table.tiling.rows - 1) / table.tiling.rows;
    if (groups > max_grid / table.tiling.tiles_per_row) throw Unsupported(too_many_tiles);
    return {groups * table.tiling.tiles_per_row, block_threads};
}

Launch make_table(const CallPlan& plan, const StreamPlan& s, BackwardTable& table) {
    table.query = device_query(plan);
    table.stream = device_stream(s);
    table.channels = channels_of(s, "align_backward");
    table.num_all = plan.num_rows * plan.num_targets;
    table.grad = s.out;
    table.grad_row_stride = s.out_row_stride;
    table.grad_target_stride = s.out_target_stride;
    table.grad_dtype = s.out_dtype;
    table.inputs = s.inputs;
    table.input_episode_stride = s.input_episode_stride;
    table.input_row_stride = s.input_row_stride;
    table.inputs_dtype = s.inputs_dtype;
    table.input_bytes = static_cast<std::int32_t>(size_bytes(s.inputs_dtype));
    const std::int64_t width = s.inner.size * table.channels.outer_count;
    if (width == 0) return {0, block_threads};
    table.part_width = std::min(width, BackwardTuning::block_work);
    table.parts = static_cast<std::int32_t>((width + table.part_width - 1) / table.part_width);
    std::int64_t tile = std::clamp<std::int64_t>(BackwardTuning::block_work / table.part_width, 1, block_threads);
    const auto blocks = [&] { return (table.num_all + tile - 1) / tile * table.parts; };
    while (tile > 1 && tile * table.part_width > BackwardTuning::least_work &&
           blocks() < BackwardTuning::blocks_per_sm * num_sms()) {
        tile = (tile + 1) / 2;
    }
    table.tile = static_cast<std::int32_t>(tile);
    return {blocks(), block_threads};
}

}  // namespace robocache::align_detail
