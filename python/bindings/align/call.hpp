// One call of align from Python: arguments, plan, outputs, run.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "align/arguments.hpp"
#include "arrays/outputs.hpp"
#include "core/cuda/memory.hpp"
#include "robocache/align.hpp"
#include "unlocked.hpp"

namespace nb = nanobind;

namespace robocache::python {

/// Reads the arguments and plans; then computes into outputs given or made, without the GIL.
class AlignCall {
public:
    /// check: None: as the device has it.
    AlignCall(const nb::tuple& names, const nb::sequence& streams, const nb::tuple& query, nb::handle check,
              nb::handle queue = nb::none())
        : arguments_(names, streams, query, queue),
          plan_(plan_align(arguments_.streams(), arguments_.query(), {read_check(check), arguments_.names()})) {}

    /// ((shape, dtype name), ...) of the outputs.
    nb::list shapes() const {
        nb::list result;
        for (std::size_t i = 0; i < num_streams(); ++i) {
            const TensorView out = expected(i);
            result.append(nb::make_tuple(shape_of(out), name(out.dtype)));
        }
        return result;
    }

    /// Checks everything and computes nothing; `given` may be None where outputs are yet to be made. As shapes().
    nb::list check(nb::handle given) {
        std::vector<AlignOutput> outputs;
        if (given.is_none()) {
            for (std::size_t i = 0; i < num_streams(); ++i) outputs.push_back({expected(i), {}, {}});
        } else {
            outputs = read_outputs(given);
        }
        {
            const CudaQueue queue = arguments_.reader().stream();
            const Unlocked unlocked;
            robocache::check(plan_, outputs, queue);
        }
        nb::list result;
        for (const AlignOutput& out : outputs) {
            result.append(nb::make_tuple(shape_of(out.values), name(out.values.dtype)));
        }
        return result;
    }

    void run(const nb::sequence& given) { run(read_outputs(given)); }

    /// New outputs made by `new_empty` of the tensor `like`: [(values, valid, index), ...].
    nb::list run_into_new(nb::handle like, bool valid, bool index, bool batched) {
        const bool drop = !batched && is_unbatched();
        std::vector<AlignOutput> outputs;
        nb::list made;
        for (std::size_t i = 0; i < num_streams(); ++i) {
            AlignOutput& out = outputs.emplace_back(plan_.output(i));
            if (!valid) out.valid.reset();
            if (!index) out.index.reset();
            nb::object values = new_tensor(like, out.values, drop);
            nb::object planes[2] = {nb::none(), nb::none()};
            if (valid) planes[0] = new_tensor(like, *out.valid, drop);
            if (index) planes[1] = new_tensor(like, *out.index, drop);
            made.append(nb::make_tuple(values, planes[0], planes[1]));
        }
        run(outputs);
        return made;
    }

    /// The same with all streams side by side in one output: (values, valid).
    nb::object run_into_one(nb::handle like, bool valid) {
        const bool drop = is_unbatched();
        AlignOutput whole = plan_.output(0);
        std::vector<std::int64_t> columns;
        std::int64_t width = 0;
        for (std::size_t i = 0; i < num_streams(); ++i) {
            const TensorView part = expected(i);
            require_fusible(part, whole.values.dtype, i);
            columns.push_back(width);
            width += part.shape[2];
        }
        whole.values.shape[2] = width;
        whole.index.reset();
        nb::object values = new_tensor(like, whole.values, drop);
        nb::object planes = nb::none();
        if (valid) {
            whole.valid->rank = 3;
            whole.valid->shape[2] = static_cast<std::int64_t>(num_streams());
            planes = new_tensor(like, *whole.valid, drop);
        } else {
            whole.valid.reset();
        }
        std::vector<AlignOutput> outputs;
        for (std::size_t i = 0; i < num_streams(); ++i) outputs.push_back(part_of(whole, i, columns[i]));
        run(outputs);
        return nb::make_tuple(values, planes);
    }

    /// Throws if a stream whose entry of `wanted` is true has a method without a gradient.
    void require_gradient(const nb::sequence& wanted) const {
        for (std::size_t i = 0; i < num_streams(); ++i) {
            if (nb::cast<bool>(wanted[i])) robocache::require_gradient(plan_, i);
        }
    }

    /// For each stream (gradient of the output, gradient of the values to add to), or None.
    void run_backward(const nb::sequence& given) {
        std::vector<std::optional<AlignGradient>> gradients;
        for (nb::handle item : given) {
            std::optional<AlignGradient>& gradient = gradients.emplace_back();
            if (item.is_none()) continue;
            const auto pair = nb::borrow<nb::tuple>(item);
            gradient = {arguments_.tensor(pair[0], "gradients", Access::read),
                        arguments_.tensor(pair[1], "gradients", Access::write)};
        }
        const CudaQueue queue = arguments_.reader().stream();
        const Unlocked unlocked;
        robocache::run_backward(plan_, gradients, {}, queue);
    }

private:
    [[nodiscard]] std::size_t num_streams() const { return arguments_.streams().size(); }

    [[nodiscard]] bool read_check(nb::handle check) const {
        const std::span<const StreamView> streams = arguments_.streams();
        bool value = streams.empty() || streams[0].values.device.type != DeviceType::cuda;
        if (!check.is_none() && !nb::try_cast(check, value)) {
            fail(arguments_.names().op, "check", "be True or False", repr_of(check));
        }
        return value;
    }

    void run(std::span<const AlignOutput> outputs) {
        const TensorReader& reader = arguments_.reader();
        const Unlocked unlocked;
        robocache::run(plan_, outputs, {}, reader.stream());
        if (reader.must_wait()) wait_for_stream(plan_.device().index, reader.stream());
    }

    std::vector<AlignOutput> read_outputs(nb::handle given) {
        std::vector<AlignOutput> outputs;
        for (nb::handle item : given) outputs.push_back(output(nb::borrow<nb::tuple>(item), outputs.size()));
        return outputs;
    }

    /// (values, valid, index, column); with a column, this stream's part of a fused output.
    AlignOutput output(const nb::tuple& given, std::size_t i) {
        const ArgumentName argument("out", i, "");
        AlignOutput out{arguments_.tensor(given[0], argument, Access::write),
                        arguments_.optional_tensor(given[1], {"out", i, "valid"}, Access::write),
                        arguments_.optional_tensor(given[2], {"out", i, "index"}, Access::write)};
        if (i >= num_streams()) return out;
        return given[3].is_none() ? out : part_of(out, i, nb::cast<std::int64_t>(given[3]));
    }

    /// What stream i writes of a fused output: columns of values, a plane of valid.
    AlignOutput part_of(AlignOutput whole, std::size_t i, std::int64_t column) const {
        const TensorView part = expected(i);
        whole.values = whole.values.slice(part.rank - 1, column, column + part.shape[part.rank - 1]);
        if (whole.valid) {
            whole.valid = whole.valid->slice(2, static_cast<std::int64_t>(i), static_cast<std::int64_t>(i) + 1);
            whole.valid->rank = 2;
        }
        return whole;
    }

    TensorView expected(std::size_t i) const { return plan_.output(i).values; }

    /// Columns of one tensor: one channel dimension, and the dtype of the first stream.
    void require_fusible(const TensorView& part, DType first, std::size_t i) const {
        const AlignNames& names = arguments_.names();
        if (part.rank != 3) {
            fail(names.op, names.values(i), "have shape (B, S, D) or (S, D)",
                 part.rank < 3 ? "no channel dimension" : std::to_string(part.rank - 2) + " channel dimensions");
        }
        if (part.dtype == first) return;
        fail(names.op, names.values(i),
             std::string("have dtype ") + name(first) + " like the first stream, or pass dtype=", name(part.dtype));
    }

    /// One episode, one row of targets: the user passed no batch dimension and wants none back.
    bool is_unbatched() const {
        for (const StreamView& stream : arguments_.streams()) {
            if (stream.times.rank != 1 || stream.offsets) return false;
        }
        const Query& query = arguments_.query();
        return query.times && query.times->rank == 1 && !query.episode;
    }

    nb::object new_tensor(nb::handle like, TensorView& view, bool drop) {
        return python::new_tensor(like, arguments_.streams()[0].values.dtype, view, arguments_.reader(), drop);
    }

    AlignArguments arguments_;
    AlignPlan plan_;
};

}  // namespace robocache::python
