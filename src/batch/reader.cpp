// BatchReader: its contract, then dispatch to the device the rows live on.
#include "batch/plan.hpp"

#include <algorithm>
#include <bit>
#include <string>

#include "batch/contract.hpp"

namespace robocache {
namespace loader_detail {
namespace {

constexpr std::string_view op = "BatchReader";

std::vector<std::int64_t> host_list(const TensorView& list, const char* argument, std::int64_t below) {
    require_list(op, argument, list, DType::i64, Device{});
    const auto* begin = static_cast<const std::int64_t*>(list.data);
    std::vector<std::int64_t> result(begin, begin + list.shape[0]);
    for (std::size_t i = 0; i < result.size(); ++i) {
        if (result[i] < 0 || result[i] >= below) {
            fail(op, ArgumentName(argument, i, ""), "be from 0 to " + std::to_string(below - 1),
                 std::to_string(result[i]));
        }
    }
    return result;
}

std::vector<double> statistics(const std::optional<TensorView>& given, std::size_t i, const char* field,
                               std::int64_t num_channels) {
    const ArgumentName argument("rows", i, field);
    if (!given) fail(op, argument, "be there for a scaled column", "none");
    require_list(op, argument, *given, DType::f64, Device{});
    const std::int64_t size = given->shape[0];
    if (size < 1 || num_channels % size != 0) {
        fail(op, argument, "have a size that divides the " + std::to_string(num_channels) + " elements of a row",
             std::to_string(size));
    }
    const auto* begin = static_cast<const double*>(given->data);
    return {begin, begin + size};
}

void require_alike(const ColumnPlan& column, const StreamView& stream, const StreamView& first, std::size_t i) {
    if (stream.values.dtype != first.values.dtype || stream.values.rank != first.values.rank ||
        !std::equal(stream.values.shape.begin() + 1, stream.values.shape.begin() + stream.values.rank,
                    first.values.shape.begin() + 1)) {
        fail(op, ArgumentName("rows", i, "values"),
             std::string("have rows of ") + name(first.values.dtype) + " " + shape_text(column.row) + " in every part",
             std::string(name(stream.values.dtype)) + " " + shape_text(stream.values));
    }
    const auto same = [](const Duration& a, const Duration& b) { return a.ns == b.ns; };
    if (stream.method != first.method || !same(stream.latency, first.latency) ||
        !same(stream.tolerance, first.tolerance) || stream.before != first.before || stream.after != first.after ||
        stream.outside_valid != first.outside_valid || stream.max_gap.has_value() != first.max_gap.has_value()) {
        fail(op, ArgumentName("rows", i, "stream"), "be read alike in every part", "other rules");
    }
}

/// The contract of one stream, as align speaks it, and its output of one sample.
align_detail::StreamPlan plan_stream(const BatchRows& rows, const BatchColumn& column, std::size_t i, Device device,
                                     ColumnPlan& known) {
    const ArgumentName argument("rows", i, "stream");
    StreamView view = rows.stream;
    view.dtype.reset();  // the column has that of the batch
    if (!view.offsets) fail(op, argument, "have offsets", "none");
    require_dtype(op, ArgumentName("rows", i, "times"), view.times, DType::i64);
    if (view.before == Outside::error || view.after == Outside::error) {
        throw Unsupported("BatchReader: rows[" + std::to_string(i) + "]: outside 'error'");
    }
    if (device.type == DeviceType::cuda && view.values.device.type != DeviceType::cuda) {
        view.values = on_device(view.values, device, ArgumentName("rows", i, "values"));
    }
    const auto num_targets = static_cast<std::int64_t>(column.deltas.size());
    Query query;
    const void* nothing = nullptr;
    query.anchor = TensorView(nothing, DType::i64, {1}, device);
    query.episode = query.anchor;
    query.deltas = TensorView(nothing, DType::i64, {num_targets}, device);
    AlignOptions options;
    options.names.op = op;
    const AlignPlan plan = plan_align({&view, 1}, query, options);
    TensorView out = plan.output(0).values;
    require_device(op, argument, out, device);
    known.num_channels = std::max<std::int64_t>(out.num_elements() / std::max<std::int64_t>(num_targets, 1), 0);
    known.dtype = column.dtype;
    known.scaled = column.scaled;
    known.hidden = column.hidden;
    const DType stored = out.dtype;
    known.written = !column.scaled ? column.dtype : stored == DType::f16 || stored == DType::bf16 ? DType::f32 : stored;
    if (column.scaled && !is_floating(column.dtype)) {
        fail(op, ArgumentName("columns", i, "dtype"), "be floating for a scaled column", name(column.dtype));
    }
    known.row = out;
    known.row.dtype = column.dtype;
    out.dtype = known.written;
    AlignOutput output{out, {}, {}};
    return std::move(align_detail::bind(plan, {&output, 1}).streams[0]);
}

std::vector<EpisodeName> names_of(const BatchSource& source, std::int64_t num_episodes) {
    std::vector<EpisodeName> names;
    if (!source.names) return names;
    const auto& [of_source, of_episode] = *source.names;
    require_list(op, "names.source", of_source, DType::i64, Device{});
    require_size(op, "names.source", of_source, num_episodes);
    require_list(op, "names.episode", of_episode, DType::i64, Device{});
    require_size(op, "names.episode", of_episode, num_episodes);
    for (std::int64_t e = 0; e < num_episodes; ++e) {
        names.push_back({static_cast<const std::int64_t*>(of_source.data)[e],
                         static_cast<const std::int64_t*>(of_episode.data)[e]});
    }
    return names;
}

void plan_rows(const BatchSource& source, BatchPlan& plan) {
    const std::size_t num_columns = source.columns.size();
    for (std::size_t i = 0; i < source.rows.size(); ++i) {
        const std::size_t c = i % num_columns;
        const BatchColumn& column = source.columns[c];
        ColumnPlan known;
        RowsPlan rows{plan_stream(source.rows[i], column, i, plan.device, known), {}, {}};
        known.deltas.assign(column.deltas.begin(), column.deltas.end());
        if (column.scaled) {
            rows.offset = statistics(source.rows[i].offset, i, "offset", known.num_channels);
            rows.scale = statistics(source.rows[i].scale, i, "scale", known.num_channels);
            if (rows.offset.size() != rows.scale.size()) {
                fail(op, ArgumentName("rows", i, "scale"), "have " + std::to_string(rows.offset.size()) + " numbers",
                     std::to_string(rows.scale.size()));
            }
        }
        if (i < num_columns) {
            plan.columns.push_back(std::move(known));
        } else {
            require_alike(plan.columns[c], source.rows[i].stream, source.rows[c].stream, i);
        }
        plan.rows.push_back(std::move(rows));
    }
}

void require_episodes(const BatchSource& source, const BatchPlan& plan) {
    for (std::size_t e = 0; e < plan.local.size(); ++e) {
        const std::size_t first = static_cast<std::size_t>(plan.part[e]) * source.columns.size();
        for (const BatchRows& rows : source.rows.subspan(first, source.columns.size())) {
            const std::int64_t count = rows.stream.offsets->shape[0] - 1;
            if (plan.local[e] < count) continue;
            fail(op, ArgumentName("local", e, ""), "be below the " + std::to_string(count) + " episodes of its part",
                 std::to_string(plan.local[e]));
        }
    }
}

/// After columns and names.
void plan_outputs(const BatchSource& source, BatchPlan& plan) {
    std::vector<ColumnRows> columns;
    for (const ColumnPlan& column : plan.columns) {
        columns.push_back({column.num_targets(), column.num_channels, column.dtype});
        if (!column.hidden) plan.outputs.push_back(column.row);
    }
    std::int64_t num_sources = 0;
    for (const EpisodeName& name : plan.names) {
        if (name.source < 0) fail(op, "names.source", "be 0 or above", std::to_string(name.source));
        num_sources = std::max(num_sources, name.source + 1);
    }
    plan.features = plan_reader_features(source.features, columns, num_sources);
    for (const ReaderFeature& feature : plan.features) {
        const void* nothing = nullptr;
        plan.outputs.emplace_back(nothing, feature.dtype,
                                  std::initializer_list<std::int64_t>{1, feature.num_moments, feature.width}, Device{});
    }
    if (plan.outputs.empty()) fail(op, "columns", "not be hidden without a feature", "only hidden ones");
}

BatchPlan make_plan(const BatchSource& source) {
    if (source.columns.empty()) fail(op, "columns", "be at least one", "none");
    if (source.rows.empty() || source.rows.size() % source.columns.size() != 0) {
        fail(op, "rows", "be " + std::to_string(source.columns.size()) + " for each part",
             std::to_string(source.rows.size()));
    }
    for (std::size_t c = 0; c < source.columns.size(); ++c) {
        if (source.columns[c].deltas.empty()) fail(op, ArgumentName("columns", c, "deltas"), "not be empty", "none");
    }
    BatchPlan plan{};
    plan.device = source.rows[0].stream.times.device;
    if (plan.device.type != DeviceType::cuda) plan.device = Device{};
    const bool is_composing = !source.features.empty() || std::any_of(source.columns.begin(), source.columns.end(),
                                                                      [](const auto& c) { return c.hidden; });
    if (is_composing && plan.device.type == DeviceType::cuda) {
        throw Unsupported("BatchReader: features are composed on the host, got rows on " + name(plan.device));
    }
    plan.num_parts = static_cast<std::int64_t>(source.rows.size() / source.columns.size());
    if (!source.tables.empty()) plan.tables.resize(source.tables.size());
    plan.order = plan_tables(op, source.tables, plan.device, plan.tables.data());
    const std::int64_t num_episodes = plan.tables.back().first_episode + plan.tables.back().num_episodes;
    for (const auto& [argument, list] :
         {std::pair<const char*, const TensorView&>{"part", source.part}, {"local", source.local}}) {
        require_rank(op, argument, list, 1);
        require_size(op, argument, list, num_episodes);
    }
    plan.part = host_list(source.part, "part", plan.num_parts);
    plan.local = host_list(source.local, "local", INT64_MAX);
    plan.names = names_of(source, num_episodes);
    plan_rows(source, plan);
    require_episodes(source, plan);
    plan_outputs(source, plan);
    return plan;
}

/// The episodes of anchors are found without a search.
void index_tables(BatchPlan& plan) {
    for (TablePlan& table : plan.tables) {
        table.bucket_shift = bucket_shift(table);
        if (plan.device.type == DeviceType::cuda) continue;
        auto& buckets = plan.buckets.emplace_back(static_cast<std::size_t>(num_buckets(table)));
        for (std::size_t i = 0; i < buckets.size(); ++i) {
            buckets[i] = make_bucket(table, static_cast<std::int64_t>(i));
        }
        table.buckets = buckets.data();
    }
}

void require_outputs(const BatchPlan& plan, std::span<const BatchOutput> outputs) {
    if (outputs.size() != plan.outputs.size()) {
        fail(op, "outputs", "be " + std::to_string(plan.outputs.size()), std::to_string(outputs.size()));
    }
    const std::int64_t count = outputs[0].values.rank > 0 ? outputs[0].values.shape[0] : 0;
    for (std::size_t c = 0; c < outputs.size(); ++c) {
        TensorView expected = plan.outputs[c];
        expected.shape[0] = count;
        const auto require = [&](const TensorView& given, const char* field) {
            const ArgumentName argument("outputs", c, field);
            require_dtype(op, argument, given, expected.dtype);
            require_device(op, argument, given, plan.device);
            if (given.rank != expected.rank ||
                !std::equal(given.shape.begin(), given.shape.begin() + given.rank, expected.shape.begin())) {
                fail(op, argument, "have shape " + shape_text(expected), shape_text(given));
            }
            require_contiguous(op, argument, given);
        };
        require(outputs[c].values, "values");
        if (!outputs[c].padding) continue;
        expected.dtype = DType::boolean;
        expected.rank = 2;
        require(*outputs[c].padding, "padding");
    }
}

IndexPlan index_of(const BatchPlan& plan, const std::optional<BatchIndex>& index, std::int64_t count) {
    if (!index) return {};
    if (plan.names.empty()) fail(op, "index", "be asked for only where the source has names", "an index");
    for (const auto& [argument, tensor] : {std::pair<const char*, const TensorView&>{"index.source", index->source},
                                           {"index.episode", index->episode},
                                           {"index.anchor", index->anchor}}) {
        require_list(op, argument, tensor, DType::i64, plan.device);
        require_size(op, argument, tensor, count);
    }
    const auto data = [](const TensorView& tensor) { return static_cast<std::int64_t*>(tensor.data); };
    return {nullptr, data(index->source), data(index->episode), data(index->anchor)};
}

}  // namespace

std::int64_t bucket_shift(const TablePlan& table) {
    const std::int64_t per_episode = std::max<std::int64_t>(table.num_anchors / table.num_episodes / 2, 1);
    return static_cast<std::int64_t>(std::bit_width(static_cast<std::uint64_t>(per_episode))) - 1;
}

PendingBatch BatchBackend::read_ahead(const BatchPlan& plan, const BatchCall&) const {
    throw Unsupported("BatchReader: batches are read ahead on cpu, got tensors on " + name(plan.device));
}

#ifndef ROBOCACHE_HAS_CUDA
std::unique_ptr<BatchBackend> make_device_batch(const BatchPlan& plan, CudaQueue) {
    throw Unsupported("BatchReader: this build contains no CUDA code, got tensors on " + name(plan.device));
}

TensorView on_device(const TensorView&, Device device, const ArgumentName&) {
    throw Unsupported("BatchReader: this build contains no CUDA code, got tensors on " + name(device));
}
#endif

}  // namespace loader_detail

using namespace loader_detail;

struct BatchReader::State {
    BatchPlan plan;
    std::unique_ptr<BatchBackend> backend;

    [[nodiscard]] BatchCall call_of(const SampleOrder& order, std::int64_t first_position,
                                    std::span<const BatchOutput> outputs,
                                    const std::optional<BatchIndex>& index) const {
        require_outputs(plan, outputs);
        BatchCall call{plan.order, 0, outputs[0].values.shape[0], outputs};
        call.index = index_of(plan, index, call.count);
        call.first_position =
            set_order(op, order, first_position, call.count, plan.tables.data(), plan.device, call.order);
        return call;
    }

    void run(const BatchCall& call, CudaQueue stream) const {
        if (call.count == 0) return;
        backend->read(plan, call, stream);
    }
};

BatchReader::BatchReader(const BatchSource& source, CudaQueue stream) : state_(std::make_unique<State>()) {
    state_->plan = make_plan(source);
    index_tables(state_->plan);
    const bool on_gpu = state_->plan.device.type == DeviceType::cuda;
    state_->backend = on_gpu ? make_device_batch(state_->plan, stream) : make_host_batch(state_->plan);
}

BatchReader::~BatchReader() = default;
BatchReader::BatchReader(BatchReader&&) noexcept = default;
BatchReader& BatchReader::operator=(BatchReader&&) noexcept = default;

std::size_t BatchReader::num_columns() const noexcept {
    return state_->plan.columns.size();
}

Device BatchReader::device() const noexcept {
    return state_->plan.device;
}

std::size_t BatchReader::num_outputs() const noexcept {
    return state_->plan.outputs.size();
}

TensorView BatchReader::output(std::size_t number, std::int64_t batch_size) const {
    TensorView view = state_->plan.outputs.at(number);
    view.shape[0] = batch_size;
    return view;
}

void BatchReader::read(const SampleOrder& order, std::int64_t first_position, std::span<const BatchOutput> outputs,
                       CudaQueue stream, const std::optional<BatchIndex>& index) const {
    state_->run(state_->call_of(order, first_position, outputs, index), stream);
}

PendingBatch BatchReader::read_ahead(const SampleOrder& order, std::int64_t first_position,
                                     std::span<const BatchOutput> outputs,
                                     const std::optional<BatchIndex>& index) const {
    return state_->backend->read_ahead(state_->plan, state_->call_of(order, first_position, outputs, index));
}

void BatchReader::read(const SampleOrder& order, const BatchSteps& steps, std::span<const BatchOutput> outputs,
                       CudaQueue stream, const std::optional<BatchIndex>& index) const {
    const BatchPlan& plan = state_->plan;
    require_outputs(plan, outputs);
    BatchCall call{plan.order, 0, outputs[0].values.shape[0], outputs};
    call.index = index_of(plan, index, call.count);
    if (steps.num_steps < 1 || steps.first < 0 || steps.stride < 0) {
        fail(op, "steps", "have at least one step and positions from 0 on",
             std::to_string(steps.num_steps) + " steps from " + std::to_string(steps.first));
    }
    std::int64_t last = 0;
    if (__builtin_mul_overflow(steps.num_steps - 1, steps.stride, &last) ||
        __builtin_add_overflow(last, steps.first, &last)) {
        fail(op, "steps", "count fewer than 2^63 positions", std::to_string(steps.num_steps) + " steps");
    }
    if (order.numbers) fail(op, "numbers", "be none where the step is told in memory", "numbers");
    SampleOrder beginning = order;
    beginning.epoch = 0;
    (void)set_order(op, beginning, last, call.count, plan.tables.data(), plan.device, call.order);
    require_rank(op, "step", steps.step, 0);
    require_dtype(op, "step", steps.step, DType::i64);
    require_device(op, "step", steps.step, plan.device);
    call.first_position = static_cast<std::uint64_t>(steps.first);
    call.steps = {static_cast<const std::int64_t*>(steps.step.data), steps.num_steps, steps.stride,
                  call.order.num_tables > 1 ? order.epoch_size : 0};
    if (plan.device.type != DeviceType::cuda && *call.steps.step < 0) {  // on a GPU it counts as 0
        fail(op, "step", "be 0 or above", std::to_string(*call.steps.step));
    }
    state_->run(call, stream);
}

}  // namespace robocache
