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
#include "ops/align/contract/backward.hpp"
#include "unlocked.hpp"

namespace nb = nanobind;

namespace robocache::python {

/// Reads the arguments and speaks the contract; then computes into outputs given or made, without the GIL.
class AlignCall {
public:
    AlignCall(const nb::tuple& names, const nb::sequence& streams, const nb::tuple& query,
              nb::handle queue = nb::none())
        : arguments_(names, streams, query, queue),
          plan_(align_detail::make_plan(arguments_.streams(), arguments_.query(), arguments_.names())) {}

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
    nb::list check(nb::handle given, bool check_data) {
        std::vector<AlignOutput> outputs;
        if (given.is_none()) {
            for (std::size_t i = 0; i < num_streams(); ++i) outputs.push_back({expected(i), {}, {}});
        } else {
            outputs = read_outputs(given);
        }
        {
            const CudaQueue stream = arguments_.reader().stream();
            const Unlocked unlocked;
            align_detail::bind_outputs(plan_, arguments_.streams(), outputs, arguments_.names());
            align_detail::check_data_anywhere(plan_, arguments_.names(), check_data, stream);
        }
        nb::list result;
        for (const AlignOutput& out : outputs) {
            result.append(nb::make_tuple(shape_of(out.values), name(out.values.dtype)));
        }
        return result;
    }

    void run(const nb::sequence& given, bool check_data) { run(read_outputs(given), check_data); }

    /// New outputs made by `new_empty` of the tensor `like`: [(values, valid, index), ...].
    nb::list run_into_new(nb::handle like, bool valid, bool index, bool batched, std::optional<bool> check_data) {
        const bool drop = !batched && is_unbatched();
        std::vector<AlignOutput> outputs(num_streams());
        nb::list made;
        for (std::size_t i = 0; i < num_streams(); ++i) {
            outputs[i].values = expected(i);
            nb::object values = new_tensor(like, outputs[i].values, drop);
            nb::object planes[2] = {nb::none(), nb::none()};
            if (valid) planes[0] = new_tensor(like, outputs[i].valid.emplace(plane(DType::boolean)), drop);
            if (index) planes[1] = new_tensor(like, outputs[i].index.emplace(plane(DType::i64)), drop);
            made.append(nb::make_tuple(values, planes[0], planes[1]));
        }
        run(outputs, check_data.value_or(plan_.device.type != DeviceType::cuda));
        return made;
    }

    /// The same with all streams side by side in one output: (values, valid). None where they do not fit together.
    nb::object run_into_one(nb::handle like, bool valid, std::optional<bool> check_data) {
        const bool drop = is_unbatched();
        TensorView all = expected(0);
        all.shape[2] = 0;
        for (std::size_t i = 0; i < num_streams(); ++i) {
            const TensorView part = expected(i);
            if (part.rank != 3 || part.dtype != all.dtype) return nb::none();
            all.shape[2] += part.shape[2];
        }
        AlignOutput whole{all, {}, {}};
        nb::object values = new_tensor(like, whole.values, drop);
        nb::object planes = nb::none();
        if (valid) {
            whole.valid = plane(DType::boolean);
            whole.valid->rank = 3;
            whole.valid->shape[2] = static_cast<std::int64_t>(num_streams());
            planes = new_tensor(like, *whole.valid, drop);
        }
        std::vector<AlignOutput> outputs;
        std::int64_t column = 0;
        for (std::size_t i = 0; i < num_streams(); ++i) {
            outputs.push_back(part_of(whole, i, column));
            column += expected(i).shape[2];
        }
        run(outputs, check_data.value_or(plan_.device.type != DeviceType::cuda));
        return nb::make_tuple(values, planes);
    }

    /// Throws if a stream whose entry of `wanted` is true has a method without a gradient.
    void require_gradient(const nb::sequence& wanted) const {
        for (std::size_t i = 0; i < plan_.streams.size(); ++i) {
            if (nb::cast<bool>(wanted[i])) align_detail::require_gradient(plan_.streams[i], i, arguments_.names());
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
        const CudaQueue stream = arguments_.reader().stream();
        const Unlocked unlocked;
        align_detail::run_backward(arguments_.streams(), arguments_.query(), gradients, arguments_.names(), stream);
    }

private:
    [[nodiscard]] std::size_t num_streams() const { return arguments_.streams().size(); }

    void run(std::span<const AlignOutput> outputs, bool check_data) {
        const TensorReader& reader = arguments_.reader();
        const Unlocked unlocked;
        align_detail::run(plan_, arguments_.streams(), outputs, arguments_.names(), {check_data}, reader.stream());
        if (reader.must_wait()) wait_for_stream(plan_.device.index, reader.stream());
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
        const DType dtype = arguments_.out_dtype(i);
        if (dtype != arguments_.streams()[i].values.dtype && out.values.dtype != dtype) {
            const align_detail::Names& names = arguments_.names();
            fail(names.op, argument,
                 std::string("have dtype ") + name(dtype) + " like " + names.field(i, "dtype").text(),
                 name(out.values.dtype));
        }
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

    TensorView expected(std::size_t i) const {
        TensorView out = align_detail::output_view(plan_, arguments_.streams()[i]);
        out.dtype = arguments_.out_dtype(i);
        return out;
    }

    /// (B, T) of a dtype.
    TensorView plane(DType dtype) const {
        TensorView view;
        view.dtype = dtype;
        view.rank = 2;
        view.shape[0] = plan_.num_rows;
        view.shape[1] = plan_.num_targets;
        return view;
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
    align_detail::AlignPlan plan_;
};

}  // namespace robocache::python
