// align and its gradient as XLA FFI handlers, and the plan of a traced call.
#include "robocache/align.hpp"

#include <nanobind/stl/string.h>

#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "align/arguments.hpp"
#include "jax/traced.hpp"

namespace nb = nanobind;

namespace robocache::python::xla_ffi {
namespace {

/// Everything about a call but its arrays.
struct Spec {
    std::vector<StreamView> streams;  // without tensors; offsets: whether there are any
    std::vector<std::vector<ChannelRange>> ranges;
    std::array<bool, 4> query{};  // times, episode, anchor, deltas: whether they are there
    bool valid = false;
    bool index = false;
    bool fused = false;
    bool check = false;
};

std::int64_t packed_dtype(const std::optional<DType>& dtype) {
    return dtype ? static_cast<std::int64_t>(*dtype) : -1;
}

/// The inverse of unpack. The streams' ranges are those of their views.
Packed pack(const Spec& spec) {
    Packed packed;
    auto& integers = packed.integers;
    const auto add = [&](auto value) { integers.push_back(static_cast<std::int64_t>(value)); };
    for (bool flag : {spec.valid, spec.index, spec.fused, spec.check}) add(flag);
    for (bool given : spec.query) add(given);
    add(spec.streams.size());
    for (const StreamView& stream : spec.streams) {
        add(stream.offsets.has_value());
        add(stream.method);
        add(stream.before);
        add(stream.after);
        add(stream.outside_valid);
        add(packed_dtype(stream.dtype));
        add(stream.max_gap.has_value());
        const Duration gap = stream.max_gap.value_or(Duration{});
        for (const Duration& duration : {stream.latency, gap, stream.tolerance}) {
            add(duration.ns);
            packed.reals.push_back(duration.seconds);
        }
        packed.reals.push_back(stream.period);
        add(stream.ranges.size());
        for (const ChannelRange& range : stream.ranges) {
            add(range.begin);
            add(range.end);
            add(range.method);
        }
    }
    return packed;
}

Duration unpack_duration(Unpacker& options) {
    const std::int64_t ns = options.integer();
    return {ns, options.real()};
}

Spec unpack(Unpacker& options) {
    Spec spec;
    for (bool* flag : {&spec.valid, &spec.index, &spec.fused, &spec.check}) *flag = options.flag();
    for (bool& given : spec.query) given = options.flag();
    const auto num_streams = static_cast<std::size_t>(options.integer());
    spec.ranges.resize(num_streams);
    for (std::size_t i = 0; i < num_streams; ++i) {
        StreamView& stream = spec.streams.emplace_back();
        if (options.flag()) stream.offsets.emplace();
        stream.method = options.as<Method>();
        stream.before = options.as<Outside>();
        stream.after = options.as<Outside>();
        stream.outside_valid = options.flag();
        if (const std::int64_t dtype = options.integer(); dtype >= 0) stream.dtype = static_cast<DType>(dtype);
        const bool has_gap = options.flag();
        stream.latency = unpack_duration(options);
        if (const Duration gap = unpack_duration(options); has_gap) stream.max_gap = gap;
        stream.tolerance = unpack_duration(options);
        stream.period = options.real();
        const std::int64_t num_ranges = options.integer();
        for (std::int64_t r = 0; r < num_ranges; ++r) {
            ChannelRange& range = spec.ranges[i].emplace_back();
            range.begin = options.integer();
            range.end = options.integer();
            range.method = options.as<Method>();
        }
        stream.ranges = spec.ranges[i];
    }
    return spec;
}

/// Names of the function and its arguments, one a line: op, query times, then values and times of each stream.
std::string pack_names(const AlignNames& names) {
    std::string text(names.op);
    text.append("\n").append(names.query_times);
    for (const StreamNames& stream : names.streams) {
        text.append("\n").append(stream.values).append("\n").append(stream.times);
    }
    return text;
}

/// The inverse; views of `text`.
class NamesView {
public:
    explicit NamesView(std::string_view text) {
        std::vector<std::string_view> lines;
        for (std::size_t begin = 0; begin <= text.size();) {
            const std::size_t end = std::min(text.find('\n', begin), text.size());
            lines.push_back(text.substr(begin, end - begin));
            begin = end + 1;
        }
        for (std::size_t i = 2; i + 1 < lines.size(); i += 2) streams_.push_back({lines[i], lines[i + 1], true});
        names_ = {lines.at(0), lines.at(1), lines.at(1) == "times", streams_};
    }
    NamesView(const NamesView&) = delete;
    NamesView& operator=(const NamesView&) = delete;
    ~NamesView() = default;
    [[nodiscard]] const AlignNames& get() const { return names_; }

private:
    std::vector<StreamNames> streams_;
    AlignNames names_;
};

void take_times(StreamView& stream, Buffers& buffers) {
    stream.times = buffers.operand(Role::wide);
    if (stream.offsets) stream.offsets = buffers.operand(Role::wide);
}

Query take_query(const Spec& spec, Buffers& buffers) {
    Query query;
    if (spec.query[0]) query.times = buffers.operand(Role::wide);
    if (spec.query[1]) query.episode = buffers.operand(Role::wide);
    if (spec.query[2]) query.anchor = buffers.operand(Role::wide);
    if (spec.query[3]) query.deltas = buffers.operand(Role::wide);
    return query;
}

/// Operands: values, times and offsets of each stream, then the query. Results: values, valid, index, each of all
/// streams; of a fused call one of each.
void compute_align(Buffers& buffers, std::string_view names, Unpacker options, CudaQueue queue) {
    Spec spec = unpack(options);
    const NamesView named(names);
    for (StreamView& stream : spec.streams) {
        stream.values = buffers.operand();
        take_times(stream, buffers);
    }
    const Query query = take_query(spec, buffers);
    const AlignPlan plan = plan_align(spec.streams, query, {spec.check, named.get()});
    std::vector<AlignOutput> outputs(plan.num_streams());
    if (spec.fused) {
        const TensorView whole = buffers.result();
        std::optional<TensorView> planes;
        if (spec.valid) planes = buffers.result();
        std::int64_t column = 0;
        for (std::size_t i = 0; i < outputs.size(); ++i) {
            const std::int64_t end = column + plan.output(i).values.shape[2];
            outputs[i].values = whole.slice(2, column, end);
            column = end;
            if (!planes) continue;
            const auto plane = static_cast<std::int64_t>(i);
            outputs[i].valid = planes->slice(2, plane, plane + 1);
            outputs[i].valid->rank = 2;
        }
    } else {
        for (AlignOutput& output : outputs) output.values = buffers.result();
        if (spec.valid)
            for (AlignOutput& output : outputs) output.valid = buffers.result();
        if (spec.index)
            for (AlignOutput& output : outputs) output.index = buffers.result(Role::wide);
    }
    run(plan, outputs, buffers.workspace(plan.workspace_bytes()), queue);
}

/// Options: whether each stream has a gradient, then those of the call. Operands: for each stream with a gradient the
/// sums (zeros, which become the result), the gradient of its output unless the call is fused, and its values where the
/// gradient reads them; times and offsets of every stream; the query; the gradient of a fused output. Results: the
/// sums.
void compute_backward(Buffers& buffers, std::string_view names, Unpacker options, CudaQueue queue) {
    std::vector<bool> wanted(static_cast<std::size_t>(options.integer()));
    for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] = options.flag();
    Spec spec = unpack(options);
    const NamesView named(names);
    std::vector<std::optional<AlignGradient>> gradients(wanted.size());
    for (std::size_t i = 0; i < wanted.size(); ++i) {
        StreamView& stream = spec.streams[i];
        if (wanted[i]) {
            (void)buffers.operand();  // the zeros: the same memory as the result
            AlignGradient& gradient = gradients[i].emplace();
            gradient.values = buffers.result();
            if (!spec.fused) gradient.output = buffers.operand();
            const bool reads_values = options.flag();
            stream.values = reads_values ? buffers.operand() : gradient.values;
            stream.dtype.reset();
            take_times(stream, buffers);
        } else {  // it still counts for the number of query rows; its times serve as its values
            StreamView other;
            other.offsets = stream.offsets;
            take_times(other, buffers);
            other.values = other.times;
            stream = other;
        }
    }
    const Query query = take_query(spec, buffers);
    if (spec.fused) {
        const TensorView whole = buffers.operand();
        std::int64_t column = 0;
        for (std::size_t i = 0; i < wanted.size(); ++i) {
            const std::int64_t width = options.integer();
            if (wanted[i]) gradients[i]->output = whole.slice(2, column, column + width);
            column += width;
        }
    }
    const AlignPlan plan = plan_align(spec.streams, query, {false, named.get()});
    run_backward(plan, gradients, buffers.workspace(plan.workspace_bytes()), queue);
}

/// Plans a call of arrays without data. `gradient`: None, or whether each stream needs one: then its method must have
/// one.
nb::tuple trace_align(const Names& names, const nb::list& streams, nb::handle times, nb::handle episode,
                      nb::handle anchor, nb::handle deltas, bool valid, bool index, bool fused, bool check,
                      nb::handle gradient) {
    const AlignArguments arguments(names.view(), given_streams(streams), {times, episode, anchor, deltas}, nb::none());
    const AlignPlan plan = plan_align(arguments.streams(), arguments.query(), {check, arguments.names()});
    nb::list outputs;
    for (std::size_t i = 0; i < plan.num_streams(); ++i) {
        if (!gradient.is_none() && nb::cast<bool>(gradient[nb::int_(i)])) require_gradient(plan, i);
        outputs.append(result_of(plan.output(i).values));
    }
    const Query& query = arguments.query();
    Spec spec;
    spec.streams.assign(arguments.streams().begin(), arguments.streams().end());
    spec.query = {query.times.has_value(), query.episode.has_value(), query.anchor.has_value(),
                  query.deltas.has_value()};
    spec.valid = valid;
    spec.index = index;
    spec.fused = fused;
    spec.check = check;
    return traced(outputs, plan.workspace_bytes(), pack_names(arguments.names()), pack(spec));
}

}  // namespace

std::vector<Handlers> align_handlers() {
    return {handlers<compute_align>("robocache_align"), handlers<compute_backward>("robocache_align_backward")};
}

void bind_align(nb::module_& m) {
    m.def("trace_align", &trace_align, nb::arg("names"), nb::arg("streams"), nb::arg("times").none(),
          nb::arg("episode").none(), nb::arg("anchor").none(), nb::arg("deltas").none(), nb::arg("valid"),
          nb::arg("index"), nb::arg("fused"), nb::arg("check"), nb::arg("gradient").none());
}

}  // namespace robocache::python::xla_ffi
