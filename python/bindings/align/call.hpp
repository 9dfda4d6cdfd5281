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

/// Which outputs a call has besides the values, and whether they keep a batch dimension that the inputs do not have.
struct Wanted {
    bool valid = false;
    bool index = false;
    bool batched = true;
};

/// Reads the arguments and plans; then computes without the GIL, into new outputs or given ones.
class AlignCall {
public:
    /// check: None: as the device has it.
    AlignCall(const AlignNames& names, std::span<const GivenStream> streams, const GivenQuery& query, nb::handle check,
              nb::handle queue)
        : arguments_(names, streams, query, queue),
          like_(streams.empty() ? nb::none() : streams[0].values),
          plan_(plan_align(arguments_.streams(), arguments_.query(), {read_check(check), arguments_.names()})) {}

    /// Checks everything and computes nothing: the names of the outputs' dtypes. `out`: outputs for the values, or None
    /// where they are yet to be made.
    nb::list check(nb::handle out) {
        std::vector<AlignOutput> outputs;
        for (const AlignOutput& output : new_outputs()) outputs.push_back({output.values, {}, {}});
        if (!out.is_none()) read_values(out, outputs);
        {
            const CudaQueue queue = arguments_.reader().stream();
            const Unlocked unlocked;
            robocache::check(plan_, outputs, queue);
        }
        nb::list result;
        for (const AlignOutput& output : outputs) result.append(name(output.values.dtype));
        return result;
    }

    /// (values, valid or None, index or None) of the only stream.
    nb::object run_one(const Wanted& wanted, nb::handle allocate) {
        AlignOutput output = plan_.output(0);
        nb::object made = make_outputs(output, wanted, nb::none(), allocator(allocate));
        run({&output, 1});
        return made;
    }

    /// [(values, valid or None, index or None), ...]. `out`: outputs for the values, or None.
    nb::list run_all(const Wanted& wanted, nb::handle out, nb::handle allocate) {
        const Allocator made_by = allocator(allocate);
        std::vector<AlignOutput> outputs = new_outputs();
        if (!out.is_none()) read_values(out, outputs);
        nb::list made;
        for (std::size_t i = 0; i < num_streams(); ++i) {
            nb::object values = out.is_none() ? nb::none() : nb::object(out[nb::int_(i)]);
            made.append(make_outputs(outputs[i], wanted, values, made_by));
        }
        run(outputs);
        return made;
    }

    /// All streams side by side in one output: (values, valid or None).
    nb::object run_fused(const Wanted& wanted, nb::handle allocate) {
        std::vector<AlignOutput> outputs = new_outputs();
        AlignOutput whole = outputs[0];
        whole.values.shape[2] = 0;
        for (std::size_t i = 0; i < outputs.size(); ++i) {
            require_fusible(outputs[i].values, whole.values.dtype, i);
            whole.values.shape[2] += outputs[i].values.shape[2];
        }
        whole.valid->rank = 3;
        whole.valid->shape[2] = static_cast<std::int64_t>(outputs.size());
        if (!wanted.valid) whole.valid.reset();
        const Allocator made_by = allocator(allocate);
        const bool drop = !wanted.batched && is_unbatched();
        nb::object values = made_by.make(whole.values, "values", drop);
        nb::object valid = made_by.make(whole.valid, "valid", drop);
        std::int64_t column = 0;
        for (std::size_t i = 0; i < outputs.size(); ++i) {
            const std::int64_t end = column + outputs[i].values.shape[2];
            outputs[i] = {whole.values.slice(2, column, end), {}, {}};
            column = end;
            if (!wanted.valid) continue;
            const auto plane = static_cast<std::int64_t>(i);
            outputs[i].valid = whole.valid->slice(2, plane, plane + 1);
            outputs[i].valid->rank = 2;
        }
        run(outputs);
        return nb::make_tuple(values, valid);
    }

    /// Throws if a stream whose entry of `wanted` is true has a method without a gradient. None: no stream has.
    void require_gradient(nb::handle wanted) const {
        if (wanted.is_none()) return;
        for (std::size_t i = 0; i < num_streams(); ++i) {
            if (nb::cast<bool>(wanted[nb::int_(i)])) robocache::require_gradient(plan_, i);
        }
    }

    /// For each stream the gradient of its output, and the sum to which the gradient of its values is added; or None.
    void run_backward(const nb::list& grads, const nb::list& sums) {
        std::vector<std::optional<AlignGradient>> gradients(num_streams());
        for (std::size_t i = 0; i < num_streams(); ++i) {
            const nb::object grad = grads[i];
            if (grad.is_none()) continue;
            gradients[i] = {arguments_.tensor(grad, "gradients", Access::read),
                            arguments_.tensor(nb::object(sums[i]), "gradients", Access::write)};
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

    /// The outputs for the values that the caller gave.
    void read_values(nb::handle out, std::vector<AlignOutput>& outputs) {
        for (std::size_t i = 0; i < outputs.size(); ++i) {
            outputs[i].values = arguments_.tensor(nb::object(out[nb::int_(i)]), {"out", i, ""}, Access::write);
        }
    }

    /// (values, valid or None, index or None) of one stream, of which `output` becomes a view. `values`: given, or
    /// None.
    nb::object make_outputs(AlignOutput& output, const Wanted& wanted, nb::object values, const Allocator& made_by) {
        const bool drop = !wanted.batched && is_unbatched();
        if (!wanted.valid) output.valid.reset();
        if (!wanted.index) output.index.reset();
        if (values.is_none()) values = made_by.make(output.values, "values", drop);
        nb::object valid = made_by.make(output.valid, "valid", drop);
        nb::object index = made_by.make(output.index, "index", drop);
        return nb::make_tuple(values, valid, index);
    }

    [[nodiscard]] Allocator allocator(nb::handle allocate) {
        const DType dtype = arguments_.streams()[0].values.dtype;
        return {arguments_.names().op, arguments_.reader(), allocate, like_, dtype};
    }

    /// Without data.
    [[nodiscard]] std::vector<AlignOutput> new_outputs() const {
        std::vector<AlignOutput> outputs;
        outputs.reserve(num_streams());
        for (std::size_t i = 0; i < num_streams(); ++i) outputs.push_back(plan_.output(i));
        return outputs;
    }

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

    /// One episode, one row of targets: the arrays have no batch dimension, so the results have none.
    bool is_unbatched() const {
        for (const StreamView& stream : arguments_.streams()) {
            if (stream.times.rank != 1 || stream.offsets) return false;
        }
        const Query& query = arguments_.query();
        return query.times && query.times->rank == 1 && !query.episode;
    }

    AlignArguments arguments_;
    nb::handle like_;  // the values of the first stream
    AlignPlan plan_;
};

}  // namespace robocache::python
