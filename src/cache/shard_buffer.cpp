// Checks episodes, gathers them, and writes them as a shard.
#include <algorithm>

#include "cache/format/crc32c.hpp"
#include "cache/format/json.hpp"
#include "cache/writer.hpp"

namespace robocache::cache_detail {
namespace {

constexpr std::string_view op = "CacheWriter::add: ";

[[noreturn]] void fail(const CacheStream& stream, std::string_view part, const std::string& problem) {
    throw InvalidArgument(std::string(op) + stream.name + "." + std::string(part) + " must " + problem);
}

void check_plain(const CacheStream& stream, std::string_view part, const TensorView& view, DType dtype, int rank) {
    if (view.device.type == DeviceType::cuda) fail(stream, part, "be on the host, got " + name(view.device));
    if (view.dtype != dtype) fail(stream, part, std::string("have dtype ") + name(dtype) + ", got " + name(view.dtype));
    if (view.rank != rank) fail(stream, part, "have " + std::to_string(rank) + " dimensions, got " + shape_text(view));
    std::int64_t stride = 1;
    for (int d = rank - 1; d >= 0; --d) {
        if (view.shape[d] > 1 && view.strides[d] != stride && view.num_elements() > 0)
            fail(stream, part, "be C-contiguous");
        stride *= view.shape[d];
    }
}

const std::int64_t* numbers(const TensorView& view) {
    return static_cast<const std::int64_t*>(view.data);
}

bool is_absent(const CacheRows& rows) {
    return rows.values.rank == 0 && rows.times.rank == 0;
}

/// The bytes of a row's values, times and index.
std::int64_t size_of(const CacheRows& rows) {
    if (is_absent(rows)) return 0;
    const std::int64_t index = rows.index.rank > 0 ? rows.index.shape[0] : 0;
    return rows.values.num_elements() * robocache::size_bytes(rows.values.dtype) + rows.times.shape[0] * 8 + index;
}

template <class T>
std::string_view bytes_of(const std::vector<T>& items) {
    return {reinterpret_cast<const char*>(items.data()), items.size() * sizeof(T)};
}

}  // namespace

void check_rows(const CacheStream& stream, const CacheRows& rows) {
    if (is_absent(rows)) return;
    const std::vector<std::int64_t> shape = stream.stored_shape();
    check_plain(stream, "values", rows.values, stream.stored_dtype(), static_cast<int>(shape.size()) + 1);
    check_plain(stream, "times", rows.times, DType::i64, 1);
    if (rows.index.rank > 0) check_plain(stream, "index", rows.index, DType::u8, 1);
    if (rows.index.rank > 0 && !stream.is_encoded()) fail(stream, "index", "be of encoded pictures");
    if (!std::equal(shape.begin(), shape.end(), rows.values.shape.begin() + 1)) {
        fail(stream, "values", "have the shape of the stream, got " + shape_text(rows.values));
    }
    const std::int64_t num_messages = rows.times.shape[0];
    if (stream.has_splits()) {
        check_plain(stream, "splits", rows.splits, DType::i64, 1);
        if (rows.splits.shape[0] != num_messages + 1) fail(stream, "splits", "have one number more than times");
        const std::int64_t* splits = numbers(rows.splits);
        if (!std::is_sorted(splits, splits + num_messages + 1) || splits[0] != 0 ||
            splits[num_messages] != rows.values.shape[0]) {
            fail(stream, "splits", "increase from 0 to " + std::to_string(rows.values.shape[0]));
        }
    } else if (rows.values.shape[0] != num_messages) {
        fail(stream, "times",
             "have shape (" + std::to_string(rows.values.shape[0]) + ",), got " + shape_text(rows.times));
    }
    const std::int64_t* times = numbers(rows.times);
    const std::int64_t* fall = std::is_sorted_until(times, times + num_messages);
    if (fall != times + num_messages) {
        fail(stream, "times",
             "not decrease, got " + std::to_string(fall[0]) + " after " + std::to_string(fall[-1]) + " in row " +
                 std::to_string(fall - times));
    }
}

void ShardBuffer::add(std::int64_t index, std::span<const CacheRows> rows, std::span<const CacheStream> streams,
                      std::string_view json, std::int64_t shard_bytes) {
    size_bytes_ += static_cast<std::int64_t>(json.size()) + 16 + static_cast<std::int64_t>(rows.size()) * 8;
    for (const CacheRows& of_stream : rows) size_bytes_ += size_of(of_stream);
    const bool is_last = size_bytes_ >= shard_bytes;
    for (std::size_t s = 0; s < rows.size(); ++s) {
        StreamBuffer& buffer = streams_[s];
        if (!is_absent(rows[s])) {
            const std::int64_t num_messages = rows[s].times.shape[0];
            const auto bytes =
                static_cast<std::size_t>(rows[s].values.num_elements() * robocache::size_bytes(rows[s].values.dtype));
            const std::string_view values(static_cast<const char*>(rows[s].values.data), bytes);
            if (is_last) {
                buffer.last_values = values;
            } else {
                buffer.values += values;
            }
            const std::int64_t* times = numbers(rows[s].times);
            buffer.times.insert(buffer.times.end(), times, times + num_messages);
            const std::int64_t base = buffer.splits.back();
            for (std::int64_t m = 1; streams[s].has_splits() && m <= num_messages; ++m) {
                buffer.splits.push_back(base + numbers(rows[s].splits)[m]);
            }
            if (rows[s].index.rank > 0 && rows[s].index.shape[0] > 0) {
                buffer.index.append(static_cast<const char*>(rows[s].index.data),
                                    static_cast<std::size_t>(rows[s].index.shape[0]));
            }
        }
        buffer.index_splits.push_back(static_cast<std::int64_t>(buffer.index.size()));
        buffer.offsets.push_back(static_cast<std::int64_t>(buffer.times.size()));
    }
    index_.push_back(index);
    json_ += json;
    json_offsets_.push_back(static_cast<std::int64_t>(json_.size()));
}

void ShardBuffer::clear() {
    for (StreamBuffer& buffer : streams_) {
        buffer.values.clear();
        buffer.last_values = {};
        buffer.times.clear();
        buffer.offsets = {0};
        buffer.splits = {0};
        buffer.index.clear();
        buffer.index_splits = {0};
    }
    index_.clear();
    json_.clear();
    json_offsets_ = {0};
    size_bytes_ = 0;
}

std::vector<ShardBuffer::Part> ShardBuffer::parts(std::span<const CacheStream> streams) const {
    std::vector<Part> parts;
    const auto put = [&](std::string_view stream, std::string_view part, DType dtype, std::string_view bytes,
                         std::vector<std::int64_t> row = {}, std::string_view last = {}) {
        std::int64_t row_bytes = robocache::size_bytes(dtype);
        for (const std::int64_t extent : row) row_bytes *= extent;
        row.insert(row.begin(), static_cast<std::int64_t>(bytes.size() + last.size()) / row_bytes);
        parts.push_back({{std::string(stream) + "/" + std::string(part), dtype, std::move(row), 0, 0}, bytes, last});
    };
    put(episodes_name, "index", DType::i64, bytes_of(index_));
    put(episodes_name, "offsets", DType::i64, bytes_of(json_offsets_));
    put(episodes_name, "json", DType::u8, json_);
    for (std::size_t s = 0; s < streams.size(); ++s) {
        put(streams[s].name, "offsets", DType::i64, bytes_of(streams_[s].offsets));
        put(streams[s].name, "times", DType::i64, bytes_of(streams_[s].times));
        if (streams[s].has_splits()) put(streams[s].name, "splits", DType::i64, bytes_of(streams_[s].splits));
        if (streams[s].is_encoded()) {
            put(streams[s].name, "index_splits", DType::i64, bytes_of(streams_[s].index_splits));
            put(streams[s].name, "index", DType::u8, streams_[s].index);
        }
        put(streams[s].name, "values", streams[s].stored_dtype(), streams_[s].values, streams[s].stored_shape(),
            streams_[s].last_values);
    }
    // Large elements first: then every tensor begins at a multiple of its element, without gaps.
    std::stable_sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
        return robocache::size_bytes(a.entry.dtype) > robocache::size_bytes(b.entry.dtype);
    });
    return parts;
}

ShardFile ShardBuffer::file(std::span<const CacheStream> streams, std::string_view fingerprint) const {
    ShardHeader header;
    BlockSums sums;
    ShardFile file;
    file.pieces = {{}};
    for (Part& part : parts(streams)) {
        for (const std::string_view bytes : {part.bytes, part.last_bytes}) {
            sums.add(bytes);
            file.pieces.push_back(bytes);
        }
        header.tensors.push_back(std::move(part.entry));
    }
    ShardEntry& entry = file.entry;
    entry.num_episodes = num_episodes();
    entry.blocks = sums.finish();
    header.metadata = {{"format", "robocache"},
                       {"version", version_text(streams)},
                       {"fingerprint", std::string(fingerprint)},
                       {"blocks", blocks_text(entry.blocks)}};
    file.header = make_safetensors_header(header);
    file.pieces[0] = file.header;
    entry.header_bytes = header.size_bytes;
    entry.header_crc32c = crc32c(file.header);
    entry.size_bytes = header.size_bytes + header.tensors.back().end;
    return file;
}

}  // namespace robocache::cache_detail
