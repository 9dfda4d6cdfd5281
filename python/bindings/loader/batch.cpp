// BatchReader for Python: made once, then batches as new torch tensors or NumPy arrays, or into given ones.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "align/arguments.hpp"
#include "arrays/known.hpp"
#include "arrays/outputs.hpp"
#include "bindings.hpp"
#include "core/cuda/memory.hpp"
#include "loader/arguments.hpp"
#include "loader/features.hpp"
#include "robocache/loader.hpp"
#include "unlocked.hpp"

namespace robocache::python {
namespace {

constexpr std::string_view op = "BatchReader";

// What Python gives a reader: the structs of loader.hpp, with arrays in place of views.

struct GivenColumn {
    std::vector<std::int64_t> deltas;
    std::string dtype;
    bool scaled = false;
    bool hidden = false;
    nb::object values_like, padding_like;  // empty arrays that outputs are made like
};

struct GivenBatchRows {
    nb::object stream;         // a Stream
    nb::object offset, scale;  // or None
};

struct GivenEpisodes {
    nb::object source, episode;  // of each episode
    nb::object index_like;       // an empty array that indices are made like
};

/// A batch that is being read. Its tensors are kept alive.
class Pending {
public:
    Pending(PendingBatch batch, nb::handle outputs) : outputs_(outputs), batch_(std::move(batch)) {}

    void result() const {
        const Unlocked unlocked;
        batch_.wait();
    }

private:
    nb::tuple outputs_;
    PendingBatch batch_;  // waits before the tensors are let go
};

/// Tensors for the index of batches, three for each. On a GPU they are rows of one allocation for several batches,
/// since making tensors costs more than computing them. Not on the CPU: there a caller who sends one of them to another
/// process moves the memory of all, at any moment, from another thread.
class IndexTensors {
public:
    IndexTensors() = default;
    explicit IndexTensors(nb::object like) : like_(std::move(like)) {}

    [[nodiscard]] bool is_wanted() const { return like_.is_valid(); }

    /// Three tensors (batch_size,) appended to `made`, and views of them. `single`: an allocation for this batch alone,
    /// for work that is captured in a graph.
    BatchIndex take(TensorReader& reader, Device device, std::int64_t batch_size, bool single, nb::list& made) {
        if (device.type != DeviceType::cuda) return make(reader, batch_size, made);
        if (single || is_capturing(device, reader.stream())) {
            return allocate(reader, device, batch_size, 1).next().append_to(made);
        }
        // Another thread may take an index whenever this one runs code of Python: the rows are taken first, and what is
        // replaced is freed last.
        Block block;
        if (!block_.has_room(batch_size, reader.stream())) {
            const std::int64_t bytes = 3 * batch_size * static_cast<std::int64_t>(sizeof(std::int64_t));
            block = allocate(reader, device, batch_size,
                             std::clamp<std::int64_t>(max_bytes / std::max(bytes, std::int64_t{1}), 1, max_batches));
            std::swap(block, block_);
        }
        return block_.next().append_to(made);
    }

    int traverse(visitproc visit, void* arg) const {
        Py_VISIT(like_.ptr());
        Py_VISIT(block_.tensors.ptr());
        return 0;
    }
    void clear() {
        like_.reset();
        block_ = {};
    }

private:
    static constexpr std::int64_t max_batches = 16;
    static constexpr std::int64_t max_bytes = 1 << 20;  // kept alive by a caller that keeps one index

    /// Three tensors of a block, and their memory.
    struct Rows {
        nb::object tensors;
        TensorView all;
        std::int64_t first;

        [[nodiscard]] BatchIndex append_to(nb::list& made) const {
            const auto row = [&](std::int64_t i) {
                made.append(tensors[static_cast<std::size_t>(i)]);
                const std::int64_t size = all.shape[1];
                return TensorView(static_cast<const void*>(static_cast<const std::int64_t*>(all.data) + i * size),
                                  DType::i64, {size}, all.device);
            };
            const TensorView source = row(first);
            const TensorView episode = row(first + 1);
            return {source, episode, row(first + 2)};
        }
    };

    /// One allocation on a GPU, given out in rows from the first on.
    struct Block {
        nb::object tensors;
        TensorView all;
        CudaQueue queue;
        std::int64_t num_batches = 0;
        std::int64_t num_taken = 0;

        [[nodiscard]] bool has_room(std::int64_t batch_size, CudaQueue now) const {
            return num_taken < num_batches && all.shape[1] == batch_size && queue.handle == now.handle;
        }
        [[nodiscard]] Rows next() { return {tensors, all, 3 * num_taken++}; }
    };

    [[nodiscard]] Block allocate(TensorReader& reader, Device device, std::int64_t batch_size,
                                 std::int64_t num_batches) const {
        Block block;
        block.all = TensorView(static_cast<const void*>(nullptr), DType::i64, {3 * num_batches, batch_size}, device);
        block.tensors = new_output(like_, DType::i64, block.all, reader, false).attr("unbind")(0);
        block.queue = reader.stream();
        block.num_batches = num_batches;
        return block;
    }

    /// On the CPU: three allocations. torch.empty_like makes a tensor faster than new_empty, which takes a shape.
    [[nodiscard]] BatchIndex make(TensorReader& reader, std::int64_t batch_size, nb::list& made) const {
        const TensorView view(static_cast<const void*>(nullptr), DType::i64, {batch_size}, Device{});
        std::array<TensorView, 3> views{view, view, view};
        made.append(new_output(like_, DType::i64, views[0], reader, false));
        if (is_numpy(like_)) {
            for (std::size_t i = 1; i < views.size(); ++i) made.append(new_output(like_, DType::i64, views[i], reader));
            return {views[0], views[1], views[2]};
        }
        static constinit Known empty_like;
        const nb::object first = made[nb::len(made) - 1];
        for (std::size_t i = 1; i < views.size(); ++i) {
            const nb::object tensor = nb::handle(empty_like.attribute("torch", "empty_like"))(first);
            made.append(tensor);
            views[i] = reader.read(tensor, {op, "index"}, Access::write);
        }
        return {views[0], views[1], views[2]};
    }

    nb::object like_;  // an empty array; invalid where batches have no index
    Block block_;
};

/// What a batch is written into.
struct Outputs {
    std::vector<BatchOutput> columns;
    std::optional<BatchIndex> index;
};

/// Features as the reader takes them: views of what Python described.
class FeatureViews {
public:
    FeatureViews(const std::vector<GivenFeature>& features, AlignArguments& arguments) {
        for (const GivenFeature& given : features) {
            auto& parts = parts_.emplace_back();
            for (const GivenPart& part : given.parts) {
                parts.push_back({part.math, part.num_channels, part.period, part.stored, part.form,
                                 channels(part.values), channels(part.turn), channels(part.from_values),
                                 channels(part.from_turn)});
            }
            auto& paddings = paddings_.emplace_back();
            for (const auto& [column, moment] : given.paddings) paddings.push_back({column_of(column), 0, moment});
            const std::size_t f = views_.size();
            views_.push_back({{},
                              {},
                              dtype_from_name(given.dtype, {op, {"features", f, "dtype"}}),
                              arguments.optional_tensor(given.offset, {"features", f, "offset"}),
                              arguments.optional_tensor(given.scale, {"features", f, "scale"})});
        }
        for (std::size_t f = 0; f < views_.size(); ++f) {
            views_[f].parts = parts_[f];
            views_[f].paddings = paddings_[f];
        }
    }

    [[nodiscard]] const std::vector<BatchFeature>& views() const { return views_; }

private:
    static std::size_t column_of(std::int64_t column) {
        if (column < 0) fail(op, "features", "have columns from 0 on", std::to_string(column));
        return static_cast<std::size_t>(column);
    }
    static std::optional<ColumnChannels> channels(const std::optional<GivenChannels>& given) {
        if (!given) return std::nullopt;
        return ColumnChannels{column_of(given->at(0)), given->at(1), given->at(2)};
    }

    std::vector<std::vector<FeaturePartOf<ColumnChannels>>> parts_;
    std::vector<std::vector<ColumnChannels>> paddings_;
    std::vector<BatchFeature> views_;
};

class Batches {
public:
    /// tables: AnchorTables. columns: BatchColumns. rows: BatchRows for each part and column. episodes: EpisodeNames,
    /// or None where no batch has an index. features: FeatureRows. Everything is kept alive.
    Batches(const nb::list& tables, nb::handle part, nb::handle local, const nb::list& columns, const nb::list& rows,
            nb::handle episodes, std::vector<GivenFeature> features)
        : kept_(nb::make_tuple(tables, part, local, columns, rows, episodes)),
          names_("Loader", "times", {}, {}),
          features_(std::move(features)) {
        TensorReader reader;
        const std::vector<AnchorTable> table_views = read_tables(reader, tables, op);
        std::vector<GivenStream> streams;
        for (nb::handle item : rows) {
            streams.push_back(nb::cast<const StreamObject&>(nb::cast<const GivenBatchRows&>(item).stream).given());
        }
        arguments_.emplace(names_.view(), streams, GivenQuery{}, nb::none());
        std::vector<BatchRows> row_views;
        for (std::size_t i = 0; i < nb::len(rows); ++i) {
            const auto& given = nb::cast<const GivenBatchRows&>(rows[i]);
            row_views.push_back({arguments_->streams()[i],
                                 arguments_->optional_tensor(given.offset, {"rows", i, "offset"}),
                                 arguments_->optional_tensor(given.scale, {"rows", i, "scale"})});
        }
        std::vector<std::vector<std::int64_t>> deltas;
        std::vector<BatchColumn> column_views;
        for (nb::handle item : columns) {
            const auto& given = nb::cast<const GivenColumn&>(item);
            const Argument argument{op, {"columns", column_views.size(), "dtype"}};
            column_views.push_back({{}, dtype_from_name(given.dtype, argument), given.scaled, given.hidden});
            deltas.push_back(given.deltas);
            likes_.push_back({given.values_like, given.padding_like, given.hidden});
        }
        for (std::size_t c = 0; c < deltas.size(); ++c) column_views[c].deltas = deltas[c];
        const FeatureViews feature_views(features_, *arguments_);
        BatchSource source{table_views, arguments_->tensor(part, "part"), arguments_->tensor(local, "local"),
                           column_views, row_views};
        source.features = feature_views.views();
        if (!episodes.is_none()) {
            const auto& given = nb::cast<const GivenEpisodes&>(episodes);
            source.names = EpisodeNames{arguments_->tensor(given.source, "names.source"),
                                        arguments_->tensor(given.episode, "names.episode")};
            index_ = IndexTensors(given.index_like);
        }
        const Unlocked unlocked;
        reader_.emplace(source, reader.stream());
    }

    /// For the collector of reference cycles: what this keeps alive, and its end as part of a cycle.
    int traverse(visitproc visit, void* arg) const {
        Py_VISIT(kept_.ptr());
        for (const Like& like : likes_) {
            Py_VISIT(like.values.ptr());
            Py_VISIT(like.padding.ptr());
        }
        for (const GivenFeature& feature : features_) {
            if (const int stopped = feature.traverse(visit, arg)) return stopped;
        }
        return index_.traverse(visit, arg);
    }
    void clear() {
        reader_.reset();  // it reads what the others keep alive
        likes_.clear();
        features_.clear();
        index_.clear();
        kept_.reset();
    }

    /// New tensors: [values, padding, values, padding, ...] of all columns (None where hidden) and features, then
    /// source, episode and anchor where there is an index.
    nb::list read(const GivenOrder& given_order, std::int64_t first_position, std::int64_t batch_size) {
        TensorReader reader;
        nb::list made;
        const Outputs outputs = make_outputs(reader, batch_size, false, made);
        const SampleOrder order = given_order.view(reader, op);
        {
            const BatchReader& batches = reader_of();
            const Unlocked unlocked;
            batches.read(order, first_position, outputs.columns, reader.stream(), outputs.index);
        }
        return made;
    }

    /// Into given tensors, while the caller goes on.
    [[nodiscard]] Pending read_ahead(const GivenOrder& order, std::int64_t first_position,
                                     const nb::list& given) const {
        TensorReader reader;
        const Outputs outputs = read_outputs(reader, given);
        return {reader_of().read_ahead(order.view(reader, op), first_position, outputs.columns, outputs.index), given};
    }

    /// New tensors, for the step that the tensor `step` has: BatchSteps of loader.hpp.
    nb::list read_step(const GivenOrder& given_order, nb::handle step, std::int64_t num_steps, std::int64_t stride,
                       std::int64_t first, std::int64_t batch_size) {
        TensorReader reader;
        const BatchSteps views{reader.read(step, {op, "step"}), num_steps, stride, first};
        nb::list made;
        const Outputs outputs = make_outputs(reader, batch_size, true, made);
        const SampleOrder order = given_order.view(reader, op);
        const BatchReader& batches = reader_of();
        const Unlocked unlocked;
        batches.read(order, views, outputs.columns, reader.stream(), outputs.index);
        return made;
    }

private:
    /// Empty arrays that the outputs of a column are made like.
    struct Like {
        nb::object values, padding;
        bool hidden;
    };

    [[nodiscard]] const BatchReader& reader_of() const {
        if (!reader_) throw std::logic_error("BatchReader: used after it was cleared");
        return *reader_;
    }

    Outputs make_outputs(TensorReader& reader, std::int64_t batch_size, bool single_index, nb::list& made) {
        if (batch_size < 0) fail(op, "batch_size", "be 0 or above", std::to_string(batch_size));
        Outputs outputs{std::vector<BatchOutput>(reader_of().num_outputs()), {}};
        std::size_t next = 0;
        for (const Like& like : likes_) {
            if (like.hidden) {
                for (int i = 0; i < 2; ++i) made.append(nb::none());
                continue;
            }
            BatchOutput& output = outputs.columns[next];
            output.values = reader_of().output(next++, batch_size);
            made.append(new_output(like.values, output.values.dtype, output.values, reader, false));
            TensorView& padding = output.padding.emplace(output.values);
            padding.rank = 2;
            padding.dtype = DType::boolean;
            made.append(new_output(like.padding, DType::boolean, padding, reader, false));
        }
        for (const GivenFeature& feature : features_) {
            BatchOutput& output = outputs.columns[next];
            TensorView values = feature.values(batch_size, reader_of().output(next++, 1).dtype);
            made.append(new_output(feature.values_like, values.dtype, values, reader, false));
            output.values = as_rows(values);
            TensorView& padding = output.padding.emplace(feature.padding(batch_size));
            made.append(new_output(feature.padding_like, DType::boolean, padding, reader, false));
        }
        if (index_.is_wanted()) {
            outputs.index = index_.take(reader, reader_of().device(), batch_size, single_index, made);
        }
        return outputs;
    }

    Outputs read_outputs(TensorReader& reader, const nb::list& given) const {
        Outputs outputs;
        const auto read = [&](std::size_t i, const ArgumentName& name) {
            return reader.read(given[i], {op, name}, Access::write);
        };
        const std::size_t count = likes_.size() + features_.size();
        const std::size_t expected = 2 * count + (index_.is_wanted() ? 3 : 0);
        if (nb::len(given) != expected) {
            fail(op, "outputs", "be " + std::to_string(expected), std::to_string(nb::len(given)));
        }
        for (std::size_t c = 0; c < count; ++c) {
            if (c < likes_.size() && likes_[c].hidden) continue;
            const TensorView values = read(2 * c, {"outputs", c, "values"});
            outputs.columns.push_back(
                {c < likes_.size() ? values : as_rows(values), read(2 * c + 1, {"outputs", c, "padding"})});
        }
        if (index_.is_wanted()) {
            outputs.index = BatchIndex{read(2 * count, "index.source"), read(2 * count + 1, "index.episode"),
                                       read(2 * count + 2, "index.anchor")};
        }
        return outputs;
    }

    nb::object kept_;
    Names names_;  // what messages call the streams
    std::optional<AlignArguments> arguments_;
    std::vector<Like> likes_;
    std::vector<GivenFeature> features_;
    IndexTensors index_;
    std::optional<BatchReader> reader_;
};

/// PendingBatch has none: threads may be writing what it keeps alive, which the collector must not take apart.
PyType_Slot cycle_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(+[](PyObject* self, visitproc visit, void* arg) {
                                  Py_VISIT(Py_TYPE(self));
                                  return nb::inst_ready(self) ? nb::inst_ptr<Batches>(self)->traverse(visit, arg) : 0;
                              })},
                             {Py_tp_clear, reinterpret_cast<void*>(+[](PyObject* self) {
                                  if (nb::inst_ready(self)) nb::inst_ptr<Batches>(self)->clear();
                                  return 0;
                              })},
                             {0, nullptr}};

}  // namespace

void bind_batch(nb::module_& m) {
    nb::class_<GivenColumn>(m, "BatchColumn")
        .def(
            "__init__",
            [](GivenColumn* self, std::vector<std::int64_t> deltas, std::string dtype, bool scaled,
               nb::object values_like, nb::object padding_like, bool hidden) {
                new (self) GivenColumn{std::move(deltas),      std::move(dtype),       scaled, hidden,
                                       std::move(values_like), std::move(padding_like)};
            },
            nb::arg("deltas"), nb::arg("dtype"), nb::arg("scaled"), nb::arg("values_like"), nb::arg("padding_like"),
            nb::arg("hidden") = false);
    nb::class_<GivenBatchRows>(m, "BatchRows")
        .def(
            "__init__",
            [](GivenBatchRows* self, nb::object stream, nb::object offset, nb::object scale) {
                new (self) GivenBatchRows{std::move(stream), std::move(offset), std::move(scale)};
            },
            nb::arg("stream"), nb::arg("offset").none() = nb::none(), nb::arg("scale").none() = nb::none());
    nb::class_<GivenEpisodes>(m, "EpisodeNames")
        .def(
            "__init__",
            [](GivenEpisodes* self, nb::object source, nb::object episode, nb::object index_like) {
                new (self) GivenEpisodes{std::move(source), std::move(episode), std::move(index_like)};
            },
            nb::arg("source"), nb::arg("episode"), nb::arg("index_like"));
    nb::class_<Pending>(m, "PendingBatch").def("result", &Pending::result);
    nb::class_<Batches>(m, "BatchReader", nb::type_slots(cycle_slots))
        .def(nb::init<const nb::list&, nb::handle, nb::handle, const nb::list&, const nb::list&, nb::handle,
                      std::vector<GivenFeature>>(),
             nb::arg("tables"), nb::arg("part"), nb::arg("local"), nb::arg("columns"), nb::arg("rows"),
             nb::arg("episodes") = nb::none(), nb::arg("features") = std::vector<GivenFeature>())
        .def("read", &Batches::read, nb::lock_self(), nb::arg("order"), nb::arg("first_position"),
             nb::arg("batch_size"))
        .def("read_ahead", &Batches::read_ahead, nb::arg("order"), nb::arg("first_position"), nb::arg("outputs"),
             nb::keep_alive<0, 1>(), nb::keep_alive<0, 2>())
        .def("read_step", &Batches::read_step, nb::lock_self(), nb::arg("order"), nb::arg("step"), nb::arg("num_steps"),
             nb::arg("stride"), nb::arg("first"), nb::arg("batch_size"));
}

}  // namespace robocache::python
