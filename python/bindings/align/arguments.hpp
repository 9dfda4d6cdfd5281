// What Python passes to align, as the views and options of C++.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "arrays/tensor_reader.hpp"
#include "robocache/align.hpp"

namespace robocache::python {

/// What error messages call a function that wraps align, and its arguments. Made once per function, not per call.
class Names {
public:
    /// values, times: the names of those of each stream, where messages do not call them "streams[i].values".
    Names(std::string op, std::string query_times, std::vector<std::string> values, std::vector<std::string> times);
    Names(const Names&) = delete;
    Names& operator=(const Names&) = delete;
    ~Names() = default;

    [[nodiscard]] const AlignNames& view() const { return view_; }

private:
    std::string op_;
    std::string query_times_;
    std::vector<std::string> values_;
    std::vector<std::string> times_;
    std::vector<StreamNames> streams_;
    AlignNames view_;
};

/// The fields of a Stream of Python. References to objects that live as long as the call.
struct GivenStream {
    nanobind::handle values, times, offsets;  // offsets: or None
    nanobind::handle method, latency, max_gap, outside, outside_valid, period, dtype, tolerance;
};

/// The same as an object of Python, which keeps the fields alive.
class StreamObject {
public:
    explicit StreamObject(const GivenStream& given);
    StreamObject(const StreamObject&) = delete;
    StreamObject& operator=(const StreamObject&) = delete;
    ~StreamObject() { clear(); }

    [[nodiscard]] const GivenStream& given() const { return given_; }
    int traverse(visitproc visit, void* arg) const;
    void clear();

private:
    GivenStream given_;
    bool is_cleared_ = false;
};

/// The arrays of a query of Python, or None.
struct GivenQuery {
    nanobind::handle times = nanobind::none(), episode = nanobind::none();
    nanobind::handle anchor = nanobind::none(), deltas = nanobind::none();
};

/// The arguments of one call, with everything that keeps them alive.
class AlignArguments {
public:
    /// queue: see TensorReader.
    AlignArguments(const AlignNames& names, std::span<const GivenStream> streams, const GivenQuery& query,
                   nanobind::handle queue);

    TensorView tensor(nanobind::handle object, const ArgumentName& name, Access access = Access::read) {
        return reader_.read(object, {names_.op, name}, access);
    }
    std::optional<TensorView> optional_tensor(nanobind::handle object, const ArgumentName& name,
                                              Access access = Access::read) {
        if (object.is_none()) return std::nullopt;
        return tensor(object, name, access);
    }

    [[nodiscard]] const AlignNames& names() const { return names_; }
    [[nodiscard]] std::span<const StreamView> streams() const { return streams_; }
    [[nodiscard]] const Query& query() const { return query_; }
    [[nodiscard]] TensorReader& reader() { return reader_; }
    [[nodiscard]] const TensorReader& reader() const { return reader_; }

private:
    void add_stream(const GivenStream& given);
    void read_outside(StreamView& view, nanobind::handle outside, const ArgumentName& name) const;
    void read_method(StreamView& view, nanobind::handle method, const ArgumentName& name);

    const AlignNames& names_;
    TensorReader reader_;
    std::vector<StreamView> streams_;
    std::vector<std::vector<ChannelRange>> ranges_;  // what the StreamViews' ranges point into
    Query query_;
};

/// The fields of a list of Streams; the list must outlive them.
[[nodiscard]] std::vector<GivenStream> given_streams(const nanobind::list& streams);

}  // namespace robocache::python
