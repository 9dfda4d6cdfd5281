// decode on the CPU: each thread takes a picture at a time, from its bytes to the output.
#include <algorithm>
#include <string>
#include <vector>

#include "core/thread_pool.hpp"
#include "ops/decode/contract/plan.hpp"
#include "ops/decode/cpu/planes.hpp"
#include "ops/decode/cpu/resize.hpp"
#include "ops/decode/cpu/rows.hpp"
#include "ops/decode/cpu/store.hpp"
#include "robocache/errors.hpp"

namespace robocache::decode_detail {
namespace {

/// The memory of one thread, used for one picture after another.
class PictureDecoder {
public:
    PictureDecoder(const Plan& plan, const RowStore& store) : plan_(plan), store_(store) {}

    void decode(const PictureJob& job, void* out) {
        const PictureRecord& record = plan_.index.record(job.row);
        const Style& style = plan_.style;
        const Bytes picture(plan_.bytes + plan_.offsets[job.row], record.num_bytes);
        if (record.codec == Codec::pixels) {
            rows_.begin(picture.data(), record, job.box, style.channels);
        } else if (record.codec == Codec::yuv420) {
            rows_.begin_yuv(picture.data(), record, job.box, style.channels);
        } else {
            const bool only_first = style.channels == 1 && record.color != ColorSpace::rgb;
            decode_planes(picture, record, plan_.index, job.box, only_first, tables_, planes_);
            rows_.begin(planes_, record.color, job.box, style.channels);
        }
        write(job, {out, job.flip, job.factors});
    }

private:
    void write(const PictureJob& job, const PictureOutput& output) {
        const Style& style = plan_.style;
        const int width = job.box.x1 - job.box.x0;
        const int height = job.box.y1 - job.box.y0;
        along_x_.prepare(width, style.out_width, style.is_area);
        along_y_.prepare(height, style.out_height, style.is_area);
        const int row_bytes = style.out_width * style.channels;
        row_.resize(static_cast<std::size_t>(width) * static_cast<std::size_t>(style.channels));
        if (along_y_.is_identity()) {
            narrow_.resize(static_cast<std::size_t>(row_bytes));
            for (int y = 0; y < height; ++y) store_.write(output, y, make_row(job.box.y0 + y, narrow_.data()));
            return;
        }
        const int first = along_y_.first(0);
        const int end = along_y_.first(style.out_height - 1) + along_y_.count(style.out_height - 1);
        narrow_.resize(static_cast<std::size_t>(end - first) * static_cast<std::size_t>(row_bytes));
        for (int y = first; y < end; ++y) {
            std::uint8_t* into =
                narrow_.data() + static_cast<std::size_t>(y - first) * static_cast<std::size_t>(row_bytes);
            const std::uint8_t* made = make_row(job.box.y0 + y, into);
            if (made != into) std::copy_n(made, row_bytes, into);
        }
        row_.resize(std::max(row_.size(), static_cast<std::size_t>(row_bytes)));
        for (int y = 0; y < style.out_height; ++y) {
            resize_column(along_y_, y, narrow_.data(), first, row_bytes, sums_, row_.data());
            store_.write(output, y, row_.data());
        }
    }

    /// Row y of the picture at its final width: in `into`, or in row_ where the width stays.
    const std::uint8_t* make_row(int y, std::uint8_t* into) {
        rows_.make(y, row_.data());
        if (along_x_.is_identity()) return row_.data();
        resize_row(along_x_, plan_.style.out_width, plan_.style.channels, row_.data(), into);
        return into;
    }

    const Plan& plan_;
    const RowStore& store_;
    PictureTables tables_;
    Planes planes_;
    RowMaker rows_;
    AxisWeights along_x_;
    AxisWeights along_y_;
    std::vector<std::uint8_t> row_;
    std::vector<std::uint8_t> narrow_;
    std::vector<std::int32_t> sums_;
};

/// Every picture must lie in the bytes, with the size that the index has for it.
void check_offsets(const Plan& plan, std::string_view op) {
    for (const PictureJob& job : plan.jobs) {
        const std::int64_t begin = plan.offsets[job.row];
        const std::int64_t end = plan.offsets[job.row + 1];
        const std::string picture = std::string(op) + ": pictures[" + std::to_string(job.row) + "] must ";
        if (begin < 0 || end < begin || end > plan.num_bytes) {
            throw InvalidArgument(picture + "lie in the " + std::to_string(plan.num_bytes) + " bytes, got offsets " +
                                  std::to_string(begin) + " and " + std::to_string(end));
        }
        const std::int64_t expected = plan.index.record(job.row).num_bytes;
        if (end - begin != expected) {
            throw InvalidArgument(picture + "have the " + std::to_string(expected) +
                                  " bytes that its index tells, got " + std::to_string(end - begin));
        }
    }
}

}  // namespace

void decode_cpu(const Plan& plan, const Target& target, std::string_view op) {
    check_offsets(plan, op);
    const Style& style = plan.style;
    const RowStore store(style);
    const std::int64_t picture_bytes =
        std::int64_t{style.out_height} * style.out_width * style.channels * size_bytes(style.dtype);
    const auto count = static_cast<std::int64_t>(plan.jobs.size());
    // A part has a few pictures, so that its memory and its tables serve more than one.
    const std::int64_t grain = std::clamp<std::int64_t>(count / 64, 1, 16);
    parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end) {
        PictureDecoder decoder(plan, store);
        for (std::int64_t i = begin; i < end; ++i) {
            const PictureJob& job = plan.jobs[static_cast<std::size_t>(i)];
            try {
                decoder.decode(job, static_cast<char*>(target.out) + i * picture_bytes);
            } catch (const PictureFault& fault) {
                throw FormatError(std::string(op) + ": pictures[" + std::to_string(job.row) + "] must " + fault.rule +
                                  ", got " + fault.given);
            }
        }
    });
}

}  // namespace robocache::decode_detail
